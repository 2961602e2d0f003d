//! The closed list of reasons, by the kind that uses them: name, phase and condition.

use super::Phase;

reasons! {
    Shared {
        /// A node that the spec names does not exist.
        NodeNotFound: Obstacle => Pending,
        /// The node has no label of an edge node.
        NodeNotEdge: Obstacle => Pending,
        /// The selector matches more nodes than placement All supports.
        TooManyNodes: Obstacle => Pending,
        /// The node is a control-plane node, on which the operator allows no Pods.
        NodeIsControlPlane: Obstacle => Pending,
        /// Neither a node nor labels of a node are given.
        NodeRequired: Obstacle => Failed,
        /// The name of a worker, a node or the object is invalid.
        NameInvalid: Obstacle => Failed,
        /// The `ConfigMap` with the frameworks cannot be parsed.
        FrameworksInvalid: Obstacle => Pending,
        /// The framework is not in the table.
        FrameworkUnknown: Obstacle => Failed,
        /// The fields of a securityContext contradict each other.
        SecurityContextInvalid: Obstacle => Failed,
        /// A text cannot be the name of a Secret.
        SecretNameInvalid: Obstacle => Failed,
        /// A text of the spec contains a NUL.
        TextInvalid: Obstacle => Failed,
        /// A sha256sum is not 64 hexadecimal digits.
        ModelDigestInvalid: Obstacle => Failed,
        /// No agent of the node has reported since this controller started.
        AgentNotSeen: Problem => Pending,
        /// The agent has not reported the status yet.
        AwaitingAgent: Progress => Pending,
        /// The node's agent is not connected.
        NodeOffline: Problem => Pending,
        /// Most nodes of the object are ready; the others are offline or not ready.
        SomeNodesNotReady: Problem => Running,
        /// The node is downloading the model.
        ModelDownloading: Progress => Pending,
        /// The download waits for the hours in which the node may download.
        DownloadWindow: Progress => Pending,
        /// The model cannot be downloaded or read.
        ModelUnavailable: Problem => Failed,
        /// The digest of the download differs from the one in the spec.
        ModelDigestMismatch: Problem => Failed,
        /// The node is downloading the dataset.
        DatasetDownloading: Progress => Pending,
        /// The dataset cannot be downloaded or read.
        DatasetUnavailable: Problem => Failed,
        /// The node's disk has too little free space for the model.
        DiskFull: Problem => Failed,
        /// A setting of the rollout is invalid.
        RolloutInvalid: Obstacle => Failed,
    }
    Execution {
        /// A Deployment or Service with the planned name exists and has another owner.
        NameTaken: Obstacle => Failed,
        /// The task exceeds the size limit of a message.
        TaskTooLarge: Obstacle => Failed,
        /// The API server rejects the cloud worker's Deployment or Service.
        CloudWorkerRefused: Obstacle => Failed,
        /// The API server rejects an `InferenceModel`'s Deployment or Service.
        ServerRefused: Obstacle => Failed,
    }
    JointInferenceService {
        /// The edge worker and the cloud worker run.
        WorkersRunning: Progress => Running,
        /// The edge worker finished its task.
        Completed: Progress => Completed,
        /// A worker reports that it failed, or failed and is not restarted.
        WorkerFailed: Problem => Failed,
        /// A Model that the spec names does not exist.
        ModelNotFound: Obstacle => Pending,
        /// A Dataset that the spec names does not exist.
        DatasetNotFound: Obstacle => Pending,
        /// Both a node and labels of nodes are given.
        PlacementInvalid: Obstacle => Failed,
        /// The Dataset is on another node than the edge worker.
        DatasetElsewhere: Obstacle => Pending,
        /// The Dataset cannot take the samples that a gateway captures.
        DatasetUnsuited: Obstacle => Pending,
        /// The address of the cloud worker's node is not known.
        CloudAddressUnknown: Obstacle => Pending,
        /// A Pod would mount a path of its node that the operator does not allow.
        HostPathNotAllowed: Obstacle => Pending,
        /// The framework has no image, and neither has the worker.
        ImageRequired: Obstacle => Failed,
        /// The directory of the scripts cannot be mounted.
        ScriptDirInvalid: Obstacle => Failed,
        /// The script is not a relative path.
        ScriptBootFileInvalid: Obstacle => Failed,
        /// The name of the hard-example algorithm is missing or misspelled.
        HardExampleAlgorithmInvalid: Obstacle => Failed,
        /// Two parameters have the same name.
        ParameterDuplicate: Obstacle => Failed,
        /// A parameter has no key.
        ParameterInvalid: Obstacle => Failed,
        /// An environment variable is invalid, reserved or duplicate.
        EnvInvalid: Obstacle => Failed,
        /// A value that differs per node contradicts another, is too long, or one of too many.
        NodeValueInvalid: Obstacle => Failed,
        /// A program other than an edge worker has a value that differs per node.
        ValueNotPerNode: Obstacle => Failed,
        /// The node lacks a label of which its worker needs the value.
        NodeValueMissing: Problem => Pending,
        /// A limit is not a Kubernetes quantity above 0.
        ResourceInvalid: Obstacle => Failed,
        /// The edge or the cloud worker has none or several forms, or a field of another form.
        WorkerInvalid: Obstacle => Failed,
        /// A goal is no share, or contradicts another field.
        GoalInvalid: Obstacle => Failed,
        /// A setting of the gateway is invalid.
        GatewayInvalid: Obstacle => Failed,
        /// The endpoint in the cloud is invalid.
        EndpointInvalid: Obstacle => Failed,
        /// The algorithm does not read the answers of the protocol.
        AlgorithmUnsuited: Obstacle => Failed,
        /// The protocol of the edge's model server is not known.
        ProtocolUnknown: Obstacle => Pending,
        /// The model servers of edge and cloud use different protocols.
        ProtocolsDiffer: Obstacle => Failed,
        /// Another object has a port of the gateway on the node.
        PortTaken: Obstacle => Pending,
        /// A model server has no gRPC, which the gateway needs.
        GrpcUnavailable: Obstacle => Pending,
        /// An `InferenceModel` that the spec names does not exist.
        InferenceModelNotFound: Obstacle => Pending,
        /// The `InferenceModel` is not served on the nodes of the edge worker.
        InferenceModelElsewhere: Obstacle => Pending,
        /// A model server has no address yet.
        ServerAddressUnknown: Obstacle => Pending,
        /// The service in the cloud's place does not exist.
        ServiceNotFound: Obstacle => Pending,
        /// The gateway of the service in the cloud's place is not exposed.
        ServiceNotExposed: Obstacle => Pending,
        /// The service is its own cloud, over other services.
        ServiceCycle: Obstacle => Failed,
        /// The cloud worker's Pod is starting.
        CloudWorkerStarting: Progress => Pending,
        /// The cloud worker's Pod cannot start.
        CloudWorkerFailed: Problem => Failed,
        /// A worker runs, and something about it should be corrected.
        WorkerDegraded: Problem => Running,
        /// The cloud worker does not answer the edge worker's calls.
        CloudUnreachable: Problem => Running,
        /// The model server of a gateway does not answer.
        ModelServerDown: Problem => Running,
        /// A gateway cannot read the answers of a model server.
        ProtocolMismatch: Problem => Running,
        /// The model server behind a gateway refuses each of its last requests.
        ModelServerRefusesRequests: Problem => Running,
        /// The last requests to a gateway are not decided.
        RequestsUndecided: Problem => Running,
        /// The cloud refuses the token of a gateway.
        CloudRefusesToken: Problem => Running,
        /// The cloud answers a gateway, and refuses each of its last requests.
        CloudRefusesRequests: Problem => Running,
        /// The cloud answers a gateway in a form that it cannot use.
        CloudAnswerInvalid: Problem => Running,
        /// A gateway does not call the cloud for a time, after failures.
        CloudLeftAlone: Problem => Running,
        /// A gateway does not use its new configuration, but the one before.
        ConfigurationInvalid: Problem => Running,
        /// A gateway has nothing from which it computes a confidence.
        SignalMissing: Problem => Running,
        /// The cap of uploads keeps many hard samples at the edge.
        OverBudget: Problem => Running,
        /// The confidences at a gateway differ from those of its first samples.
        Drifting: Problem => Running,
        /// The outputs of the two models cannot be mixed.
        OutputsDiffer: Problem => Running,
        /// A gateway cannot write the samples that it captures.
        CaptureFailing: Problem => Running,
        /// A request came back to a gateway, or passed too many of them.
        RequestLoop: Problem => Running,
        /// The services below send up less than goal.totalUploadRatio needs.
        TotalUploadUnreachable: Problem => Running,
        /// The gateway of the next service does not reach its own cloud.
        UpperAway: Problem => Running,
        /// The edge worker runs and counted no sample for the time that the spec allows.
        NoSamples: Problem => Running,
        /// The node's messages arrive late over `EventBus`.
        ReportsDelayed: Problem => Running,
        /// The container is created and was not observed running yet.
        Starting: Progress => Pending,
        /// The node has not received the Model yet.
        ModelNotReceived: Progress => Pending,
        /// The node has not received the Dataset yet.
        DatasetNotReceived: Progress => Pending,
        /// The node has no such image and cannot pull it.
        ImageMissing: Problem => Failed,
        /// The script is not on the node.
        ScriptMissing: Problem => Failed,
        /// Docker does not answer.
        DockerUnavailable: Problem => Failed,
        /// Docker refuses to create or start the container.
        ContainerRefused: Problem => Failed,
        /// Another program of the node has the port of a worker.
        PortInUse: Problem => Pending,
        /// A device that the worker requests is not on the node, or not offered there.
        DeviceMissing: Problem => Pending,
        /// Other workers of the node have the devices that the worker requests.
        DeviceBusy: Problem => Pending,
        /// The container engine cannot pass devices of this kind to a container.
        EngineUnsuited: Problem => Failed,
        /// The worker exited and will be restarted.
        CrashLoopBackOff: Problem => Failed,
        /// The kernel killed the worker because it exceeded its memory limit.
        OutOfMemory: Problem => Failed,
        /// A newer agent reports a reason that this controller does not know.
        WorkerNotRunning: Problem => Pending,
    }
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
    TrainingModel {
        /// A setting is out of its range, or contradicts another one.
        TrainingInvalid: Obstacle => Failed,
        /// The run has more workers than are supported.
        TooManyWorkers: Obstacle => Failed,
        /// The Model of the first weights has no web address with a digest.
        InitialWeightsInvalid: Obstacle => Pending,
        /// The output Model belongs to another `TrainingModel`.
        OutputConflict: Obstacle => Failed,
        /// The API server rejects the aggregator's volume, Deployment or Service.
        AggregatorRefused: Obstacle => Failed,
        /// The controller has no rights for trainings in the namespace.
        RoleBindingMissing: Problem => Pending,
        /// The workers of the round train.
        Training: Progress => Running,
        /// The weights are measured.
        Evaluating: Progress => Running,
        /// The output Model receives the weights.
        Publishing: Progress => Running,
        /// The last run has a result.
        Succeeded: Progress => Completed,
        /// The spec suspends runs and rounds.
        Suspended: Progress => Pending,
        /// The Dataset has not grown enough for the next run.
        WaitingForGrowth: Progress => Pending,
        /// The aggregator is starting.
        WaitingForAggregator: Progress => Pending,
        /// Workers have not sent their update, and the round waits for them.
        WaitingForWorkers: Problem => Pending,
        /// The aggregator cannot be reached.
        AggregatorUnreachable: Problem => Pending,
        /// The aggregator serves another `TrainingModel`.
        OtherTrainingModel: Problem => Failed,
        /// The aggregator has other settings for the same run.
        RunChanged: Problem => Failed,
        /// The aggregator has a later run.
        RunEnded: Problem => Pending,
        /// The aggregator does not know the key of a node.
        NodeNotTrusted: Problem => Pending,
        /// A node reports another key than the trusted one.
        NodeKeyChanged: Problem => Pending,
        /// The first key of a node waits until a person trusts it.
        NodeKeyNotRecorded: Problem => Pending,
        /// The agent of a node is too old to train.
        AgentTooOld: Problem => Pending,
        /// The dataset has no sample.
        DatasetEmpty: Problem => Pending,
        /// Weights or the program cannot be downloaded.
        DownloadFailed: Problem => Pending,
        /// Weights or the program have another digest.
        DigestMismatch: Problem => Failed,
        /// The program ended with an error.
        ScriptFailed: Problem => Failed,
        /// The program did not end in time.
        TimedOut: Problem => Failed,
        /// The program wrote no weights or no valid result.
        OutputMissing: Problem => Failed,
        /// An update has other tensors than the base.
        ShapeMismatch: Problem => Failed,
        /// An update contains NaN or an infinity.
        NotFinite: Problem => Failed,
        /// An update moves the weights too far.
        NormTooLarge: Problem => Failed,
        /// An update exceeds the size limit.
        UpdateTooLarge: Problem => Failed,
        /// A worker reported more samples than its dataset has.
        SamplesNotCredible: Problem => Failed,
        /// The containers of a worker failed too often.
        BackoffLimit: Problem => Failed,
        /// A round ended with too few updates.
        TooFewWorkers: Problem => Failed,
        /// The workers whose updates count have fewer samples than the others.
        MostSamplesMissing: Problem => Failed,
        /// A user stopped the run.
        Stopped: Progress => Completed,
        /// The same updates gave other weights.
        NonDeterministic: Problem => Failed,
        /// The weights could not be measured.
        EvaluationFailed: Problem => Failed,
        /// The weights do not beat the published ones.
        NotBetter: Problem => Completed,
        /// The run took longer than allowed.
        DeadlineExceeded: Problem => Failed,
        /// The aggregator lost the files of a run, which starts again.
        RoundRepeated: Problem => Pending,
        /// The aggregator lost published weights.
        ContentLost: Problem => Failed,
        /// A newer agent or aggregator reports a reason that this controller does not know.
        TrainingFailed: Problem => Failed,
    }
}
