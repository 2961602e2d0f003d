//! What the containers of workers, model servers and training tasks have in common.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    AgentFeature, ConfigContent, ContainerMount, ContainerProbes, DeviceRequests, MountSource,
    SealedSecret, SecretVariable,
};

/// The role of a worker in a joint inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Infers with the small model and sends hard samples to the cloud worker. Its counters are
    /// those of the service.
    Edge,
    /// Answers hard samples with the big model.
    Cloud,
}

/// What a container runs, with its limits and rights, whether an agent or a Pod runs it. In messages
/// its fields are fields of the worker, server, transformer or training that contains it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProgram {
    /// Image reference, as for `docker run`.
    pub image: String,
    /// Replaces the entry point of the image; the image's entry point is used if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of the entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables, to which the host of the container adds its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Resource limits of the container.
    #[serde(default)]
    pub resources: ResourceLimits,
    /// The devices of the node that the container gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: DeviceRequests,
    /// The working directory of the processes. Absent: that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The time between the request to stop and the end by force, in seconds. Absent: the default of
    /// the host of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_seconds: Option<u32>,
    /// The volumes that an agent mounts in the container. Empty in Pods, which have those of the
    /// spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<ContainerMount>,
    /// The probes that an agent runs. Empty in Pods, which have those of the spec.
    #[serde(default, skip_serializing_if = "ContainerProbes::is_empty")]
    pub probes: ContainerProbes,
    /// Environment variables with values of `secrets`. They win over those of `env`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_env: Vec<SecretVariable>,
    /// The Secrets that the agent opens for the container. Empty in Pods, which refer to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SealedSecret>,
    /// The `ConfigMap`s that `mounts` name. Empty in Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<ConfigContent>,
    /// Names of the `secrets` with credentials of registries (`.dockerconfigjson`), in the order in
    /// which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
    /// The rights of the container.
    #[serde(default, skip_serializing_if = "ContainerRights::is_default")]
    pub rights: ContainerRights,
}

impl ContainerProgram {
    /// Returns the features that an agent needs to run this program as it is meant. Earlier agents
    /// ignore the parts that they do not know.
    pub fn required_features(&self) -> BTreeSet<AgentFeature> {
        // Agents know the working directory since they know volumes. An agent that ignores the grace
        // period uses its own, which changes nothing else.
        let has_volumes = !self.mounts.is_empty() || self.working_dir.is_some();
        let needed = [
            (!self.devices.is_empty(), AgentFeature::Devices),
            (has_volumes, AgentFeature::Volumes),
            (!self.probes.is_empty(), AgentFeature::Probes),
            (self.has_values(), AgentFeature::Sealed),
        ];
        needed.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, feature)| feature).collect()
    }
}

impl ContainerProgram {
    /// Whether the container gets values of Secrets or files of `ConfigMap`s.
    pub fn has_values(&self) -> bool {
        let is_value = |mount: &ContainerMount| {
            matches!(mount.source(), Some(MountSource::Config(..) | MountSource::Secret(..)))
        };
        !self.secret_env.is_empty()
            || !self.secrets.is_empty()
            || !self.configs.is_empty()
            || !self.pull_secrets.is_empty()
            || self.mounts.iter().any(is_value)
    }

    /// Removes the ciphertexts, which differ each time that the same values are sealed.
    pub(crate) fn remove_sealed(&mut self) {
        self.secrets.iter_mut().for_each(|secret| secret.sealed.clear());
    }
}

/// The directory on the node with the scripts of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// Absolute path of the directory on the node.
    pub dir: String,
    /// The file in `dir` that is started. It must exist before the worker starts.
    pub boot_file: String,
}

/// Resource limits of a container. Zero or absent means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLimits {
    /// CPU limit in thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Memory limit in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The rights of a container. Absent fields: the defaults of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRights {
    /// The user and group ID of the processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<u32>,
    /// Whether the root file system is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root: Option<bool>,
}

