//! Decides when a run starts, ends, or publishes its weights.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{TrainingModelSpec, TrainingScheduleType};
use neptune_wire::{
    Metric,
    aggregator::{MeasuredWeights, RoundRecord, RunPhase, RunStatus},
};

use super::{
    frozen::{CurrentRun, FrozenRun},
    repeat::{Origins, repeated},
};
use crate::{finding::Finding, kubernetes::quantities, reason::Reason};

/// The next step of an object's runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A run starts. `repeated`: because the aggregator lost the files of the current one.
    Start {
        /// What it is started with.
        frozen: Box<FrozenRun>,
        /// Whether it repeats the current run.
        repeated: bool,
    },
    /// The current run continues, and nothing is published.
    Active,
    /// The output Model receives these weights.
    Publish {
        /// SHA-256 of the weights.
        sha256: String,
        /// Format of the weights: `npz` or `safetensors`. Unknown from earlier aggregators.
        format: Option<String>,
    },
    /// The current run ends, with this result.
    End(RunResult),
    /// No run is active, and none starts, for this reason.
    Idle(Finding),
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// Why it ended: a reason, `Succeeded` if all is well.
    pub result: String,
    /// Human-readable text for the status.
    pub message: String,
    /// The metric of its best weights.
    pub metric: Option<String>,
}

/// The inputs of [`step`].
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// The spec of the `TrainingModel`.
    pub spec: &'a TrainingModelSpec,
    /// The current or last run.
    pub current: Option<&'a CurrentRun>,
    /// What the next run would be started with; `None` if the spec is invalid.
    pub next: Option<&'a FrozenRun>,
    /// The newest state of the aggregator, also of an earlier run.
    pub state: Option<&'a RunStatus>,
    /// The digest of the weights that the output Model received last.
    pub published: Option<&'a str>,
    /// The samples of the Dataset of the schedule.
    pub samples: Option<i64>,
    /// The Datasets of the next run that do not exist.
    pub missing: &'a [String],
    /// When the first run starts although Datasets are missing.
    pub first_start: Option<Timestamp>,
    /// What a user asked for.
    pub command: Option<RunCommand>,
    /// What is known of weights that the aggregator lost.
    pub origins: Origins<'a>,
    /// The wall-clock time, for deadlines and schedules.
    pub now: Timestamp,
}

/// What a user asked for with `kubectl neptune training`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunCommand {
    /// The run with this number stops.
    Stop(u32),
    /// The run with this number stops, and another one starts.
    Restart(u32),
}

/// Decides the next step of the object's runs.
pub fn step(inputs: &StepInputs) -> Step {
    let active = inputs.current.filter(|current| !current.is_over);
    match active {
        Some(current) => active_step(inputs, current),
        None => idle_step(inputs),
    }
}

fn active_step(inputs: &StepInputs, current: &CurrentRun) -> Step {
    let is_lost = inputs.state.is_some_and(|state| state.run < current.number);
    if is_lost && current.was_accepted {
        return match repeated(current, inputs.origins) {
            Ok(frozen) => Step::Start { frozen: Box::new(frozen), repeated: true },
            Err(Finding { reason, message, .. }) => {
                Step::End(RunResult { result: reason.to_string(), message, metric: None })
            }
        };
    }
    // A status from a copy: the aggregator has run more since.
    if inputs.state.is_some_and(|state| state.run > current.number) {
        return Step::Start { frozen: Box::new(current.frozen.clone()), repeated: false };
    }
    let state = inputs.state.filter(|state| state.run == current.number);
    let ended = state.filter(|it| matches!(it.phase, RunPhase::Succeeded | RunPhase::Failed));
    if let Some(state) = ended {
        return ended_step(inputs, current, state);
    }
    if inputs.command.is_some_and(|it| it.run() == current.number) {
        let round = state.map_or(0, |state| state.round);
        let message = format!("run {} was stopped in round {round} by a user", current.number);
        return Step::End(RunResult { result: Reason::Stopped.to_string(), message, metric: None });
    }
    if current.deadline(inputs.spec).is_some_and(|deadline| deadline <= inputs.now) {
        let round = state.map_or(0, |state| state.round);
        let message = format!(
            "run {} did not end within spec.activeDeadline; it was stopped in round {round} of {}",
            current.number, current.frozen.settings.rounds
        );
        return Step::End(RunResult {
            result: Reason::DeadlineExceeded.to_string(),
            message,
            metric: None,
        });
    }
    Step::Active
}

