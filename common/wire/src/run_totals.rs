//! Sums the cumulative counters of a worker over its runs, as its agent sees them. Reports arrive
//! late, duplicated and out of order.

use serde::{Deserialize, Serialize};

use crate::Counters;

/// Number of runs that a [`RunTotals`] lists. A report is counted twice only if it arrives more
/// than this many restarts late.
const RUNS_KEPT: usize = 16;

/// Number of start times remembered per run, for workers that change theirs while they run.
const STARTS_KEPT: usize = 16;

/// Before the start time in the name of a run of an earlier version, which named runs by it.
const NAMED_BY_START: &str = "start:";

/// The counters that a worker reports, and in which run it counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunReport<'a> {
    /// The run: a start of the worker's container. `None` if no container is known.
    pub run: Option<&'a str>,
    /// The start time that the worker states; may be empty. Start times of equal length that end
    /// with `Z` are compared as instants, others only for equality.
    pub start: &'a str,
    /// The cumulative counters of the run.
    pub counters: Counters,
    /// Whether another agent instance may have reported earlier counters of this run.
    pub is_inherited: bool,
}

/// The totals over all runs of a worker: the sum, over the runs, of the highest counters that each
/// run reported.
///
/// A start of the container is a run. A start time splits a run only when the numbers fall: then
/// the worker's process restarted within its container. So a worker may change its start time while
/// it counts on, and two containers may state the same one. A start time before the known ones may
/// be that of a late report, or of a clock that was set back: it splits the run with its second
/// report, if the numbers grew since the first one.
///
/// # Guarantees
/// The total never decreases. Duplicated, late and reordered reports do not change the result.
/// Memory is bounded: at most 16 runs are listed, older ones are folded into one sum.
///
/// # Assumptions
/// A container counts up from zero. If its process restarts and states no new start time, only the
/// highest counters count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunTotals {
    /// The sum of the runs that are no longer listed.
    #[serde(default)]
    pub folded: Counters,
    /// The newest runs, oldest first.
    #[serde(default)]
    pub runs: Vec<RunCounters>,
}

/// The highest counters that one run reported, an entry of [`RunTotals`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounters {
    /// The name of the run, unique within its [`RunTotals`].
    pub name: String,
    /// The highest counters that it reported, without `base`.
    #[serde(flatten)]
    pub counters: Counters,
    /// The last start times that the worker stated in this run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<String>,
    /// Counters of this run that another agent instance reported.
    #[serde(default, skip_serializing_if = "Counters::are_zero")]
    pub base: Counters,
    /// The last report with a start time before the known ones, and with lower numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubtful: Option<DoubtfulReport>,
}

/// A report that is late, or of a restarted process whose clock was set back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtfulReport {
    /// The start time that it states.
    pub start: String,
    /// The counters that the report states.
    #[serde(flatten)]
    pub counters: Counters,
}

impl RunTotals {
    /// Records a report. Returns whether the total changed. A report of an unknown run is ignored.
    pub fn observe(&mut self, report: &RunReport<'_>) -> bool {
        let before = self.total();
        if let Some(position) = self.position(report) {
            self.runs[position].observe(report);
        } else if let Some(run) = report.run {
            let last_part = self.runs.iter().rev().find_map(|known| known.part_of(run));
            let name = match last_part {
                None => run.to_owned(),
                Some(part) => format!("{run}#{}", part + 1),
            };
            let is_inherited = report.is_inherited && last_part.is_none();
            let base = if is_inherited { report.counters } else { Counters::default() };
            let mut new = RunCounters { name, base, ..RunCounters::default() };
            new.observe(report);
            self.runs.push(new);
        }
        while self.runs.len() > RUNS_KEPT {
            let oldest = self.runs.remove(0);
            self.folded = self.folded.plus(oldest.counters);
        }
        self.total() != before
    }

    /// Returns whether [`observe`](Self::observe) can count a report.
    pub fn is_known(&self, report: &RunReport<'_>) -> bool {
        report.run.is_some() || self.position(report).is_some()
    }