impl ContainerRights {
    /// Returns whether every right is the default of the agent.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a worker is not running, or not as it should. The names are the reasons of conditions and Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WorkerReason {
    /// The container was created, but is not running yet.
    Starting,
    /// The node has not received the `Model` yet.
    ModelNotReceived,
    /// The model is being downloaded to the node.
    ModelDownloading,
    /// The download waits for the hours in which the node may download (`--download-window`).
    DownloadWindow,
    /// The model cannot be downloaded: its server is unreachable or refuses the request.
    ModelUnavailable,
    /// The model does not fit on the disk of the node beside the reserve.
    DiskFull,
    /// The SHA-256 of the model differs from `sha256sum`.
    ModelDigestMismatch,
    /// The owner of the model's repository has not granted access, or the node has no token of an
    /// account with access.
    ModelGated,
    /// The model's repository does not exist, or is private and the node has no token for it.
    RepositoryNotFound,
    /// The model's repository has no such branch, tag or commit.
    RevisionNotFound,
    /// The model's repository has no such file at the revision.
    FileNotFound,
    /// The model hub limits the requests of the node. The download continues later.
    HubRateLimited,
    /// The artifact of a registry is no list of files.
    ModelLayoutUnknown,
    /// The image is not on the node and cannot be pulled.
    ImageMissing,
    /// `scriptDir` or `scriptBootFile` does not exist on the node.
    ScriptMissing,
    /// The node has not received the `Dataset` yet.
    DatasetNotReceived,
    /// The dataset is being downloaded to the node or located there.
    DatasetDownloading,
    /// The dataset does not exist, is not readable, or is outside the allowed directories.
    DatasetUnavailable,
    /// The container engine does not respond.
    DockerUnavailable,
    /// The container engine refuses to create or start the container.
    ContainerRefused,
    /// Another program of the node has the port on which the worker has to listen.
    PortInUse,
    /// A device that the worker requests is not on the node, or is not offered there.
    DeviceMissing,
    /// Other workers of the node have the devices that the worker requests.
    DeviceBusy,
    /// The container engine cannot pass devices of this kind to a container.
    EngineUnsuited,
    /// A path of the node that the worker mounts is outside the directories that the agent allows, or
    /// is neither a directory nor a file.
    VolumeNotAllowed,
    /// A path of the node that the worker mounts does not exist, or has another type.
    VolumeMissing,
    /// A probe of the worker failed; it is restarted after a backoff.
    Unhealthy,
    /// A Secret of the worker cannot be opened on the node: it is sealed to another key, or to another
    /// program.
    SecretUnreadable,
    /// The worker exited and is restarted after a backoff.
    CrashLoopBackOff,
    /// The kernel killed the worker because of its memory limit.
    OutOfMemory,
    /// The worker finished: it exited with exit code 0 and is not restarted, or it reports
    /// `completed`. Reported with the state `Pending`, which earlier controllers understand.
    Completed,
    /// The worker reports `failed`, or exited with an error and is not restarted.
    WorkerFailed,
    /// The worker runs, and the message names what a user should correct. Reported with the state
    /// `Running`, for which earlier controllers ignore reasons.
    WorkerDegraded,
    /// A reason of a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn program_without_new_fields_is_sent_as_by_earlier_controllers() {
        let program = ContainerProgram { image: "a:1".to_owned(), ..ContainerProgram::default() };
        let sent = serde_json::to_value(&program).unwrap();
        assert_eq!(sent, json!({"image": "a:1", "resources": {}}));
        assert_eq!(program.required_features(), BTreeSet::new());
    }

    #[test]
    fn program_names_the_features_that_its_agent_needs() {
        let features = |program: serde_json::Value| -> Vec<AgentFeature> {
            let mut whole = json!({"image": "a:1"});
            whole.as_object_mut().unwrap().extend(program.as_object().unwrap().clone());
            let program: ContainerProgram = serde_json::from_value(whole).unwrap();
            program.required_features().into_iter().collect()
        };
        let mount = json!([{"name": "state", "path": "/state", "emptyDir": {}}]);
        for (program, expected) in [
            (json!({"stopGraceSeconds": 30}), vec![]),
            (json!({"devices": {"a.b/c": 1}}), vec![AgentFeature::Devices]),
            (json!({"workingDir": "/state"}), vec![AgentFeature::Volumes]),
            (json!({"probes": {"liveness": {"tcpPort": 5}}}), vec![AgentFeature::Probes]),
            (json!({"probes": {}}), vec![]),
            (
                json!({"secretEnv": [{"name": "A", "secret": "b", "key": "c"}]}),
                vec![AgentFeature::Sealed],
            ),
            (
                json!({"secrets": [{"name": "b", "version": "1", "sealKey": ""}]}),
                vec![AgentFeature::Sealed],
            ),
            (json!({"configs": [{"name": "b", "version": "1"}]}), vec![AgentFeature::Sealed]),
            (json!({"pullSecrets": ["b"]}), vec![AgentFeature::Sealed]),
            (
                json!({"mounts": [{"name": "b", "path": "/b", "config": "b"}]}),
                vec![AgentFeature::Volumes, AgentFeature::Sealed],
            ),
            (
                json!({"mounts": [{"name": "b", "path": "/b", "secret": "b"}]}),
                vec![AgentFeature::Volumes, AgentFeature::Sealed],
            ),
            (json!({ "mounts": mount }), vec![AgentFeature::Volumes]),
            (
                json!({"devices": {"a.b/c": 1}, "mounts": mount}),
                vec![AgentFeature::Devices, AgentFeature::Volumes],
            ),
        ] {
            assert_eq!(features(program.clone()), expected, "{program}");
        }
    }
}
