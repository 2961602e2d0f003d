//! Builds the page of a `TrainingModel`. Pure.

use kube::ResourceExt as _;
use neptune_api::{TrainingModel, TrainingWorkerStatus};

use super::{
    build::{RelatedObjects, common_advice, event_lines, node_lines},
    format::or_none,
    page::{Page, Worker},
    training::Training,
};

/// The page of a `TrainingModel`.
pub fn of_training(model: &TrainingModel, related: &RelatedObjects) -> Page {
    let status = model.status.clone().unwrap_or_default();
    let find = |type_: &str| status.conditions.iter().find(|it| it.type_ == type_);
    let degraded = find("Degraded").filter(|condition| condition.status == "True");
    let main = degraded.or_else(|| find("Progressing"));
    let worker = |row: &TrainingWorkerStatus| Worker {
        role: "train",
        name: row.name.clone(),
        node: row.node.clone(),
        run_by: "agent",
        state: match &row.reason {
            Some(reason) => format!("{:?} ({reason})", row.state),
            None => format!("{:?}", row.state),
        },
        model: or_none(None),
        version: format!("round {}", row.round),
    };
    let workers: Vec<_> = status.workers.iter().map(worker).collect();
    let mut advice = common_advice(model, status.observed_generation, &workers, related);
    advice.extend(degraded.map(|condition| condition.message.clone()));
    let rows = status.workers.iter().filter_map(|row| {
        let message = row.message.as_ref()?;
        Some(format!("worker {:?} on node {}: {message}", row.name, row.node))
    });
    for message in rows {
        if !advice.contains(&message) {
            advice.push(message);
        }
    }
    Page {
        kind: "TrainingModel",
        namespace: model.namespace().unwrap_or_default(),
        name: model.name_any(),
        state: status.phase.map_or_else(|| "Unknown".to_owned(), |phase| format!("{phase:?}")),
        reason: or_none(main.map(|condition| condition.reason.as_str())),
        since: main.map(|condition| condition.last_transition_time.0),
        message: or_none(main.map(|condition| condition.message.as_str())),
        nodes: node_lines(&workers, related),
        workers,
        training: Training::from_status(&status),
        events: event_lines(related),
        advice,
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::commands::status::text::text;

    fn model() -> TrainingModel {
        let round = |round: u32, metric: &str| {
            json!({"run": 2, "round": round, "participants": 3, "samples": 1197, "loss": "0.2",
                "metric": metric, "seconds": 21, "sha256sum": "77aa"})
        };
        serde_json::from_value(json!({
            "apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel",
            "metadata": {"name": "digits", "namespace": "default", "generation": 1},
            "spec": {"workerSpec": {"image": "train:1"}, "trainingWorkers": []},
            "status": {
                "phase": "Running", "run": 2, "round": 4, "rounds": 10, "progress": "4/10",
                "participants": "2/3", "observedGeneration": 1,
                "metrics": [{"key": "accuracy", "value": "0.92"}, {"key": "loss", "value": "0.2"}],
                "history": [
                    {"run": 1, "round": 9, "participants": 3, "samples": 1, "metric": "0.1",
                     "seconds": 1, "sha256sum": "00"},
                    round(1, "0.75"), round(2, "0.9"), round(3, "0.92"),
                ],
                "workers": [{"name": "b", "node": "edge1", "dataset": "digits-b", "round": 4,
                    "state": "Refused", "reason": "NotFinite", "message": "contains NaN",
                    "samples": 429, "weight": "0.36", "norm": "0.41"}],
                "aggregator": {"url": "https://192.0.2.7:30418"},
                "output": {"model": "digits-small", "sha256sum": "77aa", "published": true},
                "lastRun": {"run": 1, "result": "NotBetter", "message": "not better",
                    "finished": "2026-01-01T00:00:00Z"},
                "conditions": [{"type": "Degraded", "status": "True", "reason": "NotFinite",
                    "message": "worker \"b\" on node edge1: contains NaN",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn page_has_the_course_of_the_run_and_each_problem_once() {
        let page = of_training(&model(), &RelatedObjects::default());
        let text = text(&page, Timestamp::UNIX_EPOCH);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line("Run"), "Run         2, round 4/10");
        assert!(line("History").ends_with(" 0.75 to 0.92"), "{text}");
        assert_eq!(line("Output"), "Output      Model digits-small has sha256 77aa");
        assert_eq!(
            line("Round 3"),
            "Round 3     3 updates, 1197 samples, loss 0.2, metric 0.92, 21 s"
        );
        assert!(!text.contains("Round 9"), "of another run: {text}");
        let worker = "Worker b    Dataset digits-b, 429 samples, weight 0.36, norm 0.41";
        assert_eq!(line("Worker b"), worker);
        assert_eq!((&*page.state, &*page.reason), ("Running", "NotFinite"));
        let problems = page.advice.iter().filter(|line| line.contains("contains NaN")).count();
        assert_eq!(problems, 1, "{:?}", page.advice);
        assert_eq!(page.workers[0].state, "Refused (NotFinite)");
        assert_eq!(page.workers[0].model, "-", "a Dataset is no model");
    }
}
