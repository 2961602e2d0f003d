//! The reasons of a `JointInferenceService` and of its workers.

macro_rules! service_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
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
                /// A Secret of a worker at an agent, or a key of it, does not exist.
                SecretNotFound: Problem => Pending,
                /// A `ConfigMap` of a worker at an agent, or a key of it, does not exist.
                ConfigMapNotFound: Problem => Pending,
                /// A Secret of a worker at an agent has no label that allows it to leave the cluster.
                SecretNotShared: Problem => Pending,
                /// The controller may not read a Secret or `ConfigMap` of a worker at an agent.
                SecretForbidden: Problem => Pending,
                /// Secrets cannot be sealed for the node, because its key is not trusted.
                NodeKeyUntrusted: Problem => Pending,
                /// The Secrets and `ConfigMap`s of a worker at an agent are too large.
                ConfigTooLarge: Problem => Failed,
                /// A limit is not a Kubernetes quantity above 0.
                ResourceInvalid: Obstacle => Failed,
                /// A volume or a mount of a worker is invalid, or not available where the worker runs.
                VolumeInvalid: Obstacle => Failed,
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
                /// The agent allows no worker to mount a path of its node.
                VolumeNotAllowed: Problem => Failed,
                /// A path of the node that the worker mounts does not exist, or has another type.
                VolumeMissing: Problem => Pending,
                /// A probe of the worker failed, and the worker is restarted.
                Unhealthy: Problem => Failed,
                /// A Secret of the worker cannot be opened on its node.
                SecretUnreadable: Problem => Pending,
                /// The worker exited and will be restarted.
                CrashLoopBackOff: Problem => Failed,
                /// The kernel killed the worker because it exceeded its memory limit.
                OutOfMemory: Problem => Failed,
                /// A newer agent reports a reason that this controller does not know.
                WorkerNotRunning: Problem => Pending,
            }
        }
    };
}
