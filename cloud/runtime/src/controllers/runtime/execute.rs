//! Executes a plan: publishes the requirements of the nodes and applies the workload.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Service;
use neptune_cloud_kinds::{
    error_class::Class,
    finding::Finding,
    fleet::PendingPlan,
    kubernetes::workloads::{KubernetesObjects, OwnedObjects},
    reason::Reason,
    steps::{ObjectEvent, ObjectPlan, WorkloadMessages},
    worker::config::seal::seal_requirements,
};
use neptune_seal::seal;
use neptune_wire::{NodeName, ObjectKey};

use super::{
    apply::{REJECTED_RETRY, WorkloadOutcome, apply, apply_service},
    context::Context,
    controller::Controller,
    events::queue_event,
};
use crate::error::Error;

/// The maximum wait for the watch to report a new Service. After that, the requirements are published
/// without its address: a missing Service must not stop a node.
const SERVICE_WAIT: Duration = Duration::from_secs(5);

/// The result of an execution.
#[derive(Debug, Default)]
pub struct Executed {
    /// What prevents the plan from being in effect.
    pub findings: Vec<Finding>,
    /// When to execute it again although nothing changes.
    pub retry_after: Option<Duration>,
}

/// Executes a plan.
///
/// # Errors
/// The error of the API server. A rejected workload is a finding instead.
pub async fn execute<K: Controller>(
    object: &K,
    key: &ObjectKey,
    plan: ObjectPlan,
    context: &Context,
) -> Result<Executed, Error> {
    let messages = K::MESSAGES;
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    let workload = async || match &messages.workload {
        Some(messages) if !plan.keeps_objects => {
            apply_workload(object, (plan.objects.as_ref(), &plan.owned), messages, context).await
        }
        _ => Ok(None),
    };
    if plan.awaits_status {
        let retained = plan.retained.unwrap_or_default();
        context.publisher().retain(key, uid, retained, &BTreeSet::new());
        return Ok(Executed::default());
    }
    if plan.awaits_service
        && let Some(objects) = plan.objects.as_ref().filter(|_| !plan.keeps_objects)
        && let Some(wait) = apply_service_first(object, &objects.service, context).await?
    {
        return Ok(Executed { retry_after: Some(wait), ..Executed::default() });
    }
    let applied = if plan.awaits_service { Some(workload().await?) } else { None };
    if let Some(None) = applied
        && let Some(wait) = service_wait(object, context)
    {
        return Ok(Executed { retry_after: Some(wait), ..Executed::default() });
    }
    context.object_state(object, |state| state.awaits_service_since = None);
    let unsent = if let Some(retained) = plan.retained {
        context.publisher().retain(key, uid, retained, &BTreeSet::new());
        None
    } else {
        if let Some(rollout) = plan.rollout {
            context.object_state(object, |state| state.rollout.planned(rollout));
        }
        let mut generations = plan.generations;
        generations.extend(object.meta().generation.map(|own| (key.clone(), own)));
        let mut requirements = plan.requirements;
        let known = |node: &NodeName| context.publisher().planned_contents(node, key);
        seal_requirements(&mut requirements, key, &plan.seals, known, seal);
        let plan = PendingPlan::new(key.clone(), requirements, generations, plan.kept);
        context.publisher().set(key, uid, plan)
    };
    let too_large = unsent.map(|why| {
        Finding::new(Reason::TaskTooLarge, format!("spec: {why}; {}", messages.shorten))
    });
    let refused = match applied {
        Some(refused) => refused,
        None => workload().await?,
    };
    let rejected = refused.is_some().then_some(REJECTED_RETRY);
    let retry_after = rejected.into_iter().chain(plan.replan_after).min();
    Ok(Executed { findings: too_large.into_iter().chain(refused).collect(), retry_after })
}

/// Applies the Service before the rest of the workload, once: the nodes wait for its address only.
/// Returns how long to wait for it; `None` if the whole workload is to be applied now.
async fn apply_service_first<K: Controller>(
    object: &K,
    service: &Service,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    if context.object_state(object, |state| state.awaits_service_since.is_some()) {
        return Ok(None);
    }
    // A refusal becomes a finding when the whole workload is applied.
    let applied = match Box::pin(apply_service(object, service, context)).await {
        Err(error) if error.class() != Class::Refused => return Err(error),
        applied => applied.ok().flatten(),
    };
    let is_applied = applied.is_some();
    context.object_state(object, |state| state.applied_service = applied);
    Ok(service_wait(object, context).filter(|_| is_applied))
}

/// How long to wait for the new Service of an object; `None` if it was awaited long enough.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn service_wait<K: Controller>(object: &K, context: &Context) -> Option<Duration> {
    let now = Instant::now();
    let since =
        context.object_state(object, |state| *state.awaits_service_since.get_or_insert(now));
    SERVICE_WAIT.checked_sub(now - since).filter(|wait| !wait.is_zero())
}

async fn apply_workload<K: Controller>(
    object: &K,
    (objects, owned): (Option<&KubernetesObjects>, &OwnedObjects),
    messages: &WorkloadMessages,
    context: &Context,
) -> Result<Option<Finding>, Error> {
    let (before, service, removals) = context.object_state(object, |state| {
        (state.applied.clone(), state.applied_service.take(), state.removals)
    });
    // On the heap: the future of a reconcile would be large.
    let applied =
        Box::pin(apply(object, (objects, owned), (before.as_ref(), service.as_ref()), context));
    match applied.await {
        Ok(WorkloadOutcome::Done { applied, created }) => {
            context.object_state(object, |state| {
                // If a workload was deleted meanwhile, the object is enqueued already.
                state.applied = applied.filter(|_| state.removals == removals);
            });
            if let Some(name) = created {
                let note = format!("created Deployment and Service {name}");
                queue_event(object, ObjectEvent::normal(messages.created, note), context);
            }
            Ok(None)
        }
        Ok(WorkloadOutcome::NameTaken { object }) => {
            let message = format!(
                "{object} exists and has another owner; delete it or rename {}",
                messages.rename
            );
            Ok(Some(Finding::new(Reason::NameTaken, message)))
        }
        Err(error) if error.class() == Class::Refused => {
            let message =
                format!("the API server rejected the {}: {}", messages.what, error.answer());
            Ok(Some(Finding::new(messages.refused, message)))
        }
        Err(error) => Err(error),
    }
}
