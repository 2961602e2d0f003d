//! The wire key, the content and the owner of an API object, and who the controller is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use neptune_wire::{ObjectContent, ObjectKey, ObjectMetadata};
use serde::Serialize;

use crate::{finding::Finding, kind::Kind, reason::Reason};

/// The identity of the controller in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerIdentity {
    /// Namespace of the controller.
    pub namespace: String,
    /// Name of the controller's `ServiceAccount`.
    pub service_account: String,
}

/// The key of an object; `None` if its name or namespace is invalid on the wire.
pub fn key<K: Kind>(object: &K) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: object.meta().namespace.as_deref()?.parse().ok()?,
        resource: K::RESOURCE,
        name: object.meta().name.as_deref()?.parse().ok()?,
    })
}

/// The key and the metadata of an object. Adds a finding and returns `None` if it has no key.
pub fn identity<K: Kind>(
    object: &K,
    findings: &mut Vec<Finding>,
) -> Option<(ObjectKey, ObjectMetadata)> {
    let Some(key) = key(object) else {
        let message =
            "metadata: the namespace or the name is not a valid RFC 1123 name; rename the object";
        findings.push(Finding::new(Reason::NameInvalid, message));
        return None;
    };
    let created = object.meta().creation_timestamp.as_ref().map(|time| time.0.to_string());
    let metadata = ObjectMetadata { created, ..shared_metadata(object, &key) };
    Some((key, metadata))
}

/// The metadata of an object without the time of its creation, which only owners of workers need.
pub fn shared_metadata<K: Kind>(object: &K, key: &ObjectKey) -> ObjectMetadata {
    ObjectMetadata {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        uid: object.meta().uid.clone().unwrap_or_default(),
        created: None,
    }
}

/// The content of an object in messages, without anything that a node has to do. `spec` is the part
/// of the spec that concerns nodes.
pub fn content<K: Kind>(metadata: ObjectMetadata, spec: &impl Serialize) -> ObjectContent {
    ObjectContent {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        metadata,
        spec: serde_json::to_value(spec).expect("a spec came from JSON"),
        model: None,
        dataset: None,
        workers: Vec::new(),
        serving: None,
        training: None,
        aggregator: None,
        peers: None,
    }
}

/// Whether an object's controller is this owner, by uid.
pub fn is_owned<K: Kind>(metadata: &ObjectMeta, owner: &K) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    owner.meta().uid.is_some()
        && owners.into_iter().any(|held| {
            held.controller == Some(true) && Some(&held.uid) == owner.meta().uid.as_ref()
        })
}
