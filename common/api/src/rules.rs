//! The CEL validation rules of the schemas, with their messages. API servers of Kubernetes 1.25 or
//! later evaluate them. `neptune-cloud` validates the same and is authoritative.
//!
//! A rule may only read fields of bounded size: an API server refuses anything else as too
//! expensive (ADR 13 in `docs/adr`). `neptune_cel_cost` finds such rules. Messages are fixed texts:
//! the API server names the field, and a text that a rule builds is one more expression to bound.
//!
//! The rules of `JointInferenceService` and of `TrainingModel` are in the folders of these kinds.

use kube::core::{Reason, Rule};

/// Whether `image` is set and not empty: then the manifest is ignored.
const BY_IMAGE: &str = "(has(self.image) && self.image != '')";

/// Pattern of the address of a model: an http(s), s3, hf or oci URL, a file URL or an absolute path. It
/// matches every address that `neptune_wire::ArtifactAddress` accepts.
const ADDRESS: &str =
    "^((?i:https?)://[^/?#]|(?i:s3|hf|oci)://[^/]+/.|((?i:file)://(localhost)?)?/+[^/])";

/// Pattern of the address of a dataset, as of a model, but not of a model hub.
const DATA_ADDRESS: &str =
    "^((?i:https?)://[^/?#]|(?i:s3)://[^/]+/.|((?i:file)://(localhost)?)?/+[^/])";

fn unless_by_image(rest: &str, field: &str, message: &str) -> Rule {
    Rule::new(format!("{BY_IMAGE} || {rest}")).field_path(field).message(message)
}

/// Requires `rest` for every file `f` of the manifest, which may be missing.
fn every_file(rest: &str, message: &str) -> Rule {
    let rule = format!("!has(self.manifest) || self.manifest.all(f, {rest})");
    unless_by_image(&rule, ".manifest", message)
}

