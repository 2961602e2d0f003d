//! Writes the slices whose rows changed: at once if nodes wait for it, else every 30 seconds.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use kube::{Api, api::PostParams};
use neptune_api::{JointInferenceService, NodeReportSlice};
use neptune_cloud_kinds::fleet::{PendingSlice, SliceWrite, rows::slice_object};
use neptune_cloud_metrics::StatusClass as WriteClass;
use tokio::time::timeout;

use super::api::{managed, read};
use crate::{
    controllers::{
        on_slice_stored,
        runtime::{Context, WritePace},
    },
    error::Error,
    kubernetes::FIELD_MANAGER,
};

/// Writes at the same time.
const PARALLEL: usize = 8;

/// New nodes are collected for this time.
const COLLECT: Duration = Duration::from_millis(200);

/// The interval between two writes of counters of a slice.
const INTERVAL: Duration = Duration::from_secs(30);

/// The time after which changes are seen that nobody is notified about.
const TICK: Duration = Duration::from_secs(1);

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// The longest time of a write.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// The longest time for all writes of a shutdown.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// Attempts to write a slice during a shutdown.
const FLUSH_ATTEMPTS: usize = 3;

/// The uid of an object, and the index of a slice.
type SliceKey = (String, u32);

/// When a slice may be written.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    pace: WritePace,
    /// When counters may be written.
    counters_at: Instant,
    /// When anything may be written.
    earliest: Instant,
}

/// A slice to write, and its object.
struct Due {
    key: SliceKey,
    service: Arc<JointInferenceService>,
    is_urgent: bool,
    schedule: Schedule,
}

/// Writes the slices of all services that changed, indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn write_slices(context: &Context) {
    let mut schedules: HashMap<SliceKey, Schedule> = HashMap::new();
    loop {
        let due = due_slices(&mut schedules, context, Instant::now());
        let writes = due.into_iter().map(|due| async {
            let (key, schedule) = (due.key.clone(), write_due(due, context).await);
            (key, schedule)
        });
        let written: Vec<_> = stream::iter(writes).buffer_unordered(PARALLEL).collect().await;
        schedules.extend(written);
        tokio::select! {
            () = context.slice_changes().notified() => tokio::time::sleep(COLLECT).await,
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

/// Writes all slices that have changes, as far as the time of a shutdown allows.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn flush_slices(context: &Context) {
    let now = Instant::now();
    let pending = pending(context).into_iter();
    let writes = pending.filter_map(|(key, _)| Some((service(&key.0, context)?, key))).map(
        |(service, (uid, index))| async move {
            // The stop may have interrupted a write that the API server has.
            for _ in 0..FLUSH_ATTEMPTS {
                let write = context.fleet().known_rows(&uid)?.next_write(index)?;
                let object = slice_object(&service, &write);
                match write_slice((&uid, object), &write, context).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%error, "counters of the last 30 s are not written");
                        break;
                    }
                }
            }
            Some(())
        },
    );
    let all = stream::iter(writes).buffer_unordered(PARALLEL).count();
    match timeout(FLUSH_TIME, all).await {
        Ok(count) if count > 0 => {
            tracing::info!(count, elapsed = ?now.elapsed(), "slices are written");
        }
        Ok(_) => {}
        Err(_) => tracing::warn!("not all slices could be written; agents repeat their counters"),
    }
}

fn pending(context: &Context) -> Vec<(SliceKey, PendingSlice)> {
    let mut fleet = context.fleet();
    let slices = fleet.sliced().flat_map(|(uid, rows)| {
        rows.pending().map(|slice| ((uid.clone(), slice.index), slice)).collect::<Vec<_>>()
    });
    slices.collect()
}

/// The service with this uid, if it exists.
fn service(uid: &str, context: &Context) -> Option<Arc<JointInferenceService>> {
    let (namespace, name) = context.fleet().known_rows(uid)?.owner()?.clone();
    let service = context.caches().get::<JointInferenceService>(&namespace, &name)?;
    (service.metadata.uid.as_deref() == Some(uid)).then_some(service)
}

