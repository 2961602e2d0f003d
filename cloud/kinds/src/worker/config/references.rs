//! The Secrets and `ConfigMap`s that a container refers to, and the checks of these fields. The schema has
//! the same rules.

use std::{collections::BTreeSet, fmt};

use neptune_api::{KeyToPath, VariableSource, Volume};
use neptune_wire::ObjectName;

use crate::{
    finding::Finding,
    kubernetes::{container_inputs::ContainerInputs, secrets::check_name},
    reason::Reason,
    worker::environment::is_variable,
};

/// Maximum number of references of a worker.
const MAX_REFERENCES: usize = 64;

/// Maximum number of entries of `envFrom`.
const MAX_ENV_FROM: usize = 32;

/// Maximum number of items of a volume.
const MAX_ITEMS: usize = 64;

/// Maximum length of a key and of a prefix, in bytes.
const MAX_KEY: usize = 253;

/// The key of a Secret with the credentials of registries.
pub const CREDENTIALS: &str = ".dockerconfigjson";

/// A kind of object with values for workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigKind {
    /// A `ConfigMap`, which needs no label.
    ConfigMap,
    /// A Secret, which needs a label before it leaves the cluster.
    Secret,
}

/// The name of a Secret or `ConfigMap` in the namespace of its worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigName {
    /// The kind of the object.
    pub kind: ConfigKind,
    /// The name of the object.
    pub name: String,
}

impl fmt::Display for ConfigName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ConfigKind::ConfigMap => "ConfigMap",
            ConfigKind::Secret => "Secret",
        };
        write!(f, "{kind} {}", self.name)
    }
}

/// One use of a Secret or `ConfigMap` by a worker.
#[derive(Debug, Clone)]
pub struct ConfigUse<'a> {
    /// The object that is used.
    pub object: ConfigName,
    /// Whether the worker also starts without it.
    pub optional: bool,
    /// What the worker uses of it.
    pub part: ConfigPart<'a>,
}

