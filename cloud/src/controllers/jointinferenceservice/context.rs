//! What every look at a service shares: the API server, the copies, the nodes, and what is remembered
//! of each service. Decides nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, ResourceExt as _,
    runtime::{events::Recorder, reflector::ObjectRef},
};
use neptune_api::JointInferenceService;
use neptune_wire::{NodeName, ObjectKey};

use super::apply::{Applied, FIELD_MANAGER};
use crate::{downstream::Downstream, fleet::Fleet, metrics::Metrics, stores::Stores};

/// Everything that a look at a service needs. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    client: Client,
    recorder: Recorder,
    stores: Stores,
    downstream: Downstream,
    metrics: Metrics,
    fetch_image: String,
    wake: UnboundedSender<ObjectRef<JointInferenceService>>,
    fleet: Mutex<Fleet>,
    memories: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of a service, by its uid. Losing it costs requests and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// What the API server was made to have.
    pub applied: Option<Applied>,
    /// The status that it was given last.
    pub written: Option<Written>,
    /// Errors in a row.
    pub failures: u32,
}

/// A status that was written and that the copy may not have yet.
#[derive(Debug, Clone)]
pub struct Written {
    /// The version of the copy when it was written.
    pub over: Option<String>,
    /// The service as the API server answered.
    pub object: Arc<JointInferenceService>,
    /// When.
    pub at: Instant,
}

impl Context {
    /// With the sender that wakes services, whose receiver goes to [`run`](super::run).
    pub fn new(
        client: Client,
        stores: Stores,
        downstream: Downstream,
        metrics: Metrics,
        fetch_image: String,
        wake: UnboundedSender<ObjectRef<JointInferenceService>>,
    ) -> Self {
        let recorder = Recorder::new(client.clone(), FIELD_MANAGER.into());
        let fleet = Mutex::new(Fleet::new(Timestamp::now()));
        let memories = Mutex::default();
        Self(Arc::new(Inner {
            client,
            recorder,
            stores,
            downstream,
            metrics,
            fetch_image,
            wake,
            fleet,
            memories,
        }))
    }

    /// The API server.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The copies of its objects.
    pub fn stores(&self) -> &Stores {
        &self.0.stores
    }

    /// The way to the nodes.
    pub fn downstream(&self) -> &Downstream {
        &self.0.downstream
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What the nodes said. Not to be held while something is awaited.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.0.fleet.lock().expect("nothing panics while it holds this lock")
    }

    /// Whether there is a service of that key and uid.
    pub fn exists(&self, key: &ObjectKey, uid: &str) -> bool {
        let held = self.0.stores.joint_inference_services.get(&reference(key));
        held.is_some_and(|service| service.metadata.uid.as_deref() == Some(uid))
    }

    /// Looks at a service again.
    pub fn wake(&self, key: &ObjectKey) {
        self.send(reference(key));
    }

    /// Looks at each service with a worker on the node again.
    pub fn wake_node(&self, node: &NodeName) {
        self.wake_where(|service| {
            let spec = &service.spec;
            spec.edge_worker.node_name == node.as_str()
                || spec.cloud_worker.node_name == node.as_str()
        });
    }

    /// Looks at these services again.
    pub fn wake_where(&self, which: impl Fn(&JointInferenceService) -> bool) {
        for service in self.0.stores.joint_inference_services.state_filter(|held| which(held)) {
            self.send(ObjectRef::from_obj(&*service));
        }
    }

    /// Looks at a service again, if there is one of that name.
    pub fn send(&self, reference: ObjectRef<JointInferenceService>) {
        // Nobody listens any more only when the program ends.
        let _ = self.0.wake.unbounded_send(reference);
    }

    /// What is remembered of a service.
    pub fn memory<T>(
        &self,
        service: &JointInferenceService,
        use_it: impl FnOnce(&mut Memory) -> T,
    ) -> T {
        let uid = service.uid().unwrap_or_default();
        use_it(self.memories().entry(uid).or_default())
    }

    /// Forgets all services but these.
    pub fn remember_only(&self, uids: &BTreeSet<String>) {
        self.memories().retain(|uid, _| uids.contains(uid));
    }

    /// Forgets a service.
    pub fn forget(&self, uid: &str) {
        self.memories().remove(uid);
    }

    /// The image that fetches models.
    pub fn fetch_image(&self) -> &str {
        &self.0.fetch_image
    }

    /// Where Events go.
    pub fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.0.memories.lock().expect("nothing panics while it holds this lock")
    }
}

/// How the copies name a service.
pub fn reference(key: &ObjectKey) -> ObjectRef<JointInferenceService> {
    ObjectRef::new(key.name.as_str()).within(key.namespace.as_str())
}
