//! What a run was started with. It is kept in the status, so that a changed spec, a renamed node or
//! a restart of the controller changes nothing in a run.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{Aggregation, MeasuredDataset, TrainingModelSpec, TrainingModelStatus};
use neptune_wire::{
    ContainerProgram, ContentHash, NodeName, ObjectName, TrainingContainer,
    aggregator::{RunSettings, SessionSettings},
    canonical_json,
};
use serde::{Deserialize, Serialize};

use crate::{kubernetes::quantities, reason::Reason};

/// What a run was started with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenRun {
    /// The hash of the parts of the spec that a result depends on.
    pub spec: ContentHash,
    /// The settings of the aggregator.
    pub settings: RunSettings,
    /// The container in which the workers of the run train.
    pub container: TrainingContainer,
    /// The server of an engine; `None` if the aggregator decides the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<FrozenSession>,
    /// The node that runs the aggregator; `None` for a Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator_node: Option<NodeName>,
    /// Seconds that the run may take; `None` for any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// The Model that receives the weights; `None` if the spec has no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<FrozenOutput>,
    /// The samples of the Dataset of the schedule at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<i64>,
    /// The data of the evaluation when the first evaluation began; `None` if it was not known then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation_data: Option<EvaluationData>,
}

/// The output Model of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenOutput {
    /// The name of the Model.
    pub model: String,
    /// The difference by which the metric must beat the present one.
    pub min_improvement: f64,
}

/// The current or last run of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct CurrentRun {
    /// Number of the run, from 1.
    pub number: u32,
    /// What it was started with.
    pub frozen: FrozenRun,
    /// When the run started.
    pub started: Timestamp,
    /// Whether it has ended.
    pub is_over: bool,
    /// Whether it ended although the aggregator could go on.
    pub is_stopped: bool,
    /// Whether the aggregator had it.
    pub was_accepted: bool,
}

/// The hash of the parts of a spec that a result depends on: another one starts another run. What
/// takes effect in the open round does not.
pub fn spec_hash(spec: &TrainingModelSpec) -> ContentHash {
    let mut spec = spec.clone();
    (spec.suspend, spec.schedule, spec.active_deadline) = (None, None, None);
    if let Some(output) = &mut spec.output {
        output.keep = None;
    }
    if let Some(aggregation) = &mut spec.aggregation {
        (aggregation.service, aggregation.storage_class_name) = (None, None);
        (aggregation.min_workers, aggregation.grace, aggregation.clip) = (None, None, None);
        (aggregation.round_timeout, aggregation.max_deadlines) = (None, None);
        aggregation.on_too_few_workers = None;
    }
    spec.aggregation = spec.aggregation.filter(|it| *it != Aggregation::default());
    ContentHash::compute(&spec)
}

impl FrozenRun {
    /// Returns the JSON text that the status keeps.
    pub fn to_text(&self) -> String {
        canonical_json(self)
    }

    /// The Datasets of the run.
    pub fn datasets(&self) -> impl Iterator<Item = &ObjectName> {
        let workers = self.settings.workers.values().map(|worker| &worker.dataset);
        workers.chain(self.settings.evaluation.iter().map(|it| &it.dataset))
    }

    /// The nodes of the run.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        let workers = self.settings.workers.values().map(|worker| &worker.node);
        workers.chain(self.settings.evaluation.iter().map(|it| &it.node)).collect()
    }
}

impl CurrentRun {
    /// The run of a status; `None` without one, or with settings of another version of Neptune.
    pub fn from_status(status: &TrainingModelStatus) -> Option<Self> {
        let number = u32::try_from(status.run?).ok().filter(|number| *number > 0)?;
        let frozen = serde_json::from_str(status.run_settings.as_deref()?).ok()?;
        let last = status.last_run.as_ref().filter(|last| last.run == i64::from(number));
        let accepted = status.aggregator.as_ref().and_then(|aggregator| aggregator.run);
        Some(Self {
            number,
            frozen,
            started: status.start_time.as_ref()?.0,
            is_over: last.is_some(),
            is_stopped: last.is_some_and(|last| {
                [Reason::DeadlineExceeded, Reason::Stopped]
                    .iter()
                    .any(|it| last.result == it.to_string())
            }),
            was_accepted: accepted == Some(i64::from(number)),
        })
    }

