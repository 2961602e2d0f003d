//! Rounds: who takes part, when a round closes, and what its new weights lead to.

use neptune_aggregate::close::{
    AggregationStrategy, CloseRecord, Participant, Rule, WeightBy, close,
};
use neptune_wire::{
    TaskKind,
    aggregator::{
        AggregationRule, MeasuredWeights, OnTooFewWorkers, RoundRecord, RunTask, UpdateReport,
    },
};

use super::{
    AcceptedUpdate, Closing, MAX_HISTORY, Outputs, Problem, Rejection, Run, Stage, TaskResult,
    UnixSeconds, Verdict,
};
use crate::task::select;

/// Without a round timeout, seconds after which the failed tasks of a round with too few updates are
/// opened again.
const REOPEN_SECONDS: u64 = 3600;

impl Run {
    pub(super) fn open_round(&mut self, now: UnixSeconds) {
        self.round += 1;
        let settings = &self.settings;
        let min = usize::try_from(settings.min_workers).unwrap_or(usize::MAX);
        self.selected =
            select(settings.workers.keys(), settings.seed, self.round, settings.fraction, min);
        self.results.clear();
        self.norm_refused.clear();
        self.enter(Stage::Open { opened: now, waiting_since: now });
    }

    /// Lets the first worker make the first weights that has not failed to.
    pub(super) fn initialize(&mut self) {
        for result in self.results.values() {
            if let Verdict::Accepted(update) = &result.verdict {
                let weights = update.content.clone();
                return self.begin_with(weights);
            }
        }
        let workers = self.settings.workers.keys();
        let next = workers.clone().find(|it| !self.results.contains_key(*it));
        if let Some(worker) = next {
            self.selected = [worker.clone()].into();
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
                self.results.insert(task.worker, result);
                Ok(())
            }
        }
    }

    /// Returns when the current round is closed with fewer updates than workers, or its failed tasks
    /// are opened again.
    pub fn deadline(&self) -> Option<UnixSeconds> {
        let Stage::Open { waiting_since, .. } = self.stage else { return None };
        let reopen = || (!self.has_open_tasks()).then_some(REOPEN_SECONDS);
        let seconds = self.settings.round_timeout_seconds.or_else(reopen)?;
        Some(waiting_since.saturating_add(seconds))
    }

    /// Closes the round if it has all results, or its deadline passed with enough of them.
    pub(super) fn close_if_due(&mut self, now: UnixSeconds) {
        let Stage::Open { opened, ref mut waiting_since } = self.stage else { return };
        // The clock was set back: the timeout counts from now.
        *waiting_since = now.min(*waiting_since);
        let is_late = self.deadline().is_some_and(|it| it <= now);
        if !is_late && self.has_open_tasks() {
            return;
        }
        let record = self.close_record();
        if record.entries.len() >= self.fewest() {
            let (samples, loss) = self.totals(&record);
            let refused = record.refused.iter();
            self.norm_refused = refused.map(|it| (it.worker.clone(), it.to_string())).collect();
            let closing = Closing { opened, record, samples, loss, outputs: None };
            self.enter(Stage::Closing(Box::new(closing)));
            return;
        }
        let problem = self.too_few(&record);
        if self.settings.on_too_few_workers == OnTooFewWorkers::Fail {
            self.fail(problem);
            return;
        }
        self.problem = Some(problem);
        if is_late {
            self.results.retain(|_, it| !matches!(it.verdict, Verdict::Failed(_)));
            self.stage = Stage::Open { opened, waiting_since: now };
        }
    }

    /// The fewest updates that make new weights.
    pub(super) fn fewest(&self) -> usize {
        let min = usize::try_from(self.settings.min_workers).unwrap_or(usize::MAX);
        min.clamp(1, self.selected.len().max(1))
    }

    /// Decides which accepted updates count. If the norms of all of them are too large compared with
    /// the last round, they are compared with each other: training changed, not one worker.
    fn close_record(&self) -> CloseRecord {
        let participants: Vec<_> = self.accepted().map(participant).collect();
        let rule = rule(&self.settings.rule);
        let record = close(rule, participants.clone(), self.last_median);
        if record.entries.is_empty() && !participants.is_empty() {
            return close(rule, participants, None);
        }
        record
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

    fn too_few(&self, record: &CloseRecord) -> Problem {
        let (round, counted, min) = (self.round, record.entries.len(), self.fewest());
        let is_missing = self.has_open_tasks();
        let done = match self.settings.round_timeout_seconds.filter(|_| is_missing) {
            Some(seconds) => format!("answered within {}", duration(seconds)),
            None => "sent an update that counts".to_owned(),
        };
        let mut parts = vec![format!("round {round}: {counted} of at least {min} workers {done}")];
        let refused = record.refused.iter();
        parts.extend(refused.map(|it| format!("worker \"{}\": {it}", it.worker)));
        if self.settings.on_too_few_workers == OnTooFewWorkers::Wait {
            parts.push("waiting (onTooFewWorkers: Wait)".to_owned());
        }
        let message = parts.join("; ");
        Problem::new("TooFewWorkers", message)
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
        self.last_median = Some(closing.record.median_norm);
        for entry in &closing.record.entries {
            self.shares.insert(entry.worker.clone(), entry.weight);
        }
        self.history.push(RoundRecord {
            round: self.round,
            participants: u32::try_from(closing.record.entries.len()).unwrap_or(u32::MAX),
            samples: closing.samples,
            loss: closing.loss,
            metrics: Vec::new(),
            seconds: now.saturating_sub(closing.opened),
            weights: Some(outputs.weights.clone()),
        });
        let excess = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..excess);
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

/// Returns seconds as in a spec: `1h`, `90m`, `45s`.
fn duration(seconds: u64) -> String {
    match seconds {
        0 => "0s".to_owned(),
        _ if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}
