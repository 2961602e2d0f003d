//! Runs the controllers: one queue per kind, whose objects are reconciled concurrently.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::controller::{Action, Config, applier};
use neptune_backoff::Backoff;

use super::{context::Context, controller::Controller, reconcile::reconcile};
use crate::{
    cache::Cached as _,
    error::{Class, Error},
    kubernetes::identity::key,
};

/// Objects of a kind that are reconciled at the same time. More would overload the API server.
const CONCURRENCY: u16 = 32;

/// The pause after a conflict, until the cache has the other write.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// The delay before an object is requeued after an error.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(1));

/// Reconciles every object, and then each object that is enqueued, indefinitely. Nothing is
/// published to the nodes before every object is planned once.
pub async fn run_all(context: &Context) {
    let mut objects = std::collections::BTreeSet::new();
    let mut runs = Vec::new();
    each_kind!(K => {
        let existing = K::cache(context.caches()).state();
        objects.extend(existing.into_iter().filter_map(|object| key(&*object)));
        runs.push(run::<K>(context.clone()).boxed_local());
    });
    context.publisher().begin_initial_sync(objects);
    futures::future::join_all(runs).await;
}

async fn run<K: Controller>(context: Context) {
    let queue = K::state(context.states()).open_queue().map(Ok::<_, std::convert::Infallible>);
    context.enqueue_where(|_: &K| true);
    let cache = K::cache(context.caches()).clone();
    let config = Config::default().concurrency(CONCURRENCY);
    applier(
        |object: Arc<K>, context| Box::pin(reconcile(object, context)),
        error_policy,
        Arc::new(context),
        cache,
        queue,
        config,
    )
    .for_each(|_| std::future::ready(()))
    .await;
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the applier calls")]
fn error_policy<K: Controller>(object: Arc<K>, error: &Error, context: Arc<Context>) -> Action {
    if error.class() == Class::Conflict {
        return Action::requeue(CONFLICT_RETRY);
    }
    let failures = context.object_state(&*object, |state| {
        state.failures = state.failures.saturating_add(1);
        state.failures
    });
    Action::requeue(BACKOFF.step(failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requeue_delay_doubles_up_to_a_minute() {
        let millis =
            [1, 2, 3, 7, 8, 9, 64, u32::MAX].map(|failures| BACKOFF.step(failures).as_millis());
        assert_eq!(millis, [500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000, 60_000]);
    }
}
