//! What the container of a worker or a model server gets of opened Secrets and of `ConfigMap`s.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use neptune_registry_config::RegistryConfig;
use neptune_wire::{
    ConfigContent, ContainerProgram, MountSource, SecretBytes, SecretValues, WorkerReason,
};

use super::{
    files::{VolumeFiles, volume_files},
    mask::Mask,
};
use crate::domain::{problem::Problem, secret_env::SecretEnv, served_version::is_plain_name};

/// The key of a Secret with credentials of registries.
const REGISTRY_KEY: &str = ".dockerconfigjson";

/// What a container gets of its Secrets and `ConfigMap`s.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerValues {
    /// `None` without such variables.
    pub env: Option<SecretEnv>,
    /// The files of the volumes, by the name of the volume.
    pub files: BTreeMap<String, Arc<VolumeFiles>>,
    /// The credentials with which its image is pulled, in the order in which they are tried.
    pub pull: Arc<Vec<RegistryConfig>>,
    pub mask: Arc<Mask>,
}

impl WorkerValues {
    /// Removes the variables that values of Secrets replace.
    pub fn replace_variables(&self, env: &mut BTreeMap<String, String>) {
        if let Some(secret) = &self.env {
            env.retain(|name, _| !secret.variables.contains_key(name));
        }
    }
}

/// The values of a program. `opened`: the values of each of its Secrets. `fingerprint`: gives equal
/// texts for equal bytes.
///
/// # Errors
/// A value cannot be used where the program names it.
pub fn resolve_values(
    program: &ContainerProgram,
    opened: &BTreeMap<&str, SecretValues>,
    fingerprint: impl FnOnce(&BTreeMap<String, SecretBytes>) -> String,
) -> Result<WorkerValues, Problem> {
    let variables = variables(program, opened)?;
    let pull = pull_configs(program, opened)?;
    let texts = opened.values().flat_map(BTreeMap::values).filter_map(SecretBytes::expose_text);
    let passwords = pull.iter().flat_map(RegistryConfig::secrets);
    let mask = Arc::new(Mask::new(texts.chain(passwords)));
    let env = (!variables.is_empty()).then(|| SecretEnv {
        fingerprint: fingerprint(&variables),
        variables: Arc::new(variables),
    });
    Ok(WorkerValues { env, files: files(program, opened)?, pull: Arc::new(pull), mask })
}

fn unusable(message: String) -> Problem {
    Problem { reason: WorkerReason::SecretUnreadable, message }
}

