//! The shared context of every reconcile: API client, caches, fleet, publisher, metrics and
//! controller state.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_cloud_fleet::{Fleet, Publisher, nodes_by_state};
use neptune_cloud_kinds::{
    each_kind,
    finding::{Finding, Missing, Referent},
    fleet::FleetState,
    index_key::IndexKey,
    kubernetes::{
        identity::{ControllerIdentity, key},
        labels::Labels,
        pod_policy::PodPolicy,
    },
};
use neptune_cloud_metrics::{Metrics, StatusClass as WriteClass};
use neptune_wire::{NodeName, ObjectKey, Resource};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    event_queue::EventQueue,
    peer_rosters::PeerRosters,
    state::{ObjectState, Stateful, States},
    write_budget::{WriteBudget, WritePace},
};
use crate::{
    cache::Caches,
    kubernetes::{pod_settings::PodSettings, reference::reference, report_target::ReportTarget},
    training::Aggregators,
};

/// Nodes whose reports are read while the fleet is locked.
pub const NODES_PER_LOCK: usize = 256;

/// The shared context of the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    client: Client,
    caches: Caches,
    fleet: Fleet,
    publisher: Publisher,
    metrics: Metrics,
    pods: PodSettings,
    states: States,
    aggregators: Aggregators,
    rosters: PeerRosters,
    write_budget: Mutex<WriteBudget>,
    events: EventQueue,
    key_reports: Notify,
    slice_changes: Notify,
    defers_statuses: AtomicBool,
}

impl Context {
    /// Creates the context, in a Tokio runtime. Enqueueing has no effect before [`super::run_all`].
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(
        client: Client,
        caches: Caches,
        fleet: Fleet,
        publisher: Publisher,
        metrics: Metrics,
        pods: PodSettings,
        status_writes: u32,
    ) -> Self {
        let inner = Inner {
            client,
            caches,
            fleet,
            publisher,
            metrics,
            states: States::default(),
            aggregators: Aggregators::new(pods.controller.clone()),
            pods,
            rosters: PeerRosters::default(),
            write_budget: Mutex::new(WriteBudget::new(status_writes, Instant::now())),
            events: EventQueue::start(),
            key_reports: Notify::new(),
            slice_changes: Notify::new(),
            defers_statuses: AtomicBool::new(false),
        };
        Self(Arc::new(inner))
    }

    /// The client of the API server.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The caches of Kubernetes objects.
    pub fn caches(&self) -> &Caches {
        &self.0.caches
    }

