//! How long an open round waits, and what happens if it cannot have enough updates.

use neptune_aggregate::close::{CloseRecord, RefusedNorm};
use neptune_program::duration::spec_seconds;
use neptune_wire::aggregator::OnTooFewWorkers;

use super::{OpenRound, Problem, Run, Stage, UnixSeconds, Verdict};

/// Seconds after which the failed tasks of a round with too few updates are opened again, if the
/// run has no round timeout.
const REOPEN_SECONDS: u64 = 3600;
/// The shortest time that a round with enough updates waits for the others by default.
const MIN_GRACE_SECONDS: u64 = 10;
/// How long too few workers must be left before the run fails: a Dataset may be replaced.
const HOPELESS_SECONDS: u64 = 5;
/// Workers whose problem a message names.
const MAX_NAMED: usize = 5;

impl Run {
    /// Returns when time changes the open round next: its deadline, the end of the grace, or when too
    /// few workers are left for good.
    pub fn deadline(&self) -> Option<UnixSeconds> {
        let Stage::Open(open) = &self.stage else { return None };
        if self.suspended {
            return None;
        }
        let is_failing = self.settings.on_too_few_workers == OnTooFewWorkers::Fail;
        let fails = open.hopeless_since.filter(|_| is_failing);
        let fails = fails.map(|it| it.saturating_add(HOPELESS_SECONDS));
        [self.round_deadline(open), self.grace_end(open), fails].into_iter().flatten().min()
    }

    fn round_deadline(&self, open: &OpenRound) -> Option<UnixSeconds> {
        let reopen = || self.pending().next().is_none().then_some(REOPEN_SECONDS);
        let seconds = self.settings.round_timeout_seconds.or_else(reopen)?;
        Some(open.waiting_since.saturating_add(seconds))
    }

    /// Returns when a round with enough updates stops waiting for the others: by default after as long
    /// as it took to have enough.
    fn grace_end(&self, open: &OpenRound) -> Option<UnixSeconds> {
        let since = open.enough_since?;
        // A whole deadline is enough to wait for the others.
        let took = if open.repetitions == 0 { since.saturating_sub(open.waiting_since) } else { 0 };
        let grace = self.settings.grace_seconds.unwrap_or(took.max(MIN_GRACE_SECONDS));
        Some(since.saturating_add(grace))
    }

    /// Closes the round if nobody is waited for any more and it has enough updates. With too few, its
    /// deadline begins again, or the run fails.
    pub(super) fn close_if_due(&mut self, now: UnixSeconds) {
        if self.suspended {
            return;
        }
        let Some((record, open)) = self.observe(now) else { return };
        let passed = |at: Option<UnixSeconds>| at.is_some_and(|it| it <= now);
        let is_late = passed(self.round_deadline(&open));
        if record.entries.len() >= self.fewest(&record.refused) {
            self.problem = None;
            let is_complete = self.pending().next().is_none();
            if is_complete || is_late || passed(self.grace_end(&open)) {
                self.close(open.opened, record);
            }
            return;
        }
        let is_hopeless = open.hopeless_since.is_some();
        if is_hopeless || is_late {
            let is_over = match self.settings.on_too_few_workers {
                OnTooFewWorkers::Wait => false,
                OnTooFewWorkers::Fail if is_hopeless => {
                    passed(open.hopeless_since.map(|it| it.saturating_add(HOPELESS_SECONDS)))
                }
                OnTooFewWorkers::Fail => open.repetitions >= self.settings.max_deadlines,
            };
            let problem = self.too_few(&record, is_over);
            if is_over {
                return self.fail(problem);
            }
            self.problem = Some(problem);
        } else if open.repetitions == 0 {
            self.problem = None;
        }
        if is_late {
            self.results.retain(|_, it| !matches!(it.verdict, Verdict::Failed(_)));
            self.end_rests();
            let mut again = OpenRound { repetitions: open.repetitions.saturating_add(1), ..open };
            again.begin_again(now);
            self.stage = Stage::Open(again);
            if let Some((record, open)) = self.observe(now)
                && open.hopeless_since.is_some()
            {
                self.problem = Some(self.too_few(&record, false));
            }
        }
    }

