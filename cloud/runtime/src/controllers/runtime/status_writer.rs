//! Writes the status of an object of any kind, and publishes the Events of the change.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use neptune_cloud_kinds::steps::{ObjectEvent, StatusInputs};
use neptune_cloud_metrics::{Outcome, StatusClass as WriteClass};
use neptune_wire::ObjectKey;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    context::Context,
    controller::Controller,
    events::{queue_event, queue_summary},
    merge_patch::merge_patch,
    state::{LastWrite, Prepared},
};
use crate::{error::Error, kubernetes::FIELD_MANAGER};

/// A status whose computation takes longer than this is computed less often, for example that of a
/// service with many nodes.
const EXPENSIVE: Duration = Duration::from_millis(1);

/// The maximum pause between two computations of an expensive status.
const MAX_COMPUTE_PAUSE: Duration = Duration::from_secs(2);

/// The minimum pause before a status is computed again although nothing is reported.
const MIN_RECOMPUTE_PAUSE: Duration = Duration::from_secs(1);

/// The outcome of a write.
pub struct Written<K: Controller> {
    /// When to compute the status again although nothing changes.
    requeue: Option<Duration>,
    /// The statuses before and after; `None` if the status waits for its turn.
    statuses: Option<(K::Status, K::Status)>,
    /// The Events of the change.
    events: Vec<ObjectEvent>,
}

impl<K: Controller> Written<K> {
    fn later(pause: Duration) -> Self {
        Self { requeue: Some(pause), statuses: None, events: Vec::new() }
    }

    /// Queues the Events of the change. Returns when to compute the status again although nothing
    /// changes.
    pub fn publish_events(self, object: &K, context: &Context) -> Option<Duration> {
        for event in self.events {
            queue_event(object, event, context);
        }
        let summary = self
            .statuses
            .and_then(|(previous, next)| queue_summary(object, (&previous, &next), context));
        self.requeue.into_iter().chain(summary).min()
    }
}

/// Writes the status if it changes. `cached` is the object as the watch has it, `object` the newest
/// known.
///
/// # Errors
/// The error of the API server.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn write_status<K: Controller>(
    object: &K,
    cached: &K,
    key: &ObjectKey,
    prepared: &Prepared<K>,
    context: &Context,
) -> Result<Written<K>, Error> {
    let (started, now) = (Instant::now(), Timestamp::now());
    let previous = object.status().cloned().unwrap_or_default();
    let is_new_spec = K::observed_generation(&previous) != object.meta().generation;
    let (computed, was_valid) =
        context.object_state(object, |state| (state.computed, state.was_valid));
    if !is_new_spec && let Some(pause) = compute_pause(computed, started) {
        return Ok(Written::later(pause));
    }
    let fleet_now = context.fleet_now();
    let settled_at = context.fleet().settled_at();
    // After that time a missing report is significant.
    let until_settled = settled_at.duration_since(fleet_now).try_into().ok();
    let is_settled = was_valid || until_settled.is_none_or(|pause: Duration| pause.is_zero());
    let inputs = StatusInputs {
        generation: object.meta().generation,
        findings: &prepared.findings,
        observed: object.observe(key, prepared.placed.as_ref(), context, fleet_now),
        is_settled,
        now,
    };
    let recompute = K::recompute_at(&inputs.observed).map(|at| pause_until(at, fleet_now));
    let requeue = until_settled.into_iter().chain(recompute).min();
    let next = object.next_status(&previous, &inputs);
    let is_same = K::is_same_status(&previous, &next);
    let ended = Instant::now();
    let computed = Some((ended - started, ended));
    if is_same {
        context.object_state(object, |state| state.computed = computed);
        object.on_status_stored(&inputs.observed, context);
        return Ok(Written { requeue, statuses: Some((previous, next)), events: Vec::new() });
    }
    let change = StatusChange::new::<K>(&previous, &next);
    let bytes = stored_bytes(object);
    let permitted = context.object_state(object, |state| {
        state.computed = computed;
        context.take_write(state, bytes, change.class)?;
        state.begin_write();
        Ok(())
    });
    if let Err(pause) = permitted {
        return Ok(Written::later(pause));
    }
    save(object, cached, &change, context).await?;
    object.on_status_stored(&inputs.observed, context);
    object.enqueue_by_status(&next, context);
    let events = K::events(&previous, &next);
    Ok(Written { requeue, statuses: Some((previous, next)), events })
}

/// How long to wait for a time at which a status changes although nothing is reported: not so short
/// that it is computed all the time.
fn pause_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(MIN_RECOMPUTE_PAUSE)
}

/// How long to wait before an expensive status is computed again, so that it uses a small part of a
/// core.
fn compute_pause(computed: Option<(Duration, Instant)>, now: Instant) -> Option<Duration> {
    let (cost, at) = computed?;
    let pause = pause_after(cost).checked_sub(now.saturating_duration_since(at))?;
    (!pause.is_zero()).then_some(pause)
}

