//! The reasons that several kinds use.

macro_rules! shared_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            Shared {
                /// A node that the spec names does not exist.
                NodeNotFound: Obstacle => Pending: "correct nodeName or the labels",
                /// The node has no label of an edge node.
                NodeNotEdge: Obstacle => Pending: "label the node, or name an edge node",
                /// The selector matches more nodes than placement All supports.
                TooManyNodes: Obstacle => Pending: "use a narrower selector",
                /// The node is a control-plane node, on which the operator allows no Pods.
                NodeIsControlPlane: Obstacle => Pending: "use another node, or let an agent run the workers of the node",
                /// Neither a node nor labels of a node are given.
                NodeRequired: Obstacle => Failed: "set one",
                /// The name of a worker, a node or the object is invalid.
                NameInvalid: Obstacle => Failed: "use letters, digits, - and .",
                /// The `ConfigMap` with the frameworks cannot be parsed.
                FrameworksInvalid: Obstacle => Pending: "the message has the line",
                /// The framework is not in the table.
                FrameworkUnknown: Obstacle => Failed: "correct frameworkType, or add an entry",
                /// The fields of a securityContext contradict each other.
                SecurityContextInvalid: Obstacle => Failed: "the message names the field",
                /// A text cannot be the name of a Secret.
                SecretNameInvalid: Obstacle => Failed: "correct it",
                /// A text of the spec contains a NUL.
                TextInvalid: Obstacle => Failed: "remove it from the field that the message names",
                /// A sha256sum is not 64 hexadecimal digits.
                ModelDigestInvalid: Obstacle => Failed: "write 64 hex digits",
                /// No agent of the node has reported since this controller started.
                AgentNotSeen: Problem => Pending: "start the agent; check its --node-name, broker and --topic-prefix with neptune-edge doctor",
                /// The agent has not reported the status yet.
                AwaitingAgent: Progress => Pending: "wait",
                /// The node's agent is not connected.
                NodeOffline: Problem => Pending: "check the node's network; workers keep running",
                /// Most nodes of the object are ready; the others are offline or not ready.
                SomeNodesNotReady: Problem => Running: "see the rows of the nodes in the status",
                /// The node is downloading the model.
                ModelDownloading: Progress => Pending: "wait",
                /// The download waits for the hours in which the node may download.
                DownloadWindow: Progress => Pending: "wait",
                /// The model cannot be downloaded or read.
                ModelUnavailable: Problem => Failed: "check the URL from the node",
                /// The digest of the download differs from the one in the spec.
                ModelDigestMismatch: Problem => Failed: "correct sha256sum or the file",
                /// The owner of the model's repository has not granted access to it.
                ModelGated: Problem => Failed: "set a token",
                /// The model's repository does not exist, or is private.
                RepositoryNotFound: Problem => Failed: "correct the name, or set a token",
                /// The model's repository has no such branch, tag or commit.
                RevisionNotFound: Problem => Failed: "correct the revision",
                /// The model's repository has no such file.
                FileNotFound: Problem => Failed: "correct the path",
                /// The model hub limits the requests of the node.
                HubRateLimited: Problem => Failed: "wait, or set a token",
                /// The artifact of a registry is no list of files.
                ModelLayoutUnknown: Problem => Failed: "push the files with their titles, as oras does",
                /// The node is downloading the dataset.
                DatasetDownloading: Progress => Pending: "wait",
                /// The dataset cannot be downloaded or read.
                DatasetUnavailable: Problem => Failed: "kubectl describe the Dataset",
                /// The node's disk has too little free space for the model.
                DiskFull: Problem => Failed: "free the bytes that the message names",
                /// A setting of the rollout is invalid.
                RolloutInvalid: Obstacle => Failed: "see the message",
                /// The node's agent does not support a part of what it should run.
                AgentTooOld: Problem => Pending: "upgrade the agent",
                /// The node offers fewer devices than a container requests.
                DeviceUnknown: Problem => Pending: "see the message",
            }
            Execution {
                /// A Deployment or Service with the planned name exists and has another owner.
                NameTaken: Obstacle => Failed: "rename the service or the worker",
                /// The task exceeds the size limit of a message.
                TaskTooLarge: Obstacle => Failed: "shorten parameters or variables",
                /// The API server rejects the cloud worker's Deployment or Service.
                CloudWorkerRefused: Obstacle => Failed: "read its message",
                /// The API server rejects an `InferenceModel`'s Deployment or Service.
                ServerRefused: Obstacle => Failed: "read the API server's message",
            }
        }
    };
}
