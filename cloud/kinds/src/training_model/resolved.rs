//! The objects that a `TrainingModel` refers to, and what its validation makes of them: values that
//! the pure steps share.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::{AggregatorServiceType, Dataset, Model};
use neptune_wire::{
    KeyPin, NodeName, ObjectKey, ObjectMetadata, WorkerName,
    aggregator::{RunRequest, RunStatus},
};

use super::frozen::{CurrentRun, FrozenRun, FrozenSession};
use crate::{
    finding::Finding,
    kubernetes::node_view::NodeView,
    worker::{
        frameworks::Frameworks,
        needs::{NodeOffers, UnmetNeeds},
    },
};

/// The inputs of `validate` from the cluster.
#[derive(Debug, Clone)]
pub struct TrainingFacts {
    /// The Datasets that the spec or the run names, or that labels select, by name.
    pub datasets: BTreeMap<String, Arc<Dataset>>,
    /// The Nodes of these Datasets, by name.
    pub nodes: BTreeMap<String, Arc<NodeView>>,
    /// The framework table, or the error of its `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The Model of the first weights, if it exists.
    pub initial_model: Option<Arc<Model>>,
    /// The Model of the output, if it exists.
    pub output_model: Option<Arc<Model>>,
    /// What the agents of the nodes of the run offer; empty if each agent can run its tasks.
    pub offers: NodeOffers,
    /// What is known of the aggregator.
    pub aggregator: AggregatorFacts,
}

/// What is known of the aggregator.
#[derive(Debug, Clone, Default)]
pub struct AggregatorFacts {
    /// The image from which the aggregator runs.
    pub image: String,
    /// Whether its Pod may run on a control-plane node.
    pub allow_control_plane: bool,
    /// The address at which nodes and the controller reach the aggregator, as `host:port`.
    pub address: Option<String>,
    /// The address at which workers reach the server of an engine, as `host:port`.
    pub session_address: Option<String>,
    /// The pin of the controller's key, once its volume exists.
    pub controller_pin: Option<KeyPin>,
    /// The pin of its key, once it is reported.
    pub pin: Option<KeyPin>,
    /// The newest state that the aggregator or its node reported.
    pub state: Option<Arc<RunStatus>>,
    /// The node that runs it; `None` for a Deployment.
    pub node: Option<NodeName>,
    /// What its node has to send to it.
    pub request: Option<RunRequest>,
}

/// A `TrainingModel` that is valid, or has a run.
#[derive(Debug, Clone)]
pub struct ValidTrainingModel {
    /// The key of the object in messages to nodes.
    pub key: ObjectKey,
    /// The metadata of the object in messages to nodes.
    pub metadata: ObjectMetadata,
    /// The name of the aggregator's objects.
    pub name: WorkerName,
    /// What is known of the aggregator.
    pub aggregator: AggregatorFacts,
    /// The type of its Service.
    pub service_type: AggregatorServiceType,
    /// The server of an engine in its Pod: that of the current or last run, or else of the next one.
    pub session: Option<FrozenSession>,
    /// The size of its volume in bytes.
    pub volume_bytes: u64,
    /// How many published weights the aggregator keeps.
    pub keep: u32,
    /// What the next run would be started with, or why the spec is invalid.
    pub next: Result<FrozenRun, Vec<Finding>>,
    /// The current or last run.
    pub current: Option<CurrentRun>,
    /// The nodes of the current run that cannot get its tasks.
    pub unmet: UnmetNeeds,
    /// The Datasets of the current run that exist, by name.
    pub datasets: BTreeMap<String, Arc<Dataset>>,
    /// The Datasets of the next run that do not exist.
    pub missing: Vec<String>,
    /// The samples of the Dataset of the schedule.
    pub samples: Option<i64>,
}

impl ValidTrainingModel {
    /// The aggregator's state of the current run.
    pub fn state(&self) -> Option<&RunStatus> {
        let current = self.current.as_ref()?;
        let state = self.aggregator.state.as_deref()?;
        (state.run == current.number && state.uid == self.metadata.uid).then_some(state)
    }

    /// Returns the URL of the aggregator, `https://host:port`, if its address is known.
    pub fn url(&self) -> Option<String> {
        self.aggregator.address.as_ref().map(|address| format!("https://{address}"))
    }
}