/// What a worker uses of a Secret or `ConfigMap`.
#[derive(Debug, Clone, Copy)]
pub enum ConfigPart<'a> {
    /// A key as a variable of this name.
    Variable(&'a str, &'a str),
    /// Each key as a variable with this prefix.
    Variables(&'a str),
    /// Files of these keys; all if there are none.
    Files(&'a [KeyToPath]),
    /// The credentials of registries.
    Credentials,
}

fn named(kind: ConfigKind, name: &str) -> ConfigName {
    ConfigName { kind, name: name.to_owned() }
}

/// The object and key of a variable, and whether it is optional; `None` for a label of the node.
fn selected(source: &VariableSource) -> Option<(ConfigName, &str, bool)> {
    let secret = source.secret_key_ref.as_ref().map(|it| (ConfigKind::Secret, it));
    let config_map = source.config_map_key_ref.as_ref().map(|it| (ConfigKind::ConfigMap, it));
    let (kind, selector) = secret.or(config_map)?;
    Some((named(kind, &selector.name), &selector.key, selector.optional))
}

/// The object of a volume, its items, and whether it is optional; `None` for another volume.
fn source(volume: &Volume) -> Option<(ConfigName, &[KeyToPath], bool)> {
    let secret = volume.secret.as_ref();
    let secret = secret
        .map(|it| (named(ConfigKind::Secret, &it.secret_name), it.items.as_slice(), it.optional));
    let config_map = volume.config_map.as_ref();
    let config_map = config_map
        .map(|it| (named(ConfigKind::ConfigMap, &it.name), it.items.as_slice(), it.optional));
    secret.or(config_map)
}

/// What a worker uses, in the order of its spec. A volume that is not mounted is not used.
pub fn uses(inputs: ContainerInputs<'_>) -> Vec<ConfigUse<'_>> {
    let mut all = Vec::new();
    for variable in inputs.env {
        let source = variable.value_from.as_ref().and_then(selected);
        all.extend(source.map(|(object, key, optional)| {
            let part = ConfigPart::Variable(&variable.name, key);
            ConfigUse { object, optional, part }
        }));
    }
    for entry in inputs.env_from {
        let secret = entry.secret_ref.as_ref().map(|it| (ConfigKind::Secret, it));
        let config_map = entry.config_map_ref.as_ref().map(|it| (ConfigKind::ConfigMap, it));
        all.extend(secret.or(config_map).map(|(kind, reference)| ConfigUse {
            object: named(kind, &reference.name),
            optional: reference.optional,
            part: ConfigPart::Variables(&entry.prefix),
        }));
    }
    let is_mounted =
        |volume: &&Volume| inputs.volume_mounts.iter().any(|it| it.name == volume.name);
    for volume in inputs.volumes.iter().filter(is_mounted) {
        all.extend(source(volume).map(|(object, items, optional)| ConfigUse {
            object,
            optional,
            part: ConfigPart::Files(items),
        }));
    }
    all.extend(inputs.image_pull_secrets.iter().map(|secret| ConfigUse {
        object: named(ConfigKind::Secret, &secret.name),
        optional: false,
        part: ConfigPart::Credentials,
    }));
    all
}

/// The objects that a worker uses.
pub fn references(inputs: ContainerInputs<'_>) -> BTreeSet<ConfigName> {
    uses(inputs).into_iter().map(|it| it.object).collect()
}

/// The names of the variables of `env` that come from Secrets and `ConfigMap`s.
pub fn variables_of_objects(inputs: ContainerInputs<'_>) -> impl Iterator<Item = &str> {
    let from_object = |source: &VariableSource| source.node_label.is_none();
    let variables = inputs.env.iter();
    variables.filter(move |it| it.value_from.as_ref().is_some_and(from_object)).map(|it| &*it.name)
}

/// Adds a finding for each invalid reference. `field` has them.
pub fn check(field: &str, inputs: ContainerInputs<'_>, findings: &mut Vec<Finding>) {
    let mut refuse = |reason, problem: String| {
        findings.push(Finding::new(reason, format!("{field}.{problem}")));
    };
    for variable in inputs.env {
        let Some(source) = &variable.value_from else { continue };
        let sources = [
            source.node_label.is_some(),
            source.secret_key_ref.is_some(),
            source.config_map_key_ref.is_some(),
        ];
        let name = &variable.name;
        if sources.into_iter().filter(|it| *it).count() != 1 {
            refuse(
                Reason::EnvInvalid,
                format!(
                    "env: {name:?} must have exactly one of nodeLabel, secretKeyRef and configMapKeyRef in valueFrom"
                ),
            );
        } else if source.optional && source.node_label.is_none() {
            refuse(
                Reason::EnvInvalid,
                format!(
                    "env: {name:?} has optional beside secretKeyRef or configMapKeyRef; move it there"
                ),
            );
        }
    }
    if inputs.env_from.len() > MAX_ENV_FROM {
        let number = inputs.env_from.len();
        let problem = format!("envFrom has {number} entries; at most {MAX_ENV_FROM} are supported");
        refuse(Reason::EnvInvalid, problem);
    }
    for (at, entry) in inputs.env_from.iter().enumerate() {
        if entry.secret_ref.is_some() == entry.config_map_ref.is_some() {
            let problem = "must have exactly one of secretRef and configMapRef";
            refuse(Reason::EnvInvalid, format!("envFrom[{at}] {problem}"));
        }
        let prefix = &entry.prefix;
        if !prefix.is_empty() && (!is_variable(prefix) || prefix.len() > MAX_KEY) {
            let problem = "must be letters, digits and '_', not beginning with a digit";
            refuse(Reason::EnvInvalid, format!("envFrom[{at}]: prefix {prefix:?} {problem}"));
        }
    }
    for volume in inputs.volumes {
        let name = &volume.name;
        let Some((_, items, _)) = source(volume) else { continue };
        let mut paths = BTreeSet::new();
        if items.len() > MAX_ITEMS {
            let problem = format!("has {} items; at most {MAX_ITEMS} are supported", items.len());
            refuse(Reason::VolumeInvalid, format!("volumes: volume {name:?} {problem}"));
        }
        for KeyToPath { key, path } in items {
            if !is_key(key) || !is_key(path) {
                refuse(
                    Reason::VolumeInvalid,
                    format!(
                        "volumes: volume {name:?} has the item {key:?} at {path:?}; both must be file names of letters, digits, '-', '_' and '.'"
                    ),
                );
            } else if !paths.insert(path) {
                refuse(
                    Reason::VolumeInvalid,
                    format!("volumes: volume {name:?} has two items at {path:?}; remove one"),
                );
            }
        }
    }
    check_objects(field, inputs, findings);
}

fn check_objects(field: &str, inputs: ContainerInputs<'_>, findings: &mut Vec<Finding>) {
    let uses = uses(inputs);
    if uses.len() > MAX_REFERENCES {
        let message = format!(
            "{field} has {} references to Secrets and ConfigMaps; at most {MAX_REFERENCES} are supported",
            uses.len()
        );
        findings.push(Finding::new(Reason::WorkerInvalid, message));
    }
    for ConfigUse { object, part, .. } in uses {
        let field = match part {
            ConfigPart::Variable(name, key) => {
                if !is_key(key) {
                    let message = format!(
                        "{field}.env: {name:?} has the key {key:?}, which must be letters, digits, '-', '_' and '.'"
                    );
                    findings.push(Finding::new(Reason::EnvInvalid, message));
                }
                format!("{field}.env")
            }
            ConfigPart::Variables(_) => format!("{field}.envFrom"),
            ConfigPart::Files(_) => format!("{field}.volumes"),
            // `resolve` checks these, as those of Pods.
            ConfigPart::Credentials => continue,
        };
        match object.kind {
            ConfigKind::Secret => findings.extend(check_name(&field, &object.name)),
            ConfigKind::ConfigMap => {
                let name = &object.name;
                if name.parse::<ObjectName>().is_err() {
                    let message = format!(
                        "{field}: {name:?} must be the name of a ConfigMap of this namespace"
                    );
                    findings.push(Finding::new(Reason::SecretNameInvalid, message));
                }
            }
        }
    }
}

/// Whether a text is a key of a Secret or `ConfigMap`, which is a file name.
fn is_key(key: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= MAX_KEY
        && key.chars().all(fits)
        && key != "."
        && !key.starts_with("..")
}
