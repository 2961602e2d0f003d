//! What a worker gets of its Secrets and `ConfigMap`s, or why it cannot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_api::KeyToPath;
use neptune_wire::{ConfigContent, SecretBytes, SecretValues};

use super::{
    objects::{ConfigObject, ConfigObjects, ReadObject, SHARED},
    references::{CREDENTIALS, ConfigKind, ConfigName, ConfigPart, ConfigUse, uses},
    resolved::{ConfigValue, ProjectedSecret, ResolvedConfig},
};
use crate::{
    finding::Finding,
    kubernetes::container_inputs::ContainerInputs,
    reason::Reason,
    worker::environment::{RESERVED, is_variable},
};

/// The maximum size of the Secrets and `ConfigMap`s of a worker, in bytes.
const MAX_BYTES: usize = 256 * 1024;

/// The version of an optional object that does not exist.
const ABSENT: &str = "absent/0";

/// Why a worker gets nothing of its Secrets and `ConfigMap`s. Its nodes keep what they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigObstacle {
    /// The API server did not answer, so it is not known.
    Unknown,
    /// What is wrong, and the remedy.
    Finding(Finding),
}

/// What a worker gets of its Secrets and `ConfigMap`s; `None` if it refers to none.
///
/// # Errors
/// The first obstacle in the order of the spec.
pub fn resolve(
    inputs: ContainerInputs<'_>,
    objects: &ConfigObjects,
    namespace: &str,
) -> Result<Option<ResolvedConfig>, ConfigObstacle> {
    let uses = uses(inputs);
    if uses.is_empty() {
        return Ok(None);
    }
    let mut projection = Projection::default();
    for it in &uses {
        let object = find(it, objects, namespace)?;
        projection.add(it, object).map_err(ConfigObstacle::Finding)?;
    }
    let resolved = projection.resolved();
    let bytes = size(&resolved);
    if bytes > MAX_BYTES {
        let message = format!(
            "the Secrets and ConfigMaps of the worker have {} KiB, more than {} KiB; select keys with items, or move the rest into a Model",
            bytes.div_ceil(1024),
            MAX_BYTES / 1024
        );
        return Err(ConfigObstacle::Finding(Finding::new(Reason::ConfigTooLarge, message)));
    }
    Ok(Some(resolved))
}

/// The object of a use; `None` if it is optional and does not exist. Credentials of registries that are
/// not there are left out, as in a Pod: the agent uses those of its node.
fn find<'a>(
    it: &ConfigUse,
    objects: &'a ConfigObjects,
    namespace: &str,
) -> Result<Option<&'a ConfigObject>, ConfigObstacle> {
    if matches!(it.part, ConfigPart::Credentials) {
        return match objects.read.get(&it.object) {
            None | Some(ReadObject::Unknown) => Err(ConfigObstacle::Unknown),
            Some(ReadObject::Present(object)) => Ok(Some(&**object).filter(|it| it.is_shared)),
            Some(ReadObject::Missing | ReadObject::Forbidden) => Ok(None),
        };
    }
    let name = &it.object;
    let finding = |reason, message| Err(ConfigObstacle::Finding(Finding::new(reason, message)));
    match objects.read.get(name) {
        None | Some(ReadObject::Unknown) => Err(ConfigObstacle::Unknown),
        Some(ReadObject::Missing) if it.optional => Ok(None),
        Some(ReadObject::Missing) => finding(not_found(name), format!("{name} not found")),
        Some(ReadObject::Forbidden) => {
            finding(Reason::SecretForbidden, forbidden(name, objects, namespace))
        }
        Some(ReadObject::Present(object))
            if name.kind == ConfigKind::Secret && !object.is_shared =>
        {
            let (label, value) = SHARED;
            let message = format!(
                "{name} may not leave the cluster; label it: kubectl label secret {} {label}={value}",
                name.name
            );
            finding(Reason::SecretNotShared, message)
        }
        Some(ReadObject::Present(object)) => Ok(Some(object)),
    }
}

fn forbidden(name: &ConfigName, objects: &ConfigObjects, namespace: &str) -> String {
    let kind = match name.kind {
        ConfigKind::ConfigMap => "ConfigMap",
        ConfigKind::Secret => "Secret",
    };
    let (own, account) = (&objects.controller.namespace, &objects.controller.service_account);
    format!(
        "may not read {kind} {namespace}/{}; kubectl -n {namespace} create rolebinding neptune --clusterrole=neptune-config --serviceaccount={own}:{account}",
        name.name
    )
}

fn not_found(name: &ConfigName) -> Reason {
    match name.kind {
        ConfigKind::ConfigMap => Reason::ConfigMapNotFound,
        ConfigKind::Secret => Reason::SecretNotFound,
    }
}

