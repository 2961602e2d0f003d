//! Parses `result.json`, in which a training program reports its samples, loss and metrics.

use std::collections::BTreeMap;

use neptune_wire::{Metric, TaskKind, aggregator::UpdateReport};
use serde::Deserialize;

/// Largest `result.json` in bytes.
pub const MAX_RESULT: u64 = 64 * 1024;
/// Most metrics, and the longest name of one in bytes.
const MAX_METRICS: usize = 64;
const MAX_NAME: usize = 64;

#[derive(Deserialize)]
struct ProgramResult {
    samples: Option<u64>,
    steps: Option<u64>,
    loss: Option<f64>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

/// Parses the text. `seconds`: how long the program ran. `counted`: the samples that the agent
/// counted.
///
/// # Errors
/// What is wrong with it, and how to correct it.
pub fn parse(
    text: &[u8],
    kind: TaskKind,
    counted: Option<u64>,
    seconds: u64,
) -> Result<UpdateReport, String> {
    let result: ProgramResult = serde_json::from_slice(text).map_err(|error| {
        format!(
            "result.json is not valid: {error}; write {{\"samples\": 429, \"loss\": 0.19, \"metrics\": {{\"accuracy\": 0.91}}}} with finite numbers"
        )
    })?;
    let samples = match (result.samples, kind) {
        (Some(0) | None, TaskKind::Train) => {
            return Err(
                "result.json has no samples; write the number of samples that were used".to_owned()
            );
        }
        (samples, _) => samples.unwrap_or_default(),
    };
    if kind == TaskKind::Evaluate && result.metrics.is_empty() {
        return Err("result.json of an evaluation has no metrics; write at least the one that the TrainingModel names".to_owned());
    }
    if result.metrics.len() > MAX_METRICS {
        return Err(format!("result.json has more than {MAX_METRICS} metrics; write fewer"));
    }
    let is_valid =
        |name: &String| (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control);
    if let Some(name) = result.metrics.keys().find(|name| !is_valid(name)) {
        let name: String = name.chars().take(MAX_NAME).collect();
        return Err(format!(
            "result.json has a metric with the name {name:?}; use at most {MAX_NAME} printable characters"
        ));
    }
    let metrics = result.metrics.into_iter();
    let metrics = metrics.map(|(key, value)| Metric { key, value: value.to_string() }).collect();
    Ok(UpdateReport {
        samples,
        counted_samples: counted,
        steps: result.steps,
        loss: result.loss,
        metrics,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn result_has_samples_loss_and_metrics() {
        let text = br#"{"samples": 429, "steps": 27, "loss": 0.19, "metrics": {"accuracy": 0.91}, "x": [1]}"#;
        let report = parse(text, TaskKind::Train, Some(430), 4).unwrap();
        let metrics = vec![Metric { key: "accuracy".into(), value: "0.91".into() }];
        let expected = UpdateReport {
            samples: 429,
            counted_samples: Some(430),
            steps: Some(27),
            loss: Some(0.19),
            metrics,
            seconds: 4,
        };
        assert_eq!(report, expected);
        assert_eq!(parse(b"{}", TaskKind::Initialize, None, 0), Ok(UpdateReport::default()));
    }

    #[test]
    fn invalid_result_names_the_remedy() {
        let many: Vec<_> = (0..65).map(|n| format!("\"m{n}\": 1")).collect();
        let many = format!("{{\"samples\": 1, \"metrics\": {{{}}}}}", many.join(","));
        let long = format!(r#"{{"samples": 1, "metrics": {{"{}": 1}}}}"#, "m".repeat(65));
        for (text, kind, expected) in [
            ("", TaskKind::Train, "not valid"),
            ("[]", TaskKind::Train, "not valid"),
            (r#"{"samples": -1}"#, TaskKind::Train, "not valid"),
            (r#"{"samples": 1, "loss": NaN}"#, TaskKind::Train, "finite numbers"),
            (r#"{"samples": 1, "loss": 1e999}"#, TaskKind::Train, "finite numbers"),
            ("{}", TaskKind::Train, "no samples"),
            (r#"{"samples": 0}"#, TaskKind::Train, "no samples"),
            (r#"{"samples": 1}"#, TaskKind::Evaluate, "no metrics"),
            (&many, TaskKind::Train, "more than 64"),
            (&long, TaskKind::Train, "at most 64"),
        ] {
            let error = parse(text.as_bytes(), kind, None, 0).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
