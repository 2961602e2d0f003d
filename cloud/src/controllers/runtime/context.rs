//! What every look at an object shares: the API server, the copies, the nodes, and what is remembered
//! of each object. Decides nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use futures::{
    StreamExt as _,
    channel::mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    runtime::{events::Recorder, reflector::ObjectRef},
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model};
use neptune_wire::{NodeName, ObjectKey, Resource};

use crate::{
    cache::Caches,
    controllers::runtime::{
        apply::{Applied, FIELD_MANAGER},
        controller::Kind,
    },
    fleet::{publisher::Publisher, state::Fleet},
    kubernetes::identity::reference,
    metrics::Metrics,
};

/// Everything that a look at an object needs. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    client: Client,
    recorder: Recorder,
    caches: Caches,
    publisher: Publisher,
    metrics: Metrics,
    fetch_image: String,
    fleet: Mutex<Fleet>,
    services: ControllerState<JointInferenceService>,
    inference_models: ControllerState<InferenceModel>,
    models: ControllerState<Model>,
    datasets: ControllerState<Dataset>,
}

/// What a kind's controller has for itself: the way to wake it, and what it remembers.
#[derive(Debug)]
pub struct ControllerState<K: Kind> {
    enqueue: UnboundedSender<ObjectRef<K>>,
    states: Mutex<HashMap<String, ObjectState<K>>>,
}

/// The objects that are woken, for the queue of each kind.
#[derive(Debug)]
pub struct QueueReceivers {
    /// Services to look at.
    pub services: UnboundedReceiver<ObjectRef<JointInferenceService>>,
    /// Inference models to look at.
    pub inference_models: UnboundedReceiver<ObjectRef<InferenceModel>>,
    /// Models to look at.
    pub models: UnboundedReceiver<ObjectRef<Model>>,
    /// Datasets to look at.
    pub datasets: UnboundedReceiver<ObjectRef<Dataset>>,
}

/// What is remembered of an object, by its uid. Losing it costs requests and nothing else.
#[derive(Debug, Clone)]
pub struct ObjectState<K> {
    /// What the API server was made to have.
    pub applied: Option<Applied>,
    /// How often something of it was seen to go: what was applied while that happened may be gone.
    pub removals: u64,
    /// The status that it was given last.
    pub written: Option<LastWrite<K>>,
    /// Errors in a row.
    pub failures: u32,
}

/// A status that was written and that the copy may not have yet.
#[derive(Debug, Clone)]
pub struct LastWrite<K> {
    /// The version of the copy when it was written.
    pub over: Option<String>,
    /// The object as the API server answered.
    pub object: Arc<K>,
    /// When.
    pub at: Instant,
}

impl<K> Default for ObjectState<K> {
    fn default() -> Self {
        Self { applied: None, removals: 0, written: None, failures: 0 }
    }
}

impl QueueReceivers {
    /// Discards what is woken, without an end: for a replica that stands by.
    pub async fn discard(&mut self) {
        futures::join!(
            discard(&mut self.services),
            discard(&mut self.inference_models),
            discard(&mut self.models),
            discard(&mut self.datasets),
        );
    }
}

async fn discard<K: Kind>(receivers: &mut UnboundedReceiver<ObjectRef<K>>) {
    while receivers.next().await.is_some() {}
}

impl<K: Kind> ControllerState<K> {
    fn new() -> (Self, UnboundedReceiver<ObjectRef<K>>) {
        let (enqueue, receivers) = mpsc::unbounded();
        (Self { enqueue, states: Mutex::default() }, receivers)
    }

    fn states(&self) -> MutexGuard<'_, HashMap<String, ObjectState<K>>> {
        self.states.lock().expect("nothing panics while it holds this lock")
    }
}

impl Context {
    /// With the receivers of what is woken, for [`run`](super::run).
    pub fn new(
        client: Client,
        caches: Caches,
        publisher: Publisher,
        metrics: Metrics,
        fetch_image: String,
    ) -> (Self, QueueReceivers) {
        let recorder = Recorder::new(client.clone(), FIELD_MANAGER.into());
        let fleet =
            Mutex::new(Fleet::new(Timestamp::now(), publisher.transport().heartbeat_seconds()));
        let (services, service_wakes) = ControllerState::new();
        let (inference_models, inference_model_wakes) = ControllerState::new();
        let (models, model_wakes) = ControllerState::new();
        let (datasets, dataset_wakes) = ControllerState::new();
        let context = Self(Arc::new(Inner {
            client,
            recorder,
            caches,
            publisher,
            metrics,
            fetch_image,
            fleet,
            services,
            inference_models,
            models,
            datasets,
        }));
        let receivers = QueueReceivers {
            services: service_wakes,
            inference_models: inference_model_wakes,
            models: model_wakes,
            datasets: dataset_wakes,
        };
        (context, receivers)
    }