    /// Publishes the nodes' desired state.
    pub fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    /// Returns the metrics that `/metrics` exports.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Locks the reports of the nodes. The guard must not live across an `await`.
    pub fn fleet(&self) -> MutexGuard<'_, FleetState> {
        self.0.fleet.lock()
    }

    /// The image that downloads models in Pods.
    pub fn fetch_image(&self) -> &str {
        &self.0.pods.fetch_image
    }

    /// Returns the image from which gateways run.
    pub fn gateway_image(&self) -> &str {
        &self.0.pods.gateway_image
    }

    /// Returns the image from which aggregators run.
    pub fn aggregator_image(&self) -> &str {
        &self.0.pods.aggregator_image
    }

    /// The domain of the cluster's Services.
    pub fn cluster_domain(&self) -> &str {
        &self.0.pods.cluster_domain
    }

    /// Where cloud workers in Pods post their reports; `None` if they cannot.
    pub fn report_target(&self) -> Option<&ReportTarget> {
        self.0.pods.reports.as_ref()
    }

    /// Who the controller is.
    pub fn controller(&self) -> &ControllerIdentity {
        &self.0.pods.controller
    }

    /// The interval at which Secrets and `ConfigMap`s are read.
    pub fn config_interval(&self) -> Duration {
        self.0.pods.config_interval
    }

    /// What the operator allows in Pods.
    pub fn pod_policy(&self) -> &PodPolicy {
        &self.0.pods.policy
    }

    /// The time for what is stored. It follows the wall clock, unlike [`Context::fleet_now`].
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn wall_now() -> Timestamp {
        Timestamp::now()
    }

    /// The time for the reports of the nodes. It is never stored: the wall clock may have been wrong
    /// when this controller started.
    pub fn fleet_now(&self) -> Timestamp {
        self.0.fleet.now()
    }

    /// Takes the permission to write a status of this size.
    ///
    /// # Errors
    /// The pause before the next attempt.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn take_write<K: Stateful>(
        &self,
        state: &mut ObjectState<K>,
        bytes: usize,
        class: WriteClass,
    ) -> Result<(), Duration> {
        let mut budget = self.0.write_budget.lock();
        state.pace.take(class, bytes, &mut budget, Instant::now())
    }

    /// Takes the permission to write a status of this size that nothing waits for. Returns whether
    /// the other writes leave room for it.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn take_spare_write(&self, bytes: usize) -> bool {
        let mut budget = self.0.write_budget.lock();
        budget.take_spare(bytes, Instant::now())
    }

    /// Takes the permission to write a slice of this size, of which `pace` has the earlier writes.
    ///
    /// # Errors
    /// The pause before the next attempt.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn take_slice_write(
        &self,
        pace: &mut WritePace,
        bytes: usize,
        class: WriteClass,
    ) -> Result<(), Duration> {
        let mut budget = self.0.write_budget.lock();
        pace.take(class, bytes, &mut budget, Instant::now())
    }

    /// Notified when the key of a node, or what is recorded of it, may have changed.
    pub fn key_reports(&self) -> &Notify {
        &self.0.key_reports
    }

    /// Notified when nodes wait until their slice is stored, or a slice was deleted.
    pub fn slice_changes(&self) -> &Notify {
        &self.0.slice_changes
    }

    /// Whether no status is written yet: the nodes wait until every object was planned once.
    pub fn defers_statuses(&self) -> bool {
        self.0.defers_statuses.load(Ordering::Relaxed)
    }

    /// Sets what [`Context::defers_statuses`] returns.
    pub fn defer_statuses(&self, defers: bool) {
        self.0.defers_statuses.store(defers, Ordering::Relaxed);
    }

    /// The Events that wait for their publication.
    pub fn events(&self) -> &EventQueue {
        &self.0.events
    }

    /// The connections to the aggregators.
    pub fn aggregators(&self) -> &Aggregators {
        &self.0.aggregators
    }

    /// The peers of the nodes.
    pub fn rosters(&self) -> &PeerRosters {
        &self.0.rosters
    }

    /// The state of the controllers.
    pub fn states(&self) -> &States {
        &self.0.states
    }

    /// Runs `action` on the state of an object.
    pub fn object_state<K: Stateful, T>(
        &self,
        object: &K,
        action: impl FnOnce(&mut ObjectState<K>) -> T,
    ) -> T {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        K::state(self.states()).with_object(uid, action)
    }

    /// Enqueues an object because an input of its plan may have changed.
    pub fn enqueue<K: Stateful>(&self, object: &K) {
        self.object_state(object, ObjectState::invalidate);
        K::state(self.states()).enqueue(ObjectRef::from_obj(object));
    }

    /// Enqueues an object of which only the status may change.
    pub fn enqueue_unchanged<K: Stateful>(&self, object: &K) {
        K::state(self.states()).enqueue(ObjectRef::from_obj(object));
    }

    /// Enqueues an object, if it exists, of which only the status may change.
    pub fn enqueue_status<K: Stateful>(&self, key: &ObjectKey) {
        K::state(self.states()).enqueue(reference(key));
    }

    /// Enqueues these objects because an input of their plan may have changed.
    pub fn enqueue_where<K: Stateful>(&self, which: impl Fn(&K) -> bool) {
        for object in K::cache(self.caches()).state_filter(|cached| which(cached)) {
            self.enqueue(&*object);
        }
    }

    /// Enqueues the objects with this key because an input of their plan may have changed.
    pub fn enqueue_key<K: Stateful>(&self, key: &IndexKey) {
        for object in K::cache(self.caches()).with_key(key) {
            self.enqueue(&*object);
        }
    }

    /// Forgets what a deleted node reported of itself.
    pub fn forget_node(&self, node: &NodeName) {
        let counts = {
            let mut fleet = self.fleet();
            fleet.forget_node(node);
            nodes_by_state(&fleet)
        };
        self.metrics().set_nodes(counts);
    }

    /// Enqueues the objects of the namespace whose spec selects objects of this kind by labels that
    /// one has, or had before, because an input of their plan may have changed.
    pub fn enqueue_selecting<K: Stateful>(
        &self,
        kind: Resource,
        namespace: &str,
        versions: [Option<&Labels>; 2],
    ) {
        let labels: BTreeSet<_> = versions.into_iter().flatten().flatten().collect();
        for (name, value) in labels {
            let namespace = namespace.to_owned();
            self.enqueue_key::<K>(&IndexKey::Selects(kind, namespace, name.clone(), value.clone()));
        }
    }

    /// Enqueues every object of every kind.
    pub fn enqueue_all(&self) {
        each_kind!(K => self.enqueue_where(|_: &K| true));
    }

    /// Adds to each finding about a missing object that its CRD is missing, or that a person revoked
    /// the node, if that is so.
    pub fn explain(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let explain = |finding: Finding| match &finding.missing {
            Some(Missing { referent: Referent::Object(resource), .. }) => {
                match self.caches().missing_crd(*resource) {
                    Some(crd) => finding.without_crd(&crd),
                    None => finding,
                }
            }
            Some(Missing { referent: Referent::Node, name })
                if self.caches().nodes.is_revoked(name) =>
            {
                finding.revoked_node()
            }
            _ => finding,
        };
        findings.into_iter().map(explain).collect()
    }

    /// Drops the state of a deleted object and removes the object from its nodes. What belongs to a
    /// later object of the same name stays.
    pub fn forget<K: Stateful>(&self, object: &K) {
        let uid = object.uid().unwrap_or_default();
        if let Some(key) = key(object) {
            self.forget_key(&key, &uid);
        }
        self.aggregators().forget(&uid);
        K::state(self.states()).forget(&uid);
    }

    /// The part of [`Context::forget`] that needs no object.
    pub fn forget_key(&self, key: &ObjectKey, uid: &str) {
        if self.publisher().remove(key, uid) {
            self.rosters().set_pairs(key, None, BTreeSet::new());
        }
        self.fleet().forget(key, uid);
    }
}
