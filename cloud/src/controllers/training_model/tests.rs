//! Tests of the pure steps, alone and together: each finding, each step of a run, and random walks
//! with restarts.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    Dataset, LastRun, MeasuredDataset, TrainingModel, TrainingModelStatus, TrainingOutputStatus,
    TrainingPhase, TrainingWorkerState,
};
use neptune_wire::{
    ContentReference, KeyPin, Metric, NodeName, TaskId, TaskKind, TaskReport, TaskState,
    TrainingReason,
    aggregator::{
        MeasuredWeights, OnTooFewWorkers, ResultState, RoundRecord, RunPhase, RunStatus, RunTask,
        WorkerResult,
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    absence,
    aggregator::volume_bytes,
    evaluation_data::data_on,
    events::events,
    fixtures::{self, UID, dataset, node},
    frozen::{CurrentRun, EvaluationData, FrozenRun, spec_hash},
    observation::TrainingObservation,
    outcome::{RunCommand, Step, StepInputs, step},
    plan::plan,
    repeat::Origins,
    request::{RequestInputs, request},
    resolved::{TrainingFacts, ValidTrainingModel},
    rows::{TrainingNode, decimal, problem, rows},
    status::next,
    validate::{check, validate},
};
use crate::{
    controllers::runtime::StatusInputs,
    finding::Finding,
    fleet::{NodeKey, Presence, observed::AgentState},
    reason::{Phase, Reason, ReasonGroup},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn with(change: &Value) -> TrainingModel {
    let mut object = serde_json::to_value(fixtures::model()).unwrap();
    merge(&mut object["spec"], change);
    serde_json::from_value(object).unwrap()
}

/// RFC 7386.
fn merge(value: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *value = change.clone();
        return;
    };
    for (name, change) in fields {
        if change.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut value[name], change);
        }
    }
}

fn frozen() -> FrozenRun {
    check(&fixtures::model(), &fixtures::facts()).unwrap()
}

fn current(frozen: &FrozenRun) -> CurrentRun {
    CurrentRun {
        number: 1,
        frozen: frozen.clone(),
        started: at(0),
        is_over: false,
        is_stopped: false,
        was_accepted: true,
    }
}

fn weights(name: u8) -> ContentReference {
    ContentReference { sha256: format!("{name:02x}").repeat(32), bytes: 7 }
}

fn measured(name: u8, accuracy: &str) -> MeasuredWeights {
    let metrics = vec![Metric { key: "accuracy".to_owned(), value: accuracy.to_owned() }];
    MeasuredWeights { round: 2, weights: weights(name), metrics }
}

fn task(worker: &str, node: &str, id: &str) -> RunTask {
    RunTask {
        worker: worker.to_owned(),
        node: node.parse().unwrap(),
        dataset: "digits-a".parse().unwrap(),
        id: TaskId(id.to_owned()),
        kind: TaskKind::Train,
        round: 2,
        seed: 1,
        base: Some(weights(1)),
    }
}

fn state(run: u32, phase: RunPhase) -> RunStatus {
    RunStatus {
        revision: 9,
        uid: UID.to_owned(),
        run,
        phase,
        round: 2,
        base: Some(weights(1)),
        tasks: vec![task("a", "edge0", "t-a"), task("b-west-1", "edge1", "t-b")],
        workers: BTreeMap::new(),
        history: Vec::new(),
        best: None,
        format: Some("npz".to_owned()),
        present: None,
        reason: None,
        message: String::new(),
        session: None,
    }
}

fn worker_result(state: ResultState) -> WorkerResult {
    WorkerResult {
        state,
        report: None,
        sha256: None,
        norm: None,
        weight: None,
        reason: None,
        message: String::new(),
    }
}

type Case = (&'static str, fn() -> Value, fn(&mut TrainingFacts), Reason, &'static str);

fn no_facts(_: &mut TrainingFacts) {}