/// The keys of each object that the uses of a worker select.
#[derive(Default)]
struct Projection<'a> {
    own: BTreeMap<String, ConfigValue>,
    from: BTreeMap<String, ConfigValue>,
    pull_secrets: Vec<String>,
    /// The Secrets, with the keys that are used.
    secrets: BTreeMap<String, (Option<&'a ConfigObject>, BTreeSet<String>)>,
    /// The mounted `ConfigMap`s, likewise.
    configs: BTreeMap<String, (Option<&'a ConfigObject>, BTreeSet<String>)>,
}

impl<'a> Projection<'a> {
    fn add(&mut self, it: &ConfigUse, object: Option<&'a ConfigObject>) -> Result<(), Finding> {
        match it.part {
            ConfigPart::Variable(variable, key) => {
                if has_key(it, object, key)? {
                    let value = self.value(&it.object, object, key)?;
                    self.own.insert(variable.to_owned(), value);
                }
            }
            ConfigPart::Variables(prefix) => {
                for key in object.iter().flat_map(|object| object.values.keys()) {
                    let variable = format!("{prefix}{key}");
                    if is_variable(&variable) && !RESERVED.contains(&variable.as_str()) {
                        let value = self.value(&it.object, object, key)?;
                        self.from.insert(variable, value);
                    }
                }
            }
            ConfigPart::Files(items) => self.add_files(it, object, items)?,
            ConfigPart::Credentials => {
                if has_key(it, object, CREDENTIALS)? {
                    self.use_keys(&it.object, object, [CREDENTIALS.to_owned()]);
                    self.pull_secrets.push(it.object.name.clone());
                }
            }
        }
        Ok(())
    }

    fn add_files(
        &mut self,
        it: &ConfigUse,
        object: Option<&'a ConfigObject>,
        items: &[KeyToPath],
    ) -> Result<(), Finding> {
        let mut keys = BTreeSet::new();
        for item in items {
            if has_key(it, object, &item.key)? {
                keys.insert(item.key.clone());
            }
        }
        if items.is_empty() {
            keys = object
                .into_iter()
                .flat_map(|it| it.values.keys().chain(it.binary.keys()))
                .cloned()
                .collect();
        }
        self.use_keys(&it.object, object, keys);
        Ok(())
    }

    /// The value of a variable.
    fn value(
        &mut self,
        name: &ConfigName,
        object: Option<&'a ConfigObject>,
        key: &str,
    ) -> Result<ConfigValue, Finding> {
        let bytes = object.and_then(|object| object.values.get(key)).map(SecretBytes::expose);
        let text = str::from_utf8(bytes.unwrap_or_default()).ok();
        let Some(text) = text.filter(|text| !text.contains('\0')) else {
            let message = format!(
                "the value of key {key} of {name} cannot be a variable, because it is no text; mount it as a file"
            );
            return Err(Finding::new(not_found(name), message));
        };
        Ok(match name.kind {
            ConfigKind::ConfigMap => ConfigValue::Text(text.to_owned()),
            ConfigKind::Secret => {
                self.use_keys(name, object, [key.to_owned()]);
                ConfigValue::Secret { secret: name.name.clone(), key: key.to_owned() }
            }
        })
    }

    fn use_keys(
        &mut self,
        name: &ConfigName,
        object: Option<&'a ConfigObject>,
        keys: impl IntoIterator<Item = String>,
    ) {
        let all = match name.kind {
            ConfigKind::ConfigMap => &mut self.configs,
            ConfigKind::Secret => &mut self.secrets,
        };
        let (_, used) = all.entry(name.name.clone()).or_insert_with(|| (object, BTreeSet::new()));
        used.extend(keys);
    }

    fn resolved(self) -> ResolvedConfig {
        let version = |object: Option<&ConfigObject>| {
            object.map_or_else(|| ABSENT.to_owned(), |object| object.version.clone())
        };
        let secrets = self.secrets.into_iter().map(|(name, (object, keys))| {
            let values = selected(object.map(|it| &it.values), &keys);
            ProjectedSecret { name, version: version(object), values: Arc::new(values) }
        });
        let configs = self.configs.into_iter().map(|(name, (object, keys))| {
            let texts = selected(object.map(|it| &it.values), &keys);
            let binary = selected(object.map(|it| &it.binary), &keys);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            ConfigContent {
                name,
                version: version(object),
                data: texts.into_iter().map(|(key, it)| (key, text(it.expose()))).collect(),
                binary_data: binary
                    .into_iter()
                    .map(|(key, it)| (key, STANDARD.encode(it.expose())))
                    .collect(),
            }
        });
        ResolvedConfig {
            secrets: secrets.collect(),
            configs: configs.collect(),
            own: self.own,
            from: self.from,
            pull_secrets: self.pull_secrets,
        }
    }
}

/// Whether the object has the key; `false` without a finding if the use is optional.
fn has_key(it: &ConfigUse, object: Option<&ConfigObject>, key: &str) -> Result<bool, Finding> {
    let is_file = matches!(it.part, ConfigPart::Files(_));
    let has = object.is_some_and(|object| {
        object.values.contains_key(key) || is_file && object.binary.contains_key(key)
    });
    if has || it.optional || matches!(it.part, ConfigPart::Credentials) {
        return Ok(has);
    }
    Err(Finding::new(not_found(&it.object), format!("{} has no key {key}", it.object)))
}

fn selected(values: Option<&SecretValues>, keys: &BTreeSet<String>) -> SecretValues {
    let selected = values.into_iter().flatten().filter(|(key, _)| keys.contains(*key));
    selected.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What a worker gets, in bytes.
fn size(resolved: &ResolvedConfig) -> usize {
    let variables = resolved.own.iter().chain(&resolved.from).map(|(name, value)| match value {
        ConfigValue::Text(text) => name.len() + text.len(),
        ConfigValue::Secret { .. } => name.len(),
    });
    let secrets = resolved.secrets.iter().flat_map(|it| it.values.iter());
    let secrets = secrets.map(|(key, value)| key.len() + value.expose().len());
    let configs = resolved.configs.iter().flat_map(|it| it.data.iter().chain(&it.binary_data));
    let configs = configs.map(|(key, value)| key.len() + value.len());
    variables.chain(secrets).chain(configs).sum()
}

#[cfg(test)]
mod tests;
