//! The Secrets and `ConfigMap`s that a worker refers to, as they were read.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use neptune_wire::{SecretBytes, SecretValues};

use super::references::ConfigName;
use crate::kubernetes::identity::ControllerIdentity;

/// The label of a Secret that may leave the cluster, and its value.
pub const SHARED: (&str, &str) = ("neptune.io/edge", "allowed");

/// A Secret or `ConfigMap`. `Debug` prints the lengths of its values only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigObject {
    /// The version of the object: `UID/RESOURCE_VERSION`.
    pub version: String,
    /// Whether it has the label [`SHARED`].
    pub is_shared: bool,
    /// The values by key.
    pub values: SecretValues,
    /// The values of a `ConfigMap` that are no texts. A variable cannot have them.
    pub binary: SecretValues,
}

/// The result of reading an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadObject {
    /// The object exists, with these values.
    Present(Arc<ConfigObject>),
    /// The object does not exist.
    Missing,
    /// The controller has no right to read it.
    Forbidden,
    /// The API server did not answer.
    Unknown,
}

/// The version of a read object, which decides whether anything changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadVersion {
    /// The version of an object that exists.
    Present(String),
    /// The object does not exist.
    Missing,
    /// The controller has no right to read it.
    Forbidden,
    /// The API server did not answer.
    Unknown,
}

/// The objects that a worker refers to, as far as they were read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigObjects {
    /// The objects that were read.
    pub read: BTreeMap<ConfigName, ReadObject>,
    /// The controller, to which a `RoleBinding` grants the right.
    pub controller: ControllerIdentity,
}

impl ConfigObject {
    /// The parts of a `ConfigMap` that a worker can use.
    pub fn from_config_map(object: ConfigMap) -> Self {
        let texts = object.data.unwrap_or_default().into_iter();
        Self {
            values: texts.map(|(key, text)| (key, SecretBytes::new(text.into_bytes()))).collect(),
            binary: values(object.binary_data),
            ..Self::from_metadata(&object.metadata)
        }
    }

    /// The parts of a Secret that a worker can use.
    pub fn from_secret(object: Secret) -> Self {
        Self { values: values(object.data), ..Self::from_metadata(&object.metadata) }
    }

    fn from_metadata(metadata: &ObjectMeta) -> Self {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let label = metadata.labels.as_ref().and_then(|labels| labels.get(SHARED.0));
        Self {
            version: format!("{}/{}", part(&metadata.uid), part(&metadata.resource_version)),
            is_shared: label.is_some_and(|value| value == SHARED.1),
            values: SecretValues::new(),
            binary: SecretValues::new(),
        }
    }
}

fn values(data: Option<BTreeMap<String, ByteString>>) -> SecretValues {
    let data = data.unwrap_or_default().into_iter();
    data.map(|(key, ByteString(bytes))| (key, SecretBytes::new(bytes))).collect()
}

impl ConfigObjects {
    /// The versions of what was read.
    pub fn versions(&self) -> BTreeMap<ConfigName, ReadVersion> {
        let version = |object: &ReadObject| match object {
            ReadObject::Present(object) => ReadVersion::Present(object.version.clone()),
            ReadObject::Missing => ReadVersion::Missing,
            ReadObject::Forbidden => ReadVersion::Forbidden,
            ReadObject::Unknown => ReadVersion::Unknown,
        };
        self.read.iter().map(|(name, object)| (name.clone(), version(object))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_value_of_the_label_shares_a_secret() {
        for (labels, is_shared) in [
            (json!({}), false),
            (json!({"neptune.io/edge": "allowed"}), true),
            (json!({"neptune.io/edge": "Allowed"}), false),
            (json!({"neptune.io/edge": ""}), false),
        ] {
            let secret = json!({
                "metadata": {"labels": labels, "uid": "u", "resourceVersion": "7"},
                "data": {"a": "AP8="},
            });
            let object = ConfigObject::from_secret(serde_json::from_value(secret).unwrap());
            assert_eq!((object.is_shared, &*object.version), (is_shared, "u/7"), "{labels}");
            assert_eq!(object.values["a"].expose(), [0, 255]);
        }
    }

    #[test]
    fn debug_output_has_no_value() {
        let secret = json!({"metadata": {}, "data": {"a": "Y2FuYXJ5"}});
        let object = ConfigObject::from_secret(serde_json::from_value(secret).unwrap());
        let text = format!("{object:?}");
        assert!(text.contains("6 bytes") && !text.contains("canary"), "{text}");
        let bytes = format!("{:?}", b"canary");
        assert!(!text.contains(&bytes[1..bytes.len() - 1]), "{text}");
    }
}
