//! Computes the next status of a `TrainingModel`: its runs, the progress of the current one, and the
//! conditions. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    AggregatorStatus, KeyValue, LastRun, TrainedWeights, TrainingModel, TrainingModelStatus,
    TrainingOutputStatus, TrainingPhase, WeightsReference,
};
use neptune_wire::{
    NodeName,
    aggregator::{MeasuredWeights, RoundRecord, RunPhase, RunStatus},
};

use super::{
    absence,
    conditions::conditions,
    evaluation_data::{measured, refrozen},
    frozen::{CurrentRun, FrozenRun},
    history,
    observation::{TrainingObservation, has_result},
    outcome::{RunCommand, RunResult, Step, StepInputs, step},
    repeat::Origins,
    rows::{TrainingNode, decimal, participants, rows},
};
use crate::controllers::runtime::StatusInputs;

/// The annotation with the number of a run that stops.
pub const STOP_RUN: &str = "neptune.io/stop-run";
/// The annotation with the number of a run that stops and is followed by another one.
pub const RESTART_RUN: &str = "neptune.io/restart-run";

/// The next status.
#[must_use]
pub fn next(
    model: &TrainingModel,
    previous: &TrainingModelStatus,
    inputs: &StatusInputs<TrainingObservation>,
) -> TrainingModelStatus {
    let observed = &inputs.observed;
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    // An aggregator without a run has no uid.
    let state = observed.state.as_deref().filter(|state| state.run == 0 || state.uid == uid);
    let current = CurrentRun::of(previous);
    let step = step(&StepInputs {
        spec: &model.spec,
        current: current.as_ref(),
        next: observed.next.as_ref().and_then(|next| next.as_ref().ok()),
        state,
        published: observed.published.as_deref(),
        samples: observed.samples,
        missing: &observed.missing,
        first_start: absence::start(model.metadata.creation_timestamp.as_ref()),
        command: command(model),
        origins: Origins {
            base: previous.base.as_ref().map(|base| base.sha256sum.as_str()),
            models: &observed.origins,
            aggregator: observed.url.as_deref(),
        },
        now: inputs.now,
    });
    let mut next = previous.clone();
    next.observed_generation = inputs.generation;
    next.aggregator = aggregator(previous, observed, current.as_ref(), state);
    if let Some(current) = current.as_ref().filter(|current| !current.is_over)
        && let Some(state) = state.filter(|state| state.run == current.number)
    {
        progress(&mut next, current, state, &observed.nodes);
        let data = observed.evaluation_data.as_ref();
        if let Some(frozen) = refrozen(&current.frozen, state, data) {
            next.run_settings = Some(frozen.to_text());
        }
    }
    match &step {
        Step::Start { frozen, .. } => start(&mut next, frozen, state, inputs.now),
        Step::Publish { sha256, format } => {
            publish(&mut next, current.as_ref(), (sha256, format.as_ref()), observed);
            measure(&mut next, current.as_ref(), state, observed, inputs.now);
        }
        Step::End(result) => {
            end(&mut next, current.as_ref(), result, observed, inputs.now);
            measure(&mut next, current.as_ref(), state, observed, inputs.now);
        }
        Step::Active | Step::Idle(_) => {}
    }
    next.metric = metric(&next);
    next.phase = Some(phase(model, &next, state));
    next.conditions = conditions(model, previous, &next, &step, inputs);
    next
}

/// What the annotations ask for.
fn command(model: &TrainingModel) -> Option<RunCommand> {
    let run = |name: &str| model.metadata.annotations.as_ref()?.get(name)?.parse().ok();
    run(RESTART_RUN).map(RunCommand::Restart).or_else(|| run(STOP_RUN).map(RunCommand::Stop))
}

fn aggregator(
    previous: &TrainingModelStatus,
    observed: &TrainingObservation,
    current: Option<&CurrentRun>,
    state: Option<&RunStatus>,
) -> Option<AggregatorStatus> {
    let mut aggregator = previous.aggregator.clone().unwrap_or_default();
    aggregator.url = observed.url.clone().or(aggregator.url);
    aggregator.node = observed.node.as_ref().map(ToString::to_string);
    aggregator.pin = observed.pin.clone().or(aggregator.pin);
    if let Some(current) = current
        && state.is_some_and(|state| state.run == current.number)
    {
        aggregator.run = Some(i64::from(current.number));
    }
    Some(aggregator).filter(|aggregator| *aggregator != AggregatorStatus::default())
}

