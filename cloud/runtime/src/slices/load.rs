//! Reads all slices before this replica plans and writes statuses.

use std::time::Duration;

use neptune_api::JointInferenceService;
use neptune_cloud_kinds::{index_key::IndexKey, steps::ObjectEvent};

use super::api::{managed, read};
use crate::{
    cache::{Cached as _, scoped},
    controllers::runtime::{Context, queue_event},
    error::Error,
};

/// The pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(1);

/// Reads the slices in this namespace, or in all, and repeats that until it is done. Without the CRD
/// there are none, and services with many nodes wait for it.
pub async fn load_slices(context: &Context, only: Option<&str>) {
    let mut is_failing = false;
    loop {
        match read(&scoped(context.client(), only), &managed(), context).await {
            Ok(()) => break,
            Err(Error::Api { source: kube::Error::Api(status), .. }) if status.code == 404 => {
                tracing::warn!(
                    "the CRD nodereportslices.neptune.io is missing: services get no further nodes above 32; apply the CRDs of this version"
                );
                break;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "cannot read the NodeReportSlices; retrying");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    context.fleet().finish_loading_slices();
    report_missing(context);
}

/// Publishes an Event for each service of which slices are missing.
fn report_missing(context: &Context) {
    for service in JointInferenceService::cache(context.caches()).with_key(&IndexKey::OnManyNodes) {
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        let slices = service.status.as_ref().and_then(|status| status.slices);
        let expected = slices.map_or(0, |slices| usize::try_from(slices.count).unwrap_or_default());
        let count = context.fleet().rows(uid).slice_count();
        if count < expected {
            let text = format!(
                "{count} of {expected} NodeReportSlices exist; what replaced agents and former nodes of the others counted is lost, and the metrics stay until the remaining nodes count more"
            );
            queue_event(&*service, ObjectEvent::warning("CountsIncomplete", text), context);
        }
    }
}
