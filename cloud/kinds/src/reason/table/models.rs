//! The reasons of an `InferenceModel`, a `Dataset` and a `Model`.

macro_rules! model_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            InferenceModel {
                /// Another `InferenceModel` is served on that port of the node.
                ServingPortTaken: Obstacle => Pending: "use another port or node",
                /// The version held by the hold-upgrade annotation is no longer in the manifest.
                HeldVersionMissing: Obstacle => Pending: "add it, or remove the annotation",
                /// The layer is neither edge nor cloud.
                LayerUnknown: Obstacle => Failed: "correct it",
                /// The model's name cannot be part of a path.
                ModelNameInvalid: Obstacle => Failed: "use letters, digits, ., - and _",
                /// Neither an image nor a manifest is given.
                ManifestRequired: Obstacle => Failed: "set one",
                /// The target version is not in the manifest.
                TargetVersionUnknown: Obstacle => Failed: "correct it, or add the version",
                /// A version is not a valid directory name, or the server does not support it.
                VersionInvalid: Obstacle => Failed: "a whole number always works",
                /// Two entries of the manifest have the same version.
                VersionDuplicate: Obstacle => Failed: "remove one",
                /// A version's URL is invalid.
                DownloadUrlInvalid: Obstacle => Failed: "correct it",
                /// The Model has no digest, from which the version is taken.
                ModelDigestRequired: Obstacle => Pending: "set it",
                /// The port is missing or invalid.
                ServingPortInvalid: Obstacle => Failed: "use 1 to 65535",
                /// The number of replicas is negative.
                ReplicasInvalid: Obstacle => Failed: "use 0 or more, or name other nodes",
                /// The type of the Service is unknown.
                ServiceTypeInvalid: Obstacle => Failed: "ClusterIP, NodePort or LoadBalancer",
                /// The health check is invalid.
                HealthInvalid: Obstacle => Failed: "the message names the field",
                /// A field of the transformer is invalid.
                TransformerInvalid: Obstacle => Failed: "the message names the field",
                /// The target version is served.
                Serving: Progress => Running: "nothing",
                /// The model server is starting.
                ServerStarting: Progress => Pending: "wait",
                /// The spec sets 0 replicas.
                ScaledToZero: Progress => Pending: "raise replicas",
                /// The hold-upgrade annotation delays the switch to the target version.
                UpgradeHeld: Progress => Pending: "remove the annotation",
                /// A version could not be served.
                LoadFailed: Problem => Failed: "the message has the server's error",
                /// The transformer of a version does not run or is not ready.
                TransformerFailed: Problem => Failed: "correct spec.transformer",
                /// The agent rejects the spec.
                ServingRefused: Problem => Failed: "the message names the field",
            }
            Dataset {
                /// The URL of the data is invalid.
                DataUrlInvalid: Obstacle => Failed: "correct dataUrl",
                /// The samples are counted.
                Counted: Progress => Running: "nothing",
                /// The first count is running.
                Counting: Progress => Pending: "wait",
                /// The agent does not support the format.
                UnknownFormat: Problem => Failed: "use one of the message, or a newer agent",
                /// An option of the format is invalid.
                DatasetOptionInvalid: Problem => Failed: "the message names the field",
                /// The path does not exist.
                PathMissing: Problem => Pending: "put the data there; in a Pod, mount its directory",
                /// The agent has no permission to read the data.
                PermissionDenied: Problem => Failed: "let the user of the agent read it: neptune, or root in a Pod that mounts the directory",
                /// The path is outside of the directories that the node allows.
                OutsideAllowedDirectories: Problem => Failed: "--allow-data-dir",
                /// The format needs a file and the path is a directory, or the reverse.
                WrongKindOfPath: Problem => Failed: "correct dataUrl or format",
                /// Reading the data fails.
                DatasetUnreadable: Problem => Failed: "check the node's kernel log and disk",
                /// The data is not in the given format.
                DataMalformed: Problem => Failed: "the message names the position",
                /// A newer agent reports a reason that this controller does not know.
                DatasetNotCounted: Problem => Pending: "upgrade the controller",
                /// All replicas are in sync.
                ReplicasInSync: Progress => Running: "nothing",
                /// A replica lacks data, which is copied.
                ReplicasSyncing: Progress => Pending: "wait",
                /// The agent of the source does not allow replicas.
                ReplicationNotAllowed: Problem => Pending: "the message names them",
                /// A replica's node, or the source as seen from it, is not reachable.
                ReplicaOffline: Problem => Pending: "check node and network",
                /// A replica has other data than the source.
                ReplicaDiverged: Problem => Failed: "check the disk of the node",
                /// A replica cannot be copied.
                ReplicaFailed: Problem => Failed: "the message has the reason",
                /// The source or a replica exchanges datasets with as many nodes as it can.
                TooManyPartners: Problem => Failed: "another node, or fewer replicas on it",
            }
            Model {
                /// The model's URL is invalid.
                ModelUrlInvalid: Obstacle => Failed: "correct it: an absolute path, or an http(s) or s3 URL",
                /// Every node that uses the model has it.
                ModelPresent: Problem => Running: "nothing",
                /// No service uses the model.
                ModelUnused: Problem => Pending: "name it in a service, place it, or delete it",
                /// A node keeps its earlier file until the rollout of a user of the model reaches it.
                AwaitingRollout: Progress => Pending: "wait, or rollout resume",
                /// Only Pods and model servers use the model, and each downloads its own.
                ModelInPods: Problem => Running: "nothing",
                /// The metrics belong to the file that the spec names.
                MetricsCurrent: Problem => Running: "nothing",
                /// The metrics belong to another file than the one that the spec names.
                MetricsOutdated: Problem => Pending: "wait for a worker's report, or record new ones",
            }
        }
    };
}
