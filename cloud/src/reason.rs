//! Every reason that a condition or an Event of ours gives: one closed vocabulary. Pure.

use std::{fmt, str::FromStr};

use neptune_api::JisConditionType;
use neptune_wire::{DatasetReason, WorkerReason};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $type:ident),* $(,)?) => {
        /// Why a service or a model is in the state that it is in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// Every reason, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The state that a service is in for this reason: `Pending` for what heals when
            /// something appears, `Failed` for what somebody has to change.
            pub fn condition(self) -> JisConditionType {
                match self { $(Self::$name => JisConditionType::$type),* }
            }
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => stringify!($name)),* })
            }
        }
    };
}

reasons! {
    /// Both workers run.
    WorkersRunning => Running,

    // What `validate` finds: up to `DatasetElsewhere` a change elsewhere heals it.
    /// A model that the spec names does not exist.
    ModelNotFound => Pending,
    /// A node that the spec names does not exist.
    NodeNotFound => Pending,
    /// The edge worker's node is not marked as one.
    NodeNotEdge => Pending,
    /// The `ConfigMap` with the frameworks cannot be read.
    FrameworksInvalid => Pending,
    /// The edge cannot be told where the cloud worker is.
    CloudAddressUnknown => Pending,
    /// A Dataset that the spec names does not exist.
    DatasetNotFound => Pending,
    /// The Dataset is not on the worker's node.
    DatasetElsewhere => Pending,
    /// The Model's URL cannot be used.
    ModelUrlInvalid => Failed,
    /// The Model's sha256sum is none.
    ModelDigestInvalid => Failed,
    /// No such framework in the table.
    FrameworkUnknown => Failed,
    /// The framework has no image, and the worker names none.
    ImageRequired => Failed,
    /// The directory of the scripts cannot be mounted.
    ScriptDirInvalid => Failed,
    /// The script's name cannot be one.
    ScriptBootFileInvalid => Failed,
    /// A hard-example algorithm's name is missing or misspelt.
    HardExampleAlgorithmInvalid => Failed,
    /// Two parameters have one name.
    ParameterDuplicate => Failed,
    /// A parameter has no key.
    ParameterInvalid => Failed,
    /// An environment variable cannot be set.
    EnvInvalid => Failed,
    /// A worker or node is named as nothing can be named.
    NameInvalid => Failed,
    /// A limit is no quantity.
    ResourceInvalid => Failed,

    // What `validate` finds of an `InferenceModel`.
    /// Several nodes have the labels, and none is preferred.
    NodeAmbiguous => Pending,
    /// Another model is served on that port of the node.
    ServingPortTaken => Pending,
    /// A version that the hold-upgrade annotation keeps is not in the manifest any more.
    HeldVersionMissing => Pending,
    /// No such layer.
    LayerUnknown => Failed,
    /// Neither a node nor labels of one are given.
    NodeRequired => Failed,
    /// The model's name cannot be part of a path.
    ModelNameInvalid => Failed,
    /// Neither an image nor a manifest is given.
    ManifestRequired => Failed,
    /// The target version is not in the manifest.
    TargetVersionUnknown => Failed,
    /// A version cannot be a directory's name, or is none that the server takes.
    VersionInvalid => Failed,
    /// Two entries of the manifest have one version.
    VersionDuplicate => Failed,
    /// A version's address cannot be used.
    DownloadUrlInvalid => Failed,
    /// The port is missing, or is none.
    ServingPortInvalid => Failed,
    /// The number of servers is negative.
    ReplicasInvalid => Failed,
    /// No such type of a Service.
    ServiceTypeInvalid => Failed,
    /// The health check cannot be made.
    HealthInvalid => Failed,

    // What is found of a `Dataset`, here or by its node's agent.
    /// The data's URL or path cannot be one.
    DataUrlInvalid => Failed,

    // What `apply` and the downstream find.
    /// An object with the cloud worker's name exists and is somebody else's.
    NameTaken => Failed,
    /// The API server refuses the cloud worker's Deployment or Service.
    CloudWorkerRefused => Failed,
    /// The API server refuses an `InferenceModel`'s Deployment or Service.
    ServerRefused => Failed,
    /// The task is larger than a message may be.
    TaskTooLarge => Failed,

    // What the workers' hosts say.
    /// No agent of that node has ever spoken.
    AgentNotSeen => Pending,
    /// The agent has not said yet how the worker fares.
    AwaitingAgent => Pending,
    /// The node's agent is not connected.
    NodeOffline => Pending,
    /// The cloud worker's Pod is on its way.
    CloudWorkerStarting => Pending,
    /// The cloud worker's Pod does not come up.
    CloudWorkerFailed => Failed,
    /// The container was made and has not been seen running yet.
    Starting => Pending,
    /// The node was not told of the model yet.
    ModelNotReceived => Pending,
    /// The model is on its way to the node.
    ModelDownloading => Pending,
    /// The model cannot be had.
    ModelUnavailable => Failed,
    /// The node's disk has no room for the model.
    DiskFull => Failed,
    /// What came is not what the digest says.
    ModelDigestMismatch => Failed,
    /// The node has no such image and cannot pull it.
    ImageMissing => Failed,
    /// The script is not on the node.
    ScriptMissing => Failed,
    /// The node was not told of the dataset yet.
    DatasetNotReceived => Pending,
    /// The dataset is on its way to the node.
    DatasetDownloading => Pending,
    /// The dataset cannot be had on the node.
    DatasetUnavailable => Failed,
    /// Docker does not answer.
    DockerUnavailable => Failed,
    /// Docker refuses to make or start the container.
    ContainerRefused => Failed,
    /// The worker ended and will be started again.
    CrashLoopBackOff => Failed,
    /// The kernel ended the worker for its memory.
    OutOfMemory => Failed,
    /// A dataset's samples are counted.
    Counted => Running,
    /// The first count is under way.
    Counting => Pending,
    /// The agent knows no such format.
    UnknownFormat => Failed,
    /// An option of the format cannot mean anything.
    DatasetOptionInvalid => Failed,
    /// There is nothing at the path.
    PathMissing => Pending,
    /// The agent may not read the data.
    PermissionDenied => Failed,
    /// The path is in no directory that the node's owner allowed.
    OutsideAllowedDirectories => Failed,
    /// The format needs a file and there is a directory, or the other way round.
    WrongKindOfPath => Failed,
    /// The node's disk does not give the data.
    DatasetUnreadable => Failed,
    /// The data is not of the format.
    DataMalformed => Failed,
    /// A newer agent says why it does not count in a word that this controller does not know.
    DatasetNotCounted => Pending,
    /// What is wanted is served.
    Serving => Running,
    /// The model server is on its way.
    ServerStarting => Pending,
    /// No server is wanted.
    ScaledToZero => Pending,
    /// A switch is prepared and not made, because an annotation says so.
    UpgradeHeld => Pending,
    /// A version could not be served.
    LoadFailed => Failed,
    /// The agent says that the spec cannot be served.
    ServingRefused => Failed,
    // What is said of a Model.
    /// Every node that uses the model has it.
    ModelPresent => Running,
    /// No service uses the model.
    ModelUnused => Pending,
    /// Only Pods use the model, and each fetches its own.
    ModelInPods => Running,
    /// The metrics are those of the file that the spec names.
    MetricsCurrent => Running,
    /// The metrics are those of another file than the spec names.
    MetricsOutdated => Pending,
    /// A newer agent gives a reason that this controller does not know.
    WorkerNotRunning => Pending,
}

