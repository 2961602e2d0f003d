//! Looks at one service after another: observe, validate, plan, apply, status. And wakes those that
//! have to be looked at again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use futures::{
    StreamExt as _,
    channel::mpsc::{UnboundedReceiver, UnboundedSender},
};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        controller::{Action, Config, applier},
        events::{Event, EventType, Recorder},
        reflector::ObjectRef,
    },
};
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::{NodeName, ObjectKey};
use serde_json::json;

use super::{
    apply::{self, Applied, FIELD_MANAGER, apply},
    notices::{Notice, notices},
    observe,
    plan::plan,
    status,
    validate::{self, is_agent_node, validate},
};
use crate::{
    downstream::Downstream,
    error::{Class, Error},
    fleet::Fleet,
    metrics::{self, Metrics},
    reason::{Finding, Reason},
    stores::{Change, Stores},
};

/// Services looked at at the same time, so that many at once do not overrun the API server.
const CONCURRENCY: u16 = 32;

/// Between two writes of one status that only the fleet's words change.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// After a refusal that nothing tells us the end of: a name that is free again, a quota raised.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// After somebody else's write: until the copy has it.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// The first and the longest pause after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The longest note of an Event that an API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

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
struct Memory {
    applied: Option<Applied>,
    written: Option<Written>,
    failures: u32,
}

/// A status that was written and that the copy may not have yet.
#[derive(Debug, Clone)]
struct Written {
    /// The version of the copy from which it was made.
    over: Option<String>,
    object: Arc<JointInferenceService>,
    at: Instant,
}

impl Context {
    /// With the sender that wakes services, whose receiver goes to [`run`].
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

    fn wake_where(&self, which: impl Fn(&JointInferenceService) -> bool) {
        for service in self.0.stores.joint_inference_services.state_filter(|held| which(held)) {
            self.send(ObjectRef::from_obj(&*service));
        }
    }

    fn send(&self, reference: ObjectRef<JointInferenceService>) {
        // Nobody listens any more only when the program ends.
        let _ = self.0.wake.unbounded_send(reference);
    }

    fn memory<T>(
        &self,
        service: &JointInferenceService,
        use_it: impl FnOnce(&mut Memory) -> T,
    ) -> T {
        let uid = service.uid().unwrap_or_default();
        let mut memories = self.0.memories.lock().expect("nothing panics while it holds this lock");
        use_it(memories.entry(uid).or_default())
    }
}

fn reference(key: &ObjectKey) -> ObjectRef<JointInferenceService> {
    ObjectRef::new(key.name.as_str()).within(key.namespace.as_str())
}

/// Wakes the services that a change may concern, until there are no more changes.
pub async fn dispatch(mut changes: UnboundedReceiver<Change>, context: Context) {
    while let Some(change) = changes.next().await {
        on_change(change, &context);
        let services = context.stores().joint_inference_services.len();
        context.metrics().set_services(services);
    }
}

fn on_change(change: Change, context: &Context) {
    match change {
        Change::Service(service) => {
            context.send(ObjectRef::from_obj(&*service));
            let seen = service.status.as_ref().and_then(|status| status.observed_generation);
            if seen != service.metadata.generation {
                wake_neighbours(&service, context);
            }
        }
        Change::ServiceGone(service) => {
            forget(&service, context);
            wake_neighbours(&service, context);
        }
        Change::Model { namespace, name } => context.wake_where(|service| {
            let spec = &service.spec;
            service.metadata.namespace.as_ref() == Some(&namespace)
                && (spec.edge_worker.model.name == name || spec.cloud_worker.model.name == name)
        }),
        Change::Node(name) => context.wake_where(|service| {
            let spec = &service.spec;
            spec.edge_worker.node_name == name || spec.cloud_worker.node_name == name
        }),
        Change::Owned { namespace, service, gone } => {
            let reference = ObjectRef::new(&service).within(&namespace);
            if gone && let Some(owner) = context.stores().joint_inference_services.get(&reference) {
                context.memory(&owner, |memory| memory.applied = None);
            }
            context.send(reference);
        }
        Change::Frameworks => context.wake_where(|_| true),
        Change::Relisted => {
            forget_vanished(context);
            context.wake_where(|_| true);
        }
    }
}

/// The ports of the services that share an agent's node depend on each other.
fn wake_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    let by_agent = context.stores().nodes.get(&ObjectRef::<Node>::new(node));
    if by_agent.as_deref().is_some_and(is_agent_node) {
        context.wake_where(|other| other.spec.cloud_worker.node_name == *node);
    }
}

