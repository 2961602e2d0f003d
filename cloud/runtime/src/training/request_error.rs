//! What the errors of an aggregator's client mean for a `TrainingModel`. Pure.

use neptune_aggregator_client::RequestError;
use neptune_cloud_kinds::{finding::Finding, reason::Reason};

/// Returns the finding for the `TrainingModel` `object`, whose aggregator has this URL.
pub fn finding(object: &str, url: &str, error: RequestError) -> Finding {
    let problem = match error {
        RequestError::Refused(problem) => problem,
        RequestError::Unreachable(why) => {
            let message = format!(
                "cannot reach the aggregator of TrainingModel {object} at {url}: {why}; check its Deployment and Service, or set spec.aggregation.service.address to an address that nodes and the controller reach"
            );
            return Finding::new(Reason::AggregatorUnreachable, message);
        }
    };
    let remedy = match problem.reason.as_str() {
        "NodeNotTrusted" => "; it was started for another key of the controller, and is replaced",
        "OtherTrainingModel" => {
            "; its volume is that of a deleted TrainingModel: delete the PersistentVolumeClaim of the aggregator"
        }
        _ => "",
    };
    let reason = problem.reason.parse().unwrap_or(Reason::TrainingFailed);
    let message = format!("the aggregator of TrainingModel {object}: {}{remedy}", problem.detail);
    Finding::new(reason, message)
}