impl Reason {
    /// Whether this is a step on the way and nothing to warn of.
    pub fn is_progress(self) -> bool {
        matches!(
            self,
            Self::WorkersRunning
                | Self::AwaitingAgent
                | Self::CloudWorkerStarting
                | Self::Starting
                | Self::ModelNotReceived
                | Self::ModelDownloading
                | Self::DatasetNotReceived
                | Self::DatasetDownloading
                | Self::Counted
                | Self::Counting
                | Self::Serving
                | Self::ServerStarting
                | Self::ScaledToZero
                | Self::UpgradeHeld
        )
    }

    /// Whether it stands between the spec and the workers: nothing was handed out for this spec.
    pub fn is_obstacle(self) -> bool {
        self > Self::WorkersRunning && self < Self::AgentNotSeen
    }
}

impl FromStr for Reason {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|reason| reason.to_string() == text).ok_or(())
    }
}

impl From<WorkerReason> for Reason {
    fn from(reason: WorkerReason) -> Self {
        match reason {
            WorkerReason::Starting => Self::Starting,
            WorkerReason::ModelNotReceived => Self::ModelNotReceived,
            WorkerReason::ModelDownloading => Self::ModelDownloading,
            WorkerReason::ModelUnavailable => Self::ModelUnavailable,
            WorkerReason::DiskFull => Self::DiskFull,
            WorkerReason::ModelDigestMismatch => Self::ModelDigestMismatch,
            WorkerReason::ImageMissing => Self::ImageMissing,
            WorkerReason::ScriptMissing => Self::ScriptMissing,
            WorkerReason::DatasetNotReceived => Self::DatasetNotReceived,
            WorkerReason::DatasetDownloading => Self::DatasetDownloading,
            WorkerReason::DatasetUnavailable => Self::DatasetUnavailable,
            WorkerReason::DockerUnavailable => Self::DockerUnavailable,
            WorkerReason::ContainerRefused => Self::ContainerRefused,
            WorkerReason::CrashLoopBackOff => Self::CrashLoopBackOff,
            WorkerReason::OutOfMemory => Self::OutOfMemory,
            WorkerReason::Unknown => Self::WorkerNotRunning,
        }
    }
}

