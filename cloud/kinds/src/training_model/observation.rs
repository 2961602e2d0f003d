//! What is observed of a training, and whether a run has a result. Values only.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::LastRun;
use neptune_wire::{
    NodeName,
    aggregator::{InitialWeights, RunStatus},
};

use super::{
    frozen::{EvaluationData, FrozenRun},
    rows::TrainingNode,
};
use crate::{finding::Finding, reason::Reason};

/// What is observed of a training.
#[derive(Debug, Clone, Default)]
pub struct TrainingObservation {
    /// What the next run would be started with, or why the spec is invalid; `None` if the spec is
    /// invalid and no run has started.
    pub next: Option<Result<FrozenRun, Vec<Finding>>>,
    /// The address of the aggregator.
    pub url: Option<String>,
    /// The pin of the aggregator's key.
    pub pin: Option<String>,
    /// The newest state of the aggregator, also of an earlier run.
    pub state: Option<Arc<RunStatus>>,
    /// Why it cannot be used.
    pub problem: Option<Finding>,
    /// The node that runs it; `None` for a Deployment.
    pub node: Option<NodeName>,
    /// Why its Pod is not ready; `None` if it is.
    pub pod: Option<String>,
    /// The digest of the weights that the output Model received.
    pub published: Option<String>,
    /// The digest of the output Model now.
    pub output_digest: Option<String>,
    /// The files of weights that the Models of the spec name.
    pub origins: Vec<InitialWeights>,
    /// How many published weights the aggregator keeps.
    pub keep: usize,
    /// The Datasets of the next run that do not exist.
    pub missing: Vec<String>,
    /// The samples of the Dataset of the schedule.
    pub samples: Option<i64>,
    /// The data of the current run's evaluation now; `None` if it is not known.
    pub evaluation_data: Option<EvaluationData>,
    /// The nodes of the current run.
    pub nodes: BTreeMap<NodeName, TrainingNode>,
}

/// Whether the last run has a result.
pub fn has_result(last: &LastRun) -> bool {
    [Reason::Succeeded, Reason::NotBetter].iter().any(|reason| last.result == reason.to_string())
}