    /// Records since when the open round has enough updates, or cannot have them any more. Returns
    /// what it would close with. The grace does not begin while it is worth waiting for workers that
    /// have most of the samples.
    fn observe(&mut self, now: UnixSeconds) -> Option<(CloseRecord, OpenRound)> {
        let record = self.close_record();
        let (counted, fewest) = (record.entries.len(), self.fewest(&record.refused));
        let counts = |worker: &str| record.entries.iter().any(|it| it.worker == worker);
        let is_pending = |worker: &str| self.pending().any(|it| it == worker);
        let (all, missing) = self.coverage(counts);
        let (_, lost) = self.coverage(|worker| counts(worker) || is_pending(worker));
        let awaits_most = missing > all / 2 && lost <= all / 2;
        let is_hopeless = counted + self.pending().count() < fewest;
        let Stage::Open(open) = &mut self.stage else { return None };
        open.observe(now, counted >= fewest && !awaits_most, is_hopeless);
        Some((record, *open))
    }

    /// Returns the fewest updates that make new weights: `minWorkers`, or by default all of at most
    /// three workers and two thirds of more. Workers of which time brings no update do not raise the
    /// default.
    pub(super) fn fewest(&self, refused: &[RefusedNorm]) -> usize {
        if let Some(min) = self.settings.min_workers {
            return usize::try_from(min).unwrap_or(usize::MAX).max(1);
        }
        let is_session = self.settings.session.is_some();
        let is_refused = |worker: &String| refused.iter().any(|it| it.worker == *worker);
        let counts = |it: &&String| is_session || !self.is_lost(it) && !is_refused(it);
        match self.selected.iter().filter(counts).count() {
            count @ 0..=3 => count.max(1),
            count => (2 * count).div_ceil(3),
        }
    }

    /// Returns why the round has too few updates, and what to do.
    fn too_few(&self, record: &CloseRecord, is_over: bool) -> Problem {
        let (round, counted, fewest) =
            (self.round, record.entries.len(), self.fewest(&record.refused));
        let is_missing = self.pending().next().is_some();
        let done = match self.settings.round_timeout_seconds.filter(|_| is_missing) {
            Some(seconds) => format!("answered within {}", spec_seconds(seconds)),
            None => "sent an update that counts".to_owned(),
        };
        let mut parts =
            vec![format!("round {round}: {counted} of at least {fewest} workers {done}")];
        let refused = record.refused.iter();
        parts.extend(refused.map(|it| format!("worker \"{}\": {it}", it.worker)));
        let lost = self.settings.workers.keys().filter_map(|worker| {
            let problem = match self.results.get(worker).map(|it| &it.verdict) {
                Some(Verdict::Refused { problem, .. } | Verdict::Failed(problem)) => {
                    problem.clone()
                }
                Some(Verdict::Accepted(_)) => return None,
                None => self.absence(worker)?,
            };
            Some(format!("worker \"{worker}\": {}", problem.message))
        });
        let lost: Vec<_> = lost.collect();
        let more = lost.len().saturating_sub(MAX_NAMED);
        parts.extend(lost.into_iter().take(MAX_NAMED));
        if more > 0 {
            parts.push(format!("and {more} more"));
        }
        let Stage::Open(open) = &self.stage else { return Problem::new("TooFewWorkers", "") };
        match (self.settings.on_too_few_workers, self.settings.max_deadlines) {
            _ if is_over => {}
            (OnTooFewWorkers::Wait, _) => parts.push("waiting (onTooFewWorkers: Wait)".to_owned()),
            (OnTooFewWorkers::Fail, max) if open.hopeless_since.is_none() => {
                let next = open.repetitions.saturating_add(1);
                parts.push(format!("its deadline begins again ({next} of {max})"));
            }
            (OnTooFewWorkers::Fail, _) => {}
        }
        parts.push(self.remedy(counted, is_over));
        Problem::new("TooFewWorkers", parts.join("; "))
    }

    fn remedy(&self, counted: usize, is_over: bool) -> String {
        let restart = "start another run: kubectl neptune training restart";
        let kept = match self.base.as_ref().filter(|_| self.round > 1) {
            Some(base) => {
                format!("; the weights of round {} are kept ({})", self.round - 1, base.sha256)
            }
            None => String::new(),
        };
        match (is_over, counted) {
            (true, _) => format!(
                "repair the workers or lower spec.aggregation.minWorkers, and {restart}{kept}"
            ),
            (false, 0) => format!("repair the workers, or {restart}"),
            (false, _) => format!(
                "repair the workers, or lower spec.aggregation.minWorkers to {counted}, which takes effect at once"
            ),
        }
    }
}
