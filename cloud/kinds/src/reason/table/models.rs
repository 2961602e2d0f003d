//! The reasons of an `InferenceModel`, a `Dataset` and a `Model`.

macro_rules! model_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            InferenceModel {
                /// Another `InferenceModel` is served on that port of the node.
                ServingPortTaken: Obstacle => Pending,
                /// The version held by the hold-upgrade annotation is no longer in the manifest.
                HeldVersionMissing: Obstacle => Pending,
                /// The layer is neither edge nor cloud.
                LayerUnknown: Obstacle => Failed,
                /// The model's name cannot be part of a path.
                ModelNameInvalid: Obstacle => Failed,
                /// Neither an image nor a manifest is given.
                ManifestRequired: Obstacle => Failed,
                /// The target version is not in the manifest.
                TargetVersionUnknown: Obstacle => Failed,
                /// A version is not a valid directory name, or the server does not support it.
                VersionInvalid: Obstacle => Failed,
                /// Two entries of the manifest have the same version.
                VersionDuplicate: Obstacle => Failed,
                /// A version's URL is invalid.
                DownloadUrlInvalid: Obstacle => Failed,
                /// The Model has no digest, from which the version is taken.
                ModelDigestRequired: Obstacle => Pending,
                /// The port is missing or invalid.
                ServingPortInvalid: Obstacle => Failed,
                /// The number of replicas is negative.
                ReplicasInvalid: Obstacle => Failed,
                /// The type of the Service is unknown.
                ServiceTypeInvalid: Obstacle => Failed,
                /// The health check is invalid.
                HealthInvalid: Obstacle => Failed,
                /// A field of the transformer is invalid.
                TransformerInvalid: Obstacle => Failed,
                /// The target version is served.
                Serving: Progress => Running,
                /// The model server is starting.
                ServerStarting: Progress => Pending,
                /// The spec sets 0 replicas.
                ScaledToZero: Progress => Pending,
                /// The hold-upgrade annotation delays the switch to the target version.
                UpgradeHeld: Progress => Pending,
                /// A version could not be served.
                LoadFailed: Problem => Failed,
                /// The transformer of a version does not run or is not ready.
                TransformerFailed: Problem => Failed,
                /// The agent rejects the spec.
                ServingRefused: Problem => Failed,
            }
            Dataset {
                /// The URL of the data is invalid.
                DataUrlInvalid: Obstacle => Failed,
                /// The samples are counted.
                Counted: Progress => Running,
                /// The first count is running.
                Counting: Progress => Pending,
                /// The agent does not support the format.
                UnknownFormat: Problem => Failed,
                /// An option of the format is invalid.
                DatasetOptionInvalid: Problem => Failed,
                /// The path does not exist.
                PathMissing: Problem => Pending,
                /// The agent has no permission to read the data.
                PermissionDenied: Problem => Failed,
                /// The path is outside of the directories that the node allows.
                OutsideAllowedDirectories: Problem => Failed,
                /// The format needs a file and the path is a directory, or the reverse.
                WrongKindOfPath: Problem => Failed,
                /// Reading the data fails.
                DatasetUnreadable: Problem => Failed,
                /// The data is not in the given format.
                DataMalformed: Problem => Failed,
                /// A newer agent reports a reason that this controller does not know.
                DatasetNotCounted: Problem => Pending,
                /// All replicas are in sync.
                ReplicasInSync: Progress => Running,
                /// A replica lacks data, which is copied.
                ReplicasSyncing: Progress => Pending,
                /// The agent of the source does not allow replicas.
                ReplicationNotAllowed: Problem => Pending,
                /// A replica's node, or the source as seen from it, is not reachable.
                ReplicaOffline: Problem => Pending,
                /// A replica has other data than the source.
                ReplicaDiverged: Problem => Failed,
                /// A replica cannot be copied.
                ReplicaFailed: Problem => Failed,
                /// The source or a replica exchanges datasets with as many nodes as it can.
                TooManyPartners: Problem => Failed,
            }
            Model {
                /// The model's URL is invalid.
                ModelUrlInvalid: Obstacle => Failed,
                /// Every node that uses the model has it.
                ModelPresent: Problem => Running,
                /// No service uses the model.
                ModelUnused: Problem => Pending,
                /// A node keeps its earlier file until the rollout of a user of the model reaches it.
                AwaitingRollout: Progress => Pending,
                /// Only Pods use the model, and each downloads its own.
                ModelInPods: Problem => Running,
                /// The metrics belong to the file that the spec names.
                MetricsCurrent: Problem => Running,
                /// The metrics belong to another file than the one that the spec names.
                MetricsOutdated: Problem => Pending,
            }
        }
    };
}