    /// The API server.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The copies of its objects.
    pub fn caches(&self) -> &Caches {
        &self.0.caches
    }

    /// The way to the nodes.
    pub fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The services' desk.
    pub fn services(&self) -> &ControllerState<JointInferenceService> {
        &self.0.services
    }

    /// The inference models' desk.
    pub fn inference_models(&self) -> &ControllerState<InferenceModel> {
        &self.0.inference_models
    }

    /// The models' desk.
    pub fn models(&self) -> &ControllerState<Model> {
        &self.0.models
    }

    /// The datasets' desk.
    pub fn datasets(&self) -> &ControllerState<Dataset> {
        &self.0.datasets
    }

    /// What the nodes said. Not to be held while something is awaited.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.0.fleet.lock().expect("nothing panics while it holds this lock")
    }

    /// Whether there is a Node of that name.
    pub fn is_registered(&self, node: &NodeName) -> bool {
        self.caches().nodes.get(&ObjectRef::new(node.as_str())).is_some()
    }

    /// Whether there is an object of that key and uid that has a controller.
    pub fn exists(&self, key: &ObjectKey, uid: &str) -> bool {
        match key.resource {
            Resource::JointInferenceServices => self.has::<JointInferenceService>(key, uid),
            Resource::InferenceModels => self.has::<InferenceModel>(key, uid),
            Resource::Models => self.has::<Model>(key, uid),
            Resource::Datasets => self.has::<Dataset>(key, uid),
        }
    }

    fn has<K: Kind>(&self, key: &ObjectKey, uid: &str) -> bool {
        let held = K::store(self.caches()).get(&reference(key));
        held.is_some_and(|object| object.meta().uid.as_deref() == Some(uid))
    }

    /// Looks at an object again.
    pub fn enqueue(&self, key: &ObjectKey) {
        match key.resource {
            Resource::JointInferenceServices => {
                self.send(reference::<JointInferenceService>(key));
            }
            Resource::InferenceModels => self.send(reference::<InferenceModel>(key)),
            Resource::Models => self.send(reference::<Model>(key)),
            Resource::Datasets => self.send(reference::<Dataset>(key)),
        }
    }

    /// Looks at each object that the node may have something of again.
    pub fn enqueue_node(&self, node: &NodeName) {
        self.enqueue_concerned(node.as_str());
    }

    /// Looks at each object for which news of the node may mean something again.
    pub fn enqueue_concerned(&self, node: &str) {
        self.enqueue_where(|service: &JointInferenceService| service.concerns(node));
        self.enqueue_where(|model: &InferenceModel| model.concerns(node));
        self.enqueue_where(|model: &Model| model.concerns(node));
        self.enqueue_where(|dataset: &Dataset| dataset.concerns(node));
    }

    /// Looks at these objects again.
    pub fn enqueue_where<K: Kind>(&self, which: impl Fn(&K) -> bool) {
        for object in K::store(self.caches()).state_filter(|held| which(held)) {
            self.send(ObjectRef::from_obj(&*object));
        }
    }

    /// Looks at every object again.
    pub fn enqueue_all(&self) {
        self.enqueue_where(|_: &JointInferenceService| true);
        self.enqueue_where(|_: &InferenceModel| true);
        self.enqueue_where(|_: &Model| true);
        self.enqueue_where(|_: &Dataset| true);
    }

    /// Looks at an object again, if there is one of that name.
    pub fn send<K: Kind>(&self, reference: ObjectRef<K>) {
        // Nobody listens any more only when the program ends.
        let _ = K::controller_state(self).enqueue.unbounded_send(reference);
    }

    /// What is remembered of an object.
    pub fn memory<K: Kind, T>(
        &self,
        object: &K,
        use_it: impl FnOnce(&mut ObjectState<K>) -> T,
    ) -> T {
        let uid = object.meta().uid.clone().unwrap_or_default();
        use_it(K::controller_state(self).states().entry(uid).or_default())
    }

    /// Forgets all objects of a kind but these.
    pub fn remember_only<K: Kind>(&self, uids: &BTreeSet<String>) {
        K::controller_state(self).states().retain(|uid, _| uids.contains(uid));
    }

    /// Forgets an object.
    pub fn forget<K: Kind>(&self, uid: &str) {
        K::controller_state(self).states().remove(uid);
    }

    /// The image that fetches models.
    pub fn fetch_image(&self) -> &str {
        &self.0.fetch_image
    }

    /// Where Events go.
    pub fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }
}
