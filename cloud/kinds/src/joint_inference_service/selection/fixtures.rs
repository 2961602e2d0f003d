//! Rules for the tests of this folder.

use k8s_openapi::jiff::SignedDuration;
use neptune_api::SelectionMode;

use crate::joint_inference_service::selection::rules::SelectionRules;

pub fn accuracy() -> SelectionRules {
    SelectionRules {
        best: "accuracy".to_owned(),
        mode: SelectionMode::Max,
        margin: 0.005,
        dwell: SignedDuration::from_secs(600),
    }
}
