//! Why a worker does not get the devices that it requests, as users read it.

use std::collections::BTreeSet;

use neptune_wire::{NodeName, ObjectKey, WorkerReason, too_few_devices};

use crate::{
    devices::offered::{OfferedUnit, report},
    domain::problem::Problem,
};

/// Why a container does not get its devices now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortage {
    /// The node offers fewer devices than requested, present or not.
    TooFew { resource: String, requested: u32 },
    /// A device is not on the node.
    Missing { resource: String, path: String },
    /// Other containers have the devices.
    Busy {
        resource: String,
        in_use: usize,
        present: usize,
        /// The objects that have them; `None` for an object that is not known.
        by: BTreeSet<Option<ObjectKey>>,
    },
}

impl Shortage {
    /// The problem of a worker of this object.
    pub fn problem(&self, units: &[OfferedUnit], owner: &ObjectKey, node: &NodeName) -> Problem {
        match self {
            Self::TooFew { resource, requested } => {
                let offered = report(units, &BTreeSet::new());
                let message = too_few_devices(node, resource, *requested, &offered);
                Problem { reason: WorkerReason::DeviceMissing, message }
            }
            Self::Missing { resource, path } => missing(resource, path, node),
            Self::Busy { resource, in_use, present, by } => {
                let names: BTreeSet<String> =
                    by.iter().map(|it| holder(it.as_ref(), owner)).collect();
                let names: Vec<String> = names.into_iter().collect();
                let message = format!(
                    "{resource} on node {node}: {in_use} of {present} in use by {}; the worker starts when it is free",
                    names.join(", ")
                );
                Problem { reason: WorkerReason::DeviceBusy, message }
            }
        }
    }
}

/// The problem of a worker whose device is not on the node.
pub fn missing(resource: &str, path: &str, node: &NodeName) -> Problem {
    let message = format!(
        "device {path} of {resource} is not on node {node}; the worker starts when it returns"
    );
    Problem { reason: WorkerReason::DeviceMissing, message }
}

/// The object that has a device, as users of another namespace may see it.
fn holder(holder: Option<&ObjectKey>, owner: &ObjectKey) -> String {
    match holder {
        Some(key) if key.namespace == owner.namespace => format!("{}/{}", key.namespace, key.name),
        _ => "a worker of another namespace".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_name_resource_node_and_remedy_and_hide_other_namespaces() {
        let owner: ObjectKey = "default/jointinferenceservices/door".parse().unwrap();
        let node: NodeName = "edge0".parse().unwrap();
        let camera = "neptune.io/camera".to_owned();
        let units = [OfferedUnit {
            name: "x".to_owned(),
            resource: camera.clone(),
            unit: Err("/dev/video0".to_owned()),
        }];
        let problem = |shortage: Shortage| shortage.problem(&units, &owner, &node);
        let gpu = "nvidia.com/gpu".to_owned();
        let unknown = problem(Shortage::TooFew { resource: gpu.clone(), requested: 1 });
        assert_eq!(
            unknown.message,
            "node edge0 offers no nvidia.com/gpu; it offers neptune.io/camera (1); correct resources.limits, or add the device with --allow-device of the agent"
        );
        let few = Shortage::TooFew { resource: camera.clone(), requested: 2 };
        assert_eq!(
            problem(few.clone()).message,
            "node edge0 offers 1 neptune.io/camera, and 2 are requested"
        );
        assert_eq!(few.problem(&[], &owner, &node).reason, WorkerReason::DeviceMissing);
        let path = "/dev/v4l/by-id/usb-C920-video-index0".to_owned();
        assert_eq!(
            problem(Shortage::Missing { resource: camera.clone(), path }).message,
            "device /dev/v4l/by-id/usb-C920-video-index0 of neptune.io/camera is not on node edge0; the worker starts when it returns"
        );
        let busy = |by: &[Option<&str>]| {
            let by = by.iter().map(|it| it.map(|key| key.parse().unwrap())).collect();
            problem(Shortage::Busy { resource: camera.clone(), in_use: 1, present: 1, by })
        };
        let hall = Some("default/jointinferenceservices/hall");
        let same = busy(&[hall]);
        assert_eq!(same.reason, WorkerReason::DeviceBusy);
        assert_eq!(
            same.message,
            "neptune.io/camera on node edge0: 1 of 1 in use by default/hall; the worker starts when it is free"
        );
        let other = "neptune.io/camera on node edge0: 1 of 1 in use by a worker of another namespace; the worker starts when it is free";
        assert_eq!(busy(&[Some("secret/jointinferenceservices/x"), None]).message, other);
        assert!(
            busy(&[hall, None]).message.contains("a worker of another namespace, default/hall")
        );
        let unknown = Shortage::TooFew { resource: gpu, requested: 1 };
        assert!(unknown.problem(&[], &owner, &node).message.contains("it offers no device;"));
    }
}
