//! The devices that containers request, and those that the agent of a node offers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{NodeName, ObjectName, is_label_value};

/// The domain of resources that only Kubernetes itself provides.
pub const KUBERNETES_DOMAIN: &str = "kubernetes.io";

/// Maximum number of resources whose devices an agent offers.
pub const MAX_OFFERED_DEVICES: usize = 64;

/// The number of devices that a container requests, by resource, such as `nvidia.com/gpu`.
pub type DeviceRequests = BTreeMap<String, u32>;

/// The devices of one resource that an agent offers (`--allow-device`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedDevice {
    /// Name of the resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Number of devices that the operator of the node allows, whether they are present or not.
    pub total: u32,
    /// Number of devices that are present and that no container has.
    pub free: u32,
    /// Number of devices that are not present.
    #[serde(default)]
    pub missing: u32,
}

/// Why a text is not the name of a resource of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceResourceError {
    /// It is not `domain/name`, as Kubernetes requires of extended resources.
    Malformed,
    /// Its domain is that of Kubernetes.
    Reserved,
}

/// Checks the name of a resource of devices, such as `nvidia.com/gpu`.
///
/// # Errors
/// The name is malformed, or reserved for Kubernetes.
pub fn check_device_resource(resource: &str) -> Result<(), DeviceResourceError> {
    let (domain, name) = resource.split_once('/').ok_or(DeviceResourceError::Malformed)?;
    if domain.parse::<ObjectName>().is_err() || !is_label_value(name) {
        return Err(DeviceResourceError::Malformed);
    }
    let parent = domain.strip_suffix(KUBERNETES_DOMAIN);
    if parent.is_some_and(|parent| parent.is_empty() || parent.ends_with('.')) {
        return Err(DeviceResourceError::Reserved);
    }
    Ok(())
}

/// The resources with their numbers of devices, such as `neptune.io/camera (2), nvidia.com/gpu (1)`.
pub fn device_totals(offered: &[OfferedDevice]) -> String {
    let all = offered.iter().map(|it| format!("{} ({})", it.resource, it.total));
    all.collect::<Vec<_>>().join(", ")
}

/// The message about a node that offers fewer devices of a resource than a container requests, with the
/// remedy. `offered` is what the node offers, whether the devices are in use or not.
pub fn too_few_devices(
    node: &NodeName,
    resource: &str,
    requested: u32,
    offered: &[OfferedDevice],
) -> String {
    let total = offered.iter().find(|device| device.resource == resource).map_or(0, |it| it.total);
    if total > 0 {
        return format!("node {node} offers {total} {resource}, and {requested} are requested");
    }
    let all = if offered.is_empty() { "no device".to_owned() } else { device_totals(offered) };
    format!(
        "node {node} offers no {resource}; it offers {all}; correct resources.limits, or add the device with --allow-device of the agent"
    )
}

/// A part of tasks that earlier agents ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentFeature {
    /// Containers get the devices that they request.
    Devices,
    /// Containers get their volumes and their working directory.
    Volumes,
    /// The agent answers requests for logs.
    Logs,
    /// The agent runs the probes of workers.
    Probes,
    /// A container is replaced when its restart is requested.
    Restart,
    /// Containers get the Secrets and `ConfigMap`s that they name.
    Sealed,
    /// Model servers get their volumes, and the Secrets and `ConfigMap`s that they name. Trainings get
    /// their `emptyDir` volumes.
    ServerValues,
    /// A feature of a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn resource_of_devices_has_a_domain_that_is_not_of_kubernetes() {
        let checked = |names: &[&str]| names.iter().map(|it| check_device_resource(it)).collect();
        let all: Vec<_> = checked(&["nvidia.com/gpu", "mykubernetes.io/a", "a.b/A_1.c"]);
        assert_eq!(all, [Ok(()); 3]);
        let all: Vec<_> = checked(&["gpu", "/gpu", "a.b/", "A.b/gpu", "a.b/c d", "a.b/c/d"]);
        assert_eq!(all, [Err(DeviceResourceError::Malformed); 6]);
        let all: Vec<_> = checked(&["kubernetes.io/gpu", "x.kubernetes.io/gpu"]);
        assert_eq!(all, [Err(DeviceResourceError::Reserved); 2]);
    }

    #[test]
    fn message_has_what_the_node_offers_of_the_resource_or_else_all() {
        let offer = |resource: &str, total| OfferedDevice {
            resource: resource.to_owned(),
            total,
            free: 0,
            missing: 0,
        };
        let message = |offered: &[OfferedDevice]| {
            too_few_devices(&"edge0".parse().unwrap(), "a.b/camera", 3, offered)
        };
        assert_eq!(
            message(&[offer("nvidia.com/gpu", 1), offer("a.b/camera", 2)]),
            "node edge0 offers 2 a.b/camera, and 3 are requested"
        );
        let other = message(&[offer("nvidia.com/gpu", 1), offer("a.b/camera", 0)]);
        assert!(other.contains("offers no a.b/camera; it offers nvidia.com/gpu (1), "), "{other}");
        assert!(message(&[]).contains("it offers no device; correct "));
    }
}
