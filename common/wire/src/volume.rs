//! The volumes that agents mount in containers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A volume that an agent mounts in a container. One of the sources is set; none is a source of a newer
/// controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMount {
    /// Name of the volume, a DNS label. Mounts of one container with the same name share the volume.
    pub name: String,
    /// Absolute path in the container.
    pub path: String,
    /// A directory that is empty when the worker comes to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDirMount>,
    /// Absolute path of a directory or file of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// What `host_path` must be. Absent: a directory or a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path_type: Option<HostPathType>,
    /// Name of a `ConfigMap` whose keys are files. The volume is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Name of a Secret whose keys are files. The volume is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The keys of the `ConfigMap` or Secret by their path in the volume. Absent: each key is a file of
    /// its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<BTreeMap<String, String>>,
    /// Whether the container cannot write to the volume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A directory that is empty when the worker comes to the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDirMount {
    /// Size of a file system in memory, in bytes, which is empty after each start of the container.
    /// Absent: a volume of the container engine, which keeps its files until the worker leaves the
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The type of a path of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostPathType {
    /// The path must be a directory.
    Directory,
    /// The path must be a regular file.
    File,
    /// A type of a newer controller, which no path has.
    #[serde(other)]
    Unknown,
}

/// The source of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountSource<'a> {
    /// A volume of the container engine.
    Disk,
    /// A file system in memory of this size in bytes.
    Memory(u64),
    /// A path of the node, with the type that it must have.
    Host(&'a str, Option<HostPathType>),
    /// Files with keys of this `ConfigMap`, by path; without paths all keys.
    Config(&'a str, Option<&'a BTreeMap<String, String>>),
    /// Files with keys of this Secret, by path; without paths all keys.
    Secret(&'a str, Option<&'a BTreeMap<String, String>>),
}

impl ContainerMount {
    /// Returns the source of the mount; `None` for one of a newer controller.
    pub fn source(&self) -> Option<MountSource<'_>> {
        let Self { empty_dir, host_path, config, secret, items, .. } = self;
        let items = items.as_ref();
        match (empty_dir, host_path, config, secret) {
            (Some(EmptyDirMount { memory_bytes }), None, None, None) => {
                Some(memory_bytes.map_or(MountSource::Disk, MountSource::Memory))
            }
            (None, Some(path), None, None) => Some(MountSource::Host(path, self.host_path_type)),
            (None, None, Some(name), None) => Some(MountSource::Config(name, items)),
            (None, None, None, Some(name)) => Some(MountSource::Secret(name, items)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_have_the_form_of_the_protocol_and_unknown_sources_are_kept() {
        let directory = Some(HostPathType::Directory);
        let items = BTreeMap::from([("b/c".to_owned(), "d".to_owned())]);
        for (sent, source) in [
            (json!({"name": "a", "path": "/a", "emptyDir": {}}), Some(MountSource::Disk)),
            (
                json!({"name": "a", "path": "/a", "emptyDir": {"memoryBytes": 5}, "readOnly": true}),
                Some(MountSource::Memory(5)),
            ),
            (
                json!({"name": "a", "path": "/a", "hostPath": "/b"}),
                Some(MountSource::Host("/b", None)),
            ),
            (
                json!({"name": "a", "path": "/a", "hostPath": "/b", "hostPathType": "Directory"}),
                Some(MountSource::Host("/b", directory)),
            ),
            (
                json!({"name": "a", "path": "/a", "config": "files", "items": {"b/c": "d"}}),
                Some(MountSource::Config("files", Some(&items))),
            ),
            (
                json!({"name": "a", "path": "/a", "secret": "camera"}),
                Some(MountSource::Secret("camera", None)),
            ),
            (json!({"name": "a", "path": "/a", "secret": "camera", "config": "files"}), None),
            (json!({"name": "a", "path": "/a"}), None),
        ] {
            let mount: ContainerMount = serde_json::from_value(sent.clone()).unwrap();
            assert_eq!(mount.source(), source, "{sent}");
            assert_eq!(serde_json::to_value(&mount).unwrap(), sent);
        }
        let newer = json!({"name": "a", "path": "/a", "image": "files", "items": {}});
        let newer: ContainerMount = serde_json::from_value(newer).unwrap();
        assert_eq!(newer.source(), None);
        let newer = json!({"name": "a", "path": "/a", "hostPath": "/b", "hostPathType": "Fifo"});
        let newer: ContainerMount = serde_json::from_value(newer).unwrap();
        assert_eq!(newer.source(), Some(MountSource::Host("/b", Some(HostPathType::Unknown))));
    }
}