fn due_slices(
    schedules: &mut HashMap<SliceKey, Schedule>,
    context: &Context,
    now: Instant,
) -> Vec<Due> {
    let known: HashSet<String> = context.fleet().sliced().map(|(uid, _)| uid.clone()).collect();
    schedules.retain(|(uid, _), _| known.contains(uid));
    let mut due = Vec::new();
    for (key, PendingSlice { is_urgent, .. }) in pending(context) {
        let new =
            Schedule { pace: WritePace::default(), counters_at: now + INTERVAL, earliest: now };
        let schedule = *schedules.entry(key.clone()).or_insert(new);
        if now < schedule.earliest || !is_urgent && now < schedule.counters_at {
            continue;
        }
        if let Some(service) = service(&key.0, context) {
            due.push(Due { key, service, is_urgent, schedule });
        }
    }
    due
}

/// Writes a slice if the other writes leave room for it. Returns when it may be written again.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn write_due(due: Due, context: &Context) -> Schedule {
    let Due { key: (uid, index), service, is_urgent, mut schedule } = due;
    let write = context.fleet().known_rows(&uid).and_then(|rows| rows.next_write(index));
    let Some(write) = write else {
        schedule.counters_at = Instant::now() + INTERVAL;
        return schedule;
    };
    let class = if is_urgent { WriteClass::State } else { WriteClass::Counters };
    let object = slice_object(&service, &write);
    let bytes = serde_json::to_vec(&object).map_or(0, |json| json.len());
    if let Err(pause) = context.take_slice_write(&mut schedule.pace, bytes, class) {
        schedule.earliest = Instant::now() + pause;
        return schedule;
    }
    let written = write_slice((&uid, object), &write, context).await;
    let now = Instant::now();
    match written {
        Ok(true) => {
            schedule.pace.written(class, now);
            (schedule.counters_at, schedule.earliest) = (now + INTERVAL, now);
            if is_urgent {
                on_slice_stored(&service, context);
            }
        }
        // What is stored is known now.
        Ok(false) => schedule.earliest = now + TICK,
        Err(error) => {
            tracing::warn!(%error, "cannot write a slice; retrying");
            schedule.earliest = now + RETRY;
        }
    }
    schedule
}

/// Writes a slice of the service with this uid. Returns whether it is stored; otherwise another writer
/// changed or a person deleted it.
async fn write_slice(
    (uid, object): (&str, NodeReportSlice),
    write: &SliceWrite,
    context: &Context,
) -> Result<bool, Error> {
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    let api: Api<NodeReportSlice> = Api::namespaced(context.client().clone(), &namespace);
    let params =
        PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let request = async {
        if write.version.is_some() {
            api.replace(&name, &params, &object).await
        } else {
            api.create(&params, &object).await
        }
    };
    let Ok(result) = timeout(WRITE_TIME, request).await else {
        tracing::warn!(namespace, name, "the API server does not answer a write of a slice");
        return Ok(false);
    };
    match result {
        Ok(stored) => {
            if let Some(rows) = context.fleet().known_rows(uid) {
                rows.written(write, stored.metadata.resource_version);
            }
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let owner = &object.metadata.labels.unwrap_or_default()[NodeReportSlice::OWNER_LABEL];
            let selector = format!("{},{}={owner}", managed(), NodeReportSlice::OWNER_LABEL);
            read(&api, &selector, context).await.map(|()| false)
        }
        Err(kube::Error::Api(status)) if status.code == 404 && write.version.is_some() => {
            if let Some(rows) = context.fleet().known_rows(uid) {
                rows.deleted(write.index);
            }
            Ok(false)
        }
        Err(error) => Err(Error::api(format!("write NodeReportSlice {namespace}/{name}"))(error)),
    }
}
