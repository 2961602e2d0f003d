//! Looks at one service after another: observe, validate, plan, apply, status.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use kube::{
    ResourceExt as _,
    runtime::{
        controller::{Action, Config, applier},
        reflector::ObjectRef,
    },
};
use neptune_api::JointInferenceService;
use neptune_wire::ObjectKey;

use super::{
    apply::{self, apply},
    context::Context,
    notices::Notice,
    observe,
    plan::{Plan, keeps, plan},
    validate::{self, validate},
    wake::forget,
    write::{emit, write_status},
};
use crate::{
    error::{Class, Error},
    metrics,
    reason::{Finding, Reason},
};

/// Services looked at at the same time, so that many at once do not overrun the API server.
const CONCURRENCY: u16 = 32;

/// After a refusal that nothing tells us the end of: a name that is free again, a quota raised.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// After somebody else's write: until the copy has it.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// The first and the longest pause after an error.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

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
        Err(error) => error.class().into(),
    });
    match &result {
        Ok(_) => context.memory(&service, |memory| memory.failures = 0),
        Err(error) if error.class() == Class::Conflict => tracing::debug!(%error, "looking again"),
        Err(error) => tracing::warn!(%error, "trying again"),
    }
    result
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
        Ok(checked) => {
            let plan = plan(&service, &checked, context.fetch_image());
            carry_out(&service, &key, plan, &mut again, context).await?
        }
        Err(findings) => {
            context.downstream().keep(&key, &keeps(&service, &key));
            findings
        }
    };
    let later = write_status(&service, copy, &key, &findings, context).await?;
    Ok(again.into_iter().chain(later).min().map_or_else(Action::await_change, Action::requeue))
}

/// Tells the nodes and the API server. Returns what stands in the way there, and in `again` when to
/// try once more.
async fn carry_out(
    service: &JointInferenceService,
    key: &ObjectKey,
    plan: Plan,
    again: &mut Option<Duration>,
    context: &Context,
) -> Result<Vec<Finding>, Error> {
    let too_large = context.downstream().set(key, plan.downstream);
    let mut findings: Vec<_> = too_large.as_deref().map(too_large_finding).into_iter().collect();
    let before = context.memory(service, |memory| memory.applied.clone());
    match apply(service, plan.objects.as_ref(), before.as_ref(), context).await {
        Ok(apply::Outcome::Done { applied, created }) => {
            context.memory(service, |memory| memory.applied = applied);
            if let Some(name) = created {
                let note = format!("Deployment and Service {name} are made");
                emit(service, Notice::normal("CloudWorkerCreated", note), context).await;
            }
        }
        Ok(apply::Outcome::NameTaken { object }) => {
            let message = format!(
                "{object} exists and belongs to somebody else; delete it, or rename spec.cloudWorker.name"
            );
            findings.push(Finding::new(Reason::NameTaken, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) if error.class() == Class::Refused => {
            let message = format!("the API server refuses the cloud worker: {}", error.answer());
            findings.push(Finding::new(Reason::CloudWorkerRefused, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}

fn too_large_finding(why: &str) -> Finding {
    let remedy = "shorten its parameters and env";
    Finding::new(Reason::TaskTooLarge, format!("spec: {why}; {remedy}"))
}

/// The service with the status that was written last, also before the copy has it.
fn latest(service: &Arc<JointInferenceService>, context: &Context) -> Arc<JointInferenceService> {
    let written = context.memory(service, |memory| memory.written.clone());
    match written {
        Some(written) if written.over == service.metadata.resource_version => written.object,
        _ => Arc::clone(service),
    }
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
