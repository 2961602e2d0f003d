//! Reads Services from the cache.

use kube::runtime::reflector::ObjectRef;
use neptune_cloud_kinds::joint_inference_service::facts::CloudService;

use crate::cache::Caches;

/// The Service of this name, if it exists.
pub fn service_named(namespace: &str, name: &str, caches: &Caches) -> Option<CloudService> {
    let service = caches.services.get(&ObjectRef::new(name).within(namespace))?;
    let cluster_ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_ref());
    Some(CloudService { cluster_ip: cluster_ip.and_then(|address| address.parse().ok()) })
}
