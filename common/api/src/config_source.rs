//! References to Secrets and ConfigMaps: fields that several kinds share, in the form of a Pod.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// KeySelector selects a key of a Secret or ConfigMap in the namespace of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeySelector {
    /// name is the name of the Secret or ConfigMap.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
    /// key is the key whose value is used.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::DATA_KEY))]
    pub key: String,
    /// optional is whether the container also starts without the object or the key. Defaults to
    /// false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// EnvFromSource is a Secret or ConfigMap of which each key becomes an environment variable. Exactly
/// one of secretRef and configMapRef is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::env_from_one_source())]
pub struct EnvFromSource {
    /// prefix is put before each key: letters, digits and '_', not starting with a digit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(
        length(max = schema::MAX_TOKEN_LENGTH),
        regex(pattern = "^([A-Za-z_][A-Za-z0-9_]*)?$")
    )]
    pub prefix: String,
    /// secretRef is a Secret in the namespace of the object. Keys that are no names of variables are
    /// skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ConfigReference>,
    /// configMapRef is a ConfigMap in the namespace of the object. Keys that are no names of
    /// variables are skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigReference>,
}

/// ConfigReference refers to a Secret or ConfigMap in the namespace of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigReference {
    /// name is the name of the Secret or ConfigMap.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
    /// optional is whether the container also starts without the object. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// SecretVolumeSource is a Secret whose keys are files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretVolumeSource {
    /// secretName is the name of a Secret in the namespace of the object.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub secret_name: String,
    /// items are the keys that become files. Defaults to all, each with its key as the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::items)]
    pub items: Vec<KeyToPath>,
    /// optional is whether the container also starts without the Secret or one of the items.
    /// Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// ConfigMapVolumeSource is a ConfigMap whose keys are files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapVolumeSource {
    /// name is the name of a ConfigMap in the namespace of the object.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
    /// items are the keys that become files. Defaults to all, each with its key as the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::items)]
    pub items: Vec<KeyToPath>,
    /// optional is whether the container also starts without the ConfigMap or one of the items.
    /// Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// KeyToPath is a key and the file that has its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    /// key is a key of the Secret or ConfigMap.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::DATA_KEY))]
    pub key: String,
    /// path is the name of the file in the volume: letters, digits, '-', '_' and '.', without
    /// directories.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::DATA_KEY))]
    pub path: String,
}
