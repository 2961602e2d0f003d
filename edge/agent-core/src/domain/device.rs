//! The devices of the node as units that containers get whole, and the labels with which a container
//! names its units.

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasher,
};

use neptune_wire::{NodeName, ObjectKey, WorkerName};
use serde_json::Value;

use crate::domain::{
    observed_container::{MANAGED, NODE, OBJECT, WORKER},
    training::{TASK, TASK_OBJECT},
};

/// Label with the names of the units that a container has, as a JSON list.
pub const DEVICES: &str = "io.neptune.devices";
/// Label with the identities of these units when the container was created, in the same order.
pub const DEVICE_IDS: &str = "io.neptune.device-ids";

/// The smallest part of a resource that a container gets: the sources of one `--allow-device`, or one
/// match of its pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUnit {
    /// Resource and sources. Agents that offer the same sources use the same name.
    pub name: String,
    pub resource: String,
    /// Differs after a device was replaced or connected again.
    pub identity: String,
    pub parts: Vec<DevicePart>,
}

/// A source of a unit, as the engine gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DevicePart {
    /// A device node, such as `/dev/video0`.
    Node {
        /// The path on the node, without links.
        path: String,
        /// The path in the container.
        target: String,
        /// The group that a container needs to open it.
        group: Option<u32>,
    },
    /// The CDI name of a device.
    Cdi(String),
    /// A GPU that the engine's driver `nvidia` passes on: its index or UUID.
    Nvidia(String),
    /// A GPU that a runtime of the engine passes on.
    Runtime { name: String, id: Option<String> },
}

impl DevicePart {
    /// How a program in the container finds the device.
    pub fn variable_value(&self) -> &str {
        match self {
            Self::Node { target, .. } => target,
            Self::Cdi(name) | Self::Nvidia(name) => name,
            Self::Runtime { name, id } => id.as_ref().unwrap_or(name),
        }
    }
}

/// The variable that names the devices of a resource in the container.
pub fn variable_name(resource: &str) -> String {
    let part = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("DEVICE_{}", resource.chars().map(part).collect::<String>())
}

/// The labels of a container with these units; none without units.
pub fn device_labels(units: &[DeviceUnit]) -> Vec<(String, String)> {
    if units.is_empty() {
        return Vec::new();
    }
    let list = |value: fn(&DeviceUnit) -> &str| {
        Value::from(units.iter().map(value).collect::<Vec<&str>>()).to_string()
    };
    let (names, identities) = (list(|unit| &unit.name), list(|unit| &unit.identity));
    vec![(DEVICES.to_owned(), names), (DEVICE_IDS.to_owned(), identities)]
}

/// The units in the labels of a container, each with its identity.
pub fn labelled_units<S: BuildHasher>(
    labels: &HashMap<String, String, S>,
) -> BTreeMap<String, String> {
    let list = |label: &str| -> Vec<String> {
        labels.get(label).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let (names, identities) = (list(DEVICES), list(DEVICE_IDS));
    let identities = identities.into_iter().chain(std::iter::repeat(String::new()));
    names.into_iter().zip(identities).collect()
}

/// A container of any agent on the engine that has units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHolder {
    pub id: String,
    pub node: String,
    /// The worker or model server, if it is the container of one.
    pub worker: Option<WorkerName>,
    /// The training task, if it is the container of one.
    pub task: Option<String>,
    /// The object to which the container belongs.
    pub owner: Option<ObjectKey>,
    pub units: Vec<String>,
    /// Whether its processes have ended.
    pub has_ended: bool,
}

impl DeviceHolder {
    /// The container with these labels, if an agent created it and it has units.
    pub fn from_labels(
        id: &str,
        labels: &HashMap<String, String>,
        has_ended: bool,
    ) -> Option<Self> {
        let label = |name: &str| labels.get(name);
        if label(MANAGED.0).map(String::as_str) != Some(MANAGED.1) {
            return None;
        }
        let units: Vec<String> = labelled_units(labels).into_keys().collect();
        let owner = label(OBJECT).or_else(|| label(TASK_OBJECT));
        (!units.is_empty()).then(|| Self {
            id: id.to_owned(),
            node: label(NODE).cloned().unwrap_or_default(),
            worker: label(WORKER).and_then(|text| text.parse().ok()),
            task: label(TASK).cloned(),
            owner: owner.and_then(|text| text.parse().ok()),
            units,
            has_ended,
        })
    }

    /// The worker or model server of this node to which it belongs.
    pub fn worker_of(&self, node: &NodeName) -> Option<&WorkerName> {
        self.worker.as_ref().filter(|_| self.node == node.as_str())
    }
}

/// A container that may have units of a container that was just created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rival {
    pub id: String,
    /// Whether it was started already.
    pub has_started: bool,
    /// When the engine created it, in nanoseconds since 1970.
    pub created: i128,
}

/// Whether the container of this ID and time of creation leaves its units to one of these.
pub fn yields(id: &str, created: i128, rivals: &[Rival]) -> bool {
    let is_before = |rival: &Rival| (rival.created, rival.id.as_str()) < (created, id);
    rivals.iter().any(|rival| rival.has_started || is_before(rival))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::container_identity;

    #[test]
    fn variable_is_named_after_the_resource() {
        assert_eq!(variable_name("neptune.io/camera"), "DEVICE_NEPTUNE_IO_CAMERA");
        assert_eq!(variable_name("nvidia.com/mig-1g.5gb"), "DEVICE_NVIDIA_COM_MIG_1G_5GB");
    }

    #[test]
    fn labels_of_units_round_trip_and_are_absent_without_units() {
        assert!(device_labels(&[]).is_empty());
        let unit = |name: &str, identity: &str| DeviceUnit {
            name: name.to_owned(),
            resource: "a.b/c".to_owned(),
            identity: identity.to_owned(),
            parts: Vec::new(),
        };
        let units = [unit("a.b/c=/dev/x", "1:2"), unit("a.b/c=/dev/\"y,", "")];
        let mut labels: HashMap<_, _> = device_labels(&units).into_iter().collect();
        let expected = units.map(|unit| (unit.name, unit.identity));
        assert_eq!(labelled_units(&labels), expected.clone().into());
        assert_eq!(DeviceHolder::from_labels("1", &labels, false), None, "no agent created it");
        labels.extend(container_identity().labels());
        let holder = DeviceHolder::from_labels("1", &labels, false).unwrap();
        assert_eq!(holder.worker_of(&container_identity().node).unwrap().as_str(), "s-w-1");
        assert_eq!(holder.worker_of(&"edge1".parse().unwrap()), None);
        labels.insert(DEVICE_IDS.to_owned(), "damaged".to_owned());
        let [first, second] = expected.map(|(name, _)| (name, String::new()));
        assert_eq!(labelled_units(&labels), [first, second].into());
    }

    #[test]
    fn of_two_new_containers_exactly_one_yields() {
        let rival = |id: &str, created, has_started| Rival { id: id.into(), has_started, created };
        for (a, b) in [(("a", 1), ("b", 2)), (("b", 1), ("a", 2)), (("a", 1), ("b", 1))] {
            let first = yields(a.0, a.1, &[rival(b.0, b.1, false)]);
            let second = yields(b.0, b.1, &[rival(a.0, a.1, false)]);
            assert!(first != second, "{a:?} {b:?}");
        }
        assert!(yields("a", 1, &[rival("b", 2, true)]), "it runs already");
        assert!(!yields("a", 1, &[]));
    }
}
