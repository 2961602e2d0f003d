//! The events that the agent's tasks and links send to its loop.

use std::collections::BTreeSet;

use neptune_link::LinkEvent;
use neptune_wire::{ObjectKey, WorkerName};

use crate::{
    Error,
    domain::{
        artifact::{ArtifactSource, DownloadEvent, ImageEvent, LocalModelEvent},
        observed_container::ObservedContainer,
        outcome::StepOutcome,
        problem::Problem,
    },
};

/// What happens to the agent.
#[derive(Debug)]
pub enum AgentEvent {
    /// On the link to the cloud.
    Cloud(LinkEvent),
    /// On the link to the local broker.
    WorkerBroker(LinkEvent),
    /// The engine answers, with this version; or it does not.
    EngineStatus(Result<String, Problem>),
    /// One of this node's containers changed.
    ContainersChanged,
    /// What the look of this number at the containers showed.
    ContainersObserved { seq: u64, result: Result<Vec<ObservedContainer>, Problem> },
    /// An operation ended. `spec`: what was started, and how often before.
    StepDone { worker: WorkerName, outcome: StepOutcome, spec: Option<(String, u32)> },
    /// A model's task found something.
    LocalModel { key: ObjectKey, content_key: String, found: LocalModelEvent },
    /// There is news of a dataset.
    DatasetChanged,
    /// A task of the depot found something.
    Download { source: ArtifactSource, found: DownloadEvent },
    /// An image's task found something.
    ImagePull { image: String, found: ImageEvent },
    /// A model server was asked for its health: which edition in which run.
    ProbeDone { key: ObjectKey, version: String, run: String, answer: Result<(), String> },
    /// The address at which this node can be reached.
    OwnAddress(Option<String>),
    /// The broker took these back.
    ClearsPublished(BTreeSet<ObjectKey>),
    /// The embedded broker ended.
    BrokerFailed(Error),
}