pub(crate) fn manifest_given() -> Rule {
    unless_by_image(
        "(has(self.manifest) && size(self.manifest) > 0) || has(self.model)",
        ".manifest",
        "must list the versions of the model, or set spec.model to a Model, or spec.image to an image that contains the model",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn log_request_fixed() -> Rule {
    Rule::new("self == oldSelf").message("cannot be changed; create another LogRequest")
}

pub(crate) fn log_worker_of_kind() -> Rule {
    Rule::new(
        "(self.objectRef.kind == 'InferenceModel') == (self.worker == 'server' || self.worker == 'transformer')",
    )
    .field_path(".worker")
    .message(
        "must be edge or cloud for a JointInferenceService, and server or transformer for an InferenceModel",
    )
}

pub(crate) fn one_log_time() -> Rule {
    Rule::new("!has(self.sinceSeconds) || !has(self.sinceTime)")
        .message("set sinceSeconds or sinceTime, not both")
}

pub(crate) fn versions_named() -> Rule {
    every_file(
        "has(f.version) && f.version.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",
        "every version must be 1 to 63 letters, digits, '.', '-' and '_', starting and ending with a letter or digit",
    )
}

pub(crate) fn versions_unique() -> Rule {
    every_file(
        "!has(f.version) || self.manifest.exists_one(g, has(g.version) && g.version == f.version)",
        "duplicate version; remove one of the entries",
    )
}

pub(crate) fn files_addressed() -> Rule {
    every_file(
        &format!("has(f.downloadURL) && f.downloadURL.matches('{ADDRESS}')"),
        "every downloadURL must be http://..., https://..., s3://bucket/key, hf://organization/repository, oci://registry/repository, or file:///... on a node with an agent",
    )
}

pub(crate) fn digests_formed() -> Rule {
    every_file(
        "!has(f.sha256sum) || f.sha256sum.matches('^([0-9a-fA-F]{64})?$')",
        "every sha256sum must be 64 hex digits, as printed by sha256sum, or not set",
    )
}

pub(crate) fn manifest_mirrors_verified() -> Rule {
    every_file(
        "!has(f.mirrors) || size(f.mirrors) == 0 || (has(f.sha256sum) && f.sha256sum != '')",
        "mirrors need the sha256sum of the file; set it, or remove mirrors",
    )
}

pub(crate) fn mirrors_verified() -> Rule {
    Rule::new("!has(self.mirrors) || size(self.mirrors) == 0 || has(self.sha256sum)")
        .field_path(".mirrors")
        .message("mirrors need sha256sum; set it, or remove mirrors")
}

pub(crate) fn model_or_manifest() -> Rule {
    unless_by_image(
        "!has(self.model) || !has(self.manifest) || size(self.manifest) == 0",
        ".manifest",
        "give manifest or model, not both",
    )
}

pub(crate) fn no_target_with_model() -> Rule {
    unless_by_image(
        "!has(self.model) || !has(self.targetVersion) || self.targetVersion == ''",
        ".targetVersion",
        "remove it: the version comes from the Model",
    )
}

pub(crate) fn target_given() -> Rule {
    unless_by_image(
        "(has(self.targetVersion) && self.targetVersion != '') || has(self.model)",
        ".targetVersion",
        "must be the version in spec.manifest to serve",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn target_listed() -> Rule {
    unless_by_image(
        "!has(self.targetVersion) || self.targetVersion == '' || !has(self.manifest) || \
         size(self.manifest) == 0 || \
         self.manifest.exists(f, has(f.version) && f.version == self.targetVersion)",
        ".targetVersion",
        "must be one of the versions in spec.manifest; correct it or add the version",
    )
}

pub(crate) fn edge_placed() -> Rule {
    Rule::new(
        "self.deployToLayer != 'edge' || (has(self.nodeName) && self.nodeName != '') || \
         (has(self.nodeSelector) && size(self.nodeSelector) > 0)",
    )
    .field_path(".nodeName")
    .message("must be the name of an edge node, or set spec.nodeSelector to the labels of one")
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn image_has_no_version() -> Rule {
    Rule::new(format!(
        "!{BY_IMAGE} || !has(self.health) || !has(self.health.httpPath) || \
         !self.health.httpPath.contains('{{version}}')"
    ))
    .field_path(".health.httpPath")
    .message("must not contain {version}: an image that contains its model has no version")
}

pub(crate) fn one_health_check() -> Rule {
    Rule::new("!(has(self.tcp) && self.tcp && has(self.httpPath) && self.httpPath != '')")
        .message("httpPath and tcp are mutually exclusive; remove one")
}

pub(crate) fn serving_ports_differ() -> Rule {
    Rule::new("!has(self.grpcPort) || !has(self.servingPort) || self.grpcPort != self.servingPort")
        .field_path(".grpcPort")
        .message("must differ from servingPort")
}

/// Whether `scriptDir` is set and not empty.
const BY_SCRIPT: &str = "(has(self.scriptDir) && self.scriptDir != '')";

pub(crate) fn transformer_program() -> Rule {
    Rule::new(format!("{BY_IMAGE} || {BY_SCRIPT}")).message("give image or scriptDir")
}

pub(crate) fn transformer_script() -> Rule {
    Rule::new(format!("{BY_SCRIPT} == (has(self.scriptBootFile) && self.scriptBootFile != '')"))
        .field_path(".scriptBootFile")
        .message("give scriptDir and scriptBootFile together, or neither of them")
}

pub(crate) fn transformer_framework() -> Rule {
    Rule::new(format!("!{BY_SCRIPT} || (has(self.frameworkType) && self.frameworkType != '')"))
        .field_path(".frameworkType")
        .message("must be the framework that starts the script of scriptDir, such as python")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn transformer_port_differs() -> Rule {
    Rule::new(
        "!has(self.transformer) || !has(self.transformer.port) || self.transformer.port == 0 || \
         !has(self.servingPort) || self.transformer.port != self.servingPort",
    )
    .field_path(".transformer")
    .message("port must differ from servingPort, on which the transformer listens")
}

pub(crate) fn transformer_has_no_grpc() -> Rule {
    Rule::new("!has(self.transformer) || !has(self.grpcPort)")
        .field_path(".grpcPort")
        .message("remove it: a transformer has no port for gRPC")
}

/// Refuses the node name `workers`, which is the topic level of the workers.
pub(crate) fn node_name_not_reserved() -> Rule {
    Rule::new("self != 'workers'")
        .message("the node name \"workers\" is reserved for MQTT topics; rename the node")
}

/// Requires the address of a Model, or an empty string.
pub(crate) fn artifact_address() -> Rule {
    Rule::new(format!("self == '' || self.matches('{ADDRESS}')")).message(
        "must be an absolute path on the node, file:///path, http://..., https://..., s3://bucket/key, hf://organization/repository or oci://registry/repository",
    )
}

/// Requires the address of a Dataset, or an empty string.
pub(crate) fn data_address() -> Rule {
    Rule::new(format!("self == '' || self.matches('{DATA_ADDRESS}')")).message(
        "must be an absolute path on the node, file:///path, http://..., https://... or s3://bucket/key",
    )
}

/// Whether nodeSelector is set and not empty.
pub(crate) const BY_LABELS: &str = "(has(self.nodeSelector) && size(self.nodeSelector) > 0)";

/// Whether nodeNames of a placement is set and not empty.
const BY_NAMES: &str = "(has(self.nodeNames) && size(self.nodeNames) > 0)";

pub(crate) fn placement_once() -> Rule {
    Rule::new(format!("!({BY_NAMES} && {BY_LABELS})"))
        .message("give nodeNames or nodeSelector, not both")
}

pub(crate) fn placement_given() -> Rule {
    Rule::new(format!("{BY_NAMES} || {BY_LABELS}"))
        .message("must have nodeNames or nodeSelector; remove placement to keep the model only where it is used")
        .reason(Reason::FieldValueRequired)
}

/// Requires the replicas of a Dataset to be on other nodes than its data.
pub(crate) fn source_is_no_replica() -> Rule {
    Rule::new(
        "!has(self.replicas) || !has(self.replicas.nodeNames) || !has(self.nodeName) || \
         !self.replicas.nodeNames.exists(name, name == self.nodeName)",
    )
    .field_path(".replicas")
    .message("must not have spec.nodeName, which is the source; name other nodes as replicas")
}

pub(crate) fn replica_names_not_reserved() -> Rule {
    placement_names_not_reserved()
}

pub(crate) fn placement_names_not_reserved() -> Rule {
    Rule::new("!has(self.nodeNames) || !self.nodeNames.exists(name, name == 'workers')")
        .field_path(".nodeNames")
        .message("the node name \"workers\" is reserved for MQTT topics; rename the node")
}

/// Expression of a Kubernetes quantity above zero in a text.
fn is_above_zero(text: &str) -> String {
    format!(
        "{text}.matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$') && \
         {text}.matches('^[0.]*[1-9]')"
    )
}

/// Requires a Kubernetes quantity above zero.
pub(crate) fn above_zero() -> Rule {
    Rule::new(is_above_zero("self"))
        .message("must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"")
}

/// Requires the limit of a resource to be a Kubernetes quantity above zero, if there is one.
pub(crate) fn limit_above_zero(resource: &str) -> Rule {
    let is_above_zero = is_above_zero(&format!("string(self['{resource}'])"));
    Rule::new(format!("!('{resource}' in self) || {is_above_zero}")).message(&*format!(
        "{resource} must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\""
    ))
}

/// Requires the name of a limit to be `cpu`, `memory` or that of an extended resource.
pub(crate) fn limits_known() -> Rule {
    Rule::new(
        "self.all(name, name in ['cpu', 'memory'] || name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?\
         ([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
    )
    .message(
        "must be cpu, memory or devices of the node with their domain, such as nvidia.com/gpu; \
         remove other names, such as ephemeral-storage and hugepages-2Mi",
    )
}

/// Refuses the resources that only Kubernetes itself provides.
pub(crate) fn limits_without_pod_resources() -> Rule {
    Rule::new("self.all(name, !name.matches('^([^/]*[.])?kubernetes[.]io/'))")
        .message("the domain kubernetes.io is reserved; name the devices with another domain")
}

/// Requires the numbers of devices to be whole numbers up to the maximum.
pub(crate) fn devices_counted(most: u32) -> Rule {
    let list = |quote: &str| {
        let numbers: Vec<_> = (1..=most).map(|it| format!("{quote}{it}{quote}")).collect();
        numbers.join(",")
    };
    let (numbers, texts) = (list(""), list("'"));
    Rule::new(format!(
        "self.all(name, name in ['cpu', 'memory'] || self[name] in [{numbers}] || \
         self[name] in [{texts}])"
    ))
    .message(&*format!("the number of devices must be a whole number, 1 to {most}"))
}

/// Requires exactly one action of a probe.
pub(crate) fn probe_has_one_action() -> Rule {
    Rule::new("[has(self.exec), has(self.httpGet), has(self.tcpSocket)].filter(it, it).size() == 1")
        .message("give exactly one of exec, httpGet and tcpSocket")
}

/// Requires exactly one source of a volume.
pub(crate) fn volume_has_one_source() -> Rule {
    Rule::new(
        "[has(self.emptyDir), has(self.hostPath), has(self.persistentVolumeClaim), \
         has(self.secret), has(self.configMap)].filter(it, it).size() == 1",
    )
    .message("give exactly one of emptyDir, hostPath, persistentVolumeClaim, secret and configMap")
}

/// Requires exactly one object of an entry of `envFrom`.
pub(crate) fn env_from_one_source() -> Rule {
    Rule::new("has(self.secretRef) != has(self.configMapRef)")
        .message("give exactly one of secretRef and configMapRef")
}

/// Requires the maximum size of a volume to be a Kubernetes quantity above zero.
pub(crate) fn size_above_zero() -> Rule {
    Rule::new(is_above_zero("string(self)"))
        .message("must be a Kubernetes quantity above 0, such as \"256Mi\"")
}

/// Requires an absolute path other than the root, without dots and colons.
pub(crate) fn plain_path() -> Rule {
    Rule::new("self.matches('^(/[^/:]+)+$') && !self.matches('/[.][.]?(/|$)')").message(
        "must be an absolute path other than \"/\", without \".\", \"..\", \"//\", ':' and a '/' at its end",
    )
}

/// Refuses the directories of a container that others provide.
pub(crate) fn mount_path_not_reserved() -> Rule {
    Rule::new(
        "self == '/dev/shm' || !(self.matches('^/(proc|sys|dev|models|datasets)(/|$)') || \
         self in ['/etc', '/etc/hosts', '/etc/hostname', '/etc/resolv.conf'])",
    )
    .message(
        "must not be in /proc, /sys, /dev (except /dev/shm), /models or /datasets, nor a file of /etc that the container engine provides",
    )
}

/// Requires a volume for each mount.
pub(crate) fn mounts_have_volumes() -> Rule {
    Rule::new(
        "!has(self.volumeMounts) || self.volumeMounts.all(m, has(self.volumes) && \
         self.volumes.exists(v, v.name == m.name))",
    )
    .field_path(".volumeMounts")
    .message("every name must be that of a volume in volumes")
}

/// Refuses values of node labels, which only workers at agents have.
pub(crate) fn no_node_labels() -> Rule {
    Rule::new("!has(self.env) || self.env.all(v, !has(v.valueFrom) || !has(v.valueFrom.nodeLabel))")
        .field_path(".env")
        .message("a model server gets no value of a node label; use value, secretKeyRef or configMapKeyRef")
}
