//! What the agent of a node reports that containers may use.

use std::collections::BTreeSet;

use neptune_wire::{
    AgentFeature, MAX_OFFERED_DEVICES, NodeReport, OfferedDevice, check_device_resource,
};

use super::sealing::SignedSealKey;

/// What the agent of a node reports that containers may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentOffer {
    /// The parts of tasks that the agent understands.
    pub supports: BTreeSet<AgentFeature>,
    /// The devices of the node, sorted by the name of the resource, one entry each.
    pub devices: Vec<OfferedDevice>,
    /// The key for Secrets, which the key of the node signed.
    pub seal_key: Option<Box<SignedSealKey>>,
}

impl AgentOffer {
    /// What a node report has of it. The caller verified the signature of the seal key.
    pub fn from_report(report: &NodeReport) -> Self {
        let supports = report.supports.iter().copied().collect();
        let is_valid = |device: &&OfferedDevice| check_device_resource(&device.resource).is_ok();
        let valid = report.devices.iter().filter(is_valid).take(MAX_OFFERED_DEVICES);
        let mut devices: Vec<_> = valid.cloned().collect();
        devices.sort_by(|a, b| a.resource.cmp(&b.resource));
        devices.dedup_by(|a, b| a.resource == b.resource);
        let signed = report.key_pin.clone().zip(report.seal_key.as_deref().cloned());
        let seal_key = signed.map(|(signer, report)| Box::new(SignedSealKey { signer, report }));
        Self { supports, devices, seal_key }
    }

    /// The devices of a resource; `None` if the node offers none.
    pub fn device(&self, resource: &str) -> Option<&OfferedDevice> {
        self.devices.iter().find(|device| device.resource == resource)
    }

    /// Whether plans are the same with the other one. Which devices are free or missing changes with
    /// each container, and no plan depends on it.
    pub fn is_same_for_plans(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&OfferedDevice, &OfferedDevice)| {
            a.resource == b.resource && a.total == b.total
        };
        self.supports == other.supports
            && self.seal_key == other.seal_key
            && self.devices.len() == other.devices.len()
            && self.devices.iter().zip(&other.devices).all(is_same)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn offer(supports: &[&str], devices: &[(&str, u32, u32)]) -> AgentOffer {
        let devices: Vec<_> = devices
            .iter()
            .map(|(resource, total, free)| json!({"resource": resource, "total": total, "free": free}))
            .collect();
        let report = json!({
            "instance": "a", "epoch": 1, "online": true, "supports": supports, "devices": devices,
        });
        AgentOffer::from_report(&serde_json::from_value(report).unwrap())
    }

    #[test]
    fn invalid_and_repeated_resources_are_dropped() {
        let long = format!("{}/gpu", "a".repeat(5000));
        let devices = [("b/c", 2, 2), ("gpu", 1, 1), (&long, 1, 1), ("a/b", 1, 1), ("b/c", 9, 9)];
        let kept = offer(&[], &devices).devices;
        let kept: Vec<_> = kept.iter().map(|it| (it.resource.as_str(), it.total)).collect();
        assert_eq!(kept, [("a/b", 1), ("b/c", 2)]);
    }

    #[test]
    fn free_devices_are_no_difference_for_plans_and_their_number_is() {
        let before = offer(&["devices"], &[("b/c", 2, 2), ("a/b", 1, 1)]);
        for (other, is_same) in [
            (offer(&["devices"], &[("a/b", 1, 0), ("b/c", 2, 1)]), true),
            (offer(&["devices"], &[("a/b", 2, 1), ("b/c", 2, 2)]), false),
            (offer(&["devices"], &[("b/c", 2, 2)]), false),
            (offer(&[], &[("a/b", 1, 1), ("b/c", 2, 2)]), false),
            (offer(&["devices", "aNewerOne"], &[("a/b", 1, 1), ("b/c", 2, 2)]), false),
        ] {
            assert_eq!(before.is_same_for_plans(&other), is_same, "{other:?}");
        }
    }
}