    /// The run that a report belongs to; `None` if it begins a new one.
    fn position(&self, report: &RunReport<'_>) -> Option<usize> {
        let by_start = |run: &RunCounters| !report.start.is_empty() && run.has_start(report.start);
        let Some(name) = report.run else { return self.runs.iter().rposition(by_start) };
        let is_part = |run: &RunCounters| run.part_of(name).is_some();
        if let Some(same) = self.runs.iter().rposition(|run| is_part(run) && by_start(run)) {
            return Some(same);
        }
        let Some(last) = self.runs.iter().rposition(is_part) else {
            let is_legacy = |run: &RunCounters| run.name.starts_with(NAMED_BY_START);
            return self.runs.iter().rposition(|run| is_legacy(run) && by_start(run));
        };
        // The last report of an earlier container.
        if let Some(earlier) = self.runs.iter().rposition(by_start) {
            return Some(earlier);
        }
        (!self.runs[last].is_restarted(report)).then_some(last)
    }

    /// Returns the sum over all runs.
    pub fn total(&self) -> Counters {
        self.runs.iter().fold(self.folded, |sum, run| sum.plus(run.counters))
    }

    /// Converts the runs of an earlier version, which named a run by its start time unless that was
    /// empty. Removes counters that are not possible. `normalize` returns the instant of a start
    /// time in the form of [`RunReport::start`].
    pub fn upgrade(&mut self, normalize: impl Fn(&str) -> String) {
        for run in &mut self.runs {
            if run.starts.is_empty() && !run.name.contains('@') {
                run.starts = vec![normalize(&run.name)];
                run.name = format!("{NAMED_BY_START}{}", run.name);
            }
        }
        self.runs.retain(|run| run.counters.are_possible());
        if !self.folded.are_possible() {
            self.folded = Counters::default();
        }
    }

    /// Starts at zero: another instance reported everything so far. The runs continue.
    pub fn rebase(&mut self) {
        self.folded = Counters::default();
        for run in &mut self.runs {
            run.base = run.base.plus(run.counters);
            run.counters = Counters::default();
        }
    }
}

impl RunCounters {
    fn observe(&mut self, report: &RunReport<'_>) {
        if let Some(run) = report.run.filter(|_| self.name.starts_with(NAMED_BY_START)) {
            run.clone_into(&mut self.name);
        }
        let is_new = !report.start.is_empty() && !self.has_start(report.start);
        if is_new && self.is_earlier(report.start) && self.have_fallen(report) {
            let (start, counters) = (report.start.to_owned(), report.counters);
            self.doubtful = Some(DoubtfulReport { start, counters });
            return;
        }
        self.counters = self.counters.max(report.counters.minus(self.base));
        if !is_new {
            return;
        }
        self.starts.push(report.start.to_owned());
        if self.starts.len() > STARTS_KEPT {
            self.starts.remove(0);
        }
    }

    fn has_start(&self, start: &str) -> bool {
        self.starts.iter().any(|known| known == start)
    }

    /// Which part of the run this is: 0, or higher after restarts of the worker's process. `None`
    /// if it is of another run.
    fn part_of(&self, run: &str) -> Option<u32> {
        match self.name.strip_prefix(run)? {
            "" => Some(0),
            part => part.strip_prefix('#')?.parse().ok(),
        }
    }

    /// Whether a report of this run, with a start time that it does not have, is of a restarted
    /// process: its numbers fell, and it did not start earlier, unless it counts on.
    fn is_restarted(&self, report: &RunReport<'_>) -> bool {
        let counts_on = || {
            self.doubtful.as_ref().is_some_and(|first| {
                first.start == report.start
                    && first.counters != report.counters
                    && !report.counters.are_below(first.counters)
            })
        };
        !report.start.is_empty()
            && self.have_fallen(report)
            && (!self.is_earlier(report.start) || counts_on())
    }

    /// Whether an instant is before one that the worker stated in this run.
    fn is_earlier(&self, start: &str) -> bool {
        let is_instant = |known: &str| known.len() == start.len() && known.ends_with('Z');
        is_instant(start) && self.starts.iter().any(|known| is_instant(known) && start < &**known)
    }