impl From<DatasetReason> for Reason {
    fn from(reason: DatasetReason) -> Self {
        match reason {
            DatasetReason::Counting => Self::Counting,
            DatasetReason::DatasetDownloading => Self::DatasetDownloading,
            DatasetReason::DatasetUnavailable => Self::DatasetUnavailable,
            DatasetReason::DataUrlInvalid => Self::DataUrlInvalid,
            DatasetReason::UnknownFormat => Self::UnknownFormat,
            DatasetReason::DatasetOptionInvalid => Self::DatasetOptionInvalid,
            DatasetReason::PathMissing => Self::PathMissing,
            DatasetReason::PermissionDenied => Self::PermissionDenied,
            DatasetReason::OutsideAllowedDirectories => Self::OutsideAllowedDirectories,
            DatasetReason::WrongKindOfPath => Self::WrongKindOfPath,
            DatasetReason::DatasetUnreadable => Self::DatasetUnreadable,
            DatasetReason::DataMalformed => Self::DataMalformed,
            DatasetReason::Unknown => Self::DatasetNotCounted,
        }
    }
}

/// What stands in the way of a service, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// For programs.
    pub reason: Reason,
    /// For people: the field and the remedy.
    pub message: String,
    /// What the cluster lacks, if that is it.
    pub missing: Option<Missing>,
}

/// An object that a spec names and the cluster has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its kind.
    pub referent: Referent,
    /// The name that was given.
    pub name: String,
}

/// A kind of object that specs name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referent {
    /// A Model of the same namespace.
    Model,
    /// A Dataset of the same namespace.
    Dataset,
    /// A node of the cluster.
    Node,
}

impl Finding {
    /// A finding.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), missing: None }
    }

    /// There is no such object. `field` is what names it.
    pub fn missing(referent: Referent, namespace: &str, name: &str, field: &str) -> Self {
        let (reason, message) = match referent {
            Referent::Model => (
                Reason::ModelNotFound,
                format!(
                    "model {name:?} not found in namespace {namespace:?}: apply it, or correct {field}"
                ),
            ),
            Referent::Dataset => (
                Reason::DatasetNotFound,
                format!(
                    "dataset {name:?} not found in namespace {namespace:?}: apply it, or correct {field}"
                ),
            ),
            Referent::Node => (
                Reason::NodeNotFound,
                format!("node {name:?} not found: correct {field}, or let the node join"),
            ),
        };
        let missing = Some(Missing { referent, name: name.to_owned() });
        Self { missing, ..Self::new(reason, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_as_it_was_written() {
        for reason in Reason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(*reason));
        }
        assert_eq!("Nonsense".parse::<Reason>(), Err(()));
    }

    #[test]
    fn obstacles_are_what_stands_before_the_workers() {
        assert!(!Reason::WorkersRunning.is_obstacle());
        assert!(Reason::ModelNotFound.is_obstacle());
        assert!(Reason::TaskTooLarge.is_obstacle());
        assert!(!Reason::AgentNotSeen.is_obstacle());
        assert!(!Reason::CrashLoopBackOff.is_obstacle());
    }
}
