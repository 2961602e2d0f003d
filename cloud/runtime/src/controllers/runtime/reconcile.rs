//! The one reconcile of every kind: facts, validate, plan and execute when one of their inputs
//! changed; observe, status and events always.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::ResourceExt as _;
use neptune_cloud_kinds::{
    error_class::Class, kubernetes::identity::key, worker::config::objects::ConfigObjects,
};
use neptune_cloud_metrics::Outcome;
use neptune_wire::ObjectKey;

use super::{
    config_memory::ConfigReads,
    config_reads::read_references,
    context::Context,
    controller::Controller,
    execute::execute,
    state::{ObjectState, Prepared},
    status_writer::write_status,
};
use crate::{error::Error, kubernetes::history};

/// Reconciles an object. Measures it, and resets its failures after a success. Returns when to
/// reconcile again although nothing changes.
#[tracing::instrument(name = "reconcile", skip_all, fields(
    kind = %K::kind(&()),
    namespace = object.namespace().unwrap_or_default(),
    name = object.name_any(),
))]
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn reconcile<K: Controller>(
    object: &Arc<K>,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let start = Instant::now();
    let result = steps(object, context).await;
    let outcome = match &result {
        Ok(_) => Outcome::Ok,
        Err(error) => error.class().into(),
    };
    context.metrics().reconciled::<K>(outcome, start.elapsed());
    match &result {
        Ok(_) => context.object_state(&**object, |state| state.failures = 0),
        Err(error) if error.class() == Class::Conflict => {
            tracing::debug!(%error, "conflict, object requeued");
        }
        Err(Error::Api { step, source }) if context.caches().api_server.failed(step, source) => {}
        Err(error) => tracing::warn!(%error, "reconcile failed, object requeued"),
    }
    forget_if_deleted(&**object, context);
    result
}

async fn steps<K: Controller>(
    cached: &Arc<K>,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    if cached.meta().deletion_timestamp.is_some() {
        // A finalizer may delay the deletion. The nodes do not wait for it.
        context.forget(&**cached);
        return Ok(None);
    }
    let Some(key) = key(&**cached) else {
        // Object names in Kubernetes conform to RFC 1123, so this cannot happen.
        return Ok(None);
    };
    let planned = plan(cached, &key, context).await?;
    if context.defers_statuses() {
        return Ok(planned.pause());
    }
    let Planned { object, prepared, .. } = &planned;
    let written = write_status(&**object, &**cached, &key, prepared, context).await?;
    // The nodes wait for the plan that this status permits: it takes no turn of the queue, and the
    // Events come after it.
    let permitted =
        if prepared.awaits_status { plan(cached, &key, context).await.map(Some) } else { Ok(None) };
    let requeue = written.publish_events(&**object, context);
    let planned = permitted?.unwrap_or(planned);
    let latest = context.object_state(&**cached, |state| latest(cached, state));
    latest.drive(&key, planned.prepared.placed.as_ref(), context);
    record_rollout(&*latest, context).await;
    Ok(planned.pause().into_iter().chain(requeue).min())
}

/// An object with its plan, which is in effect.
struct Planned<K: Controller> {
    /// The newest known version.
    object: Arc<K>,
    prepared: Arc<Prepared<K>>,
    /// When to plan again although nothing changes.
    retry_at: Option<Instant>,
}

impl<K: Controller> Planned<K> {
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn pause(&self) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Plans an object, and brings the plan into effect, unless the last plan is still valid.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn plan<K: Controller>(
    cached: &Arc<K>,
    key: &ObjectKey,
    context: &Context,
) -> Result<Planned<K>, Error> {
    let (object, prepared, invalidations, reads) = context.object_state(&**cached, |state| {
        (latest(cached, state), state.prepared.clone(), state.invalidations, state.config.clone())
    });
    let prepared = prepared.filter(|prepared| is_current(prepared, &*object));
    let (prepared, due) = match prepared {
        Some(prepared) if reads.as_ref().is_none_or(|reads| Instant::now() < reads.due) => {
            (prepared, reads.map(|reads| reads.due))
        }
        // On the heap: the future of a reconcile would be large.
        prepared => {
            Box::pin(prepare_again(&*object, key, (prepared, reads), invalidations, context))
                .await?
        }
    };
    let retry_at = prepared.retry_at.into_iter().chain(due).min();
    Ok(Planned { object, prepared, retry_at })
}

/// Records the spec of a complete rollout once. A failure changes nothing else: the next reconcile
/// tries it again.
async fn record_rollout<K: Controller>(object: &K, context: &Context) {
    let Some((revision, spec)) = object.complete_rollout() else { return };
    let is_known = |state: &mut ObjectState<K>| state.recorded.as_deref() == Some(revision);
    if context.object_state(object, is_known) {
        return;
    }
    // On the heap: the future of a reconcile would be large.
    match Box::pin(history::record(context.client(), object, (revision, spec))).await {
        Ok(()) => context.object_state(object, |state| {
            state.recorded = Some(revision.to_owned());
        }),
        Err(error) => tracing::warn!(%error, "spec of a complete rollout not recorded"),
    }
}

/// The object with the last written status, also before the cache has it. The written object is
/// dropped when the cache has it, which may be before the response to the write.
fn latest<K: Controller>(cached: &Arc<K>, state: &mut ObjectState<K>) -> Arc<K> {
    let Some(last) = &mut state.last_write else { return Arc::clone(cached) };
    if last.over != cached.resource_version() {
        last.object = None;
    }
    last.object.as_ref().map_or_else(|| Arc::clone(cached), Arc::clone)
}

/// Whether the result of the last facts, validate and plan is still valid.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn is_current<K: Controller>(prepared: &Prepared<K>, object: &K) -> bool {
    // The cache may have a new spec before the trigger invalidates the result.
    prepared.generation == object.meta().generation
        && prepared.retry_at.is_none_or(|at| Instant::now() < at)
}

