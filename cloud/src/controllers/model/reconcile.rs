//! Looks at one model: observe, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::Store;
use neptune_api::Model;
use neptune_wire::{ObjectKey, Resource};

use crate::{
    cache::Caches,
    controllers::{
        model::{
            observe,
            status::{events, next},
            validate::validate,
        },
        runtime::{
            context::{Context, ControllerState},
            controller::Kind,
            status_writer::{emit, must_rest, save},
        },
    },
    error::Error,
    reason::Finding,
};

impl Kind for Model {
    const RESOURCE: Resource = Resource::Models;

    fn store(caches: &Caches) -> &Store<Self> {
        &caches.models
    }

    fn controller_state(context: &Context) -> &ControllerState<Self> {
        context.models()
    }

    fn concerns(&self, node: &str) -> bool {
        self.status.as_ref().is_some_and(|status| {
            // What is left out of a long list may be this one.
            let is_cut = usize::try_from(status.wanted_on.unwrap_or_default())
                .is_ok_and(|wanted| wanted > status.nodes.len());
            is_cut || status.nodes.iter().any(|listed| listed.node == node)
        })
    }

    fn findings(&self, _: &Context) -> Vec<Finding> {
        // Without an address it can be named, and is not malformed.
        let has_address = !self.spec.model_url.is_empty();
        validate(self).err().into_iter().filter(|_| has_address).collect()
    }

    async fn reconcile(
        model: Arc<Self>,
        cached: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        let now = Timestamp::now();
        let settled_at = context.fleet().settled_at();
        let previous = model.status.clone().unwrap_or_default();
        let next = next(&previous, &observe::facts(&model, &key, &context, now));
        // Silence means something from then on.
        let until_settled = settled_at.duration_since(now).try_into().ok();
        if previous == next {
            return Ok(until_settled);
        }
        let is_new_spec = previous.observed_generation != next.observed_generation;
        if let Some(rest) = must_rest(&*model, is_new_spec, &context) {
            return Ok(Some(rest));
        }
        save(&*model, &*cached, &next, &context).await?;
        for event in events(&previous, &next) {
            emit(&*model, event, &context).await;
        }
        Ok(until_settled)
    }
}
