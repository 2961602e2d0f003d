//! Which data the metrics of a run were measured with. It is frozen when the first evaluation
//! begins, and recorded with the metrics if it is still the same at the end.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{Dataset, DatasetReplicaState, KeyValue, MeasuredDataset, MeasuredOutput};
use neptune_wire::{
    TaskKind,
    aggregator::{MeasuredWeights, RunEvaluation, RunPhase, RunStatus},
};

use super::frozen::{EvaluationData, FrozenRun};
use crate::{dataset, reason::Reason};

/// The data of a Dataset on a node; `None` if it is not known, because the agent has not counted it
/// since its last change or a copy is behind.
pub fn data_on(dataset: &Dataset, node: &str) -> Option<EvaluationData> {
    let status = dataset.status.as_ref()?;
    let is_counted = status.conditions.iter().any(|condition| {
        condition.type_ == dataset::READY
            && condition.status == "True"
            && condition.reason == Reason::Counted.to_string()
    });
    if !is_counted || status.observed_generation != dataset.metadata.generation {
        return None;
    }
    let name = dataset.metadata.name.clone()?;
    let is_source = dataset.spec.node_name == node;
    if dataset.spec.replicas.is_some() {
        let (root, generation) = (status.root.clone()?, status.generation?);
        let has_copy = status.replicas.iter().any(|replica| {
            replica.node == node
                && replica.state == DatasetReplicaState::InSync
                && replica.generation == Some(generation)
        });
        return (is_source || has_copy).then_some(EvaluationData {
            dataset: MeasuredDataset { name, sha256: Some(root), state: None },
            generation: Some(generation),
        });
    }
    let state = format!(
        "{} samples, {} bytes, changed {:.0}, uid {}",
        status.number_of_samples?,
        status.bytes?,
        status.update_time.as_ref()?.0,
        dataset.metadata.uid.as_deref()?
    );
    is_source.then_some(EvaluationData {
        dataset: MeasuredDataset { name, sha256: None, state: Some(state) },
        generation: None,
    })
}

/// The settings of a run whose evaluation has not begun, with the data as it is now; `None` if
/// nothing changes.
pub fn refrozen(
    frozen: &FrozenRun,
    state: &RunStatus,
    now: Option<&EvaluationData>,
) -> Option<FrozenRun> {
    let now = now.filter(|now| frozen.evaluation_data.as_ref() != Some(now))?;
    (frozen.settings.evaluation.is_some() && !has_begun(state))
        .then(|| FrozenRun { evaluation_data: Some(now.clone()), ..frozen.clone() })
}

/// Whether weights of the run may have been measured.
fn has_begun(state: &RunStatus) -> bool {
    let is_before = matches!(state.phase, RunPhase::Preparing | RunPhase::Open | RunPhase::Closing);
    !is_before
        || state.present.is_some()
        || !state.history.is_empty()
        || state.tasks.iter().any(|task| task.kind == TaskKind::Evaluate)
}

/// The metrics of weights with the data that they were measured with; `None` if they were not
/// measured. Data that has changed since the first evaluation is not known.
pub fn measured(
    frozen: &FrozenRun,
    weights: &MeasuredWeights,
    data: Option<&EvaluationData>,
    now: Timestamp,
) -> Option<Box<MeasuredOutput>> {
    let RunEvaluation { node, dataset, .. } = frozen.settings.evaluation.as_ref()?;
    if weights.metrics.is_empty() {
        return None;
    }
    let unchanged = frozen.evaluation_data.as_ref().filter(|frozen| data == Some(*frozen));
    let dataset = unchanged.map_or_else(
        || MeasuredDataset { name: dataset.to_string(), ..MeasuredDataset::default() },
        |data| data.dataset.clone(),
    );
    let metrics = weights.metrics.iter().map(|it| KeyValue::new(&it.key, &it.value));
    // A status has whole seconds.
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Some(Box::new(MeasuredOutput {
        metrics: metrics.collect(),
        node: node.to_string(),
        dataset,
        time: Time(second),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::training_model::fixtures::{counted, merge};

    #[test]
    fn data_has_a_digest_with_replicas_and_a_state_without() {
        let plain = counted(7, "2026-01-02T03:04:05Z");
        let state = |dataset: &Dataset, node: &str| data_on(dataset, node).map(|data| data.dataset);
        assert_eq!(
            state(&plain, "edge0").unwrap().state.as_deref(),
            Some("7 samples, 70 bytes, changed 2026-01-02T03:04:05Z, uid uid-digits-test")
        );
        let with = |change: &Value| {
            let mut object = serde_json::to_value(&plain).unwrap();
            merge(&mut object, change);
            serde_json::from_value::<Dataset>(object).unwrap()
        };
        let replicated = |generation: u32, state: &str| {
            with(&json!({"spec": {"replicas": {"nodeNames": ["edge1"]}}, "status": {
                "root": "aa", "generation": 3,
                "replicas": [{"node": "edge1", "state": state, "generation": generation}],
            }}))
        };
        let own = state(&replicated(2, "Syncing"), "edge0").unwrap();
        assert_eq!((own.sha256.as_deref(), own.state), (Some("aa"), None));
        // A copy that is behind is not the data of the source.
        assert!(state(&replicated(3, "InSync"), "edge1").is_some());
        for (generation, condition) in [(2, "InSync"), (3, "Syncing"), (3, "Offline")] {
            assert_eq!(state(&replicated(generation, condition), "edge1"), None, "{condition}");
        }
        let unknown = [
            json!({"status": null}),
            json!({"status": {"updateTime": null}}),
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}),
            json!({"spec": {"replicas": {"nodeNames": ["edge1"]}}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False",
                "reason": "Counting", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        ];
        for change in unknown {
            assert_eq!(state(&with(&change), "edge0"), None, "{change}");
        }
    }
}
