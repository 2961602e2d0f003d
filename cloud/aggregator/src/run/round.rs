//! Rounds: who takes part, what a round closes with, and what its new weights lead to. `waiting.rs`
//! decides when it closes.

use neptune_aggregate::close::{
    AggregationStrategy, CloseRecord, Participant, Rule, WeightBy, close,
};
use neptune_wire::{
    TaskKind,
    aggregator::{AggregationRule, MeasuredWeights, RoundRecord, RunTask, UpdateReport},
};

use super::{
    AcceptedUpdate, Closing, MAX_HISTORY, OpenRound, Outputs, Problem, Rejection, Run, Stage,
    TaskResult, UnixSeconds, Verdict,
};

impl Run {
    pub(super) fn open_round(&mut self, now: UnixSeconds) {
        self.round += 1;
        self.selected = self.draw().into_iter().collect();
        self.results.clear();
        self.norm_refused.clear();
        self.enter(Stage::Open(OpenRound::new(now)));
    }

    /// Lets the first worker make the first weights that has not failed to.
    pub(super) fn initialize(&mut self) {
        for result in self.results.values() {
            if let Verdict::Accepted(update) = &result.verdict {
                let weights = update.content.clone();
                return self.begin_with(weights);
            }
        }
        let mut workers = self.settings.workers.keys().filter(|it| !self.results.contains_key(*it));
        let is_here = |it: &&String| !self.unavailable.contains_key(*it);
        if let Some(worker) = workers.clone().find(is_here) {
            self.selected = [worker.clone()].into();
            self.problem = None;
            return;
        }
        if let Some(worker) = workers.next() {
            let why = self.absence(worker);
            self.problem = why.map(|it| {
                let message = format!(
                    "no worker can make the first weights; worker \"{worker}\": {}",
                    it.message
                );
                Problem::new(&it.reason, message)
            });
            self.selected.clear();
            return;
        }
        let mut reason = String::new();
        let mut parts = vec!["no worker made the first weights".to_owned()];
        for (worker, result) in &self.results {
            if let Verdict::Failed(problem) | Verdict::Refused { problem, .. } = &result.verdict {
                reason.clone_from(&problem.reason);
                parts.push(format!("worker \"{worker}\" {}", problem.message));
            }
        }
        self.fail(Problem { reason, message: parts.join("; ") });
    }

    /// Records the result of a worker's task. The first one counts; but an update replaces the
    /// controller's report that there will be none.
    pub(super) fn on_judged(&mut self, result: TaskResult) -> Result<(), Rejection> {
        let task = self.task_of(&result.worker);
        let is_current = |it: &RunTask| {
            it.id == result.task && !matches!(it.kind, TaskKind::Evaluate | TaskKind::Session)
        };
        let task = task.filter(is_current).ok_or(Rejection::RoundClosed)?;
        match self.results.get(&task.worker).map(|it| &it.verdict) {
            Some(Verdict::Accepted(update)) => match &result.verdict {
                Verdict::Accepted(same) if same.content == update.content => Ok(()),
                _ => Err(Rejection::OtherUpdateAccepted(update.content.sha256.clone())),
            },
            Some(Verdict::Refused { .. }) => Ok(()),
            None | Some(Verdict::Failed(_)) if matches!(self.stage, Stage::Closing(_)) => {
                Err(Rejection::RoundClosed)
            }
            None | Some(Verdict::Failed(_)) => {
                if let (Verdict::Refused { problem, .. }, TaskKind::Train) =
                    (&result.verdict, task.kind)
                {
                    self.set_back(&task.worker, problem.clone(), false);
                }
                self.results.insert(task.worker, result);
                Ok(())
            }
        }
    }

    /// Begins the aggregation with the updates of the record.
    pub(super) fn close(&mut self, opened: UnixSeconds, record: CloseRecord) {
        let (samples, loss) = self.totals(&record);
        let refused: Vec<_> =
            record.refused.iter().map(|it| (it.worker.clone(), it.to_string())).collect();
        for (worker, text) in &refused {
            self.set_back(worker, Problem::new("NormTooLarge", text.clone()), false);
        }
        self.norm_refused = refused.into_iter().collect();
        for entry in &record.entries {
            self.setbacks.remove(&entry.worker);
        }
        let counts = |worker: &str| record.entries.iter().any(|it| it.worker == worker);
        let (dataset_samples, missing_samples) = self.coverage(counts);
        let workers = self.rows(&record);
        let closing = Closing {
            opened,
            record,
            samples,
            loss,
            dataset_samples,
            missing_samples,
            workers,
            outputs: None,
        };
        self.enter(Stage::Closing(Box::new(closing)));
    }

