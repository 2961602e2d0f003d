//! The rules in CEL that the schemas carry, each with what a user reads when it is broken. An API server
//! of 1.25 or later evaluates them; `neptune-cloud` finds the same by itself and is the one that decides.
//!
//! A rule may read only what the schema bounds, and a message only fields that it reaches by name from
//! `self`: an API server gives up on the price of anything else (see docs/adr/0013).

use kube::core::{Message, Reason, Rule};

/// An image wins, and an empty one is none: then the manifest is not looked at.
const BY_IMAGE: &str = "(has(self.image) && self.image != '')";

/// What can be fetched: see `neptune-cloud`'s `ModelSource`.
const ADDRESS: &str = "^((?i:https?)://[^/?#]|(?i:s3)://[^/]+/.|((?i:file)://)?/+[^/])";

fn unless_by_image(rest: &str, field: &str, message: impl Into<Message>) -> Rule {
    Rule::new(format!("{BY_IMAGE} || {rest}")).field_path(field).message(message)
}

/// `rest` of every file of the manifest, which may be missing.
fn of_every_file(rest: &str, message: &str) -> Rule {
    let rule = format!("!has(self.manifest) || self.manifest.all(f, {rest})");
    unless_by_image(&rule, ".manifest", message)
}

pub(crate) fn manifest_given() -> Rule {
    unless_by_image(
        "(has(self.manifest) && size(self.manifest) > 0)",
        ".manifest",
        "list the versions of the model, or give an image that has the model in it in spec.image",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn versions_named() -> Rule {
    of_every_file(
        "has(f.version) && f.version.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",
        "every version must be 1 to 63 letters, digits, '.', '-' and '_', beginning and ending with a letter or digit",
    )
}

pub(crate) fn versions_unique() -> Rule {
    of_every_file(
        "!has(f.version) || self.manifest.exists_one(g, has(g.version) && g.version == f.version)",
        "a version stands there twice; remove one of the two",
    )
}

pub(crate) fn files_addressed() -> Rule {
    of_every_file(
        &format!("has(f.downloadURL) && f.downloadURL.matches('{ADDRESS}')"),
        "every downloadURL must be http://..., https://..., s3://bucket/key or, on a node with an agent, file:///...",
    )
}

pub(crate) fn digests_formed() -> Rule {
    of_every_file(
        "!has(f.sha256sum) || f.sha256sum.matches('^([0-9a-fA-F]{64})?$')",
        "every sha256sum must be 64 hex digits, as sha256sum prints them, or left out",
    )
}

pub(crate) fn target_given() -> Rule {
    unless_by_image(
        "(has(self.targetVersion) && self.targetVersion != '')",
        ".targetVersion",
        "name the version of spec.manifest that is to be served",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn target_listed() -> Rule {
    unless_by_image(
        "!has(self.targetVersion) || self.targetVersion == '' || !has(self.manifest) || \
         size(self.manifest) == 0 || \
         self.manifest.exists(f, has(f.version) && f.version == self.targetVersion)",
        ".targetVersion",
        Message::Expression(
            "'\"' + self.targetVersion + '\" is no version of spec.manifest; correct it or add the version'"
                .to_owned(),
        ),
    )
}

pub(crate) fn edge_placed() -> Rule {
    Rule::new(
        "self.deployToLayer != 'edge' || (has(self.nodeName) && self.nodeName != '') || \
         (has(self.nodeSelector) && size(self.nodeSelector) > 0)",
    )
    .field_path(".nodeName")
    .message("name an edge node, or give labels that one has in spec.nodeSelector")
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn image_has_no_version() -> Rule {
    Rule::new(format!(
        "!{BY_IMAGE} || !has(self.health) || !has(self.health.httpPath) || \
         !self.health.httpPath.contains('{{version}}')"
    ))
    .field_path(".health.httpPath")
    .message("an image that brings its model has no {version}; leave it out of the path")
}

pub(crate) fn one_check() -> Rule {
    Rule::new("!(has(self.tcp) && self.tcp && has(self.httpPath) && self.httpPath != '')")
        .message("httpPath and tcp are two ways of one check; give one")
}

/// Of a node's name: the topics of workers begin with this word.
pub(crate) fn no_workers_branch() -> Rule {
    Rule::new("self != 'workers'").message(
        "a node of this name cannot be reached: workers is a word of the topics; rename the node",
    )
}

/// Of a Model's address, or nothing.
pub(crate) fn model_address() -> Rule {
    address_or_empty(ADDRESS)
}

/// Of a Dataset's address, or nothing. The node's agent looks closer than this.
pub(crate) fn data_address() -> Rule {
    address_or_empty("^((https?|s3)://.|(file://)?/)")
}

fn address_or_empty(pattern: &str) -> Rule {
    Rule::new(format!("self == '' || self.matches('{pattern}')")).message(
        "must be an absolute path on the node, file:///path, http://..., https://... or s3://bucket/key",
    )
}

/// Of a quantity that limits something.
pub(crate) fn above_zero() -> Rule {
    Rule::new(
        "self.matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$') && \
         self.matches('^[0.]*[1-9]')",
    )
    .message("must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"")
}
