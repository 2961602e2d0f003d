//! The rules by which labels select a model. A part of `validate`.

use k8s_openapi::jiff::SignedDuration;
use neptune_api::{EdgeModel, SelectionMode};

use crate::{finding::Finding, reason::Reason};

/// Default of `dwellSeconds`, in seconds.
const DEFAULT_DWELL: i32 = 600;

/// The rules after which a model replaces another one.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectionRules {
    /// The key of the metric.
    pub best: String,
    /// Whether the highest or the lowest value is the best.
    pub mode: SelectionMode,
    /// The minimum difference, 0 or more.
    pub margin: f64,
    /// The minimum time between two switches for a better metric.
    pub dwell: SignedDuration,
}

/// The rules of a spec with a selector.
///
/// # Errors
/// The finding about the first invalid field.
pub fn selection_rules(model: &EdgeModel) -> Result<SelectionRules, Finding> {
    let invalid = |message: String| {
        Finding::new(Reason::WorkerInvalid, format!("spec.edgeWorker.model.{message}"))
    };
    let best = model.best.clone().filter(|best| !best.is_empty());
    let best =
        best.ok_or_else(|| invalid("best: selector needs best: which metric decides".to_owned()))?;
    let margin = model.margin.as_deref().unwrap_or("0");
    let is_decimal = margin.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && margin.starts_with(|c: char| c.is_ascii_digit())
        && !margin.ends_with('.');
    let parsed = margin.parse().ok().filter(|margin: &f64| is_decimal && margin.is_finite());
    let margin = parsed.ok_or_else(|| {
        invalid(format!("margin {margin:?} must be a decimal number of 0 or more"))
    })?;
    let dwell = model.dwell_seconds.unwrap_or(DEFAULT_DWELL);
    if dwell < 0 {
        return Err(invalid(format!("dwellSeconds {dwell} must be 0 or more")));
    }
    let dwell = SignedDuration::from_secs(dwell.into());
    Ok(SelectionRules { best, mode: model.mode.unwrap_or_default(), margin, dwell })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::joint_inference_service::selection::fixtures::accuracy;

    #[test]
    fn rules_name_the_invalid_field() {
        let spec = |best: &str, margin: &str, dwell: i32| EdgeModel {
            best: Some(best.to_owned()),
            margin: Some(margin.to_owned()),
            dwell_seconds: Some(dwell),
            ..EdgeModel::default()
        };
        let parsed = selection_rules(&spec("accuracy", "0.005", 600)).unwrap();
        assert_eq!(parsed, accuracy());
        let message = |spec: &EdgeModel| selection_rules(spec).unwrap_err().message;
        assert_eq!(
            message(&spec("", "0", 1)),
            "spec.edgeWorker.model.best: selector needs best: which metric decides"
        );
        for margin in ["", "-1", "NaN", "inf", "1e999"] {
            assert!(message(&spec("a", margin, 1)).contains(".margin "), "{margin}");
        }
        assert!(message(&spec("a", "0", -1)).contains("dwellSeconds -1"));
    }
}
