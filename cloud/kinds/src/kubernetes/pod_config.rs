//! The Secrets and `ConfigMap`s of a container in a Pod, as its spec has them. The kubelet reads them.

use k8s_openapi::api::core::v1::{
    ConfigMapEnvSource, ConfigMapKeySelector, ConfigMapVolumeSource, EnvFromSource, EnvVar,
    EnvVarSource, KeyToPath, SecretEnvSource, SecretKeySelector, SecretVolumeSource,
};
use neptune_api::KeySelector;

use super::container_inputs::ContainerInputs;

/// The variables with values of Secrets and `ConfigMap`s.
pub fn pod_variables(inputs: ContainerInputs<'_>) -> impl Iterator<Item = EnvVar> {
    inputs.env.iter().filter_map(|variable| {
        let source = variable.value_from.as_ref()?;
        let secret_key_ref = source.secret_key_ref.clone();
        let secret_key_ref = secret_key_ref.map(|KeySelector { name, key, optional }| {
            SecretKeySelector { name, key, optional: optional.then_some(true) }
        });
        let config_map_key_ref = source.config_map_key_ref.clone();
        let config_map_key_ref = config_map_key_ref.map(|KeySelector { name, key, optional }| {
            ConfigMapKeySelector { name, key, optional: optional.then_some(true) }
        });
        (secret_key_ref.is_some() || config_map_key_ref.is_some()).then(|| EnvVar {
            name: variable.name.clone(),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref,
                config_map_key_ref,
                ..EnvVarSource::default()
            }),
        })
    })
}

/// The Secrets and `ConfigMap`s of which each key is a variable; `None` if there are none.
pub fn pod_env_from(inputs: ContainerInputs<'_>) -> Option<Vec<EnvFromSource>> {
    let entries = inputs.env_from.iter().map(|entry| EnvFromSource {
        prefix: Some(entry.prefix.clone()).filter(|prefix| !prefix.is_empty()),
        secret_ref: entry.secret_ref.as_ref().map(|it| SecretEnvSource {
            name: it.name.clone(),
            optional: it.optional.then_some(true),
        }),
        config_map_ref: entry.config_map_ref.as_ref().map(|it| ConfigMapEnvSource {
            name: it.name.clone(),
            optional: it.optional.then_some(true),
        }),
    });
    Some(entries.collect()).filter(|entries: &Vec<_>| !entries.is_empty())
}

/// A volume with the keys of a Secret.
pub fn secret_volume(source: &neptune_api::SecretVolumeSource) -> SecretVolumeSource {
    SecretVolumeSource {
        secret_name: Some(source.secret_name.clone()),
        items: items(&source.items),
        optional: source.optional.then_some(true),
        default_mode: None,
    }
}

/// A volume with the keys of a `ConfigMap`.
pub fn config_map_volume(source: &neptune_api::ConfigMapVolumeSource) -> ConfigMapVolumeSource {
    ConfigMapVolumeSource {
        name: source.name.clone(),
        items: items(&source.items),
        optional: source.optional.then_some(true),
        default_mode: None,
    }
}

fn items(items: &[neptune_api::KeyToPath]) -> Option<Vec<KeyToPath>> {
    let items =
        items.iter().map(|it| KeyToPath { key: it.key.clone(), path: it.path.clone(), mode: None });
    Some(items.collect()).filter(|items: &Vec<_>| !items.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::WorkerSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_has_the_references_of_the_spec_unchanged() {
        let env = json!([
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "b", "optional": true}}},
        ]);
        let env_from = json!([
            {"secretRef": {"name": "s"}},
            {"prefix": "C_", "configMapRef": {"name": "c", "optional": true}},
        ]);
        let mut all = json!({"frameworkType": "container", "env": env, "envFrom": env_from});
        all["env"].as_array_mut().unwrap().push(json!({"name": "D", "value": "d"}));
        let spec: WorkerSpec = serde_json::from_value(all).unwrap();
        let rendered: Vec<_> = pod_variables((&spec).into()).collect();
        assert_eq!(serde_json::to_value(rendered).unwrap(), env);
        assert_eq!(serde_json::to_value(pod_env_from((&spec).into())).unwrap(), env_from);
        assert_eq!(pod_env_from(ContainerInputs::default()), None);
    }
}