const CASES: &[Case] = &[
    (
        "no node",
        || json!({}),
        |f| drop(f.nodes.remove("edge0")),
        Reason::NodeNotFound,
        "node \"edge0\" not found; correct spec.",
    ),
    (
        "no agent",
        || json!({}),
        |f| {
            f.nodes.insert("edge0".to_owned(), Arc::default());
        },
        Reason::NodeNotEdge,
        "label the node or use an edge node",
    ),
    (
        "no dataset",
        || json!({}),
        |f| f.datasets.retain(|name, _| name == "digits-test"),
        Reason::DatasetNotFound,
        "Dataset \"digits-a\" not found in namespace \"default\"; create it or correct spec.trainingWorkers[\"a\"].dataset.name",
    ),
    (
        "elsewhere",
        || json!({}),
        |f| {
            f.datasets.extend([dataset("digits-a", "edge1", &[])]);
        },
        Reason::DatasetElsewhere,
        "Dataset \"digits-a\" is on node \"edge1\", not on node edge0",
    ),
    (
        "no labels match",
        || json!({"trainingWorkers": [{"name": "a", "nodeSelector": {"site": "west"}, "dataset": {"matchLabels": {"app": "x"}}}], "aggregation": {"minWorkers": null}}),
        no_facts,
        Reason::DatasetNotFound,
        "no Dataset with the labels app=x is on an edge node with the labels site=west",
    ),
    (
        "twice",
        || json!({"trainingWorkers": [{"name": "a-west-1", "nodeName": "edge0", "dataset": {"name": "digits-a"}}, {"name": "a", "nodeName": "edge1", "dataset": {"matchLabels": {"app": "digits"}}}]}),
        no_facts,
        Reason::TrainingInvalid,
        "duplicate training worker \"a-west-1\"",
    ),
    (
        "too few",
        || json!({"aggregation": {"minWorkers": 4}}),
        no_facts,
        Reason::TrainingInvalid,
        "minWorkers 4 is above the number of training workers (3)",
    ),
    (
        "nothing to run",
        || json!({"script": null}),
        no_facts,
        Reason::TrainingInvalid,
        "there is nothing to run",
    ),
    (
        "no framework",
        || json!({"workerSpec": {"frameworkType": "caffe"}}),
        no_facts,
        Reason::FrameworkUnknown,
        "\"caffe\" is not one of",
    ),
    (
        "no image",
        || json!({"workerSpec": {"frameworkType": null}}),
        no_facts,
        Reason::ImageRequired,
        "spec.workerSpec.image is missing",
    ),
    (
        "reserved",
        || json!({"workerSpec": {"env": [{"name": "OUTPUT_DIR", "value": "/x"}]}}),
        no_facts,
        Reason::EnvInvalid,
        "is set by Neptune",
    ),
    (
        "NUL in a variable",
        || json!({"workerSpec": {"env": [{"name": "A", "value": "\0"}]}}),
        no_facts,
        Reason::TextInvalid,
        "spec.workerSpec.env[0].value contains a NUL character",
    ),
    (
        "code without a digest",
        || json!({"script": {"sha256sum": null}}),
        no_facts,
        Reason::TrainingInvalid,
        "code from a network is run only with a digest",
    ),
    (
        "script outside",
        || json!({"script": {"bootFile": "../train.py"}}),
        no_facts,
        Reason::ScriptBootFileInvalid,
        "spec.script.bootFile",
    ),
    (
        "trim",
        || json!({"aggregation": {"strategy": "TrimmedMean", "trim": "0.5"}}),
        no_facts,
        Reason::TrainingInvalid,
        "trim 0.5 leaves nothing: give less than 0.5",
    ),
    (
        "share",
        || json!({"aggregation": {"fraction": "2"}}),
        no_facts,
        Reason::TrainingInvalid,
        "spec.aggregation.fraction \"2\" must be a share",
    ),
    (
        "timeout",
        || json!({"aggregation": {"roundTimeout": "soon"}}),
        no_facts,
        Reason::TrainingInvalid,
        "spec.aggregation.roundTimeout \"soon\" must be a duration",
    ),
    (
        "growth",
        || json!({"schedule": {"type": "OnGrowth"}}),
        no_facts,
        Reason::TrainingInvalid,
        "OnGrowth needs schedule.dataset and newSamples",
    ),
    (
        "early stop",
        || json!({"evaluation": null, "earlyStop": {"patience": 1}}),
        no_facts,
        Reason::TrainingInvalid,
        "spec.earlyStop needs spec.evaluation",
    ),
    (
        "initial model",
        || json!({"initialWeights": {"model": {"name": "big"}}}),
        no_facts,
        Reason::ModelNotFound,
        "Model \"big\" not found",
    ),
    (
        "initial address",
        || json!({"initialWeights": {"url": "https://h/a.npz"}}),
        no_facts,
        Reason::InitialWeightsInvalid,
        "needs initialWeights.sha256sum",
    ),
    (
        "output",
        || json!({}),
        |f| {
            f.output_model = Some(Arc::new(serde_json::from_value(json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "spec": {}, "metadata": {"name": "digits-small", "annotations": {"neptune.io/trainingmodel": "other"}}})).unwrap()));
        },
        Reason::OutputConflict,
        "Model \"digits-small\" belongs to TrainingModel \"other\"; name another output",
    ),
    (
        "too many",
        || json!({"aggregation": {"minWorkers": null}}),
        |f| {
            f.datasets
                .extend((0..300).map(|n| dataset(&format!("d{n}"), "edge1", &[("app", "digits")])));
        },
        Reason::TooManyWorkers,
        "303 workers match, and a run supports 256",
    ),
];

#[test]
fn every_finding_has_its_reason_and_remedy() {
    for (case, change, of_facts, reason, text) in CASES {
        let mut facts = fixtures::facts();
        of_facts(&mut facts);
        let findings = validate(&with(&change()), &facts).map(|_| ()).unwrap_err();
        let found = findings.iter().find(|finding| finding.reason == *reason);
        let message = &found.unwrap_or_else(|| unreachable!("{case}: {findings:#?}")).message;
        assert!(message.contains(text), "{case}: {message}");
    }
}

#[test]
fn every_obstacle_of_a_training_has_a_case() {
    let is_of_spec = |reason: &&Reason| {
        reason.group() == ReasonGroup::TrainingModel
            && reason.phase() == Phase::Obstacle
            // Of the API server.
            && **reason != Reason::AggregatorRefused
    };
    for reason in Reason::ALL.iter().filter(is_of_spec) {
        assert!(CASES.iter().any(|(.., of_case, _)| of_case == reason), "{reason}");
    }
}

#[test]
fn labels_select_one_worker_per_dataset_on_a_matching_node() {
    let frozen = frozen();
    let workers: Vec<_> = frozen
        .settings
        .workers
        .iter()
        .map(|(name, worker)| format!("{name} {} {}", worker.node, worker.dataset))
        .collect();
    assert_eq!(workers, ["a edge0 digits-a", "b-west-1 edge1 west-1", "b-west-2 edge2 west-2"]);
    assert_eq!(frozen.settings.min_workers, Some(2));
    let evaluation = frozen.settings.evaluation.clone().unwrap();
    assert_eq!((evaluation.node.as_str(), evaluation.present), ("edge0", None));
    let nodes: Vec<_> = frozen.nodes().iter().map(ToString::to_string).collect();
    assert_eq!(nodes, ["edge0", "edge1", "edge2"]);
}

#[test]
fn settings_without_values_are_the_defaults() {
    let model = with(&json!({"aggregation": {"minWorkers": null}}));
    let settings = check(&model, &fixtures::facts()).unwrap().settings;
    assert_eq!((settings.min_workers, settings.grace_seconds), (None, None));
    assert_eq!((settings.max_deadlines, settings.round_timeout_seconds), (3, Some(3600)));
    assert_eq!(settings.on_too_few_workers, OnTooFewWorkers::Fail);
    assert_eq!((settings.rule.clip, settings.rule.refuse), (Some(2.0), None));
    let model = with(&json!({"aggregation": {"grace": "30s", "maxDeadlines": 0,
        "onTooFewWorkers": "Wait", "clip": {"refuseNormFactor": "5"}}}));
    let settings = check(&model, &fixtures::facts()).unwrap().settings;
    assert_eq!((settings.grace_seconds, settings.max_deadlines), (Some(30), 0));
    assert_eq!((settings.rule.clip, settings.rule.refuse), (Some(2.0), Some(5.0)));
}

