//! What the agent's tasks and links tell its loop.

use std::collections::BTreeSet;

use neptune_link::LinkEvent;
use neptune_wire::{ObjectKey, WorkerName};

use crate::{
    Error, depot,
    desired::Source,
    images,
    model::Found,
    observed::Container,
    track::{Outcome, Problem},
};

/// What happens to the agent.
#[derive(Debug)]
pub enum Event {
    /// On the link to the cloud.
    Cloud(LinkEvent),
    /// On the link to the local broker.
    Local(LinkEvent),
    /// The engine answers, with this version; or it does not.
    Docker(Result<String, Problem>),
    /// One of this node's containers changed.
    ContainersChanged,
    /// What the look of this number at the containers showed.
    Observed { seq: u64, result: Result<Vec<Container>, Problem> },
    /// An operation ended. `spec`: what was started, and how often before.
    Done { worker: WorkerName, outcome: Outcome, spec: Option<(String, u32)> },
    /// A model's task found something.
    Model { key: ObjectKey, content_key: String, found: Found },
    /// There is news of a dataset.
    Dataset,
    /// A task of the depot found something.
    Supply { source: Source, found: depot::Found },
    /// An image's task found something.
    Image { image: String, found: images::Found },
    /// A model server was asked for its health: which edition in which run.
    Checked { key: ObjectKey, edition: String, run: String, answer: Result<(), String> },
    /// The address at which this node can be reached.
    Address(Option<String>),
    /// The broker took these back.
    FarewellsSaid(BTreeSet<ObjectKey>),
    /// The embedded broker ended.
    BrokerFailed(Error),
}
