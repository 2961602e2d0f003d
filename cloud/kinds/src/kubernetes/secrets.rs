//! The Secrets that Pods refer to by name. The controller does not read them.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, LocalObjectReference, SecretKeySelector};
use neptune_api::SecretReference;
use neptune_wire::ObjectName;

use crate::{finding::Finding, reason::Reason};

/// The keys of a Secret with credentials for `s3://`, and whether a Pod starts without the key.
const S3_KEYS: [(&str, bool); 5] = [
    ("AWS_ACCESS_KEY_ID", false),
    ("AWS_SECRET_ACCESS_KEY", false),
    ("AWS_SESSION_TOKEN", true),
    ("AWS_REGION", true),
    ("AWS_ENDPOINT_URL", true),
];

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

/// Environment variables with the credentials of this Secret. Neither the controller nor the
/// arguments of the container contain their values.
pub fn s3_credentials(secret: &SecretReference) -> Vec<EnvVar> {
    let variable = |(key, optional): (&str, bool)| EnvVar {
        name: key.to_owned(),
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
    S3_KEYS.into_iter().map(variable).collect()
}