/// A service is gone: so is what its nodes had of it.
fn forget(service: &JointInferenceService, context: &Context) {
    let uid = service.uid().unwrap_or_default();
    if let Some(key) = validate::key(service) {
        context.downstream().remove(&key);
        context.fleet().forget(&key, &uid);
    }
    context.0.memories.lock().expect("nothing panics while it holds this lock").remove(&uid);
}

/// After a gap in the watch: what went in it left no event.
fn forget_vanished(context: &Context) {
    let store = &context.stores().joint_inference_services;
    for key in context.downstream().services() {
        if store.get(&reference(&key)).is_none() {
            context.downstream().remove(&key);
        }
    }
    let live: BTreeSet<_> = store.state().iter().filter_map(|service| service.uid()).collect();
    let mut memories = context.0.memories.lock().expect("nothing panics while it holds this lock");
    memories.retain(|uid, _| live.contains(uid));
}

/// Looks at services whenever they are woken, until nobody can wake them any more.
pub async fn run(wakes: UnboundedReceiver<ObjectRef<JointInferenceService>>, context: Context) {
    let existing = context.stores().joint_inference_services.state();
    let keys = existing.iter().filter_map(|service| validate::key(service)).collect();
    context.downstream().expect(keys);
    context.wake_where(|_| true);
    let store = context.stores().joint_inference_services.clone();
    let queue = wakes.map(Ok::<_, std::convert::Infallible>);
    let config = Config::default().concurrency(CONCURRENCY);
    applier(
        |service, context| Box::pin(look(service, context)),
        error_policy,
        Arc::new(context),
        store,
        queue,
        config,
    )
    .for_each(|_| std::future::ready(()))
    .await;
}

#[tracing::instrument(name = "reconcile", skip_all, fields(
    kind = "JointInferenceService",
    namespace = service.namespace().unwrap_or_default(),
    name = service.name_any(),
))]
async fn look(service: Arc<JointInferenceService>, context: Arc<Context>) -> Result<Action, Error> {
    let result = reconcile(&service, &context).await;
    context.metrics().reconciled(match &result {
        Ok(_) => metrics::Outcome::Ok,
        Err(error) => outcome(error),
    });
    match &result {
        Ok(_) => context.memory(&service, |memory| memory.failures = 0),
        Err(error) if error.class() == Class::Conflict => tracing::debug!(%error, "looking again"),
        Err(error) => tracing::warn!(%error, "trying again"),
    }
    result
}