/// Reads the Secrets and `ConfigMap`s of an object, and prepares it unless the result is still valid and
/// nothing that was read differs. Returns when to read them again.
async fn prepare_again<K: Controller>(
    object: &K,
    key: &ObjectKey,
    (prepared, reads): (Option<Arc<Prepared<K>>>, Option<ConfigReads>),
    invalidations: u64,
    context: &Context,
) -> Result<(Arc<Prepared<K>>, Option<Instant>), Error> {
    let references = object.config_references(context);
    let has_references = !references.is_empty();
    let config = read_references(object, references, context).await;
    let next = has_references.then(|| ConfigReads::new(&config, context.config_interval()));
    let is_same = match (&reads, &next) {
        (Some(reads), Some(next)) => reads.versions == next.versions,
        (reads, next) => reads.is_none() && next.is_none(),
    };
    let prepared = match prepared.filter(|_| is_same) {
        Some(prepared) => prepared,
        None => prepare(object, key, config, invalidations, context).await?,
    };
    let due = next.as_ref().map(|next| next.due);
    context.object_state(object, |state| state.config = next);
    Ok((prepared, due))
}

/// Runs facts, validate, plan and execute. `invalidations` is the number of them before.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn prepare<K: Controller>(
    object: &K,
    key: &ObjectKey,
    config: ConfigObjects,
    invalidations: u64,
    context: &Context,
) -> Result<Arc<Prepared<K>>, Error> {
    let generation = object.meta().generation;
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    let mut facts = object.facts(context);
    K::use_config(&mut facts, config);
    context.publisher().set_guard(key, object.guards_models());
    let prepared = match object.validate(&facts) {
        Ok(valid) => {
            let plan = object.plan(&valid, context.fetch_image());
            if plan.awaits_service && context.publisher().awaits(key) {
                // The API server may refuse the Service or answer late. That concerns this object
                // only: the others are published, and nodes keep what they have of this one.
                let retained = object.retained_by(key, &facts);
                context.publisher().retain(key, uid, retained, &BTreeSet::new());
            }
            let awaits_status = plan.awaits_status;
            let executed = execute(object, key, plan, context).await?;
            let retry_at = executed.retry_after.map(|pause| Instant::now() + pause);
            let placed = Some(valid.into());
            Prepared { generation, placed, findings: executed.findings, awaits_status, retry_at }
        }
        Err(findings) => {
            let (retained, yielded) = (object.retained_by(key, &facts), object.yielded(&facts));
            context.publisher().retain(key, uid, retained, &yielded);
            let findings = context.explain(findings);
            let awaits_status = false;
            Prepared { generation, placed: None, findings, awaits_status, retry_at: None }
        }
    };
    let prepared = Arc::new(prepared);
    context.object_state(object, |state| {
        state.was_valid |= prepared.placed.is_some();
        // If an input changed meanwhile, the object is enqueued already and is prepared again. It is
        // also enqueued if its publication fails later.
        let is_current = state.invalidations == invalidations;
        state.prepared = is_current.then(|| Arc::clone(&prepared));
    });
    Ok(prepared)
}

/// Drops the state of an object that was deleted during its reconcile, which may have published it
/// again.
fn forget_if_deleted<K: Controller>(object: &K, context: &Context) {
    let uid = object.uid().unwrap_or_default();
    if let Some(key) = key(object)
        && !context.caches().contains(&key, &uid)
    {
        context.forget(object);
    }
}