fn variables(
    program: &ContainerProgram,
    opened: &BTreeMap<&str, SecretValues>,
) -> Result<BTreeMap<String, SecretBytes>, Problem> {
    let mut variables = BTreeMap::new();
    for variable in &program.secret_env {
        let (name, secret, key) = (&variable.name, &variable.secret, &variable.key);
        let value = opened.get(secret.as_str()).and_then(|values| values.get(key));
        let value = value.ok_or_else(|| {
            unusable(format!(
                "the task has no key {key} of Secret {secret} for variable {name}; waiting for the controller to send it"
            ))
        })?;
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        let is_text = value.expose_text().is_some_and(|text| !text.contains('\0'));
        if !is_name || !is_text {
            return Err(unusable(format!(
                "key {key} of Secret {secret} cannot be the variable {name:?}: a variable is UTF-8 text without NUL characters; mount the Secret as a volume"
            )));
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

fn files(
    program: &ContainerProgram,
    opened: &BTreeMap<&str, SecretValues>,
) -> Result<BTreeMap<String, Arc<VolumeFiles>>, Problem> {
    let mut files = BTreeMap::new();
    for mount in &program.mounts {
        let (values, items) = match mount.source() {
            Some(MountSource::Secret(name, items)) => (opened.get(name).cloned(), items),
            Some(MountSource::Config(name, items)) => (config_values(program, name)?, items),
            _ => continue,
        };
        // The name is one of a directory.
        if !is_plain_name(&mount.name) {
            let name = &mount.name;
            return Err(unusable(format!(
                "volume {name:?} has no DNS label as its name; rename it"
            )));
        }
        // The controller leaves out what is optional and does not exist.
        let made = volume_files(&values.unwrap_or_default(), items);
        let made = made.map_err(|why| unusable(format!("volume {} {why}", mount.name)))?;
        files.insert(mount.name.clone(), Arc::new(made));
    }
    Ok(files)
}

fn config_values(program: &ContainerProgram, name: &str) -> Result<Option<SecretValues>, Problem> {
    let Some(config) = program.configs.iter().find(|config| config.name == name) else {
        return Ok(None);
    };
    let ConfigContent { data, binary_data, .. } = config;
    let texts = data.iter().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    let mut values: SecretValues =
        texts.map(|(key, bytes)| (key, SecretBytes::new(bytes))).collect();
    for (key, text) in binary_data {
        let bytes = STANDARD.decode(text).map_err(|_| {
            unusable(format!("binaryData {key} of ConfigMap {name} is no base64; correct it"))
        })?;
        values.insert(key.clone(), SecretBytes::new(bytes));
    }
    Ok(Some(values))
}

fn pull_configs(
    program: &ContainerProgram,
    opened: &BTreeMap<&str, SecretValues>,
) -> Result<Vec<RegistryConfig>, Problem> {
    let configs = program.pull_secrets.iter().filter_map(|name| {
        // The controller leaves out what does not exist.
        let value = opened.get(name.as_str())?.get(REGISTRY_KEY)?;
        Some(RegistryConfig::parse(value.expose()).map_err(|why| {
            unusable(format!("{REGISTRY_KEY} of Secret {name} is not usable: {why}; correct it"))
        }))
    });
    configs.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn program(fields: Value) -> ContainerProgram {
        let mut program = fields;
        program["image"] = "i".into();
        serde_json::from_value(program).unwrap()
    }

    fn opened() -> BTreeMap<&'static str, SecretValues> {
        let bytes = |value: &[u8]| SecretBytes::new(value.to_vec());
        let login = br#"{"auths": {"r.example": {"username": "u", "password": "s3cret-word"}}}"#;
        [
            (
                "camera",
                [("url", bytes(b"rtsp://h/1")), ("binary", bytes(b"\xff")), ("nul", bytes(b"a\0"))]
                    .map(|(key, value)| (key.to_owned(), value))
                    .into(),
            ),
            ("registry", [(REGISTRY_KEY.to_owned(), bytes(login))].into()),
            ("wrong", [(REGISTRY_KEY.to_owned(), bytes(b"s3cret"))].into()),
        ]
        .into()
    }

    fn resolve(fields: Value) -> Result<WorkerValues, String> {
        let fingerprint =
            |variables: &BTreeMap<String, SecretBytes>| format!("of {}", variables.len());
        resolve_values(&program(fields), &opened(), fingerprint).map_err(|problem| {
            assert_eq!(problem.reason, WorkerReason::SecretUnreadable);
            assert!(!problem.message.contains("s3cret"), "{}", problem.message);
            problem.message
        })
    }

    #[test]
    fn container_gets_variables_files_and_credentials() {
        let values = resolve(json!({
            "secretEnv": [{"name": "URL", "secret": "camera", "key": "url"}],
            "mounts": [
                {"name": "s", "path": "/s", "secret": "camera", "items": {"a/b": "url"}},
                {"name": "c", "path": "/c", "config": "files"},
                {"name": "optional", "path": "/o", "secret": "missing"},
                {"name": "d", "path": "/d", "emptyDir": {}},
            ],
            "configs": [{
                "name": "files", "version": "1", "data": {"x": "text"},
                "binaryData": {"y": "/w=="},
            }],
            "pullSecrets": ["missing", "registry"],
        }));
        let values = values.unwrap();
        let env = values.env.unwrap();
        assert_eq!(env.fingerprint, "of 1");
        assert_eq!(env.variables["URL"].expose(), b"rtsp://h/1");
        assert_eq!(serde_json::to_value(&env).unwrap(), json!("of 1"));
        let files = |volume: &str| -> Vec<(&str, &[u8])> {
            let files = &values.files[volume].files;
            files.iter().map(|(path, value)| (&**path, value.expose())).collect()
        };
        assert_eq!(files("s"), [("a/b", &b"rtsp://h/1"[..])]);
        assert_eq!(files("c"), [("x", &b"text"[..]), ("y", &b"\xff"[..])]);
        assert_eq!(files("optional"), []);
        assert_eq!(values.files.len(), 3);
        assert_eq!(values.pull.len(), 1);
        let text = "at rtsp://h/1 as s3cret-word".to_owned();
        assert_eq!(values.mask.apply(text), "at *** as ***");
        let none = resolve(json!({})).unwrap();
        assert_eq!((none.env, none.files.len(), none.pull.len()), (None, 0, 0));
    }

    #[test]
    fn values_that_cannot_be_used_are_named_and_not_shown() {
        let variable = |name: &str, key: &str| json!({"secretEnv": [{"name": name, "secret": "camera", "key": key}]});
        for (fields, expected) in [
            (variable("URL", "user"), "the task has no key user of Secret camera for variable URL"),
            (variable("URL", "binary"), "key binary of Secret camera cannot be the variable"),
            (variable("URL", "nul"), "without NUL characters; mount the Secret as a volume"),
            (variable("A=B", "url"), "cannot be the variable \"A=B\""),
            (
                json!({"mounts": [{"name": "s", "path": "/s", "secret": "camera",
                    "items": {"../a": "url"}}]}),
                "volume s has the path \"../a\"",
            ),
            (
                json!({"mounts": [{"name": "../s", "path": "/s", "secret": "camera"}]}),
                "volume \"../s\" has no DNS label",
            ),
            (
                json!({"mounts": [{"name": "c", "path": "/c", "config": "f"}],
                    "configs": [{"name": "f", "version": "1", "binaryData": {"a": "%"}}]}),
                "binaryData a of ConfigMap f is no base64",
            ),
            (json!({"pullSecrets": ["wrong"]}), ".dockerconfigjson of Secret wrong is not usable"),
        ] {
            let message = resolve(fields.clone()).unwrap_err();
            assert!(message.contains(expected), "{fields}: {message}");
        }
    }
}
