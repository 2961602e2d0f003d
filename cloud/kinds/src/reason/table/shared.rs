//! The reasons that several kinds use.

macro_rules! shared_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
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
                /// The node's agent does not support a part of what it should run.
                AgentTooOld: Problem => Pending,
                /// The node offers fewer devices than a container requests.
                DeviceUnknown: Problem => Pending,
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
        }
    };
}
