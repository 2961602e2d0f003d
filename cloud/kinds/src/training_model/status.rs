//! Computes the next status of a `TrainingModel`: its runs, the progress of the current one, and
//! the conditions.

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
use crate::steps::StatusInputs;

/// The annotation with the number of a run that stops.
pub const STOP_RUN: &str = "neptune.io/stop-run";
/// The annotation with the number of a run that stops and is followed by another one.
pub const RESTART_RUN: &str = "neptune.io/restart-run";

/// Returns the status to write, with the next step of the runs.
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
    let current = CurrentRun::from_status(previous);
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
    let current = CurrentRun::from_status(next)?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_api::MeasuredDataset;
    use neptune_wire::{
        Metric, TaskKind,
        aggregator::{ResultState, RunTask},
    };
    use proptest::prelude::*;

    use super::*;
    use crate::{
        finding::Finding,
        reason::Reason,
        training_model::{
            evaluation_data::data_on,
            events::events,
            fixtures::{self, at, counted, frozen, measured, state, task, weights, worker_result},
            frozen::EvaluationData,
        },
    };

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
        next(&fixtures::model(), previous, &inputs(observed, findings, second))
    }

    fn inputs(
        observed: TrainingObservation,
        findings: &[Finding],
        second: i64,
    ) -> StatusInputs<'_, TrainingObservation> {
        let now = at(second);
        StatusInputs { generation: Some(1), findings, observed, is_settled: true, now }
    }

    fn condition(status: &TrainingModelStatus, type_: &str) -> String {
        let condition = status.conditions.iter().find(|it| it.type_ == type_).unwrap();
        format!("{} {}", condition.status, condition.reason)
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
        assert_eq!(
            after(&running, observation(Some(open)), &[], 3),
            running,
            "no change, no write"
        );
        let unknown = after(&running, observation(None), &[], 3);
        assert_eq!(
            (unknown.round, unknown.phase),
            (running.round, running.phase),
            "after a restart"
        );

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
        let last = published.last_run.as_ref().unwrap();
        assert_eq!(last.result, "Succeeded");
        assert!(
            last.message.as_ref().is_some_and(|it| it.starts_with("run 1 ended after round 2"))
        );
        assert_eq!(condition(&published, "Ready"), "True Succeeded");
        let reasons: Vec<_> =
            events(&publishing, &published).into_iter().map(|event| event.reason).collect();
        assert_eq!(reasons, ["ModelPublished", "RunSucceeded"]);
        let idle = after(&published, observed, &[], 6);
        assert_eq!(idle.last_run, published.last_run);
        assert_eq!(condition(&idle, "Progressing"), "False Succeeded");
    }

    #[test]
    fn annotations_stop_a_run_and_begin_the_next_one() {
        let next_with = |annotation: &str, previous: &TrainingModelStatus, second| {
            let mut model = fixtures::model();
            model.metadata.annotations = Some([(annotation.to_owned(), "1".to_owned())].into());
            let observed = observation(Some(state(1, RunPhase::Open)));
            next(&model, previous, &inputs(observed, &[], second))
        };
        let running = after(&TrainingModelStatus::default(), observation(None), &[], 1);
        let stopped = next_with(STOP_RUN, &running, 2);
        assert_eq!(stopped.last_run.as_ref().map(|last| &*last.result), Some("Stopped"));
        assert_eq!((stopped.run, stopped.phase), (Some(1), Some(TrainingPhase::Failed)));
        let events = events(&running, &stopped);
        let events: Vec<_> = events.iter().map(|event| (&*event.reason, event.warning)).collect();
        assert_eq!(events, [("Stopped", true)]);
        assert_eq!(next_with(RESTART_RUN, &stopped, 3).run, Some(2));
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

    fn data(samples: i64, changed: &str) -> Option<EvaluationData> {
        let data = data_on(&counted(samples, changed), "edge0");
        assert!(data.is_some());
        data
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
        let unknown =
            MeasuredDataset { name: "digits-test".to_owned(), ..MeasuredDataset::default() };
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
}
