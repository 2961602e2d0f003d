//! The devices that containers request, and those that the agent of a node offers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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

/// A part of tasks that earlier agents ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentFeature {
    /// Containers get the devices that they request.
    Devices,
    /// A feature of a newer agent.
    #[serde(other)]
    Unknown,
}
