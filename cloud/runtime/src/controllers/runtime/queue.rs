//! Runs the controllers: one queue per kind, whose objects are reconciled concurrently.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::runtime::reflector::ObjectRef;
use neptune_backoff::Backoff;
use neptune_cloud_kinds::{
    each_kind, error_class::Class, kind::Kind as _, kubernetes::identity::key, with_kind,
};
use neptune_wire::ObjectKey;
use tokio::{task::JoinSet, time::sleep_until};

use super::{context::Context, controller::Controller, reconcile::reconcile, turns::Turns};
use crate::{cache::Cached as _, error::Error, kubernetes::reference::reference};

/// Objects of a kind that are reconciled at the same time. More would overload the API server.
const CONCURRENCY: usize = 32;

/// The longest time for which the statuses wait until every object was planned.
const STATUSES_WAIT: Duration = Duration::from_secs(10);

/// The pause after a conflict, until the cache has the other write.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// The delay before an object is requeued after a transient error, such as an outage of the API
/// server. Its maximum bounds how long statuses are outdated after the outage.
const TRANSIENT: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// The delay after an error that a retry rarely resolves.
const PERSISTENT: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(1));

/// Reconciles every object, and then each object that is enqueued, indefinitely. Nothing is
/// published to the nodes before every object is planned once.
pub async fn run_all(context: &Context) {
    let (mut objects, mut incomplete) = (BTreeSet::new(), BTreeSet::new());
    each_kind!(K => {
        match known_objects::<K>(context) {
            Some(known) => objects.extend(known),
            None => drop(incomplete.insert(K::RESOURCE)),
        }
    });
    context.publisher().begin_initial_sync(objects, incomplete);
    // Those that were listed meanwhile.
    each_kind!(K => on_listed::<K>(context));
    // A task per kind: they use several cores, and none delays the transport.
    let mut runs = JoinSet::new();
    // The nodes wait for the plans only.
    context.defer_statuses(true);
    let waiting = context.clone();
    runs.spawn(async move { write_statuses_when_synced(&waiting).await });
    each_kind!(K => {
        runs.spawn(run::<K>(context.clone()));
    });
    runs.join_all().await;
}

async fn write_statuses_when_synced(context: &Context) {
    // What cannot be planned must not hide the statuses of the others.
    if tokio::time::timeout(STATUSES_WAIT, context.publisher().synced()).await.is_err() {
        tracing::warn!("not every object could be planned yet; nodes keep what they have");
    }
    context.defer_statuses(false);
    each_kind!(K => {
        for object in K::cache(context.caches()).state() {
            context.enqueue_unchanged(&*object);
        }
    });
}

/// All objects of a kind; `None` if they are not known, because its CRD is missing.
fn known_objects<K: Controller>(context: &Context) -> Option<BTreeSet<ObjectKey>> {
    // In this order: a list that ends in between is seen or reported later.
    let is_complete = context.caches().is_complete(K::RESOURCE);
    let objects = K::cache(context.caches()).state();
    is_complete.then(|| objects.into_iter().filter_map(|object| key(&*object)).collect())
}

/// Takes the objects of a kind whose CRD was missing at the start into the desired state, once
/// they are known.
pub fn on_listed<K: Controller>(context: &Context) {
    if let Some(objects) = known_objects::<K>(context) {
        context.publisher().on_listed(K::RESOURCE, objects);
    }
}

/// Publishes the messages that wait for room in the transport, indefinitely. Plans the objects again
/// that were refused meanwhile.
pub async fn publish_waiting(context: &Context) {
    loop {
        for key in context.publisher().publish_next().await {
            with_kind!(key.resource, K => {
                if let Some(object) = K::cache(context.caches()).get(&reference::<K>(&key)) {
                    context.enqueue(&*object);
                }
            });
        }
    }
}

async fn run<K: Controller>(context: Context) {
    let mut queue = K::state(context.states()).open_queue();
    context.enqueue_where(|_: &K| true);
    let (mut turns, mut running) = (Turns::default(), FuturesUnordered::new());
    loop {
        while running.len() < CONCURRENCY
            && let Some(reference) = turns.begin()
        {
            match K::cache(context.caches()).get(&reference) {
                Some(object) => running.push(turn(reference, object, &context)),
                // It was deleted.
                None => turns.end(reference, None),
            }
        }
        let next_due = turns.next_due();
        tokio::select! {
            Some(reference) = queue.next() => turns.add(reference),
            Some((reference, due)) = running.next() => turns.end(reference, due),
            now = until(next_due) => turns.add_due(now),
        }
    }
}

/// Reconciles an object. Returns when to do it again although nothing changes.
async fn turn<K: Controller>(
    reference: ObjectRef<K>,
    object: Arc<K>,
    context: &Context,
) -> (ObjectRef<K>, Option<Instant>) {
    let pause = match reconcile(&object, context).await {
        Ok(pause) => pause,
        Err(error) => Some(pause_after(&error, &*object, context)),
    };
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    let due = pause.and_then(|pause| Instant::now().checked_add(pause));
    (reference, due)
}

/// Waits until this time, and returns the time then. Waits indefinitely without one.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn until(at: Option<Instant>) -> Instant {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
    Instant::now()
}

/// How long an object waits after an error of its reconcile.
fn pause_after<K: Controller>(error: &Error, object: &K, context: &Context) -> Duration {
    if error.class() == Class::Conflict {
        return CONFLICT_RETRY;
    }
    let failures = context.object_state(object, |state| {
        state.failures = state.failures.saturating_add(1);
        state.failures
    });
    let backoff = if error.class() == Class::Transient { TRANSIENT } else { PERSISTENT };
    backoff.step(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requeue_delay_doubles_up_to_a_minute() {
        let millis =
            [1, 2, 3, 7, 8, 9, 64, u32::MAX].map(|failures| PERSISTENT.step(failures).as_millis());
        assert_eq!(millis, [500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn status_is_written_within_ten_seconds_of_an_outage() {
        assert!(TRANSIENT.step(u32::MAX) <= Duration::from_secs(5));
    }
}