fn ended_step(inputs: &StepInputs, current: &CurrentRun, state: &RunStatus) -> Step {
    let best = state.best.as_ref();
    let metric = best.and_then(|best| metric(&current.frozen, best)).map(str::to_owned);
    let end = |reason: Reason, message: String| {
        Step::End(RunResult { result: reason.to_string(), message, metric: metric.clone() })
    };
    if state.phase == RunPhase::Failed {
        let reason = state.reason.as_deref().and_then(|reason| reason.parse().ok());
        let message = if state.message.is_empty() {
            format!("run {} failed in round {}", current.number, state.round)
        } else {
            state.message.clone()
        };
        return end(reason.unwrap_or(Reason::TrainingFailed), message);
    }
    let Some(best) = best else {
        let mut message = format!("run {} ended without measured weights", current.number);
        if !state.message.is_empty() {
            message = format!("{message}: {}", state.message);
        }
        let reason = state.reason.as_deref().and_then(|reason| reason.parse().ok());
        return end(reason.unwrap_or(Reason::TrainingFailed), message);
    };
    if let Some(finding) = state.history.last().and_then(minority) {
        return end(finding.reason, finding.message);
    }
    if let Err(finding) = compare(&current.frozen, best, state.present.as_ref()) {
        return end(finding.reason, finding.message);
    }
    let is_published = inputs.published == Some(best.weights.sha256.as_str());
    if current.frozen.output.is_some() && !is_published {
        let (sha256, format) = (best.weights.sha256.clone(), state.format.clone());
        return Step::Publish { sha256, format };
    }
    end(Reason::Succeeded, succeeded(current, state, metric.as_deref()))
}

/// The finding if a round has updates of a minority of the samples only.
pub fn minority(round: &RoundRecord) -> Option<Finding> {
    let (all, missing) = (round.dataset_samples, round.missing_samples);
    round.misses_most_samples().then(|| {
        let message = format!(
            "workers with {missing} of {all} samples have no update that counts in round {}: nothing is published; status.workers names them; repair them, and run: kubectl neptune training restart",
            round.round
        );
        Finding::new(Reason::MostSamplesMissing, message)
    })
}

impl RunCommand {
    fn run(self) -> u32 {
        match self {
            Self::Stop(run) | Self::Restart(run) => run,
        }
    }
}

fn succeeded(current: &CurrentRun, state: &RunStatus, metric: Option<&str>) -> String {
    let name = current.frozen.settings.evaluation.as_ref().map(|it| it.metric.as_str());
    let measured = name
        .zip(metric)
        .map_or_else(String::new, |(name, metric)| format!(" with {name} {metric}"));
    let best = state.best.as_ref().map_or(0, |best| best.round);
    let early =
        if state.message.is_empty() { String::new() } else { format!("; {}", state.message) };
    format!(
        "run {} ended after round {}; round {best} is the best{measured}{early}",
        current.number, state.round
    )
}

/// Whether the weights may be published.
fn compare(
    frozen: &FrozenRun,
    best: &MeasuredWeights,
    present: Option<&MeasuredWeights>,
) -> Result<(), Finding> {
    let Some(evaluation) = &frozen.settings.evaluation else { return Ok(()) };
    let name = &evaluation.metric;
    let unmeasured = |what: &str| {
        let message = format!(
            "{name} of {what} could not be measured; nothing is published: see the node of spec.evaluation"
        );
        Finding::new(Reason::EvaluationFailed, message)
    };
    let text = metric(frozen, best).ok_or_else(|| unmeasured("the new weights"))?;
    let value = number(text).ok_or_else(|| unmeasured("the new weights"))?;
    if evaluation.present.is_none() {
        return Ok(());
    }
    let present = present.and_then(|present| metric(frozen, present));
    let present = present.ok_or_else(|| unmeasured("the present model"))?;
    let before = number(present).ok_or_else(|| unmeasured("the present model"))?;
    let gain = if evaluation.minimize { before - value } else { value - before };
    let Some(output) = &frozen.output else { return Ok(()) };
    // Numbers such as 0.946 + 0.005 are not exact in binary.
    if gain + 1e-12 >= output.min_improvement {
        return Ok(());
    }
    let message = format!(
        "{name} {text} does not beat {present} of the present model by {}: {} is left as it is",
        output.min_improvement, output.model
    );
    Err(Finding::new(Reason::NotBetter, message))
}

/// The metric of the evaluation.
pub fn metric<'a>(frozen: &FrozenRun, weights: &'a MeasuredWeights) -> Option<&'a str> {
    named(&weights.metrics, &frozen.settings.evaluation.as_ref()?.metric)
}