#[test]
fn workers_train_without_one_whose_dataset_is_missing() {
    let mut facts = fixtures::facts();
    let (name, counted) = dataset("digits-a", "edge0", &[]);
    let mut counted = Dataset::clone(&counted);
    counted.status = Some(serde_json::from_value(json!({"numberOfSamples": 429})).unwrap());
    facts.datasets.insert(name, Arc::new(counted));
    let known = check(&fixtures::model(), &facts).unwrap();
    assert_eq!(known.settings.workers["a"].samples, Some(429));
    facts.datasets.remove("digits-a");
    let next = check(&fixtures::model(), &facts).unwrap();
    assert_eq!((next.settings.workers.len(), next.settings.workers["a"].samples), (3, None));
    assert_eq!(absence::missing(&next, &facts.datasets), ["digits-a"]);
    let unavailable =
        |facts: &TrainingFacts| absence::unavailable(&current(&next), &facts.datasets);
    let found = unavailable(&facts);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(found["a"].reason, "DatasetNotFound");
    let (name, created) = dataset("digits-a", "edge0", &[]);
    facts.datasets.insert(name, created);
    assert_eq!(unavailable(&facts), BTreeMap::new(), "not counted yet");
    let (name, created) = dataset("digits-a", "edge0", &[]);
    let mut empty = Dataset::clone(&created);
    empty.status = Some(serde_json::from_value(json!({"numberOfSamples": 0})).unwrap());
    facts.datasets.insert(name, Arc::new(empty));
    assert_eq!(unavailable(&facts)["a"].reason, "DatasetEmpty");
    let (name, moved) = dataset("digits-a", "edge1", &[]);
    facts.datasets.insert(name, moved);
    assert_eq!(unavailable(&facts)["a"].reason, "DatasetElsewhere");
    facts.datasets.clear();
    assert_eq!(unavailable(&facts), BTreeMap::new(), "nothing is known");
    let mut facts = fixtures::facts();
    assert!(validate(&fixtures::model(), &facts).unwrap().missing.is_empty());
    facts.datasets.remove("digits-a");
    assert_eq!(validate(&fixtures::model(), &facts).unwrap().missing, ["digits-a"]);
}

#[test]
fn first_run_waits_a_minute_for_datasets_that_do_not_exist() {
    let (model, next) = (fixtures::model(), frozen());
    let missing = ["digits-a".to_owned()];
    let inputs = StepInputs {
        missing: &missing,
        first_start: Some(at(160)),
        ..inputs(&model, None, Some(&next), None)
    };
    let Step::Idle(finding) = step(&inputs) else { unreachable!() };
    assert_eq!(finding.reason, Reason::DatasetNotFound);
    assert!(finding.message.contains("starts without it at"), "{}", finding.message);
    let is_start = |inputs: &StepInputs| matches!(step(inputs), Step::Start { .. });
    assert!(is_start(&StepInputs { now: at(160), ..inputs }));
    assert!(is_start(&StepInputs { missing: &[], ..inputs }));
}

#[test]
fn user_stops_a_run_or_starts_another_one() {
    let (model, frozen) = (fixtures::model(), frozen());
    let run = current(&frozen);
    let open = state(1, RunPhase::Open);
    let of = |current: &CurrentRun, command| {
        let command = Some(command);
        match step(&StepInputs {
            command,
            ..inputs(&model, Some(current), Some(&frozen), Some(&open))
        }) {
            Step::End(result) => result.result,
            other => format!("{other:?}").split([' ', '(']).next().unwrap().to_owned(),
        }
    };
    let mut over = run.clone();
    over.is_over = true;
    assert_eq!(of(&run, RunCommand::Stop(1)), "Stopped");
    assert_eq!(of(&run, RunCommand::Restart(1)), "Stopped");
    assert_eq!(of(&run, RunCommand::Restart(2)), "Active", "of another run");
    assert_eq!(of(&over, RunCommand::Stop(1)), "Idle");
    assert_eq!(of(&over, RunCommand::Restart(1)), "Start");
    assert_eq!(of(&over, RunCommand::Restart(0)), "Idle");
}

#[test]
fn weights_of_a_minority_of_samples_are_not_published() {
    let (model, frozen) = (fixtures::model(), frozen());
    let mut state = state(1, RunPhase::Succeeded);
    state.best = Some(measured(2, "0.9"));
    let run = current(&frozen);
    for (missing, is_published) in [(609, true), (610, false), (1200, false)] {
        state.history = vec![RoundRecord {
            round: 2,
            participants: 3,
            samples: 18,
            dataset_samples: 1218,
            missing_samples: missing,
            loss: None,
            metrics: Vec::new(),
            seconds: 1,
            weights: None,
            workers: Vec::new(),
            omitted_workers: 0,
        }];
        match step(&inputs(&model, Some(&run), None, Some(&state))) {
            Step::Publish { .. } => assert!(is_published, "{missing}"),
            Step::End(result) => {
                assert_eq!((&*result.result, is_published), ("MostSamplesMissing", false));
                assert!(result.message.contains("of 1218 samples"), "{}", result.message);
            }
            other => unreachable!("{other:?}"),
        }
    }
}

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
fn volume_has_room_for_the_updates_and_what_is_kept() {
    let mut settings = frozen().settings;
    settings.max_update_bytes = 16 << 20;
    assert_eq!(volume_bytes(&settings, 3, None), (10 * 16 + 256) << 20);
    settings.max_update_bytes = 1;
    assert_eq!(volume_bytes(&settings, 3, None), 257 << 20);
    settings.max_update_bytes = u64::MAX;
    assert!(volume_bytes(&settings, 3, None) > 1 << 60, "no overflow");
}

fn inputs<'a>(
    model: &'a TrainingModel,
    current: Option<&'a CurrentRun>,
    next: Option<&'a FrozenRun>,
    state: Option<&'a RunStatus>,
) -> StepInputs<'a> {
    StepInputs {
        spec: &model.spec,
        current,
        next,
        state,
        published: None,
        samples: None,
        missing: &[],
        first_start: None,
        command: None,
        origins: Origins::default(),
        now: at(100),
    }
}

#[test]
fn result_is_published_only_if_it_beats_the_present_one() {
    let model = fixtures::model();
    let mut frozen = frozen();
    frozen.settings.evaluation.as_mut().unwrap().present = Some("01".repeat(32));
    let result = |best: &str, present: Option<&str>, minimize: bool| {
        let mut frozen = frozen.clone();
        frozen.settings.evaluation.as_mut().unwrap().minimize = minimize;
        let mut state = state(1, RunPhase::Succeeded);
        state.best = Some(measured(2, best));
        state.present = present.map(|present| measured(1, present));
        match step(&inputs(&model, Some(&current(&frozen)), None, Some(&state))) {
            Step::Publish { .. } => "publish".to_owned(),
            Step::End(result) => format!("{} {}", result.result, result.message),
            other => unreachable!("{other:?}"),
        }
    };
    assert_eq!(result("0.951", Some("0.946"), false), "publish", "exactly the improvement");
    assert_eq!(
        result("0.941", Some("0.946"), false),
        "NotBetter accuracy 0.941 does not beat 0.946 of the present model by 0.005: digits-small is left as it is"
    );
    assert_eq!(result("0.5", Some("0.6"), true), "publish", "smaller is better");
    assert!(result("0.6", Some("0.5"), true).starts_with("NotBetter"));
    assert!(result("0.9", None, false).starts_with("EvaluationFailed"));
    assert!(result("NaN", Some("0.5"), false).starts_with("EvaluationFailed"));
}