/// Begins a run: nothing of the one before is left but history, output and result.
fn start(
    next: &mut TrainingModelStatus,
    frozen: &FrozenRun,
    state: Option<&RunStatus>,
    now: Timestamp,
) {
    let held = state.map_or(0, |state| i64::from(state.run));
    let run = next.run.unwrap_or_default().max(held) + 1;
    let rounds = i64::from(frozen.settings.rounds);
    next.run = Some(run);
    next.run_settings = Some(frozen.to_text());
    next.start_time = Some(Time(now));
    (next.round, next.rounds) = (Some(0), Some(rounds));
    next.progress = Some(format!("0/{rounds}"));
    next.participants = Some(format!("0/{}", frozen.settings.workers.len()));
    next.metrics = Vec::new();
    (next.best, next.base, next.attempt) = (None, None, None);
    next.workers = Vec::new();
    if let Some(output) = &frozen.output {
        let held = next.output.take().filter(|held| held.model == output.model);
        next.output = Some(held.unwrap_or_else(|| TrainingOutputStatus {
            model: output.model.clone(),
            ..TrainingOutputStatus::default()
        }));
    }
}

/// The progress of the current run.
fn progress(
    next: &mut TrainingModelStatus,
    current: &CurrentRun,
    state: &RunStatus,
    nodes: &BTreeMap<NodeName, TrainingNode>,
) {
    let settings = &current.frozen.settings;
    next.round = Some(i64::from(state.round));
    next.rounds = Some(i64::from(settings.rounds));
    let attempt = state.session.as_ref().map(|session| i64::from(session.attempt));
    next.attempt = attempt.filter(|attempt| *attempt > 0);
    next.progress = Some(format!("{}/{}", state.round, settings.rounds));
    next.participants = Some(participants(state, settings.workers.len()));
    next.workers = rows(&settings.workers, state, nodes);
    next.base = state.base.as_ref().map(|base| WeightsReference {
        sha256sum: base.sha256.clone(),
        bytes: i64::try_from(base.bytes).unwrap_or(i64::MAX),
    });
    next.best = state.best.as_ref().map(|best| TrainedWeights {
        round: i64::from(best.round),
        sha256sum: best.weights.sha256.clone(),
        metrics: best.metrics.iter().map(|it| KeyValue::new(&it.key, &it.value)).collect(),
    });
    let name = settings.evaluation.as_ref().map(|evaluation| evaluation.metric.as_str());
    if let Some(last) = state.history.last() {
        next.metrics = metrics(last, name);
    }
    history::extend(&mut next.history, i64::from(current.number), &state.history, name);
}

/// The metric of the evaluation: of the best weights, and after the run of those that the output Model
/// has.
fn metric(next: &TrainingModelStatus) -> Option<String> {
    let current = CurrentRun::of(next)?;
    let name = &current.frozen.settings.evaluation.as_ref()?.metric;
    let metrics = match &next.output {
        Some(output) if current.is_over => &output.measured.as_ref()?.metrics,
        _ => &next.best.as_ref()?.metrics,
    };
    metrics.iter().find(|metric| metric.key == *name).map(|metric| metric.value.clone())
}

/// The metrics of a round: that of the evaluation first, then the loss and the others.
fn metrics(round: &RoundRecord, name: Option<&str>) -> Vec<KeyValue> {
    let mut metrics: Vec<_> =
        round.metrics.iter().map(|metric| KeyValue::new(&metric.key, &metric.value)).collect();
    if let Some(loss) = round.loss
        && !metrics.iter().any(|metric| metric.key == "loss")
    {
        metrics.push(KeyValue::new("loss", decimal(loss)));
    }
    metrics.sort_by_key(|metric| (Some(metric.key.as_str()) != name, metric.key != "loss"));
    metrics
}

