//! Looks at one object after another, whenever they are woken.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use kube::{
    ResourceExt as _,
    runtime::{
        controller::{Action, Config, applier},
        reflector::ObjectRef,
    },
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService};

use crate::{
    controllers::runtime::{context::Context, controller::Kind, triggers::forget},
    error::{Class, Error},
    kubernetes::identity::key,
    metrics,
};

/// Objects of a kind looked at at the same time, so that many at once do not overrun the API server.
const CONCURRENCY: u16 = 32;

/// After somebody else's write: until the copy has it.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// The first and the longest pause after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(1));

/// Tells the downstream which objects there are: nothing is said to a node before each was planned.
pub fn expect(context: &Context) {
    let keys = keys::<JointInferenceService>(context)
        .chain(keys::<InferenceModel>(context))
        .chain(keys::<Dataset>(context));
    context.publisher().expect(keys.collect());
}

fn keys<K: Kind>(context: &Context) -> impl Iterator<Item = neptune_wire::ObjectKey> + use<K> {
    K::store(context.caches()).state().into_iter().filter_map(|object| key(&*object))
}

/// Looks at the objects of a kind whenever they are woken, until nobody can wake them any more.
pub async fn run<K: Kind>(receivers: UnboundedReceiver<ObjectRef<K>>, context: Context) {
    context.enqueue_where(|_: &K| true);
    let store = K::store(context.caches()).clone();
    let queue = receivers.map(Ok::<_, std::convert::Infallible>);
    let config = Config::default().concurrency(CONCURRENCY);
    applier(
        |object: Arc<K>, context| Box::pin(measured(object, context)),
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
    kind = %K::kind(&()),
    namespace = object.namespace().unwrap_or_default(),
    name = object.name_any(),
))]
async fn measured<K: Kind>(object: Arc<K>, context: Arc<Context>) -> Result<Action, Error> {
    let result = reconcile(&object, &context).await;
    context.metrics().reconciled(match &result {
        Ok(_) => metrics::Outcome::Ok,
        Err(error) => error.class().into(),
    });
    match &result {
        Ok(_) => context.memory(&*object, |memory| memory.failures = 0),
        Err(error) if error.class() == Class::Conflict => tracing::debug!(%error, "looking again"),
        Err(error) => tracing::warn!(%error, "trying again"),
    }
    result
}

async fn reconcile<K: Kind>(cached: &Arc<K>, context: &Arc<Context>) -> Result<Action, Error> {
    if cached.meta().deletion_timestamp.is_some() {
        // Others may hold it back by a finalizer. The nodes need not wait for them.
        forget(&**cached, context);
        return Ok(Action::await_change());
    }
    let Some(key) = key(&**cached) else {
        // An API server names objects by RFC 1123, so this cannot come from one.
        return Ok(Action::await_change());
    };
    let object = latest(cached, context);
    let later = K::reconcile(object, Arc::clone(cached), key, Arc::clone(context)).await?;
    Ok(later.map_or_else(Action::await_change, Action::requeue))
}

/// The object with the status that was written last, also before the copy has it.
fn latest<K: Kind>(cached: &Arc<K>, context: &Context) -> Arc<K> {
    let written = context.memory(&**cached, |memory| memory.written.clone());
    match written {
        Some(written) if written.over == cached.resource_version() => written.object,
        _ => Arc::clone(cached),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that the applier calls")]
fn error_policy<K: Kind>(object: Arc<K>, error: &Error, context: Arc<Context>) -> Action {
    if error.class() == Class::Conflict {
        return Action::requeue(CONFLICT_RETRY);
    }
    let failures = context.memory(&*object, |memory| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_never_wrap() {
        let millis = [1, 2, 3, 7, 8, 9, 64, u32::MAX].map(|failures| pause(failures).as_millis());
        assert_eq!(millis, [500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000, 60_000]);
        assert_eq!(pause(0), BACKOFF.0);
    }
}