#[test]
fn published_run_ends_and_an_unpublished_one_is_published_again() {
    let (model, frozen) = (fixtures::model(), frozen());
    let mut state = state(1, RunPhase::Succeeded);
    state.best = Some(measured(2, "0.9"));
    let current = current(&frozen);
    let base = inputs(&model, Some(&current), None, Some(&state));
    let digest = weights(2).sha256;
    let format = Some("npz".to_owned());
    assert_eq!(step(&base), Step::Publish { sha256: digest.clone(), format: format.clone() });
    let other = "ff".repeat(32);
    assert_eq!(
        step(&StepInputs { published: Some(&other), ..base }),
        Step::Publish { sha256: digest.clone(), format }
    );
    let Step::End(result) = step(&StepInputs { published: Some(&digest), ..base }) else {
        unreachable!()
    };
    assert_eq!((&*result.result, result.metric.as_deref()), ("Succeeded", Some("0.9")));
    assert_eq!(result.message, "run 1 ended after round 2; round 2 is the best with accuracy 0.9");
}

/// Case, change of the spec, current run, samples, second, expectation.
type Row<'a> = (&'a str, Value, Option<CurrentRun>, Option<i64>, i64, &'a str);

#[test]
fn runs_start_by_their_schedule() {
    let grows = json!({"schedule": {"type": "OnGrowth", "dataset": {"name": "digits-a"},
        "newSamples": 500, "minInterval": "1h", "maxRuns": 2}});
    let over = |samples: i64, number: u32| {
        let mut current = current(&frozen());
        (current.is_over, current.number) = (true, number);
        current.frozen.samples = Some(samples);
        // The schedule does not change what a result depends on.
        current
    };
    let rows: [Row; 10] = [
        ("once", json!({}), None, None, 0, "start"),
        ("once, over", json!({}), Some(over(0, 1)), None, 9, "Succeeded"),
        ("once, changed", json!({"aggregation": {"seed": 9}}), Some(over(0, 1)), None, 9, "start"),
        ("suspended", json!({"suspend": true}), None, None, 0, "Suspended"),
        ("uncounted", grows.clone(), None, None, 0, "WaitingForGrowth"),
        ("too small", grows.clone(), None, Some(499), 0, "WaitingForGrowth"),
        ("large enough", grows.clone(), None, Some(500), 0, "start"),
        ("grown too soon", grows.clone(), Some(over(500, 1)), Some(1000), 3599, "WaitingForGrowth"),
        ("grown", grows.clone(), Some(over(500, 1)), Some(1000), 3600, "start"),
        ("all runs", grows, Some(over(500, 2)), Some(9000), 9999, "Succeeded"),
    ];
    for (case, change, current, samples, now, expected) in rows {
        let model = with(&change);
        let next = check(&model, &fixtures::facts()).unwrap();
        let inputs = StepInputs {
            samples,
            now: at(now),
            ..inputs(&model, current.as_ref(), Some(&next), None)
        };
        let found = match step(&inputs) {
            Step::Start { repeated: false, .. } => "start".to_owned(),
            Step::Idle(finding) => finding.reason.to_string(),
            other => unreachable!("{case}: {other:?}"),
        };
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn run_ends_at_its_deadline_and_repeats_after_a_loss() {
    let model = with(&json!({"activeDeadline": "100s"}));
    let mut run = current(&frozen());
    let open = state(1, RunPhase::Open);
    let mut at_deadline = inputs(&model, Some(&run), None, Some(&open));
    let Step::End(result) = step(&at_deadline) else { unreachable!() };
    assert_eq!(result.result, "DeadlineExceeded");
    at_deadline.now = at(99);
    assert_eq!(step(&at_deadline), Step::Active);
    let lost = state(0, RunPhase::Preparing);
    let step_of = |run: &CurrentRun| step(&inputs(&model, Some(run), None, Some(&lost)));
    assert!(matches!(step_of(&run), Step::Start { repeated: true, .. }));
    run.was_accepted = false;
    let model = fixtures::model();
    let step_of = |run: &CurrentRun| step(&inputs(&model, Some(run), None, Some(&lost)));
    assert_eq!(step_of(&run), Step::Active, "it was not sent yet");
}

#[test]
fn request_waits_for_keys_and_never_repeats_a_run_that_was_lost() {
    let frozen = frozen();
    let keys: BTreeMap<NodeName, KeyPin> = ["edge0", "edge1", "edge2", "edge3"]
        .map(|node| (node.parse().unwrap(), KeyPin(format!("pin of {node}"))))
        .into();
    let (open, empty) = (state(1, RunPhase::Open), state(0, RunPhase::Preparing));
    let sent =
        |accepted: bool, over: bool, state: Option<&RunStatus>, keys: &BTreeMap<_, _>, settled| {
            let mut current = current(&frozen);
            (current.was_accepted, current.is_over) = (accepted, over);
            request(RequestInputs {
                session_address: None,
                uid: UID,
                current: Some(&current),
                next: None,
                state,
                unavailable: BTreeMap::new(),
                keys: keys.clone(),
                is_settled: settled,
                tasks: Vec::new(),
                is_suspended: false,
                keep: vec!["k".to_owned()],
            })
        };
    let first = sent(false, false, Some(&empty), &keys, false).unwrap();
    assert_eq!(first.nodes.len(), 3, "nodes of other objects are not trusted");
    assert_eq!((first.run, &first.settings), (1, &frozen.settings));
    assert_eq!(
        sent(false, false, None, &keys, false),
        Some(first.clone()),
        "the state is not needed"
    );
    assert_eq!(sent(true, false, None, &keys, true), None, "it may have lost its files");
    assert_eq!(sent(true, false, Some(&empty), &keys, true), None, "it has");
    assert_eq!(sent(true, false, Some(&open), &keys, true), Some(first.clone()));
    assert_eq!(sent(false, true, Some(&empty), &keys, true), None, "it is over");
    let some = [keys.iter().next().map(|(a, b)| (a.clone(), b.clone())).unwrap()].into();
    assert_eq!(sent(false, false, Some(&empty), &some, false), None);
    assert_eq!(sent(false, false, Some(&empty), &some, true).unwrap().nodes.len(), 1);
}

#[test]
fn limits_of_the_open_round_are_those_of_the_present_spec() {
    let model = with(&json!({"aggregation": {"minWorkers": 1, "seed": 9, "grace": "9s"}}));
    let next = check(&model, &fixtures::facts()).unwrap();
    let settings = current(&frozen()).settings(Some(&next));
    assert_eq!((settings.min_workers, settings.grace_seconds), (Some(1), Some(9)));
    assert_eq!(settings.seed, 1, "that of the run");
}

#[test]
fn tasks_that_a_node_gave_up_are_sent_once_they_are_open() {
    let report = |id: &str, state: TaskState| TaskReport {
        worker: "a".to_owned(),
        id: TaskId(id.to_owned()),
        round: 2,
        state,
        reason: Some(TrainingReason::ScriptFailed),
        message: "exit code 1".to_owned(),
        failures: 3,
        uploaded_bytes: None,
        update_bytes: None,
    };
    let current = current(&frozen());
    let tasks = vec![
        (
            "edge0".parse().unwrap(),
            vec![report("t-a", TaskState::Failed), report("old", TaskState::Failed)],
        ),
        ("edge1".parse().unwrap(), vec![report("t-b", TaskState::Training)]),
        // The task of another node.
        ("edge2".parse().unwrap(), vec![report("t-b", TaskState::Failed)]),
    ];
    let open = state(1, RunPhase::Open);
    let sent = request(RequestInputs {
        session_address: None,
        uid: UID,
        current: Some(&current),
        next: None,
        state: Some(&open),
        unavailable: BTreeMap::new(),
        keys: BTreeMap::new(),
        is_settled: true,
        tasks,
        is_suspended: false,
        keep: Vec::new(),
    });
    let failed = sent.unwrap().failed;
    assert!(!failed[0].is_refused);
    let failed: Vec<_> = failed.iter().map(|it| (&*it.id.0, &*it.reason, &*it.message)).collect();
    assert_eq!(failed, [("t-a", "ScriptFailed", "exit code 1")]);
}

fn valid(current: Option<CurrentRun>, state: Option<RunStatus>) -> ValidTrainingModel {
    let facts = fixtures::facts();
    let mut valid = validate(&fixtures::model(), &facts).unwrap();
    valid.datasets = facts.datasets;
    (valid.current, valid.aggregator.state) = (current, state.map(Arc::new));
    valid
}

#[test]
fn each_node_of_a_run_gets_its_tasks_and_its_dataset() {
    let model = fixtures::model();
    let valid = valid(Some(current(&frozen())), Some(state(1, RunPhase::Open)));
    let plan = plan(&model, &valid, "");
    assert_eq!((plan.retained, plan.requirements.len()), (None, 3));
    let of = |node: &str| &plan.requirements[&node.parse::<NodeName>().unwrap()];
    let brief = |node: &str| {
        let content = &of(node)[&valid.key];
        let training = content.training.as_ref().unwrap();
        let tasks: Vec<_> = training.tasks.iter().map(|task| task.id.0.clone()).collect();
        (tasks.join(" "), of(node).len())
    };
    assert_eq!(brief("edge0"), ("t-a".to_owned(), 3), "the Dataset of the evaluation, too");
    assert_eq!(brief("edge1"), ("t-b".to_owned(), 2));
    assert_eq!(brief("edge2"), (String::new(), 2), "it waits for the next round");
    let content = of("edge0")[&valid.key].training.clone().unwrap();
    assert_eq!(content.aggregator.url, "https://192.0.2.7:30418");
    assert!(content.tasks[0].container.as_str().starts_with("digits-a-"));
    assert!(plan.objects.is_some());
}

#[test]
fn nodes_keep_their_tasks_while_the_state_is_unknown_and_lose_them_at_the_end() {
    let model = fixtures::model();
    let unknown = plan(&model, &valid(Some(current(&frozen())), None), "");
    let retained = unknown.retained.unwrap();
    assert_eq!((retained.len(), unknown.requirements.len()), (3, 0));
    assert!(unknown.objects.is_some(), "the aggregator stays");
    let mut without_key = valid(Some(current(&frozen())), Some(state(1, RunPhase::Open)));
    without_key.aggregator.controller_pin = None;
    let without_key = plan(&model, &without_key, "");
    assert!(without_key.keeps_objects && without_key.objects.is_none());
    assert_eq!(without_key.retained.unwrap().len(), 3);
    let over = CurrentRun { is_over: true, ..current(&frozen()) };
    let ended = plan(&model, &valid(Some(over), None), "");
    assert_eq!((ended.retained, ended.requirements.len()), (None, 0));
    assert!(ended.objects.is_some(), "it serves the weights");
    let earlier =
        plan(&model, &valid(Some(current(&frozen())), Some(state(0, RunPhase::Open))), "");
    let tasks = earlier.requirements.values().flat_map(BTreeMap::values);
    let tasks = tasks.filter_map(|content| content.training.as_ref()).flat_map(|it| &it.tasks);
    assert_eq!(tasks.count(), 0, "tasks of another run");
}

#[test]
fn invalid_spec_stops_no_run() {
    let mut model = with(&json!({"script": null}));
    let facts = fixtures::facts();
    assert!(validate(&model, &facts).is_err());
    let status = TrainingModelStatus {
        run: Some(1),
        run_settings: Some(frozen().to_text()),
        start_time: Some(Time(at(0))),
        ..TrainingModelStatus::default()
    };
    model.status = Some(status);
    let valid = validate(&model, &facts).unwrap();
    assert!(valid.next.is_err() && valid.current.is_some());
}

fn training_node(presence: Presence, tasks: Vec<TaskReport>) -> TrainingNode {
    let key = NodeKey::Trusted(KeyPin(format!("sha256:{}", "a".repeat(64))));
    TrainingNode {
        agent: AgentState { presence, settled: true },
        key,
        lacks_sessions: false,
        tasks,
    }
}

#[test]
fn rows_have_the_state_of_each_worker_with_problems_first() {
    let frozen = frozen();
    let mut state = state(1, RunPhase::Open);
    state.workers.insert("a".to_owned(), worker_result(ResultState::Accepted));
    state.workers.insert("b-west-1".to_owned(), worker_result(ResultState::Pending));
    state.workers.insert(
        "b-west-2".to_owned(),
        WorkerResult {
            reason: Some("ShapeMismatch".to_owned()),
            message: "tensor \"w1\"".to_owned(),
            ..worker_result(ResultState::Refused)
        },
    );
    let offline = training_node(Presence::Offline { since: at(0) }, Vec::new());
    let nodes = [("edge1".parse().unwrap(), offline)].into();
    let rows = rows(&frozen.settings.workers, &state, &nodes);
    let brief: Vec<_> =
        rows.iter().map(|row| (&*row.name, row.state, row.reason.as_deref())).collect();
    assert_eq!(
        brief,
        [
            ("b-west-1", TrainingWorkerState::Offline, Some("NodeOffline")),
            ("b-west-2", TrainingWorkerState::Refused, Some("ShapeMismatch")),
            ("a", TrainingWorkerState::Accepted, None),
        ]
    );
    assert_eq!(rows[1].message.as_deref(), Some("tensor \"w1\""));
}

#[test]
fn pending_worker_names_whom_it_waits_for_and_is_no_problem() {
    let state = state(1, RunPhase::Open);
    for presence in [Presence::Online, Presence::NeverSeen] {
        let mut node = training_node(presence, Vec::new());
        node.agent.settled = presence == Presence::Online;
        let rows =
            rows(&frozen().settings.workers, &state, &[("edge1".parse().unwrap(), node)].into());
        let waiting = rows.iter().find(|row| row.name == "b-west-1").unwrap();
        assert_eq!(
            (waiting.state, waiting.reason.as_deref(), waiting.message.as_deref()),
            (
                TrainingWorkerState::Pending,
                Some("AwaitingAgent"),
                Some("waiting for node edge1 to report on the task")
            )
        );
        assert_eq!(problem(&rows), None);
    }
}

#[test]
fn agent_without_a_key_is_too_old() {
    let state = state(1, RunPhase::Open);
    let old = TrainingNode { key: NodeKey::Missing, ..training_node(Presence::Online, Vec::new()) };
    let nodes = [("edge1".parse().unwrap(), old)].into();
    let rows = rows(&frozen().settings.workers, &state, &nodes);
    assert_eq!(rows[0].reason.as_deref(), Some("AgentTooOld"));
    assert!(rows[0].message.as_deref().unwrap().contains("upgrade neptune-edge"));
}

#[test]
fn agent_without_sessions_is_too_old_for_an_engine_only() {
    let mut state = state(1, RunPhase::Open);
    let reason = |state: &RunStatus| {
        let lacking =
            TrainingNode { lacks_sessions: true, ..training_node(Presence::Online, Vec::new()) };
        let nodes = [("edge1".parse().unwrap(), lacking)].into();
        rows(&frozen().settings.workers, state, &nodes)[0].reason.clone()
    };
    assert_eq!(reason(&state).as_deref(), Some("AwaitingAgent"));
    state.tasks.iter_mut().for_each(|task| task.kind = TaskKind::Session);
    assert_eq!(reason(&state).as_deref(), Some("AgentTooOld"));
}

#[test]
fn changed_key_is_named_with_the_command_that_trusts_it() {
    let mut state = state(1, RunPhase::Open);
    state.workers.insert("a".to_owned(), worker_result(ResultState::Accepted));
    let pin = |digit: &str| KeyPin(format!("sha256:{}", digit.repeat(64)));
    let key = NodeKey::Changed { trusted: pin("a"), reported: pin("b") };
    let changed = TrainingNode { key, ..training_node(Presence::Online, Vec::new()) };
    let rows =
        rows(&frozen().settings.workers, &state, &[("edge1".parse().unwrap(), changed)].into());
    let finding = problem(&rows).unwrap();
    assert_eq!(finding.reason, Reason::NodeKeyChanged);
    assert_eq!(
        finding.message,
        "worker \"b-west-1\" on node edge1: the key of node edge1 changed from sha256:aaaaaaaaaaaa to sha256:bbbbbbbbbbbb; its uploads wait until the new key is trusted: kubectl neptune trust edge1"
    );
}

#[test]
fn numbers_have_at_most_four_digits_after_the_point() {
    for (number, text) in
        [(0.25, "0.25"), (1.0, "1"), (0.123_456, "0.1235"), (-0.00001, "0"), (1e9, "1000000000")]
    {
        assert_eq!(decimal(number), text);
    }
}

fn observation(state: Option<RunStatus>) -> TrainingObservation {
    TrainingObservation {
        next: Some(Ok(frozen())),
        url: Some("https://192.0.2.7:30418".to_owned()),
        state: state.map(Arc::new),
        keep: 3,
        ..TrainingObservation::default()
    }
}

fn after(
    previous: &TrainingModelStatus,
    observed: TrainingObservation,
    findings: &[Finding],
    second: i64,
) -> TrainingModelStatus {
    let inputs = StatusInputs {
        generation: Some(1),
        findings,
        observed,
        unreported: &[],
        is_settled: true,
        now: at(second),
    };
    next(&fixtures::model(), previous, &inputs)
}

fn condition(status: &TrainingModelStatus, type_: &str) -> String {
    let found = status.conditions.iter().find(|it| it.type_ == type_).unwrap();
    format!("{} {}", found.status, found.reason)
}

#[test]
fn status_follows_a_run_from_start_to_publication() {
    let started = after(&TrainingModelStatus::default(), observation(None), &[], 1);
    assert_eq!((started.run, started.phase), (Some(1), Some(TrainingPhase::Pending)));
    assert_eq!(started.progress.as_deref(), Some("0/10"));
    assert_eq!(started.start_time, Some(Time(at(1))));
    let mut open = state(1, RunPhase::Open);
    open.workers.insert("a".to_owned(), worker_result(ResultState::Accepted));
    open.history.push(RoundRecord {
        round: 1,
        participants: 3,
        samples: 1197,
        dataset_samples: 0,
        missing_samples: 0,
        loss: Some(0.21),
        metrics: measured(1, "0.75").metrics,
        seconds: 21,
        weights: Some(weights(1)),
        workers: Vec::new(),
        omitted_workers: 0,
    });
    let running = after(&started, observation(Some(open.clone())), &[], 2);
    assert_eq!(running.phase, Some(TrainingPhase::Running));
    assert_eq!(
        (running.progress.as_deref(), running.participants.as_deref()),
        (Some("2/10"), Some("1/3"))
    );
    let metrics: Vec<_> = running.metrics.iter().map(|it| (&*it.key, &*it.value)).collect();
    assert_eq!(metrics, [("accuracy", "0.75"), ("loss", "0.21")]);
    assert_eq!(running.aggregator.as_ref().unwrap().run, Some(1));
    assert_eq!(after(&running, observation(Some(open)), &[], 3), running, "no change, no write");
    let unknown = after(&running, observation(None), &[], 3);
    assert_eq!((unknown.round, unknown.phase), (running.round, running.phase), "after a restart");

    let mut ended = state(1, RunPhase::Succeeded);
    (ended.best, ended.tasks) = (Some(measured(2, "0.943")), Vec::new());
    let publishing = after(&running, observation(Some(ended.clone())), &[], 4);
    let output = publishing.output.clone().unwrap();
    assert_eq!((output.sha256sum, output.published), (Some(weights(2).sha256), false));
    assert_eq!(condition(&publishing, "Progressing"), "True Publishing");
    assert!(publishing.last_run.is_none());
    let mut observed = observation(Some(ended));
    observed.published = Some(weights(2).sha256);
    let published = after(&publishing, observed.clone(), &[], 5);
    assert_eq!(published.phase, Some(TrainingPhase::Succeeded));
    let output = published.output.clone().unwrap();
    assert_eq!((output.published, output.kept), (true, vec![weights(2).sha256]));
    assert_eq!(published.last_run.as_ref().unwrap().result, "Succeeded");
    assert_eq!(condition(&published, "Ready"), "True Succeeded");
    let reasons: Vec<_> =
        events(&publishing, &published).into_iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["ModelPublished", "RunSucceeded"]);
    let idle = after(&published, observed, &[], 6);
    assert_eq!(idle.last_run, published.last_run);
    assert_eq!(condition(&idle, "Progressing"), "False Succeeded");
}

#[test]
fn metric_is_empty_until_measured_and_then_that_of_the_output() {
    let round = |number, metrics: Vec<Metric>| RoundRecord {
        round: number,
        participants: 3,
        samples: 1197,
        dataset_samples: 0,
        missing_samples: 0,
        loss: Some(0.21),
        metrics,
        seconds: 21,
        weights: Some(weights(1)),
        workers: Vec::new(),
        omitted_workers: 0,
    };
    let mut open = state(1, RunPhase::Evaluating);
    open.history.push(round(1, Vec::new()));
    let started = after(&TrainingModelStatus::default(), observation(None), &[], 1);
    let evaluating = after(&started, observation(Some(open.clone())), &[], 2);
    assert_eq!((&*evaluating.metrics[0].key, evaluating.metric), ("loss", None));
    // The second round is worse than the first.
    (open.phase, open.best) = (RunPhase::Open, Some(measured(2, "0.943")));
    open.history =
        vec![round(1, measured(2, "0.943").metrics), round(2, measured(3, "0.9").metrics)];
    let running = after(&started, observation(Some(open.clone())), &[], 3);
    assert_eq!(&*running.metrics[0].value, "0.9", "of the last round");
    assert_eq!(running.metric.as_deref(), Some("0.943"));
    open.phase = RunPhase::Succeeded;
    let publishing = after(&running, observation(Some(open.clone())), &[], 4);
    let mut observed = observation(Some(open));
    observed.published = Some(weights(2).sha256);
    let published = after(&publishing, observed.clone(), &[], 5);
    assert_eq!(published.phase, Some(TrainingPhase::Succeeded));
    assert_eq!(published.metric.as_deref(), Some("0.943"));

    let mut unmeasured = published;
    let mut frozen = frozen();
    frozen.settings.evaluation = None;
    unmeasured.run_settings = Some(frozen.to_text());
    assert_eq!(after(&unmeasured, observed, &[], 6).metric, None, "no evaluation");
}

/// A Dataset on edge0 that its agent has counted.
fn counted(samples: i64, changed: &str) -> Dataset {
    let (_, dataset) = dataset("digits-test", "edge0", &[]);
    let mut dataset = Arc::unwrap_or_clone(dataset);
    dataset.status = serde_json::from_value(json!({
        "numberOfSamples": samples, "bytes": 70, "updateTime": changed,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Counted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }))
    .unwrap();
    dataset
}

fn data(samples: i64, changed: &str) -> Option<EvaluationData> {
    let data = data_on(&counted(samples, changed), "edge0");
    assert!(data.is_some());
    data
}

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

/// What is recorded of a run whose Dataset is `before` when the first evaluation begins, and `end`
/// when the weights are published.
fn recorded(before: Option<&EvaluationData>, end: Option<&EvaluationData>) -> MeasuredDataset {
    let observed = |state: RunStatus, data: Option<&EvaluationData>| TrainingObservation {
        evaluation_data: data.cloned(),
        ..observation(Some(state))
    };
    let started = after(&TrainingModelStatus::default(), observation(None), &[], 1);
    let training = after(&started, observed(state(1, RunPhase::Open), before), &[], 2);
    let mut evaluating = state(1, RunPhase::Evaluating);
    evaluating.tasks = vec![RunTask { kind: TaskKind::Evaluate, ..task("", "edge0", "t-e") }];
    let evaluating = after(&training, observed(evaluating, end), &[], 3);
    assert_eq!(evaluating.run_settings, training.run_settings, "frozen since it began");
    let mut ended = state(1, RunPhase::Succeeded);
    (ended.best, ended.tasks) = (Some(measured(2, "0.943")), Vec::new());
    let publishing = after(&evaluating, observed(ended.clone(), end), &[], 4);
    let first = *publishing.output.clone().unwrap().measured.unwrap();
    assert_eq!((&*first.metrics[0].value, &*first.node), ("0.943", "edge0"));
    // Later changes of the Dataset are not those of the metrics.
    let mut over = observed(ended, data(99, "2026-09-09T00:00:00Z").as_ref());
    over.published = Some(weights(2).sha256);
    let published = after(&publishing, over, &[], 5);
    assert_eq!(published.output.unwrap().measured.as_deref(), Some(&first));
    first.dataset
}

#[test]
fn metrics_name_data_that_was_the_same_from_the_first_evaluation_to_the_last() {
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let (first, grown, changed_back) = (data(7, old), data(8, new), data(7, new));
    let [first, grown, changed_back] = [&first, &grown, &changed_back].map(Option::as_ref);
    let same = recorded(first, first);
    assert_eq!(Some(&same), first.map(|data| &data.dataset));
    let unknown = MeasuredDataset { name: "digits-test".to_owned(), ..MeasuredDataset::default() };
    assert_eq!(recorded(first, grown), unknown);
    assert_eq!(recorded(first, changed_back), unknown, "changed and changed back");
    assert_eq!(recorded(first, None), unknown);
    assert_eq!(recorded(None, first), unknown);
}

#[test]
fn weights_that_others_do_not_beat_are_measured_again() {
    let started = TrainingModelStatus {
        run: Some(2),
        run_settings: Some({
            let mut frozen = frozen();
            frozen.settings.evaluation.as_mut().unwrap().present = Some(weights(1).sha256);
            frozen.evaluation_data = data(7, "2026-01-01T00:00:00Z");
            frozen.to_text()
        }),
        start_time: Some(Time(at(1))),
        output: Some(TrainingOutputStatus {
            model: "digits-small".to_owned(),
            sha256sum: Some(weights(1).sha256),
            published: true,
            ..TrainingOutputStatus::default()
        }),
        ..TrainingModelStatus::default()
    };
    let mut ended = state(2, RunPhase::Succeeded);
    (ended.best, ended.present) = (Some(measured(2, "0.8")), Some(measured(1, "0.9")));
    let mut observed = observation(Some(ended));
    observed.evaluation_data = data(7, "2026-01-01T00:00:00Z");
    let over = after(&started, observed, &[], 5);
    assert_eq!(over.metric.as_deref(), Some("0.9"), "of the Model that stays");
    assert_eq!(over.last_run.unwrap().result, "NotBetter");
    let measured = over.output.unwrap().measured.unwrap();
    assert_eq!(measured.metrics[0].value, "0.9");
    assert!(measured.dataset.identity().is_some());
}

#[test]
fn lost_weights_of_a_published_model_are_reported() {
    let status = TrainingModelStatus {
        run: Some(1),
        run_settings: Some(frozen().to_text()),
        start_time: Some(Time(at(0))),
        aggregator: Some(neptune_api::AggregatorStatus { run: Some(1), ..Default::default() }),
        output: Some(TrainingOutputStatus {
            model: "digits-small".to_owned(),
            sha256sum: Some("ab".to_owned()),
            published: true,
            ..TrainingOutputStatus::default()
        }),
        last_run: Some(LastRun {
            run: 1,
            result: "Succeeded".to_owned(),
            message: None,
            metric: None,
            finished: Time(at(1)),
        }),
        ..TrainingModelStatus::default()
    };
    let lost = RunStatus { uid: String::new(), ..state(0, RunPhase::Preparing) };
    let after = after(&status, observation(Some(lost)), &[], 5);
    assert_eq!(condition(&after, "Degraded"), "True ContentLost");
    assert_eq!(after.run, Some(1), "a run that is over is not repeated");
}

#[test]
fn problems_are_ordered_by_what_a_user_has_to_do_first() {
    let started = after(&TrainingModelStatus::default(), observation(None), &[], 1);
    let mut observed = observation(None);
    observed.problem = Some(Finding::new(Reason::AggregatorUnreachable, "no answer"));
    observed.pod = Some("Pod p: ImagePullBackOff".to_owned());
    let waiting = after(&started, observed.clone(), &[], 2);
    assert_eq!(condition(&waiting, "Degraded"), "False WaitingForAggregator");
    observed.pod = None;
    let away = after(&started, observed.clone(), &[], 2);
    assert_eq!(condition(&away, "Degraded"), "True AggregatorUnreachable");
    let taken = [Finding::new(Reason::NameTaken, "taken")];
    assert_eq!(condition(&after(&started, observed, &taken, 2), "Degraded"), "True NameTaken");
}

/// What happens to a training.
#[derive(Debug, Clone)]
enum Happening {
    /// The aggregator's state, by how far it is.
    Aggregator { phase: u8, round: u32 },
    /// The controller restarted: nothing is known.
    Restart,
    /// The aggregator lost its files.
    Lost,
    /// The Model received what it should have.
    Published,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        6 => (0_u8..5, 1_u32..10).prop_map(|(phase, round)| Happening::Aggregator { phase, round }),
        2 => Just(Happening::Restart),
        1 => Just(Happening::Lost),
        2 => Just(Happening::Published),
    ];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn runs_only_count_up_and_their_settings_never_change(all in happenings()) {
        let mut status = after(&TrainingModelStatus::default(), observation(None), &[], 0);
        for (second, happening) in (1..).zip(all) {
            let run = u32::try_from(status.run.unwrap()).unwrap();
            let mut observed = match happening {
                Happening::Restart | Happening::Published => observation(None),
                Happening::Lost => observation(Some(RunStatus {
                    uid: String::new(), ..state(0, RunPhase::Preparing)
                })),
                Happening::Aggregator { phase, round } => {
                    let phases = [RunPhase::Preparing, RunPhase::Open, RunPhase::Evaluating,
                        RunPhase::Succeeded, RunPhase::Failed];
                    let mut state = state(run, phases[usize::from(phase)]);
                    (state.round, state.best) = (round, Some(measured(2, "0.9")));
                    observation(Some(state))
                }
            };
            let sent = status.output.as_ref().and_then(|output| output.sha256sum.clone());
            if matches!(happening, Happening::Published) {
                observed.published = sent;
            }
            let was_over = status.last_run.as_ref().is_some_and(|last| Some(last.run) == status.run);
            let was_accepted = status.aggregator.as_ref().is_some_and(|it| it.run == status.run);
            let next = after(&status, observed.clone(), &[], second);
            let is_lost = matches!(happening, Happening::Lost) && was_accepted && !was_over;
            prop_assert_eq!(next.run, status.run.map(|run| run + i64::from(is_lost)));
            if next.run == status.run {
                prop_assert_eq!(&next.run_settings, &status.run_settings);
                prop_assert_eq!(&next.start_time, &status.start_time);
            }
            if was_over {
                prop_assert_eq!(&next.last_run, &status.last_run, "a result is final");
            }
            if next.output.as_ref().is_some_and(|output| output.published) {
                prop_assert!(next.last_run.is_some(), "published and over are written together");
            }
            // The same inputs again write nothing, unless a step was taken.
            let again = after(&next, observed, &[], second + 100);
            if again.run == next.run && again.last_run == next.last_run && !is_lost {
                prop_assert_eq!(&again.output, &next.output);
                prop_assert_eq!(&again.history, &next.history);
            }
            status = next;
        }
    }
}

#[test]
fn node_of_another_site_is_not_selected() {
    let mut facts = fixtures::facts();
    facts.nodes.extend([node("edge2", &[("site", "east")])]);
    let workers = check(&fixtures::model(), &facts).unwrap().settings.workers;
    assert_eq!(workers.keys().collect::<Vec<_>>(), ["a", "b-west-1"]);
}
