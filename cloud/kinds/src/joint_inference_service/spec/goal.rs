//! Reads the goals of a spec as shares.

use neptune_api::JointInferenceService;

/// The maximum length of a share, as in the CRD.
const MAX_SHARE_LENGTH: usize = 16;

/// A share: a decimal from 0 to 1, as the CRD permits it.
pub fn parse_share(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_decimal = matches!(whole, "0" | "1")
        && !fraction.is_empty()
        && fraction.bytes().all(|b| b.is_ascii_digit())
        && text.len() <= MAX_SHARE_LENGTH;
    text.parse().ok().filter(|share| is_decimal && (0.0..=1.0).contains(share))
}

/// The share of all samples of a chain that the cloud of its last service answers.
pub fn total_upload_goal(service: &JointInferenceService) -> Option<f64> {
    let goal = service.spec.edge_worker.hard_example_algorithm.goal.as_ref()?;
    parse_share(goal.total_upload_ratio.as_ref()?)
}

/// The share of its own samples that a service sends up, if that is its goal.
pub fn upload_goal(service: &JointInferenceService) -> Option<f64> {
    let goal = service.spec.edge_worker.hard_example_algorithm.goal.as_ref()?;
    parse_share(goal.upload_ratio.as_ref()?)
}