    /// Until when the run may take by the present spec; `None` for any time.
    pub fn deadline(&self, spec: &TrainingModelSpec) -> Option<Timestamp> {
        let given = spec.active_deadline.as_deref()?;
        let seconds = quantities::seconds(given).or(self.frozen.deadline_seconds)?;
        let seconds = i64::try_from(seconds).ok()?;
        self.started.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    /// The settings of the aggregator. Those that take effect in the open round are those of the
    /// present spec, if it is valid.
    pub fn settings(&self, next: Option<&FrozenRun>) -> RunSettings {
        let mut settings = self.frozen.settings.clone();
        if let Some(next) = next {
            settings.adopt_live(&next.settings);
        }
        settings
    }
}

/// The server of an engine, as a run was started with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenSession {
    /// What its container runs. The command has the arguments, too.
    #[serde(flatten)]
    pub program: ContainerProgram,
    /// The port at which workers reach it.
    pub port: u16,
    /// Bytes of the volume for the files of the server.
    pub state_bytes: u64,
    /// Address and digest of the program, if the image does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<(String, String)>,
}

impl FrozenSession {
    /// What the aggregator has to know.
    pub fn settings(&self, backoff_limit: u32) -> SessionSettings {
        SessionSettings { server: self.hash(), backoff_limit }
    }

    /// Returns the hash that identifies the container.
    pub fn hash(&self) -> ContentHash {
        ContentHash::compute(self)
    }
}

/// A state of the data of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationData {
    /// The Dataset and the identity of its data, as the status of the Model records them.
    pub dataset: MeasuredDataset,
    /// The generation of the data, for a Dataset with replicas: data that changes and changes back
    /// has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::training_model::{
        fixtures::{self, current, frozen, with},
        validate::check,
    };

    #[test]
    fn run_is_the_same_after_it_was_kept_as_text() {
        let frozen = frozen();
        let again: FrozenRun = serde_json::from_str(&frozen.to_text()).unwrap();
        assert_eq!(again, frozen);
        assert_eq!(again.to_text(), frozen.to_text());
    }

    #[test]
    fn only_parts_that_a_result_depends_on_change_the_hash_of_a_spec() {
        let hash = |change: Value| spec_hash(&with(&change).spec);
        let same = hash(json!({}));
        for change in [
            json!({"suspend": true}),
            json!({"activeDeadline": "1h"}),
            json!({"output": {"keep": 9}}),
            json!({"schedule": {"type": "Once"}}),
            json!({"aggregation": {"service": {"address": "h:1"}, "storageClassName": "fast"}}),
            json!({"aggregation": {"minWorkers": 1, "grace": "1s", "clip": {"maxNormFactor": "3"}}}),
            json!({"aggregation": {"roundTimeout": "1m", "maxDeadlines": 1, "onTooFewWorkers": "Wait"}}),
        ] {
            assert_eq!(hash(change.clone()), same, "{change}");
        }
        for change in [
            json!({"aggregation": {"seed": 2}}),
            json!({"workerSpec": {"frameworkVersion": "3.13"}}),
            json!({"backoffLimit": 1}),
            json!({"output": {"model": {"name": "x"}}}),
        ] {
            assert_ne!(hash(change.clone()), same, "{change}");
        }
    }

    #[test]
    fn limits_of_the_open_round_are_those_of_the_present_spec() {
        let model = with(&json!({"aggregation": {"minWorkers": 1, "seed": 9, "grace": "9s"}}));
        let next = check(&model, &fixtures::facts()).unwrap();
        let settings = current(&frozen()).settings(Some(&next));
        assert_eq!((settings.min_workers, settings.grace_seconds), (Some(1), Some(9)));
        assert_eq!(settings.seed, 1, "that of the run");
    }
}
