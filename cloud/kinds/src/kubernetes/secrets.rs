//! The Secrets that Pods refer to by name. The controller does not read them.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, LocalObjectReference, SecretKeySelector};
use neptune_api::SecretReference;
use neptune_registry_config::LOGINS_VARIABLE;
use neptune_wire::{ArtifactAddress, ObjectName};

use crate::{finding::Finding, reason::Reason};

/// The keys of a Secret with credentials for `s3://`, and whether a Pod starts without the key.
const S3_KEYS: [(&str, bool); 5] = [
    ("AWS_ACCESS_KEY_ID", false),
    ("AWS_SECRET_ACCESS_KEY", false),
    ("AWS_SESSION_TOKEN", true),
    ("AWS_REGION", true),
    ("AWS_ENDPOINT_URL", true),
];

/// The same of a Secret with a token for `hf://`. A Secret may have more keys, also those of others.
const HUB_KEYS: [(&str, bool); 2] = [("HF_TOKEN", true), ("HF_ENDPOINT", true)];

/// The variable from which the download reads logins at registries, and the key of a Secret of the
/// type `kubernetes.io/dockerconfigjson`.
const REGISTRY_LOGINS: (&str, &str) = (LOGINS_VARIABLE, ".dockerconfigjson");

/// The finding if `field` has a text that cannot be the name of a Secret.
pub fn check_name(field: &str, name: &str) -> Option<Finding> {
    let is_valid = name.parse::<ObjectName>().is_ok();
    (!is_valid).then(|| {
        let message = format!("{field}: {name:?} must be the name of a Secret of this namespace");
        Finding::new(Reason::SecretNameInvalid, message)
    })
}

/// The `imagePullSecrets` of a Pod.
pub fn pull_secrets(secrets: &[SecretReference]) -> Option<Vec<LocalObjectReference>> {
    let references: Vec<_> =
        secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() }).collect();
    (!references.is_empty()).then_some(references)
}

/// Environment variables with the credentials of this Secret for a download from `url`. Neither the
/// controller nor the arguments of the container contain their values.
pub fn download_credentials(secret: &SecretReference, url: &str) -> Vec<EnvVar> {
    let variable = |name: &str, key: &str, optional: bool| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.name.clone(),
                key: key.to_owned(),
                optional: optional.then_some(true),
            }),
            ..EnvVarSource::default()
        }),
    };
    let keys: &[(&str, bool)] = match url.parse() {
        Ok(ArtifactAddress::Hub(_)) => &HUB_KEYS,
        Ok(ArtifactAddress::Oci(_)) => {
            let (name, key) = REGISTRY_LOGINS;
            return vec![variable(name, key, false)];
        }
        _ => &S3_KEYS,
    };
    keys.iter().map(|(key, optional)| variable(key, key, *optional)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_gets_the_keys_for_the_scheme_of_its_address() {
        let secret = SecretReference { name: "models".to_owned() };
        for (url, expected) in [
            ("s3://bucket/m", ["AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"]),
            ("hf://o/r", ["HF_TOKEN", "HF_TOKEN"]),
            ("oci://registry.example/team/m:v1", ["DOCKER_AUTH_CONFIG", ".dockerconfigjson"]),
        ] {
            let variables = download_credentials(&secret, url);
            let source = variables[0].value_from.clone().unwrap_or_default().secret_key_ref;
            let key = source.map(|source| (source.name, source.key)).unwrap_or_default();
            let [name, in_secret] = expected;
            assert_eq!(variables[0].name, name, "{url}");
            assert_eq!(key, ("models".to_owned(), in_secret.to_owned()), "{url}");
            assert!(variables.iter().all(|variable| variable.value.is_none()), "{url}");
        }
    }
}
