//! Looks at one dataset: observe, validate, plan, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use neptune_api::Dataset;
use neptune_wire::{ContentHash, ObjectKey, Resource};

use super::{
    super::{
        context::{Context, Desk},
        kind::Kind,
        write::{emit, must_rest, save},
    },
    notices::notices,
    observe,
    plan::{content, keeps},
    status,
    validate::validate,
};
use crate::{
    error::Error,
    reason::{Finding, Reason},
    stores::Stores,
};

impl Kind for Dataset {
    const RESOURCE: Resource = Resource::Datasets;

    fn store(stores: &Stores) -> &Store<Self> {
        &stores.datasets
    }

    fn desk(context: &Context) -> &Desk<Self> {
        context.datasets()
    }

    fn concerns(&self, node: &str) -> bool {
        self.spec.node_name == node
    }

    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate(self, &observe::facts(self, context)).err().unwrap_or_default()
    }

    async fn look(
        dataset: Arc<Self>,
        copy: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        match validate(&dataset, &observe::facts(&dataset, &context)) {
            Ok(node) => {
                let told = content(&dataset, &key);
                let hash = told.hash();
                let asks = [(node, [(key.clone(), told)].into())].into();
                let too_large = context.downstream().set(&key, asks).map(|why| {
                    let message = format!("spec: {why}; shorten it");
                    Finding::new(Reason::TaskTooLarge, message)
                });
                let findings: Vec<_> = too_large.into_iter().collect();
                write_status(&dataset, &copy, &key, &findings, Some(&hash), &context).await
            }
            Err(findings) => {
                context.downstream().keep(&key, &keeps(&dataset, &key));
                write_status(&dataset, &copy, &key, &findings, None, &context).await
            }
        }
    }
}

/// Writes the status if it says something new, and returns when to look again.
async fn write_status(
    dataset: &Dataset,
    copy: &Dataset,
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
    save(dataset, copy, &next, context).await?;
    for notice in notices(&previous, &next) {
        emit(dataset, notice, context).await;
    }
    Ok(until_settled)
}
