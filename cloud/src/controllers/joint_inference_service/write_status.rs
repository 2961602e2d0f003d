//! Brings a service's status up to date. What it says is `status`'s and `events`'.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use neptune_api::JointInferenceService;
use neptune_wire::ObjectKey;

use crate::{
    controllers::{
        joint_inference_service::{events::events, observe, status},
        runtime::{
            context::Context,
            status_writer::{emit, must_rest, save},
        },
    },
    error::Error,
    reason::Finding,
};

/// Writes the status if it says something new, and returns when to look again. `cached` is what the
/// watch has brought so far of `service`.
pub async fn write_status(
    service: &JointInferenceService,
    cached: &JointInferenceService,
    key: &ObjectKey,
    findings: &[Finding],
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let uid = service.uid().unwrap_or_default();
    let (counted, settled_at) = {
        let fleet = context.fleet();
        (fleet.unreported(&uid).to_vec(), fleet.settled_at())
    };
    let previous = service.status.clone().unwrap_or_default();
    let next = status::next(
        &previous,
        &status::Facts {
            generation: service.metadata.generation,
            findings,
            workers: observe::workers(service, key, context, now),
            counted: &counted,
            now,
        },
    );
    // Silence means something from then on.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if status::says_the_same(&previous, &next) {
        context.fleet().mark_reported(&uid, &counted);
        return Ok(until_settled);
    }
    let is_new_spec = previous.observed_generation != next.observed_generation;
    if let Some(rest) = must_rest(service, is_new_spec, context) {
        return Ok(Some(rest));
    }
    save(service, cached, &next, context).await?;
    context.fleet().mark_reported(&uid, &counted);
    for event in events(&previous, &next) {
        emit(service, event, context).await;
    }
    Ok(until_settled)
}
