//! The reasons of a `JointInferenceService` and of its workers.

macro_rules! service_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            JointInferenceService {
                /// The edge worker and the cloud worker run.
                WorkersRunning: Progress => Running: "nothing",
                /// The edge worker finished its task.
                Completed: Progress => Completed: "nothing",
                /// A worker reports that it failed, or failed and is not restarted.
                WorkerFailed: Problem => Failed: "docker logs on the node",
                /// A Model that the spec names does not exist.
                ModelNotFound: Obstacle => Pending: "apply the Model",
                /// A Dataset that the spec names does not exist.
                DatasetNotFound: Obstacle => Pending: "apply the Dataset",
                /// Both a node and labels of nodes are given.
                PlacementInvalid: Obstacle => Failed: "remove one",
                /// The Dataset is on another node than the edge worker.
                DatasetElsewhere: Obstacle => Pending: "correct a nodeName",
                /// The Dataset cannot take the samples that a gateway captures.
                DatasetUnsuited: Obstacle => Pending: "correct the Dataset",
                /// The address of the cloud worker's node is not known.
                CloudAddressUnknown: Obstacle => Pending: "start the agent of the node, or set its --advertise-address",
                /// A Pod would mount a path of its node that the operator does not allow.
                HostPathNotAllowed: Obstacle => Pending: "use a URL and an image with the program, or let an agent run the workers of the node",
                /// The framework has no image, and neither has the worker.
                ImageRequired: Obstacle => Failed: "set workerSpec.image",
                /// The directory of the scripts cannot be mounted.
                ScriptDirInvalid: Obstacle => Failed: "use an absolute directory with only the scripts",
                /// The script is not a relative path.
                ScriptBootFileInvalid: Obstacle => Failed: "correct it",
                /// The name of the hard-example algorithm is missing or misspelled.
                HardExampleAlgorithmInvalid: Obstacle => Failed: "correct it",
                /// Two parameters have the same name.
                ParameterDuplicate: Obstacle => Failed: "rename one",
                /// A parameter has no key.
                ParameterInvalid: Obstacle => Failed: "set the key",
                /// An environment variable is invalid, reserved or duplicate.
                EnvInvalid: Obstacle => Failed: "the message names the variable",
                /// A value that differs per node contradicts another, is too long, or one of too many.
                NodeValueInvalid: Obstacle => Failed: "the message names it",
                /// A program other than an edge worker has a value that differs per node.
                ValueNotPerNode: Obstacle => Failed: "write the value",
                /// The node lacks a label of which its worker needs the value.
                NodeValueMissing: Problem => Pending: "set the label; the message has the command",
                /// A Secret of a worker at an agent, or a key of it, does not exist.
                SecretNotFound: Problem => Pending: "create it",
                /// A `ConfigMap` of a worker at an agent, or a key of it, does not exist.
                ConfigMapNotFound: Problem => Pending: "create it",
                /// A Secret of a worker at an agent has no label that allows it to leave the cluster.
                SecretNotShared: Problem => Pending: "label it; the message has the command",
                /// The controller may not read a Secret or `ConfigMap` of a worker at an agent.
                SecretForbidden: Problem => Pending: "bind the role; the message has the command",
                /// Secrets cannot be sealed for the node, because its key is not trusted.
                NodeKeyUntrusted: Problem => Pending: "check it, and kubectl neptune trust",
                /// The Secrets and `ConfigMap`s of a worker at an agent are too large.
                ConfigTooLarge: Problem => Failed: "select keys with items",
                /// A limit is not a Kubernetes quantity above 0.
                ResourceInvalid: Obstacle => Failed: "write 500m or 256Mi",
                /// A volume or a mount of a worker is invalid, or not available where the worker runs.
                VolumeInvalid: Obstacle => Failed: "see the message",
                /// The edge or the cloud worker has none or several forms, or a field of another form.
                WorkerInvalid: Obstacle => Failed: "the message names the field",
                /// A goal is no share, or contradicts another field.
                GoalInvalid: Obstacle => Failed: "the message names the field",
                /// A setting of the gateway is invalid.
                GatewayInvalid: Obstacle => Failed: "the message names the field",
                /// The endpoint in the cloud is invalid.
                EndpointInvalid: Obstacle => Failed: "use https and names of files",
                /// The algorithm does not read the answers of the protocol.
                AlgorithmUnsuited: Obstacle => Failed: "use the one in the message",
                /// The protocol of the edge's model server is not known.
                ProtocolUnknown: Obstacle => Pending: "add protocol to its framework",
                /// The model servers of edge and cloud use different protocols.
                ProtocolsDiffer: Obstacle => Failed: "use equal ones",
                /// Another object has a port of the gateway on the node.
                PortTaken: Obstacle => Pending: "set gateway.port or grpcPort",
                /// A model server has no gRPC, which the gateway needs.
                GrpcUnavailable: Obstacle => Pending: "the message names the server",
                /// An `InferenceModel` that the spec names does not exist.
                InferenceModelNotFound: Obstacle => Pending: "apply it",
                /// The `InferenceModel` is not served on the nodes of the edge worker.
                InferenceModelElsewhere: Obstacle => Pending: "place both on the same nodes",
                /// A model server has no address yet.
                ServerAddressUnknown: Obstacle => Pending: "see the status of the object in the message",
                /// The service in the cloud's place does not exist.
                ServiceNotFound: Obstacle => Pending: "apply it",
                /// The gateway of the service in the cloud's place is not exposed.
                ServiceNotExposed: Obstacle => Pending: "set its gateway.expose",
                /// The service is its own cloud, over other services.
                ServiceCycle: Obstacle => Failed: "name another service",
                /// The cloud worker's Pod is starting.
                CloudWorkerStarting: Progress => Pending: "wait",
                /// The cloud worker's Pod cannot start.
                CloudWorkerFailed: Problem => Failed: "kubectl describe the Pod",
                /// A worker runs, and something about it should be corrected.
                WorkerDegraded: Problem => Running: "see the message",
                /// The cloud worker does not answer the edge worker's calls.
                CloudUnreachable: Problem => Running: "neptune-edge doctor on the edge node",
                /// The model server of a gateway does not answer.
                ModelServerDown: Problem => Running: "see the InferenceModel",
                /// A gateway cannot read the answers of a model server.
                ProtocolMismatch: Problem => Running: "check output and kind",
                /// The model server behind a gateway refuses each of its last requests.
                ModelServerRefusesRequests: Problem => Running: "the message has its text",
                /// The last requests to a gateway are not decided.
                RequestsUndecided: Problem => Running: "see the message",
                /// The cloud refuses the token of a gateway.
                CloudRefusesToken: Problem => Running: "write the token file, or name one in tokenFile",
                /// The cloud answers a gateway, and refuses each of its last requests.
                CloudRefusesRequests: Problem => Running: "correct what the refusal names: modelName, url",
                /// The cloud answers a gateway in a form that it cannot use.
                CloudAnswerInvalid: Problem => Running: "check url, modelName and the protocol",
                /// A gateway does not call the cloud for a time, after failures.
                CloudLeftAlone: Problem => Running: "check the cloud; hard samples stay at the edge",
                /// A gateway does not use its new configuration, but the one before.
                ConfigurationInvalid: Problem => Running: "the message names the field",
                /// A gateway has nothing from which it computes a confidence.
                SignalMissing: Problem => Running: "use a server with logprobs, or another algorithm",
                /// The cap of uploads keeps many hard samples at the edge.
                OverBudget: Problem => Running: "raise maxUploadRatio, or accept it",
                /// The confidences at a gateway differ from those of its first samples.
                Drifting: Problem => Running: "check the inputs, or train the model again",
                /// The outputs of the two models cannot be mixed.
                OutputsDiffer: Problem => Running: "use models with equal outputs",
                /// A gateway cannot write the samples that it captures.
                CaptureFailing: Problem => Running: "check the Dataset's directory and disk",
                /// A request came back to a gateway, or passed too many of them.
                RequestLoop: Problem => Running: "point the service or endpoint elsewhere",
                /// The services below send up less than goal.totalUploadRatio needs.
                TotalUploadUnreachable: Problem => Running: "raise their uploadRatio, or lower the total",
                /// The gateway of the next service does not reach its own cloud.
                UpperAway: Problem => Running: "see the service that it names",
                /// The edge worker runs and counted no sample for the time that the spec allows.
                NoSamples: Problem => Running: "check the input of the worker, such as a frozen camera",
                /// The node's messages arrive late over `EventBus`.
                ReportsDelayed: Problem => Running: "see \"Late messages\" in docs/kubeedge.md",
                /// The container is created and was not observed running yet.
                Starting: Progress => Pending: "wait",
                /// The node has not received the Model yet.
                ModelNotReceived: Progress => Pending: "wait",
                /// The node has not received the Dataset yet.
                DatasetNotReceived: Progress => Pending: "wait",
                /// The node has no such image and cannot pull it.
                ImageMissing: Problem => Failed: "load it on the node, or give the agent credentials",
                /// The script is not on the node.
                ScriptMissing: Problem => Failed: "copy it; for an agent in a Pod, mount its directory",
                /// Docker does not answer.
                DockerUnavailable: Problem => Failed: "start it, and let the agent use its socket",
                /// Docker refuses to create or start the container.
                ContainerRefused: Problem => Failed: "see the message",
                /// Another program of the node has the port of a worker.
                PortInUse: Problem => Pending: "end that program, or set gateway.port",
                /// A device that the worker requests is not on the node, or not offered there.
                DeviceMissing: Problem => Pending: "connect it; the worker starts when it returns",
                /// Other workers of the node have the devices that the worker requests.
                DeviceBusy: Problem => Pending: "wait, or remove the worker in the message",
                /// The container engine cannot pass devices of this kind to a container.
                EngineUnsuited: Problem => Failed: "the message has the version or setting",
                /// The agent allows no worker to mount a path of its node.
                VolumeNotAllowed: Problem => Failed: "use a path below --allow-volume-dir",
                /// A path of the node that the worker mounts does not exist, or has another type.
                VolumeMissing: Problem => Pending: "create it on the node",
                /// A probe of the worker failed, and the worker is restarted.
                Unhealthy: Problem => Failed: "the message has the probe; docker logs on the node",
                /// A Secret of the worker cannot be opened on its node.
                SecretUnreadable: Problem => Pending: "wait: the controller seals it again",
                /// The worker exited and will be restarted.
                CrashLoopBackOff: Problem => Failed: "docker logs on the node",
                /// The kernel killed the worker because it exceeded its memory limit.
                OutOfMemory: Problem => Failed: "raise its limit",
                /// A newer agent reports a reason that this controller does not know.
                WorkerNotRunning: Problem => Pending: "upgrade the controller",
            }
        }
    };
}