    /// Whether the numbers of a report are below the highest ones of this run.
    fn have_fallen(&self, report: &RunReport<'_>) -> bool {
        report.counters.are_below(self.base.plus(self.counters))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_COUNTER;

    fn counters(inference: u64, hard: u64) -> Counters {
        Counters { inference, hard, ..Counters::default() }
    }

    fn report<'a>(run: &'a str, start: &'a str, inference: u64, hard: u64) -> RunReport<'a> {
        let counters = counters(inference, hard);
        RunReport { run: Some(run), start, counters, is_inherited: false }
    }

    fn total_of(reports: &[RunReport<'_>]) -> u64 {
        let mut totals = RunTotals::default();
        for report in reports {
            totals.observe(report);
        }
        totals.total().inference
    }

    #[test]
    fn fallbacks_are_summed_over_runs_like_the_other_counters() {
        let with = |run: &'static str, inference, fallback| {
            let counters = Counters { fallback, ..counters(inference, 1) };
            RunReport { counters, ..report(run, "", 0, 0) }
        };
        let mut totals = RunTotals::default();
        for report in [with("c1", 10, 4), with("c1", 12, 5), with("c1", 10, 4), with("c2", 3, 2)] {
            totals.observe(&report);
        }
        assert_eq!(totals.total(), Counters { fallback: 7, ..counters(15, 2) });
        let stored = serde_json::to_value(&totals).expect("plain data");
        assert_eq!(serde_json::from_value::<RunTotals>(stored).expect("the same"), totals);
        // A worker that stops reporting them is not a restarted one.
        totals.observe(&RunReport { start: "t", ..with("c2", 4, 0) });
        assert_eq!(totals.total(), Counters { fallback: 7, ..counters(16, 2) });
        assert!(!Counters { fallback: 2, ..counters(3, 2) }.are_possible());
        let earlier: Counters = serde_json::from_str(r#"{"inference":3,"hard":1}"#).expect("valid");
        assert_eq!(earlier, counters(3, 1));
    }

    #[test]
    fn restart_adds_to_the_total_and_late_report_does_not() {
        let mut totals = RunTotals::default();
        assert!(totals.observe(&report("c1", "first", 10, 2)));
        assert!(totals.observe(&report("c2", "second", 3, 1)));
        assert!(!totals.observe(&report("c2", "first", 9, 2)), "late");
        assert!(!totals.observe(&report("c2", "second", 3, 1)), "duplicate");
        assert_eq!(totals.total(), counters(13, 3));
        let last = report("c2", "first", 11, 2);
        assert!(totals.observe(&last), "the last report of a run that exited");
        assert_eq!(totals.total(), counters(14, 3));
        let unknown = RunReport { run: None, ..report("", "third", 5, 0) };
        assert!(!totals.is_known(&unknown) && !totals.observe(&unknown));
        assert!(totals.is_known(&RunReport { run: None, ..last }));
    }

    #[test]
    fn renewed_start_time_with_growing_numbers_is_one_run() {
        let (starts, mut totals) = (["t1", "t2", "t3", "t4"], RunTotals::default());
        for (start, inference) in starts.into_iter().zip([100, 200, 300, 400]) {
            totals.observe(&report("c", start, inference, 0));
        }
        assert!(!totals.observe(&report("c", "t2", 200, 0)), "redelivered");
        assert_eq!(totals.total(), counters(400, 0));
    }

    #[test]
    fn repeated_and_missing_start_times_keep_the_known_ones() {
        for start in ["t2", ""] {
            let mut totals = RunTotals::default();
            totals.observe(&report("c", "t1", 100, 0));
            for inference in 101..=120 {
                totals.observe(&report("c", start, inference, 0));
            }
            assert!(!totals.observe(&report("c", "t1", 100, 0)), "redelivered");
            assert_eq!(totals.total(), counters(120, 0));
        }
    }

    #[test]
    fn process_restarted_in_its_container_is_a_run_of_its_own() {
        let restarted = [report("c", "t1", 100, 0), report("c", "t2", 5, 0)];
        assert_eq!(total_of(&restarted), 105);
        let [first, second] = ["2026-08-01T12:00:00Z", "2026-08-01T12:00:05Z"];
        assert_eq!(total_of(&[report("c", first, 100, 0), report("c", second, 5, 0)]), 105);
        let late = [report("c", second, 100, 0), report("c", first, 95, 0)];
        assert_eq!(total_of(&late), 100, "an earlier start time is of a late report");
        let silent = [report("c", "", 100, 0), report("c", "", 5, 0)];
        assert_eq!(total_of(&silent), 100, "without a start time it cannot be distinguished");
    }

    #[test]
    fn process_restarted_with_a_clock_set_back_counts_from_its_second_report() {
        let [first, later] = ["2026-08-01T12:00:00Z", "2026-08-01T12:00:05Z"];
        let mut totals = RunTotals::default();
        totals.observe(&report("c", later, 100, 10));
        assert!(!totals.observe(&report("c", first, 5, 0)), "it may be late");
        assert!(!totals.observe(&report("c", first, 5, 0)), "the same again");
        let stored = serde_json::to_value(&totals).expect("plain data");
        let mut totals: RunTotals = serde_json::from_value(stored).expect("the same");
        for (inference, hard, total) in [(7, 1, (107, 11)), (9, 1, (109, 11)), (200, 9, (300, 19))]
        {
            totals.observe(&report("c", first, inference, hard));
            assert_eq!(totals.total(), counters(total.0, total.1));
        }
        assert!(!totals.observe(&report("c", later, 99, 10)), "the late one of the first process");
        totals.observe(&report("c", later, 101, 10));
        assert_eq!(totals.total(), counters(301, 19));
    }

    #[test]
    fn equal_start_times_of_two_containers_are_two_runs() {
        let epoch = "1970-01-01T00:00:00Z";
        assert_eq!(total_of(&[report("c1", epoch, 10, 0), report("c2", epoch, 10, 0)]), 20);
    }

    #[test]
    fn runs_of_an_earlier_version_continue() {
        let named = |name: &str| RunCounters {
            name: name.to_owned(),
            counters: counters(10, 1),
            ..RunCounters::default()
        };
        let mut totals =
            RunTotals { runs: vec![named("T"), named("c0@s")], ..RunTotals::default() };
        totals.runs.push(RunCounters { counters: counters(u64::MAX, 0), ..named("bad") });
        totals.upgrade(str::to_lowercase);
        assert_eq!(totals.total(), counters(20, 2));
        let upgraded = totals.clone();
        totals.upgrade(str::to_lowercase);
        assert_eq!(totals, upgraded);
        totals.observe(&report("c1@s", "t", 12, 1));
        assert_eq!(totals.total(), counters(22, 2));
        totals.observe(&report("c1@s", "u", 13, 1));
        assert_eq!(totals.total(), counters(23, 2), "it is the run of its container now");
    }

    #[test]
    fn inherited_run_counts_from_its_first_report() {
        let mut totals = RunTotals::default();
        let inherited = RunReport { is_inherited: true, ..report("c", "t", 1000, 10) };
        assert!(!totals.observe(&inherited));
        totals.observe(&RunReport { is_inherited: true, ..report("c", "t", 1005, 11) });
        assert_eq!(totals.total(), counters(5, 1));
        totals.rebase();
        assert_eq!(totals.total(), counters(0, 0));
        totals.observe(&report("c", "t", 1007, 11));
        assert_eq!(totals.total(), counters(2, 0));
    }

    #[test]
    fn process_that_restarts_in_an_inherited_container_counts_from_zero() {
        let [first, second] = ["2026-08-01T12:00:00Z", "2026-08-01T12:00:05Z"];
        let inherited =
            |start, inference| RunReport { is_inherited: true, ..report("c", start, inference, 0) };
        let mut totals = RunTotals::default();
        totals.observe(&inherited(first, 1000));
        totals.observe(&inherited(second, 5));
        assert_eq!(totals.total(), counters(5, 0), "no other instance reported the second process");
    }

    #[test]
    fn start_times_that_are_no_instants_have_no_order() {
        assert_eq!(total_of(&[report("c", "b", 100, 0), report("c", "a", 5, 0)]), 105);
        let [longer, instant] = ["2026-08-01T12:00:00.5Z", "2026-08-01T12:00:00Z"];
        assert_eq!(total_of(&[report("c", longer, 100, 0), report("c", instant, 5, 0)]), 105);
    }

    #[test]
    fn start_times_of_a_run_are_limited() {
        let mut totals = RunTotals::default();
        for start in 0..100 {
            totals.observe(&report("c", &start.to_string(), 10 + start, 0));
        }
        assert_eq!(totals.runs[0].starts.len(), STARTS_KEPT);
        assert_eq!(totals.total(), counters(109, 0));
    }

    #[test]
    fn impossible_sum_of_an_earlier_version_is_dropped() {
        let folded = Counters { hard: 11, ..counters(10, 0) };
        let mut totals = RunTotals { folded, ..RunTotals::default() };
        totals.upgrade(str::to_owned);
        assert_eq!(totals.total(), Counters::default());
    }

    #[test]
    fn folded_runs_stay_in_the_total() {
        let mut totals = RunTotals::default();
        for run in 0..100 {
            totals.observe(&report(&run.to_string(), "", 10, 1));
        }
        assert_eq!(totals.total(), counters(1000, 100));
        assert_eq!(totals.runs.len(), RUNS_KEPT);
    }

    #[test]
    fn numbers_of_gateways_are_checked_and_restart_a_run() {
        let gateway = Counters { decided_hard: 6, over_budget: 2, unjudged: 4, ..counters(10, 3) };
        assert!(Counters { fallback: 1, shadow: 12, ..gateway }.are_possible());
        for bad in [
            Counters { decided_hard: 11, ..gateway },
            Counters { over_budget: 7, ..gateway },
            Counters { unjudged: 11, ..gateway },
            Counters { deadline: 7, ..gateway },
            Counters { tiers: [11].into_iter().collect(), ..gateway },
            Counters { shadow: MAX_COUNTER + 1, ..gateway },
        ] {
            assert!(!bad.are_possible(), "{bad:?}");
        }
        let mut totals = RunTotals::default();
        let with = |start, counters| RunReport { counters, ..report("c", start, 0, 0) };
        totals.observe(&with("2026-08-01T12:00:00Z", gateway));
        let restarted = Counters { decided_hard: 1, ..counters(10, 3) };
        totals.observe(&with("2026-08-01T12:00:05Z", restarted));
        assert_eq!(totals.total(), gateway.plus(restarted), "the decided ones fell");
        let stored = serde_json::to_value(&totals).expect("plain data");
        assert_eq!(stored["runs"][0]["overBudget"], 2);
        assert_eq!(stored["runs"][1].get("overBudget"), None, "as of earlier versions");
        assert_eq!(serde_json::from_value::<RunTotals>(stored).expect("the same"), totals);
    }

    /// What a gateway counts between two reports.
    fn step() -> impl Strategy<Value = Counters> {
        (0u64..50, 0u64..20, 0u64..20, 0u64..20, 0u64..20, 0u64..5, 0u64..5).prop_map(
            |(easy, hard, fallback, over_budget, unjudged, shadow, deadline)| Counters {
                inference: easy + hard + fallback + over_budget + unjudged + deadline,
                hard,
                fallback,
                decided_hard: hard + fallback + over_budget + deadline,
                over_budget,
                unjudged,
                shadow,
                deadline,
                tiers: [hard / 2, hard - hard / 2].into_iter().collect(),
            },
        )
    }

    proptest! {
        /// The reports of every run, duplicated and reordered, including the last one of each run.
        #[test]
        fn total_is_the_sum_of_the_runs_for_any_order_of_reports(
            runs in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..8),
            order in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..64),
        ) {
            let runs: Vec<Vec<Counters>> = runs
                .iter()
                .map(|steps| {
                    steps.iter().scan(Counters::default(), |sum, step| {
                        *sum = sum.plus(*step);
                        Some(*sum)
                    }).collect()
                })
                .collect();
            let mut totals = RunTotals::default();
            let mut before = Counters::default();
            let shuffled = order.iter().map(|(run, step)| {
                let run = run.index(runs.len());
                (run, runs[run][step.index(runs[run].len())])
            });
            let lasts = runs.iter().enumerate().map(|(run, steps)| (run, steps[steps.len() - 1]));
            for (run, reported) in shuffled.chain(lasts) {
                let (run, start) = (format!("c{run}"), format!("t{run}"));
                totals.observe(&RunReport { counters: reported, ..report(&run, &start, 0, 0) });
                let now = totals.total();
                prop_assert_eq!(now.max(before), now, "no counter decreases");
                prop_assert!(now.are_possible());
                before = now;
            }
            let expected = runs.iter().fold(Counters::default(), |sum, steps| sum.plus(steps[steps.len() - 1]));
            prop_assert_eq!(totals.total(), expected);
        }
    }
}
