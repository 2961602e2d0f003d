//! Workers that do not take part: those that cannot, and those whose results did not count.

use std::collections::BTreeSet;

use neptune_wire::aggregator::FailedTask;
use serde::{Deserialize, Serialize};

use super::{Problem, Run, Verdict};
use crate::task::{ranked, sampled};

/// Number of refused updates in a row after which a worker is out of the run. One whose containers
/// failed too often is out at once.
const MAX_SETBACKS: u32 = 3;

/// Results of a worker in a row that do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Setback {
    count: u32,
    /// The last round in which the worker gets no task; then it gets one to show that the cause is
    /// gone. 0: it takes part.
    rests_until: u32,
    /// Why the last result of the worker did not count, for the status.
    problem: Problem,
}

impl Run {
    /// Records a result that does not count.
    pub(super) fn set_back(&mut self, worker: &str, problem: Problem, is_final: bool) {
        let before = self.setbacks.get(worker).map_or(0, |it| it.count);
        let count = before.saturating_add(1).max(if is_final { MAX_SETBACKS } else { 0 });
        // One round more after each further one.
        let rests_until = if count >= MAX_SETBACKS { self.round.saturating_add(count) } else { 0 };
        self.setbacks.insert(worker.to_owned(), Setback { count, rests_until, problem });
    }

    /// Records that a node gave up a task of the current round.
    pub(super) fn set_back_failed(&mut self, worker: &str, failed: &FailedTask) {
        let problem = Problem::new(&failed.reason, failed.message.clone());
        self.set_back(worker, problem, !failed.is_refused);
    }

    fn is_resting(&self, worker: &str) -> bool {
        self.setbacks.get(worker).is_some_and(|it| it.rests_until >= self.round)
    }

    /// Draws the workers of the current round. Those that cannot take part now are drawn last.
    pub(super) fn draw(&self) -> Vec<String> {
        let settings = &self.settings;
        let mut workers = ranked(settings.workers.keys(), settings.seed, self.round);
        let count = self.sample_size();
        workers.retain(|it| !self.is_resting(it));
        workers.sort_by_key(|it| self.unavailable.contains_key(*it));
        workers.into_iter().take(count).cloned().collect()
    }

    fn sample_size(&self) -> usize {
        let settings = &self.settings;
        let min = settings.min_workers.map_or(1, |it| usize::try_from(it).unwrap_or(usize::MAX));
        sampled(settings.workers.len(), settings.fraction, min)
    }

    /// Lets workers that are out of the run show again that the cause is gone.
    pub(super) fn end_rests(&mut self) {
        self.setbacks.values_mut().for_each(|it| it.rests_until = 0);
        let drawn = self.draw();
        self.selected.extend(drawn);
    }

    /// Whether no update of the worker can count in the current round any more.
    pub(super) fn is_lost(&self, worker: &str) -> bool {
        match self.results.get(worker).map(|it| &it.verdict) {
            Some(Verdict::Accepted(_)) => false,
            Some(Verdict::Refused { .. } | Verdict::Failed(_)) => true,
            None => self.unavailable.contains_key(worker),
        }
    }

    /// Returns the workers that may still send an update in the current round.
    pub(super) fn pending(&self) -> impl Iterator<Item = &String> {
        let is_pending =
            |it: &&String| !self.results.contains_key(*it) && !self.unavailable.contains_key(*it);
        self.selected.iter().filter(is_pending)
    }

    /// Returns why a worker gets no task in the current round, if there is a cause.
    pub(super) fn absence(&self, worker: &str) -> Option<Problem> {
        if let Some(problem) = self.unavailable.get(worker) {
            return Some(Problem::new(&problem.reason, problem.message.clone()));
        }
        let setback = self.setbacks.get(worker).filter(|_| self.is_resting(worker))?;
        let (count, next) = (setback.count, setback.rests_until.saturating_add(1));
        let message = format!(
            "{}; out of the run after {count} results that do not count, tries again in round {next}",
            setback.problem.message
        );
        Some(Problem { reason: setback.problem.reason.clone(), message })
    }

    /// Returns the samples that the Datasets of the round's workers had when the run began, and those
    /// of them whose worker has no update among `counted`. Workers that are out count as drawn.
    pub(super) fn coverage(&self, counted: impl Fn(&str) -> bool) -> (u64, u64) {
        let settings = &self.settings;
        let workers = ranked(settings.workers.keys(), settings.seed, self.round);
        let drawn = workers.into_iter().take(self.sample_size());
        let all: BTreeSet<_> = drawn.chain(&self.selected).collect();
        let (mut samples, mut missing) = (0_u64, 0_u64);
        for (name, worker) in settings.workers.iter().filter(|(name, _)| all.contains(name)) {
            let own = worker.samples.unwrap_or_default();
            samples = samples.saturating_add(own);
            if !counted(name) {
                missing = missing.saturating_add(own);
            }
        }
        (samples, missing)
    }
}