fn pause_after(cost: Duration) -> Duration {
    if cost < EXPENSIVE { Duration::ZERO } else { (cost * 20).min(MAX_COMPUTE_PAUSE) }
}

/// About how many bytes etcd stores of an object: its JSON, and half of that again for the
/// `managedFields`, which the caches do not have.
fn stored_bytes(object: &impl Serialize) -> usize {
    let mut counted = ByteCount(0);
    serde_json::to_writer(&mut counted, object).expect("an object is JSON");
    counted.0 + counted.0 / 2
}

/// Counts the bytes that are written to it.
struct ByteCount(usize);

impl std::io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A status before and after a change, as JSON.
struct StatusChange {
    class: WriteClass,
    previous: Value,
    next: Value,
}

impl StatusChange {
    fn new<K: Controller>(previous: &K::Status, next: &K::Status) -> Self {
        let is_new_spec = K::observed_generation(previous) != K::observed_generation(next);
        let value = |status: &K::Status| serde_json::to_value(status).expect("a status is JSON");
        let (previous, next) = (value(previous), value(next));
        let class = if is_new_spec || !is_same_state(&previous, &next) {
            WriteClass::State
        } else {
            WriteClass::Counters
        };
        Self { class, previous, next }
    }
}

/// Whether two statuses have the same conditions, except for their messages and times, and the same
/// state of a rollout.
fn is_same_state(previous: &Value, next: &Value) -> bool {
    let conditions = |status: &Value| -> Vec<[Value; 3]> {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let state =
            |condition: &Value| ["type", "status", "reason"].map(|field| condition[field].clone());
        conditions.map(state).collect()
    };
    let rollout = |status: &Value| {
        ["revision", "state", "frontier"].map(|field| status["rollout"][field].clone())
    };
    conditions(previous) == conditions(next) && rollout(previous) == rollout(next)
}

/// Writes a status to the version that it was computed from. Another writer causes a conflict.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn save<K: Controller>(
    object: &K,
    cached: &K,
    change: &StatusChange,
    context: &Context,
) -> Result<(), Error> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(context.client().clone(), &namespace);
    // Without a status the API server has no object that the patch could extend.
    let before = if object.status().is_some() { &change.previous } else { &Value::Null };
    let status = merge_patch(before, &change.next);
    let patch = json!({
        "metadata": { "resourceVersion": object.resource_version() },
        "status": status,
    });
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let result = api.patch_status(&name, &params, &Patch::Merge(&patch)).await.map(Arc::new);
    let version = result.as_ref().ok().and_then(|object| object.resource_version());
    let (is_outdated, waited) = context.object_state(cached, |state| {
        let is_outdated = state.end_write(version.as_deref());
        let waited = result.as_ref().ok().map(|object| {
            let (over, object) = (cached.resource_version(), Some(Arc::clone(object)));
            state.last_write = Some(LastWrite { over, version, object });
            state.pace.written(change.class, Instant::now())
        });
        (is_outdated, waited)
    });
    if is_outdated {
        context.enqueue(cached);
    }
    let result = result
        .map_err(Error::api(format!("write the status of {} {namespace}/{name}", K::kind(&()))));
    context.metrics().status_written(match &result {
        Ok(_) => Outcome::Ok,
        Err(error) => error.class().into(),
    });
    result?;
    context.caches().api_server.answered();
    if let Some(waited) = waited {
        context.metrics().status_delayed(change.class, waited);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_of_a_condition_is_a_change_of_state() {
        let status = |reason: &str, message: &str, count: u32| {
            json!({"conditions": [{"type": "Running", "status": "True", "reason": reason,
                "message": message, "lastTransitionTime": count}], "metrics": count})
        };
        let before = status("A", "a", 1);
        assert!(is_same_state(&before, &status("A", "b", 2)));
        assert!(!is_same_state(&before, &status("B", "a", 1)));
        assert!(!is_same_state(&Value::Null, &before));
        assert!(is_same_state(&Value::Null, &json!({"metrics": 1})));
        let wave =
            |frontier: &str, ready: u32| json!({"rollout": {"frontier": frontier, "ready": ready}});
        assert!(is_same_state(&wave("1:0", 1), &wave("1:0", 2)));
        assert!(!is_same_state(&wave("1:0", 1), &wave("1:1", 1)));
    }

    #[test]
    fn stored_bytes_include_the_managed_fields() {
        assert_eq!(stored_bytes(&"a".repeat(98)), 150);
    }

    #[test]
    fn expensive_status_uses_a_twentieth_of_a_core() {
        assert_eq!(pause_after(Duration::from_micros(900)), Duration::ZERO);
        assert_eq!(pause_after(Duration::from_millis(10)), Duration::from_millis(200));
        assert_eq!(pause_after(Duration::from_secs(1)), MAX_COMPUTE_PAUSE);
    }
}
