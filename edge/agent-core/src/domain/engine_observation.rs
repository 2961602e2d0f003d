//! What one observation of the engine returns.

use crate::domain::{
    device::DeviceHolder, observed_container::Observation, volume::ObservedVolume,
};

/// What the engine has of this node, as of one observation.
#[derive(Debug, Default)]
pub struct EngineObservation {
    pub containers: Vec<Observation>,
    /// The containers of all agents that have devices.
    pub device_holders: Vec<DeviceHolder>,
    /// The volumes of workers of this node. Empty if the engine did not list them.
    pub volumes: Vec<ObservedVolume>,
}
