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

#[cfg(test)]
mod tests {
    use neptune_api::Goal;

    use super::*;
    use crate::joint_inference_service::fixtures;

    #[test]
    fn share_is_a_decimal_from_zero_to_one() {
        let parsed = |texts: &[&str]| texts.iter().map(|it| parse_share(it)).collect::<Vec<_>>();
        assert_eq!(
            parsed(&["0", "1", "0.25", "1.0"]),
            [Some(0.0), Some(1.0), Some(0.25), Some(1.0)]
        );
        let invalid = ["", "1.", ".5", "1.1", "2", "-0.5", "0.5e0", "+1", "0.123456789012345"];
        assert_eq!(parsed(&invalid), [None; 9]);
    }

    #[test]
    fn goals_are_those_of_the_algorithm() {
        let goals = |goal: Option<Goal>| {
            let mut service = fixtures::assistant();
            service.spec.edge_worker.hard_example_algorithm.goal = goal.map(Box::new);
            (upload_goal(&service), total_upload_goal(&service))
        };
        let share = |text: &str| Some(text.to_owned());
        assert_eq!(goals(None), (None, None));
        let own = Goal { upload_ratio: share("0.2"), ..Goal::default() };
        assert_eq!(goals(Some(own)), (Some(0.2), None));
        let total = Goal { total_upload_ratio: share("0.1"), ..Goal::default() };
        assert_eq!(goals(Some(total)), (None, Some(0.1)));
    }
}
