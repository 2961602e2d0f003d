//! Looks at one dataset: observe, validate, plan, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use neptune_api::Dataset;
use neptune_wire::{ContentHash, ObjectKey, Resource};

use crate::{
    cache::Caches,
    controllers::{
        dataset::{
            events::events,
            observe,
            plan::{content, keeps},
            status,
            validate::validate,
        },
        runtime::{
            context::{Context, ControllerState},
            controller::Kind,
            status_writer::{emit, must_rest, save},
        },
    },
    error::Error,
    reason::{Finding, Reason},
};

impl Kind for Dataset {
    const RESOURCE: Resource = Resource::Datasets;

    fn store(caches: &Caches) -> &Store<Self> {
        &caches.datasets
    }

    fn controller_state(context: &Context) -> &ControllerState<Self> {
        context.datasets()
    }

    fn concerns(&self, node: &str) -> bool {
        self.spec.node_name == node
    }

    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate(self, &observe::facts(self, context)).err().unwrap_or_default()
    }

    async fn reconcile(
        dataset: Arc<Self>,
        cached: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        match validate(&dataset, &observe::facts(&dataset, &context)) {
            Ok(node) => {
                let told = content(&dataset, &key);
                let hash = told.hash();
                let asks = [(node, [(key.clone(), told)].into())].into();
                let too_large = context.publisher().set(&key, asks).map(|why| {
                    let message = format!("spec: {why}; shorten it");
                    Finding::new(Reason::TaskTooLarge, message)
                });
                let findings: Vec<_> = too_large.into_iter().collect();
                write_status(&dataset, &cached, &key, &findings, Some(&hash), &context).await
            }
            Err(findings) => {
                context.publisher().keep(&key, &keeps(&dataset, &key));
                write_status(&dataset, &cached, &key, &findings, None, &context).await
            }
        }
    }
}

/// Writes the status if it says something new, and returns when to look again.
async fn write_status(
    dataset: &Dataset,
    cached: &Dataset,
    key: &ObjectKey,
    findings: &[Finding],
    told: Option<&ContentHash>,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let settled_at = context.fleet().settled_at();
    let previous = dataset.status.clone().unwrap_or_default();
    let facts = status::Facts {
        generation: dataset.metadata.generation,
        findings,
        view: observe::view(dataset, key, told, context, now),
        now,
    };
    let next = status::next(&previous, &facts);
    // Silence means something from then on.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if previous == next {
        return Ok(until_settled);
    }
    let is_new_spec = previous.observed_generation != next.observed_generation;
    if let Some(rest) = must_rest(dataset, is_new_spec, context) {
        return Ok(Some(rest));
    }
    save(dataset, cached, &next, context).await?;
    for event in events(&previous, &next) {
        emit(dataset, event, context).await;
    }
    Ok(until_settled)
}
