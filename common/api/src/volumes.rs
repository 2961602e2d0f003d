//! The volumes of a container and where it mounts them: fields that several kinds share, in the form
//! of a Pod.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ConfigMapVolumeSource, Quantity, SecretVolumeSource, rules, schema};

/// Volume is a directory or file that containers can mount. Exactly one of emptyDir, hostPath,
/// persistentVolumeClaim, secret and configMap is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::volume_has_one_source())]
pub struct Volume {
    /// name is the name of the volume, to which volumeMounts refer.
    #[schemars(length(max = 63), regex(pattern = schema::LABEL))]
    pub name: String,
    /// emptyDir is a directory that is empty at first, and writable for any user. On the node of an
    /// agent its files are kept until the worker leaves the node; in a Pod until the Pod is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDirSource>,
    /// hostPath is an existing directory or file of the node. An agent mounts it only below its
    /// --allow-volume-dir. A Pod mounts it only below the controller's --allow-host-path, and
    /// read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
    /// persistentVolumeClaim is a claim in the namespace of the object. Pods only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimSource>,
    /// secret is a Secret in the namespace of the object, whose keys are files that cannot be
    /// written. The files change while the container runs when the Secret changes. An agent gets it
    /// only if the Secret has the label neptune.io/edge: allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolumeSource>,
    /// configMap is a ConfigMap in the namespace of the object, whose keys are files that cannot be
    /// written. The files change while the container runs when the ConfigMap changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolumeSource>,
}

/// EmptyDirSource is a directory that is empty at first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDirSource {
    /// medium is where the files are. Memory: in memory, which counts to the limit of the container;
    /// they are lost at each start. Defaults to the disk of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<VolumeMedium>,
    /// sizeLimit is the maximum size of all files, a Kubernetes quantity such as "1Gi". An agent
    /// requires it with medium Memory, and refuses it otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::size_above_zero())]
    pub size_limit: Option<Quantity>,
}

/// VolumeMedium is where the files of an emptyDir are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMedium {
    /// A file system in memory.
    Memory,
}

/// HostPathSource is an existing directory or file of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathSource {
    /// path is the absolute path on the node, without ".", ".." and ':'.
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    #[x_kube(validation = rules::plain_path())]
    pub path: String,
    /// type is what the path must be: Directory, or File for a regular file. Devices and sockets are
    /// refused. Defaults to either.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<HostPathType>,
}

/// HostPathType is the type of a path of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HostPathType {
    /// The path must be a directory.
    Directory,
    /// The path must be a regular file.
    File,
}

/// PersistentVolumeClaimSource is a claim in the namespace of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaimSource {
    /// claimName is the name of the PersistentVolumeClaim.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub claim_name: String,
    /// readOnly mounts the volume read-only everywhere. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// VolumeMount is a place where a container mounts a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// name is the name of a volume in volumes.
    #[schemars(length(max = 63), regex(pattern = schema::LABEL))]
    pub name: String,
    /// mountPath is the absolute path in the container, without ".", ".." and ':'. It is not in /proc,
    /// /sys, /dev (except /dev/shm), /models, /datasets and scriptDir, and no other mount is in it.
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    #[x_kube(validation = rules::plain_path(), validation = rules::mount_path_not_reserved())]
    pub mount_path: String,
    /// readOnly mounts the volume read-only. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}
