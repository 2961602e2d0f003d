//! What a worker gets of its Secrets and `ConfigMap`s, and how that becomes a part of its program.

use std::{collections::BTreeMap, sync::Arc};

use neptune_wire::{
    ConfigContent, ContainerProgram, NodeName, SealKeyId, SealPublicKey, SealedSecret,
    SecretValues, SecretVariable, WorkerName,
};

use super::seal::{SealRequest, Seals};

/// What a worker gets of its Secrets and `ConfigMap`s. `Debug` prints no value of a Secret.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResolvedConfig {
    /// The variables of `env`, by name.
    pub own: BTreeMap<String, ConfigValue>,
    /// The variables of `envFrom`, by name. Parameters and the variables of `env` precede them.
    pub from: BTreeMap<String, ConfigValue>,
    /// The `ConfigMap`s that are mounted.
    pub configs: Vec<ConfigContent>,
    /// The Secrets, sorted by name.
    pub secrets: Vec<ProjectedSecret>,
    /// The Secrets with credentials of registries, in the order of the spec.
    pub pull_secrets: Vec<String>,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigValue {
    /// A text of a `ConfigMap`.
    Text(String),
    /// A value of a Secret.
    Secret {
        /// The name of the Secret.
        secret: String,
        /// The key of the Secret.
        key: String,
    },
}

/// The keys of a Secret that a worker uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectedSecret {
    /// The name of the Secret.
    pub name: String,
    /// The version of the Secret: `UID/RESOURCE_VERSION`.
    pub version: String,
    /// The values of the keys that the worker uses.
    pub values: Arc<SecretValues>,
}

impl ResolvedConfig {
    /// Adds everything to a program, except for the sealed values. The program has the variables of
    /// Neptune already; `node_env` are those of the spec that differ per node.
    pub fn add_to(
        &self,
        program: &mut ContainerProgram,
        node_env: Option<&BTreeMap<String, String>>,
        seal_key: &SealKeyId,
    ) {
        let has = |program: &ContainerProgram, name: &String| {
            program.env.contains_key(name) || node_env.is_some_and(|env| env.contains_key(name))
        };
        let from = self.from.iter();
        let from: Vec<_> = from.filter(|(name, _)| !has(program, name)).collect();
        let from = from.into_iter().filter(|(name, _)| !self.own.contains_key(*name));
        let mut variables: Vec<_> = self.own.iter().chain(from).collect();
        variables.sort_by_key(|(name, _)| *name);
        for (name, value) in variables {
            match value {
                ConfigValue::Text(text) => drop(program.env.insert(name.clone(), text.clone())),
                ConfigValue::Secret { secret, key } => program.secret_env.push(SecretVariable {
                    name: name.clone(),
                    secret: secret.clone(),
                    key: key.clone(),
                }),
            }
        }
        program.configs.clone_from(&self.configs);
        program.pull_secrets.clone_from(&self.pull_secrets);
        let secret = |secret: &ProjectedSecret| SealedSecret {
            name: secret.name.clone(),
            version: secret.version.clone(),
            keys: secret.values.keys().cloned().collect(),
            seal_key: seal_key.clone(),
            sealed: String::new(),
        };
        program.secrets = self.secrets.iter().map(secret).collect();
        self.drop_missing_items(program);
    }

    /// Removes the files of optional keys that do not exist.
    fn drop_missing_items(&self, program: &mut ContainerProgram) {
        for mount in &mut program.mounts {
            let Some(items) = &mut mount.items else { continue };
            if let Some(name) = &mount.secret {
                let secret = self.secrets.iter().find(|it| it.name == *name);
                items.retain(|_, key| secret.is_some_and(|it| it.values.contains_key(key)));
            } else if let Some(name) = &mount.config {
                let config = self.configs.iter().find(|it| it.name == *name);
                items.retain(|_, key| {
                    config.is_some_and(|it| {
                        it.data.contains_key(key) || it.binary_data.contains_key(key)
                    })
                });
            }
        }
    }

    /// Adds everything to the program of a container on a node, and what has to be sealed for it.
    /// `node_env` as in [`ResolvedConfig::add_to`]; a node without a key gets no Secret.
    pub fn add_on_node(
        &self,
        (name, program): (&WorkerName, &mut ContainerProgram),
        node_env: Option<&BTreeMap<String, String>>,
        (node, key): (&NodeName, Option<&SealPublicKey>),
        seals: &mut Seals,
    ) {
        let id = key.map(SealPublicKey::id).unwrap_or_default();
        self.add_to(program, node_env, &id);
        if let Some(key) = key.filter(|_| !self.secrets.is_empty()) {
            seals.entry(node.clone()).or_default().extend(self.seals(name, key));
        }
    }

    /// The values that have to be sealed to the key of a node, for this container.
    fn seals(&self, worker: &WorkerName, key: &SealPublicKey) -> Vec<SealRequest> {
        let request = |secret: &ProjectedSecret| SealRequest {
            worker: worker.clone(),
            secret: secret.name.clone(),
            key: *key,
            values: Arc::clone(&secret.values),
        };
        self.secrets.iter().map(request).collect()
    }
}
