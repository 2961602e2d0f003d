//! Looks at one model: observe, validate, plan, apply, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use neptune_api::InferenceModel;
use neptune_wire::{ObjectKey, Resource};

use crate::{
    cache::Caches,
    controllers::{
        inference_model::{
            events::events,
            observe,
            place::Place,
            plan::{keeps, plan},
            status::{self, Placed},
            validate::{target_version, validate},
        },
        runtime::{
            apply::REFUSED_RETRY,
            context::{Context, ControllerState},
            controller::Kind,
            execute::{WorkloadMessages, WorkloadOwner, execute},
            status_writer::{emit, must_rest, save},
        },
    },
    error::Error,
    reason::{Finding, Reason},
};

impl WorkloadOwner for InferenceModel {
    const MESSAGES: WorkloadMessages = WorkloadMessages {
        created: "ServerCreated",
        what: "model server",
        rename: "the InferenceModel",
        shorten: "list fewer versions in spec.manifest",
        refused: Reason::ServerRefused,
    };
}

impl Kind for InferenceModel {
    const RESOURCE: Resource = Resource::InferenceModels;

    fn store(caches: &Caches) -> &Store<Self> {
        &caches.inference_models
    }

    fn controller_state(context: &Context) -> &ControllerState<Self> {
        context.inference_models()
    }

    fn concerns(&self, node: &str) -> bool {
        let named = self.spec.node_name.as_deref().filter(|name| !name.is_empty());
        let before = self.status.as_ref().and_then(|status| status.node.as_deref());
        // Without a name any node may be picked, and any may have the address of a Service.
        named.is_none_or(|named| named == node) || before == Some(node)
    }

    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate(self, &observe::facts(self, context)).err().unwrap_or_default()
    }

    async fn reconcile(
        model: Arc<Self>,
        cached: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        let mut requeue_after = None;
        let mut at = None;
        let findings = match validate(&model, &observe::facts(&model, &context)) {
            Ok(checked) => {
                let plan = plan(&model, &checked, context.fetch_image());
                let findings = execute(&*model, &key, plan, &mut requeue_after, &context).await?;
                at = Some((observe::placed(&checked, &context), checked.place));
                findings
            }
            Err(findings) => {
                context.publisher().keep(&key, &keeps(&model, &key));
                // The other model's end wakes nobody here.
                let is_taken = |finding: &Finding| finding.reason == Reason::ServingPortTaken;
                requeue_after = findings.iter().any(is_taken).then_some(REFUSED_RETRY);
                findings
            }
        };
        let later = write_status(&model, &cached, &key, &findings, at, &context).await?;
        Ok(requeue_after.into_iter().chain(later).min())
    }
}

/// Writes the status if it says something new, and returns when to look again.
async fn write_status(
    model: &InferenceModel,
    cached: &InferenceModel,
    key: &ObjectKey,
    findings: &[Finding],
    at: Option<(Placed, Place)>,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let settled_at = context.fleet().settled_at();
    let (placed, place) = at.unzip();
    let previous = model.status.clone().unwrap_or_default();
    let facts = status::Facts {
        generation: model.metadata.generation,
        target: target_version(model),
        findings,
        placed,
        view: observe::view(model, key, place.as_ref(), context, now),
        now,
    };
    let next = status::next(&previous, &facts);
    // Silence means something from then on.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if previous == next {
        return Ok(until_settled);
    }
    let is_new_spec = previous.observed_generation != next.observed_generation;
    if let Some(rest) = must_rest(model, is_new_spec, context) {
        return Ok(Some(rest));
    }
    save(model, cached, &next, context).await?;
    for event in events(&previous, &next) {
        emit(model, event, context).await;
    }
    Ok(until_settled)
}
