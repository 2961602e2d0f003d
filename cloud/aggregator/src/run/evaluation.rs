//! Evaluation: the metrics of weights, the best ones, and when they are good enough.

use neptune_wire::{
    ContentReference, Metric, TaskId,
    aggregator::{EarlyStop, MeasuredWeights, RunEvaluation, UpdateReport},
};

use super::{Problem, Rejection, Run, Stage};

/// How often one set of weights is measured before the run continues without its metrics.
const MAX_ATTEMPTS: u32 = 3;

impl Run {
    /// Lets the evaluation's node measure weights.
    pub(super) fn measure(&mut self, round: u32, weights: ContentReference) {
        self.enter(Stage::Evaluating { round, weights, attempt: 1 });
    }

    /// Records the metrics of an evaluation. Without the metric that decides, the attempt failed;
    /// otherwise [`Run::evaluated`] is the task.
    pub(super) fn on_evaluated(
        &mut self,
        task: &TaskId,
        report: &UpdateReport,
    ) -> Result<(), Rejection> {
        if self.evaluated.as_ref() == Some(task) {
            return Ok(());
        }
        let (Stage::Evaluating { round, weights, .. }, Some(evaluation)) =
            (self.stage.clone(), self.settings.evaluation.clone())
        else {
            return Err(Rejection::RoundClosed);
        };
        if self.task_of("").is_none_or(|it| it.id != *task) {
            return Err(Rejection::RoundClosed);
        }
        let Some(value) = value(&report.metrics, &evaluation.metric) else {
            self.on_evaluation_failed(&no_metric(&evaluation));
            return Ok(());
        };
        self.evaluated = Some(task.clone());
        self.evaluation_problem = None;
        let measured = MeasuredWeights { round, weights, metrics: report.metrics.clone() };
        self.enter(Stage::Idle);
        if round == 0 {
            self.present = Some(measured);
            return Ok(());
        }
        if let Some(record) = self.history.iter_mut().rfind(|it| it.round == round) {
            record.metrics.clone_from(&report.metrics);
        }
        let best = self.best.as_ref().and_then(|it| self::value(&it.metrics, &evaluation.metric));
        // Of equal ones the later: it has learnt more, and small data sets have few values.
        if best.is_none_or(|best| gain(&evaluation, best, value) >= 0.0) {
            self.best = Some(measured);
        }
        self.stop_early(&evaluation, value);
        Ok(())
    }

    /// Records that the current attempt has no result.
    pub(super) fn on_evaluation_failed(&mut self, message: &str) {
        let Stage::Evaluating { round, attempt, .. } = &mut self.stage else { return };
        let what = match round {
            0 => "the weights in use were".to_owned(),
            round => format!("the weights of round {round} were"),
        };
        let text =
            format!("{what} not measured in {attempt} of {MAX_ATTEMPTS} attempts: {message}");
        let problem = Problem::new("EvaluationFailed", text);
        if *attempt >= MAX_ATTEMPTS {
            self.enter(Stage::Idle);
        } else {
            *attempt += 1;
        }
        self.evaluation_problem = Some(problem);
    }

    fn stop_early(&mut self, evaluation: &RunEvaluation, value: f64) {
        let Some(EarlyStop { patience, min_delta, target }) = self.settings.early_stop.clone()
        else {
            return;
        };
        let improved = |to: f64| {
            let gain = gain(evaluation, to, value);
            gain > 0.0 && gain >= min_delta
        };
        if self.improved_to.is_none_or(improved) {
            (self.improved_to, self.unimproved) = (Some(value), 0);
        } else {
            self.unimproved += 1;
        }
        let metric = &evaluation.metric;
        let reached = target.filter(|target| gain(evaluation, *target, value) >= 0.0);
        let why = if let Some(target) = reached {
            format!("{metric} {value} reached the target {target}")
        } else if patience > 0 && self.unimproved >= patience {
            format!("{metric} did not improve by {min_delta} in {patience} measured rounds")
        } else {
            return;
        };
        let message =
            format!("{why}; stopped after round {} of {}", self.round, self.settings.rounds);
        self.succeed(Some(Problem::new("EarlyStop", message)));
    }
}

/// How much better `new` is than `old`; negative if it is worse.
fn gain(evaluation: &RunEvaluation, old: f64, new: f64) -> f64 {
    if evaluation.minimize { old - new } else { new - old }
}

/// Returns the number of a metric.
pub(super) fn value(metrics: &[Metric], key: &str) -> Option<f64> {
    let metric = metrics.iter().find(|it| it.key == key)?;
    metric.value.parse().ok().filter(|it: &f64| it.is_finite())
}

fn no_metric(evaluation: &RunEvaluation) -> String {
    format!("the program reported no number as metric \"{}\"", evaluation.metric)
}
