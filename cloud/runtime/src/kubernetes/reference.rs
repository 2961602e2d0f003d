//! The reference of an API object in the caches.

use kube::runtime::reflector::ObjectRef;
use neptune_cloud_kinds::kind::Kind;
use neptune_wire::ObjectKey;

/// The reference of an object in the caches.
pub fn reference<K: Kind>(key: &ObjectKey) -> ObjectRef<K> {
    ObjectRef::new(key.name.as_str()).within(key.namespace.as_str())
}
