//! The events that links, watches and tasks send to the agent's loop.

use std::{collections::BTreeSet, sync::Arc};

use neptune_agent_core::{
    devices::offered::OfferedUnit,
    domain::{
        aggregator::AggregatorEvent,
        artifact::{ArtifactSource, LocalModelEvent},
        gateway_files::WrittenGateways,
        outcome::StepOutcome,
        probe::ProbeAnswer,
        server_part::ProbeFailure,
        training::{SweepState, TaskEvent},
    },
    logs::lines::LogText,
};
use neptune_edge_broker::BrokerError;
use neptune_edge_engine::event::EngineEvent;
use neptune_link::LinkEvent;
use neptune_share::peers::ContentEvent;
use neptune_store::{Artifact, ModelError};
use neptune_wire::{ObjectKey, RequestId, TaskId, WorkerName};

/// An event for the agent's loop.
#[derive(Debug)]
pub enum AgentEvent {
    /// An event of the link to the cloud.
    Cloud(LinkEvent),
    /// An event of the link to the workers' broker.
    WorkerBroker(LinkEvent),
    /// An event of the container engine.
    Engine(EngineEvent),
    /// A step finished. `spec`: the hash of the started spec, and how often it was started before.
    StepDone { worker: WorkerName, outcome: StepOutcome, spec: Option<(String, u32)> },
    /// The result of checking a model at a local path.
    LocalModel { key: ObjectKey, content_key: String, event: LocalModelEvent },
    /// The count of a dataset changed. The report is in `artifacts/datasets`.
    DatasetChanged,
    /// A download progressed, finished or failed.
    Download { source: ArtifactSource, event: DownloadEvent },
    /// The result of a health probe of a model server's version in a run of its container.
    ProbeDone { key: ObjectKey, version: String, run: String, answer: Result<(), ProbeFailure> },
    /// The result of a probe of a worker in a run of its container.
    WorkerProbeDone { worker: WorkerName, run: String, answer: ProbeAnswer },
    /// The address at which the node can be reached, if one was found.
    OwnAddress(Option<String>),
    /// Other devices are present than before.
    DevicesChanged(Vec<OfferedUnit>),
    /// The broker received the status clears of these objects.
    ClearsPublished(BTreeSet<ObjectKey>),
    /// The files of the gateways were written, or their secrets changed.
    GatewayFiles(WrittenGateways),
    /// A peer waits for a content, or the copy of one is damaged.
    Content(ContentEvent),
    /// An activity of a training task reports something.
    Training { task: TaskId, event: TaskEvent },
    /// The supervision of the aggregator of this `TrainingModel` reports something.
    Aggregator { uid: String, event: AggregatorEvent },
    /// What unknown aggregators left behind was removed.
    AggregatorsSwept,
    /// What unknown training tasks left behind was removed.
    TrainingSwept(SweepState),
    /// The log of a worker was read for a request, or why it was not.
    LogRead { id: RequestId, worker: String, result: Result<LogText, String> },
    /// The embedded broker has other remarks on the workers.
    WorkerNotesChanged,
    /// The embedded broker failed and cannot be restarted.
    BrokerFailed(BrokerError),
}

impl From<EngineEvent> for AgentEvent {
    fn from(event: EngineEvent) -> Self {
        Self::Engine(event)
    }
}

/// What the task of a download reports.
#[derive(Debug)]
pub enum DownloadEvent {
    Ready(Artifact),
    /// The download failed and is retried.
    Failed(Arc<ModelError>),
    /// The download received more bytes.
    Progressed,
}