fn outcome(error: &Error) -> metrics::Outcome {
    match error.class() {
        Class::Conflict => metrics::Outcome::Conflict,
        Class::Refused | Class::Configuration => metrics::Outcome::Refused,
        Class::Transient => metrics::Outcome::Error,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the applier calls")]
fn error_policy(
    service: Arc<JointInferenceService>,
    error: &Error,
    context: Arc<Context>,
) -> Action {
    if error.class() == Class::Conflict {
        return Action::requeue(CONFLICT_RETRY);
    }
    let failures = context.memory(&service, |memory| {
        memory.failures = memory.failures.saturating_add(1);
        memory.failures
    });
    Action::requeue(pause(failures))
}

/// Doubles from the first pause to the longest.
fn pause(failures: u32) -> Duration {
    let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
    BACKOFF.0.saturating_mul(doubled).min(BACKOFF.1)
}

async fn reconcile(
    service: &Arc<JointInferenceService>,
    context: &Context,
) -> Result<Action, Error> {
    if service.metadata.deletion_timestamp.is_some() {
        // Others may hold it back by a finalizer. The nodes need not wait for them.
        forget(service, context);
        return Ok(Action::await_change());
    }
    let Some(key) = validate::key(service) else {
        // An API server names objects by RFC 1123, so this cannot come from one.
        return Ok(Action::await_change());
    };
    let copy = service;
    let service = latest(copy, context);
    let mut again = None;
    let findings = match validate(&service, &observe::facts(&service, context)) {
        Err(findings) => {
            context.downstream().keep(&key);
            findings
        }
        Ok(checked) => {
            let plan = plan(&service, &checked, &context.0.fetch_image);
            let too_large = context.downstream().set(&key, plan.downstream);
            let mut findings: Vec<_> =
                too_large.map(|why| Finding::new(Reason::TaskTooLarge, why)).into_iter().collect();
            let before = context.memory(&service, |memory| memory.applied.clone());
            match apply(&service, plan.objects.as_ref(), before.as_ref(), context).await {
                Ok(apply::Outcome::Done { applied, created }) => {
                    context.memory(&service, |memory| memory.applied = applied);
                    if let Some(name) = created {
                        let note = format!("Deployment and Service {name} are made");
                        emit(&service, Notice::normal("CloudWorkerCreated", note), context).await;
                    }
                }
                Ok(apply::Outcome::NameTaken { object }) => {
                    let message = format!(
                        "{object} exists and belongs to somebody else; delete it, or rename spec.cloudWorker.name"
                    );
                    findings.push(Finding::new(Reason::NameTaken, message));
                    again = Some(REFUSED_RETRY);
                }
                Err(error) if error.class() == Class::Refused => {
                    let message =
                        format!("the API server refuses the cloud worker: {}", error.answer());
                    findings.push(Finding::new(Reason::CloudWorkerRefused, message));
                    again = Some(REFUSED_RETRY);
                }
                Err(error) => return Err(error),
            }
            findings
        }
    };
    let later = write_status(&service, copy, &key, &findings, context).await?;
    Ok(again.into_iter().chain(later).min().map_or_else(Action::await_change, Action::requeue))
}

/// The service with the status that was written last, also before the copy has it.
fn latest(service: &Arc<JointInferenceService>, context: &Context) -> Arc<JointInferenceService> {
    let written = context.memory(service, |memory| memory.written.clone());
    match written {
        Some(written) if written.over == service.metadata.resource_version => written.object,
        _ => Arc::clone(service),
    }
}

/// Writes the status if it says something new, and returns when to look again. `copy` is what the
/// watch has brought so far of `service`.
async fn write_status(
    service: &JointInferenceService,
    copy: &JointInferenceService,
    key: &ObjectKey,
    findings: &[Finding],
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let uid = service.uid().unwrap_or_default();
    let (counted, settled_at) = {
        let fleet = context.fleet();
        (fleet.unread(&uid).to_vec(), fleet.settled_at())
    };
    let previous = service.status.clone().unwrap_or_default();
    let next = status::next(
        &previous,
        &status::Facts {
            generation: service.metadata.generation,
            findings,
            workers: observe::workers(service, key, context, now),
            counted: &counted,
            now,
        },
    );
    // Silence means something from then on.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if status::says_the_same(&previous, &next) {
        context.fleet().read(&uid, &counted);
        return Ok(until_settled);
    }
    let is_new_spec = previous.observed_generation != next.observed_generation;
    let last = context.memory(service, |memory| memory.written.as_ref().map(|written| written.at));
    if let Some(rest) = last.and_then(|at| STATUS_INTERVAL.checked_sub(at.elapsed()))
        && !is_new_spec
        && !rest.is_zero()
    {
        return Ok(Some(rest));
    }
    let object = Arc::new(patch_status(service, &next, context).await?);
    let over = copy.resource_version();
    context.memory(service, |memory| {
        memory.written = Some(Written { over, object, at: Instant::now() });
    });
    context.fleet().read(&uid, &counted);
    for notice in notices(&previous, &next) {
        emit(service, notice, context).await;
    }
    Ok(until_settled)
}

/// Only over the very version that was looked at: of two writers, one looks again.
async fn patch_status(
    service: &JointInferenceService,
    status: &JointInferenceServiceStatus,
    context: &Context,
) -> Result<JointInferenceService, Error> {
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let api: Api<JointInferenceService> = Api::namespaced(context.client().clone(), &namespace);
    let over = service.resource_version();
    let patch = json!({ "metadata": { "resourceVersion": over }, "status": status });
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let result = api.patch_status(&name, &params, &Patch::Merge(&patch)).await;
    let result = result.map_err(Error::api(format!(
        "write the status of JointInferenceService {namespace}/{name}"
    )));
    context.metrics().status_written(match &result {
        Ok(_) => metrics::Outcome::Ok,
        Err(error) => outcome(error),
    });
    result
}

async fn emit(service: &JointInferenceService, notice: Notice, context: &Context) {
    let Notice { warning, reason, mut note } = notice;
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason,
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = context.0.recorder.publish(&event, &service.object_ref(&())).await {
        tracing::warn!(%error, reason = event.reason, "an Event could not be written");
    }
}
