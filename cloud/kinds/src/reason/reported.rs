//! The reasons that agents and gateways report. They have the same names; one of a newer agent
//! becomes the general reason of its kind.

use neptune_wire::{DatasetReason, GatewayProblemReason, TrainingReason, WorkerReason};

use super::Reason;

macro_rules! reported {
    ($($reported:ident { $($name:ident),* } else $unknown:ident;)*) => {
        $(impl From<$reported> for Reason {
            fn from(reason: $reported) -> Self {
                match reason {
                    $($reported::$name => Self::$name,)*
                    $reported::Unknown => Self::$unknown,
                }
            }
        })*
    };
}

reported! {
    WorkerReason {
        Starting, ModelNotReceived, ModelDownloading, DownloadWindow, ModelUnavailable, DiskFull,
        ModelDigestMismatch, ModelGated, RepositoryNotFound, RevisionNotFound, FileNotFound,
        HubRateLimited, ModelLayoutUnknown, ImageMissing, ScriptMissing, DatasetNotReceived, DatasetDownloading,
        DatasetUnavailable, DockerUnavailable, ContainerRefused, PortInUse, DeviceMissing,
        DeviceBusy, EngineUnsuited, VolumeNotAllowed, VolumeMissing, SecretUnreadable, Unhealthy,
        CrashLoopBackOff, OutOfMemory,
        Completed, WorkerFailed, WorkerDegraded
    } else WorkerNotRunning;
    GatewayProblemReason {
        ModelServerDown, ModelServerRefusesRequests, RequestsUndecided, ProtocolMismatch,
        CloudRefusesToken, CloudRefusesRequests, CloudAnswerInvalid, CloudLeftAlone,
        ConfigurationInvalid, SignalMissing, OverBudget, Drifting, OutputsDiffer, CaptureFailing,
        RequestLoop, UpperAway
    } else WorkerDegraded;
    TrainingReason {
        DatasetNotReceived, DatasetUnavailable, DatasetEmpty, DownloadFailed, DigestMismatch,
        ScriptMissing, ImageMissing, ContainerRefused, ScriptFailed, OutOfMemory, TimedOut,
        OutputMissing, ShapeMismatch, NotFinite, NormTooLarge, UpdateTooLarge, SamplesNotCredible,
        DiskFull, AggregatorUnreachable, NodeNotTrusted
    } else TrainingFailed;
    DatasetReason {
        Counting, DatasetDownloading, DownloadWindow, DatasetUnavailable, DataUrlInvalid,
        UnknownFormat, DatasetOptionInvalid, PathMissing, PermissionDenied,
        OutsideAllowedDirectories, WrongKindOfPath, DatasetUnreadable, DataMalformed
    } else DatasetNotCounted;
}

impl Reason {
    /// Whether a gateway reports it as a problem.
    pub fn is_of_gateway(self) -> bool {
        matches!(
            self,
            Self::ModelServerDown
                | Self::ModelServerRefusesRequests
                | Self::RequestsUndecided
                | Self::ProtocolMismatch
                | Self::CloudRefusesToken
                | Self::CloudRefusesRequests
                | Self::CloudAnswerInvalid
                | Self::CloudLeftAlone
                | Self::ConfigurationInvalid
                | Self::SignalMissing
                | Self::OverBudget
                | Self::Drifting
                | Self::OutputsDiffer
                | Self::CaptureFailing
                | Self::RequestLoop
                | Self::UpperAway
        )
    }
}