    /// Decides which accepted updates count.
    pub(super) fn close_record(&self) -> CloseRecord {
        close(rule(&self.settings.rule), self.accepted().map(participant).collect())
    }

    fn accepted(&self) -> impl Iterator<Item = (&String, &AcceptedUpdate)> {
        self.results.iter().filter_map(|(worker, result)| match &result.verdict {
            Verdict::Accepted(update) => Some((worker, update)),
            _ => None,
        })
    }

    /// Returns the samples of the updates that count, and the mean of their losses.
    fn totals(&self, record: &CloseRecord) -> (u64, Option<f64>) {
        let counts = |worker: &String| record.entries.iter().any(|it| it.worker == *worker);
        let (mut samples, mut with_loss, mut losses) = (0_u64, 0.0, 0.0);
        for (_, update) in self.accepted().filter(|(worker, _)| counts(worker)) {
            let own = credible_samples(&update.report);
            samples = samples.saturating_add(own);
            if let Some(loss) = update.report.loss.filter(|it| it.is_finite()) {
                #[allow(clippy::cast_precision_loss, reason = "a mean for people")]
                let weight = own.max(1) as f64;
                with_loss += weight;
                losses += weight * loss;
            }
        }
        (samples, (with_loss > 0.0).then(|| losses / with_loss))
    }

    /// Records the digests of the new weights. A repetition with others ends the run: the same round
    /// would have two results.
    pub(super) fn on_computed(&mut self, outputs: Outputs) {
        let Stage::Closing(closing) = &mut self.stage else { return };
        match &closing.outputs {
            Some(first) if *first != outputs => {
                let message = format!(
                    "round {}: the repeated aggregation computed {}, the first one {}; start another run",
                    self.round, outputs.weights.sha256, first.weights.sha256
                );
                self.fail(Problem::new("NonDeterministic", message));
            }
            _ => {
                closing.outputs = Some(outputs);
                self.problem = None;
            }
        }
    }

    /// Ends the round with the recorded outputs.
    pub(super) fn on_stored(&mut self, now: UnixSeconds) {
        let Stage::Closing(closing) = &self.stage else { return };
        let Some(outputs) = closing.outputs.clone() else { return };
        let closing = closing.clone();
        for entry in &closing.record.entries {
            self.shares.insert(entry.worker.clone(), entry.weight);
        }
        self.history.push(RoundRecord {
            round: self.round,
            participants: u32::try_from(closing.record.entries.len()).unwrap_or(u32::MAX),
            samples: closing.samples,
            dataset_samples: closing.dataset_samples,
            missing_samples: closing.missing_samples,
            loss: closing.loss,
            metrics: Vec::new(),
            seconds: now.saturating_sub(closing.opened),
            weights: Some(outputs.weights.clone()),
            workers: closing.workers,
            omitted_workers: 0,
        });
        let excess = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..excess);
        self.drop_rows();
        self.velocity = outputs.velocity;
        self.base = Some(outputs.weights.clone());
        let Some(evaluation) = &self.settings.evaluation else {
            let (round, weights) = (self.round, outputs.weights);
            self.best = Some(MeasuredWeights { round, weights, metrics: Vec::new() });
            self.enter(Stage::Idle);
            return;
        };
        let is_last = self.round >= self.settings.rounds;
        if is_last || self.round.is_multiple_of(evaluation.every.max(1)) {
            self.measure(self.round, outputs.weights);
        } else {
            self.enter(Stage::Idle);
        }
    }
}

/// The samples that an update counts for.
pub fn credible_samples(report: &UpdateReport) -> u64 {
    report.counted_samples.map_or(report.samples, |it| it.min(report.samples))
}

fn participant((worker, update): (&String, &AcceptedUpdate)) -> Participant {
    Participant {
        worker: worker.clone(),
        sha256: update.content.sha256.clone(),
        reported_samples: update.report.samples,
        counted_samples: update.report.counted_samples,
        norm: update.norm,
        steps: update.report.steps,
    }
}

fn rule(rule: &AggregationRule) -> Rule {
    Rule {
        strategy: rule.trim.map_or(AggregationStrategy::FedAvg, AggregationStrategy::TrimmedMean),
        weights: if rule.equal_weights { WeightBy::Equal } else { WeightBy::Samples },
        max_weight: rule.max_weight,
        clip: rule.clip,
        refuse: rule.refuse,
        server_learning_rate: rule.server_learning_rate,
        server_momentum: rule.server_momentum,
    }
}
