//! The conditions of a `TrainingModel`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{TrainingModel, TrainingModelStatus};

use super::{
    frozen::{CurrentRun, spec_hash},
    observation::{TrainingObservation, has_result},
    outcome::{Step, minority},
    rows::{evaluation_problem, problem},
};
use crate::{
    finding::Finding, kubernetes::conditions::condition, reason::Reason, steps::StatusInputs,
};

/// The types of the conditions.
pub const READY: &str = "Ready";
pub const PROGRESSING: &str = "Progressing";
pub const DEGRADED: &str = "Degraded";

/// The conditions of the next status.
pub fn conditions(
    model: &TrainingModel,
    previous: &TrainingModelStatus,
    next: &TrainingModelStatus,
    step: &Step,
    inputs: &StatusInputs<TrainingObservation>,
) -> Vec<Condition> {
    let (is_progressing, progress) = progressing(model, next, step, inputs);
    let of_idle = || match step {
        Step::Idle(finding) => Some(finding).filter(|it| !it.reason.is_progress()).cloned(),
        _ => None,
    };
    let degraded = degraded(next, inputs).or_else(of_idle);
    let ready = match next.last_run.as_ref() {
        Some(last) if has_result(last) => {
            let reason = last.result.parse().unwrap_or(Reason::Succeeded);
            (true, Finding::new(reason, last.message.clone().unwrap_or_default()))
        }
        _ => (false, degraded.clone().unwrap_or_else(|| progress.clone())),
    };
    let is_degraded = degraded.as_ref().is_some_and(|it| !it.reason.is_progress());
    let degraded = degraded.unwrap_or_else(|| progress.clone());
    let text = |is: bool| if is { "True" } else { "False" };
    let make = |type_: &str, is: bool, finding: Finding| {
        condition(&previous.conditions, type_, text(is), finding, inputs.generation, inputs.now)
    };
    vec![
        make(READY, ready.0, ready.1),
        make(PROGRESSING, is_progressing, progress),
        make(DEGRADED, is_degraded, degraded),
    ]
}

/// Whether a run is active, and what it does.
fn progressing(
    model: &TrainingModel,
    next: &TrainingModelStatus,
    step: &Step,
    inputs: &StatusInputs<TrainingObservation>,
) -> (bool, Finding) {
    let run = next.run.unwrap_or_default();
    let finding = match step {
        Step::Idle(finding) => {
            let findings = Finding::join(inputs.findings);
            return (false, findings.unwrap_or_else(|| finding.clone()));
        }
        Step::End(result) => {
            let reason = result.result.parse().unwrap_or(Reason::TrainingFailed);
            return (false, Finding::new(reason, &*result.message));
        }
        Step::Publish { .. } => {
            let model = next.output.as_ref().map(|output| output.model.as_str());
            let message = format!("Model {} receives the weights", model.unwrap_or_default());
            Finding::new(Reason::Publishing, message)
        }
        Step::Start { .. } => Finding::new(Reason::Training, format!("run {run} starts")),
        Step::Active => active(model, next),
    };
    (true, finding)
}

fn active(model: &TrainingModel, next: &TrainingModelStatus) -> Finding {
    let run = next.run.unwrap_or_default();
    let progress = next.progress.as_deref().unwrap_or_default().replace('/', " of ");
    let participants = next.participants.as_deref().unwrap_or_default().replace('/', " of ");
    let mut message = match next.round {
        Some(round) if round > 0 => {
            format!("run {run}, round {progress}: {participants} updates accepted")
        }
        _ => format!("run {run}: waiting for the first weights"),
    };
    let current = CurrentRun::from_status(next);
    if current.is_some_and(|current| current.frozen.spec != spec_hash(&model.spec)) {
        message.push_str("; the running run keeps its settings; the next run takes the new ones");
    }
    let reason = match next.phase {
        Some(neptune_api::TrainingPhase::Evaluating) => Reason::Evaluating,
        Some(neptune_api::TrainingPhase::Suspended) => Reason::Suspended,
        _ => Reason::Training,
    };
    Finding::new(reason, message)
}

/// What needs attention, the most important first.
fn degraded(
    next: &TrainingModelStatus,
    inputs: &StatusInputs<TrainingObservation>,
) -> Option<Finding> {
    let observed = &inputs.observed;
    let current = CurrentRun::from_status(next);
    let active = current.as_ref().filter(|current| !current.is_over);
    let state = observed.state.as_deref().filter(|state| Some(i64::from(state.run)) == next.run);
    let of_spec = || match &observed.next {
        Some(Err(findings)) => Finding::join(findings).map(|finding| {
            let message = format!("{}; the current run keeps its settings", finding.message);
            Finding::new(finding.reason, message)
        }),
        _ => None,
    };
    let of_aggregator = || {
        let problem = observed.problem.clone()?;
        // The status of the Pod has the cause.
        match &observed.pod {
            Some(pod) if problem.reason == Reason::AggregatorUnreachable => {
                Some(Finding::new(Reason::WaitingForAggregator, pod.clone()))
            }
            _ => Some(problem),
        }
    };
    let of_run = || {
        active?;
        let state = state?;
        let reported = state.reason.as_ref().map(|reason| {
            let reason = reason.parse().unwrap_or(Reason::TrainingFailed);
            Finding::new(reason, &*state.message)
        });
        reported
            .or_else(|| state.history.last().and_then(minority))
            .or_else(|| problem(&next.workers))
            .or_else(|| evaluation_problem(state, &observed.nodes))
    };
    let of_last_run = || {
        let last = next.last_run.as_ref().filter(|last| Some(last.run) == next.run)?;
        let reason: Reason = last.result.parse().unwrap_or(Reason::TrainingFailed);
        let message = last.message.clone().unwrap_or_default();
        (!has_result(last)).then(|| Finding::new(reason, message))
    };
    Finding::join(inputs.findings)
        .or_else(of_aggregator)
        .or_else(|| content_lost(next, current.as_ref(), observed))
        .or_else(of_run)
        .or_else(of_spec)
        .or_else(of_last_run)
}

/// The finding if the aggregator lost weights that a Model names.
fn content_lost(
    next: &TrainingModelStatus,
    current: Option<&CurrentRun>,
    observed: &TrainingObservation,
) -> Option<Finding> {
    let output = next.output.as_ref().filter(|output| output.published)?;
    let current = current.filter(|current| current.is_over && current.was_accepted)?;
    let state = observed.state.as_deref()?;
    (state.run < current.number).then(|| {
        let message = format!(
            "the aggregator lost its files: no node can download the weights of Model {} any more, and nodes that have them keep them; change the spec, such as its seed, to train again",
            output.model
        );
        Finding::new(Reason::ContentLost, message)
    })
}