/// The Model receives these weights. Written before the Model is, so that a restart repeats it.
fn publish(
    next: &mut TrainingModelStatus,
    current: Option<&CurrentRun>,
    (sha256, format): (&str, Option<&String>),
    observed: &TrainingObservation,
) {
    let Some(output) = current.and_then(|current| current.frozen.output.as_ref()) else { return };
    let held = next.output.take().filter(|held| held.model == output.model).unwrap_or_default();
    if held.sha256sum.as_deref() == Some(sha256) && !held.published {
        next.output = Some(held);
        return;
    }
    let before = observed.output_digest.clone().filter(|before| before != sha256);
    next.output = Some(TrainingOutputStatus {
        model: output.model.clone(),
        sha256sum: Some(sha256.to_owned()),
        format: format.cloned(),
        published: false,
        previous: before.or(held.previous),
        kept: held.kept,
        measured: None,
    });
}

/// Records what the weights of the output reached in the current run: new ones that are published,
/// and the present ones that others did not beat. The values of a run are recorded once.
fn measure(
    next: &mut TrainingModelStatus,
    current: Option<&CurrentRun>,
    state: Option<&RunStatus>,
    observed: &TrainingObservation,
    now: Timestamp,
) {
    let (Some(current), Some(state), Some(output)) = (current, state, &mut next.output) else {
        return;
    };
    let is_of_output =
        |weights: &&MeasuredWeights| output.sha256sum.as_ref() == Some(&weights.weights.sha256);
    let weights = [&state.best, &state.present].into_iter().flatten().find(is_of_output);
    let is_known = output.measured.as_ref().is_some_and(|held| held.time.0 >= current.started);
    if let Some(weights) = weights.filter(|_| state.run == current.number && !is_known) {
        let data = observed.evaluation_data.as_ref();
        let measured = measured(&current.frozen, weights, data, now);
        output.measured = measured.or(output.measured.take());
    }
}

fn end(
    next: &mut TrainingModelStatus,
    current: Option<&CurrentRun>,
    result: &RunResult,
    observed: &TrainingObservation,
    now: Timestamp,
) {
    let Some(current) = current else { return };
    if let Some(output) = &mut next.output {
        let sha256 = output.sha256sum.clone().unwrap_or_default();
        if !output.published && observed.published.as_deref() == Some(&sha256) {
            output.published = true;
            output.kept.retain(|kept| *kept != sha256);
            output.kept.insert(0, sha256);
        }
        output.kept.truncate(observed.keep.max(1));
    }
    next.last_run = Some(LastRun {
        run: i64::from(current.number),
        result: result.result.clone(),
        message: Some(result.message.clone()).filter(|message| !message.is_empty()),
        metric: result.metric.clone(),
        finished: Time(now),
    });
}

fn phase(
    model: &TrainingModel,
    next: &TrainingModelStatus,
    state: Option<&RunStatus>,
) -> TrainingPhase {
    let is_suspended = model.spec.suspend == Some(true);
    let over = next.last_run.as_ref().filter(|last| Some(last.run) == next.run);
    if let Some(last) = over {
        return if has_result(last) { TrainingPhase::Succeeded } else { TrainingPhase::Failed };
    }
    if next.run.is_none() {
        return if is_suspended { TrainingPhase::Suspended } else { TrainingPhase::Pending };
    }
    let state = state.filter(|state| Some(i64::from(state.run)) == next.run);
    match state.map(|state| state.phase) {
        // A controller that has just started has no state yet.
        None if next.round.unwrap_or_default() > 0 => next.phase.unwrap_or(TrainingPhase::Pending),
        None | Some(RunPhase::Preparing) => TrainingPhase::Pending,
        Some(RunPhase::Open | RunPhase::Closing) => TrainingPhase::Running,
        // It succeeded, and its weights are published now.
        Some(RunPhase::Evaluating | RunPhase::Succeeded) => TrainingPhase::Evaluating,
        Some(RunPhase::Failed) => TrainingPhase::Failed,
        Some(RunPhase::Suspended) => TrainingPhase::Suspended,
    }
}
