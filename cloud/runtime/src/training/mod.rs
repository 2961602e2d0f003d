//! The connections to the aggregators of `TrainingModels`: one task per object, which creates the
//! aggregator's volume, sends it the desired run, follows its state, and publishes weights.
//! What it has to do is decided by `controllers::training_model`.

mod controller_key;
mod driver;
mod provision;
mod publish;
mod request_error;

use std::{collections::HashMap, fmt, sync::Arc};

use k8s_openapi::{api::core::v1::PersistentVolumeClaim, jiff::Timestamp};
use kube::Client;
use neptune_cloud_kinds::{finding::Finding, kubernetes::identity::ControllerIdentity};
use neptune_wire::{
    AggregatorReport, KeyPin,
    aggregator::{RunRequest, RunStatus},
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::AbortHandle};

use controller_key::ControllerKey;
use driver::Driver;

/// What the task of a `TrainingModel` has to do.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregatorTask {
    /// The key of the `TrainingModel`, `namespace/name`, for messages.
    pub object: String,
    /// What the node that runs the aggregator reports; `None` for a Deployment. The agent of the node
    /// sends the run to it.
    pub node: Option<ReportedAggregator>,
    /// The volume. It is created once and never changed.
    pub volume: PersistentVolumeClaim,
    /// Whether weights are published into a Model.
    pub has_output: bool,
    /// The URL of the aggregator, `https://host:port`; `None` while it is unknown.
    pub url: Option<String>,
    /// The pin of its key; `None` while it is unknown.
    pub pin: Option<KeyPin>,
    /// The run; `None` while nothing is to be sent.
    pub request: Option<RunRequest>,
    /// Whether the known state is one of an earlier run than the request's.
    pub is_behind: bool,
    /// The weights that the output Model should have.
    pub publication: Option<Publication>,
    /// When the object has to be reconciled although nothing changes.
    pub reconcile_at: Option<Timestamp>,
}

/// What a node reports of its aggregator.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedAggregator {
    /// The newest report of the node.
    pub report: AggregatorReport,
    /// Why it cannot be used.
    pub problem: Option<Finding>,
}

/// Weights for a Model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The name of the Model.
    pub model: String,
    /// The name of the `TrainingModel`.
    pub owner: String,
    /// The address of the weights.
    pub url: String,
    /// SHA-256 of the weights.
    pub sha256: String,
    /// Format of the weights: `npz` or `safetensors`; `None` if it is not known.
    pub format: Option<String>,
}

/// What is known of an aggregator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AggregatorView {
    /// The pin of the controller's key, once the volume exists.
    pub controller_pin: Option<KeyPin>,
    /// The pin of its key, if a node reports it.
    pub pin: Option<KeyPin>,
    /// The newest state that the aggregator reported.
    pub state: Option<Arc<RunStatus>>,
    /// What the node of the aggregator has to send to it.
    pub request: Option<RunRequest>,
    /// What prevents the task from doing its work.
    pub problem: Option<Finding>,
    /// The digest of the weights that the output Model received.
    pub published: Option<String>,
}

/// The tasks of all `TrainingModels`, by uid. Losing it costs only requests.
pub struct Aggregators {
    controller: Arc<Own>,
    connections: Mutex<HashMap<String, Connection>>,
}

/// What the tasks of all objects share.
struct Own {
    identity: ControllerIdentity,
    key: ControllerKey,
}

struct Connection {
    desired: watch::Sender<AggregatorTask>,
    view: Arc<Mutex<AggregatorView>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Aggregators {
    /// Starts with no task. The identity is that of this controller.
    pub fn new(identity: ControllerIdentity) -> Self {
        let key = ControllerKey::new(identity.namespace.clone());
        Self { controller: Arc::new(Own { identity, key }), connections: Mutex::default() }
    }

    /// Sets what the task of the object with this uid has to do, and starts it if necessary. It
    /// calls `notify` after each change of its view.
    pub fn set(
        &self,
        uid: &str,
        task: AggregatorTask,
        client: &Client,
        notify: impl Fn() + Send + Sync + 'static,
    ) {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(uid) {
            connection.desired.send_if_modified(|held| {
                let is_new = *held != task;
                *held = task;
                is_new
            });
            return;
        }
        let view = Arc::<Mutex<AggregatorView>>::default();
        let (desired, changes) = watch::channel(task);
        let own = (client.clone(), Arc::clone(&self.controller));
        let driver = Driver::new(own, changes, Arc::clone(&view), Box::new(notify));
        let task = tokio::spawn(driver.run()).abort_handle();
        connections.insert(uid.to_owned(), Connection { desired, view, task });
    }

    /// What is known of the aggregator of the object with this uid.
    pub fn view(&self, uid: &str) -> AggregatorView {
        self.connections
            .lock()
            .get(uid)
            .map_or_else(AggregatorView::default, |connection| connection.view.lock().clone())
    }

    /// Stops the task of the object with this uid, if it has one.
    pub fn forget(&self, uid: &str) {
        self.connections.lock().remove(uid);
    }
}

impl fmt::Debug for Aggregators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Aggregators").field(&self.connections.lock().len()).finish()
    }
}