/// The value of a metric.
pub fn named<'a>(metrics: &'a [Metric], name: &str) -> Option<&'a str> {
    metrics.iter().find(|metric| metric.key == name).map(|metric| metric.value.as_str())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn idle_step(inputs: &StepInputs) -> Step {
    let Some(next) = inputs.next else {
        return Step::Idle(Finding::new(Reason::TrainingInvalid, "the spec is invalid"));
    };
    if inputs.spec.suspend == Some(true) {
        let message = "no run starts while spec.suspend is true";
        return Step::Idle(Finding::new(Reason::Suspended, message));
    }
    let start = || Step::Start { frozen: Box::new(next.clone()), repeated: false };
    let command = inputs.command.zip(inputs.current);
    if command.is_some_and(|(it, current)| it == RunCommand::Restart(current.number)) {
        return start();
    }
    let waits = inputs.first_start.filter(|at| inputs.current.is_none() && *at > inputs.now);
    if let (Some(at), Some(name)) = (waits, inputs.missing.first()) {
        let message = format!(
            "Dataset {name} does not exist; create it, or the run starts without it at {at:.0}"
        );
        return Step::Idle(Finding::new(Reason::DatasetNotFound, message));
    }
    let is_changed = inputs.current.is_some_and(|current| current.frozen.spec != next.spec);
    let schedule = inputs.spec.schedule.clone().unwrap_or_default();
    if schedule.type_.unwrap_or_default() == TrainingScheduleType::Once {
        if inputs.current.is_none() || is_changed {
            return start();
        }
        let message = "the run is over; to start another one: kubectl neptune training restart";
        return Step::Idle(Finding::new(Reason::Succeeded, message));
    }
    let runs = inputs.current.map_or(0, |current| i64::from(current.number));
    let max_runs = i64::from(schedule.max_runs.unwrap_or_default());
    if max_runs > 0 && runs >= max_runs {
        let message = format!("all {max_runs} runs of spec.schedule.maxRuns are over");
        return Step::Idle(Finding::new(Reason::Succeeded, message));
    }
    let before = inputs.current.map_or(0, |current| current.frozen.samples.unwrap_or_default());
    let grown = inputs.samples.map_or(0, |samples| samples - before);
    let wanted = schedule.new_samples.unwrap_or(1).max(1);
    let dataset = schedule.dataset.map(|dataset| dataset.name).unwrap_or_default();
    if !is_changed && grown < wanted {
        let message = format!(
            "Dataset {dataset} has {} new samples; the next run starts at {wanted}",
            grown.max(0)
        );
        return Step::Idle(Finding::new(Reason::WaitingForGrowth, message));
    }
    match earliest(inputs.spec, inputs.current) {
        Some(earliest) if earliest > inputs.now => {
            let message = format!("the next run starts at {earliest:.0}, after minInterval");
            Step::Idle(Finding::new(Reason::WaitingForGrowth, message))
        }
        _ => start(),
    }
}

/// The earliest start of the next run, if the schedule has an interval.
pub fn earliest(spec: &TrainingModelSpec, current: Option<&CurrentRun>) -> Option<Timestamp> {
    let interval = spec.schedule.as_ref()?.min_interval.as_deref()?;
    let seconds = i64::try_from(quantities::seconds(interval)?).ok()?;
    current?.started.checked_add(SignedDuration::from_secs(seconds)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::TrainingModel;
    use serde_json::{Value, json};

    use super::*;
    use crate::training_model::{
        fixtures::{self, at, current, frozen, measured, state, weights, with},
        validate::check,
    };

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

    /// Case, change of the spec, current run, samples, second, expectation.
    type Row<'a> = (&'a str, Value, Option<CurrentRun>, Option<i64>, i64, &'a str);

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
        let step_on = |current: &CurrentRun, command| {
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
        assert_eq!(step_on(&run, RunCommand::Stop(1)), "Stopped");
        assert_eq!(step_on(&run, RunCommand::Restart(1)), "Stopped");
        assert_eq!(step_on(&run, RunCommand::Restart(2)), "Active", "of another run");
        assert_eq!(step_on(&over, RunCommand::Stop(1)), "Idle");
        assert_eq!(step_on(&over, RunCommand::Restart(1)), "Start");
        assert_eq!(step_on(&over, RunCommand::Restart(0)), "Idle");
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
        assert_eq!(
            result.message,
            "run 1 ended after round 2; round 2 is the best with accuracy 0.9"
        );
    }

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
            (
                "once, changed",
                json!({"aggregation": {"seed": 9}}),
                Some(over(0, 1)),
                None,
                9,
                "start",
            ),
            ("suspended", json!({"suspend": true}), None, None, 0, "Suspended"),
            ("uncounted", grows.clone(), None, None, 0, "WaitingForGrowth"),
            ("too small", grows.clone(), None, Some(499), 0, "WaitingForGrowth"),
            ("large enough", grows.clone(), None, Some(500), 0, "start"),
            (
                "grown too soon",
                grows.clone(),
                Some(over(500, 1)),
                Some(1000),
                3599,
                "WaitingForGrowth",
            ),
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
            let outcome = match step(&inputs) {
                Step::Start { repeated: false, .. } => "start".to_owned(),
                Step::Idle(finding) => finding.reason.to_string(),
                other => unreachable!("{case}: {other:?}"),
            };
            assert_eq!(outcome, expected, "{case}");
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
}
