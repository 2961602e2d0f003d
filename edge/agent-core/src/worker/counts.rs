//! Adds up what the node's workers counted, over all their runs. The caller stores it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use neptune_wire::{
    DepartedTotals, ModelOutput, ObjectKey, Replica, RunReport, RunTotals, WorkerInfo, WorkerName,
    replica::ReplicaChange,
};

use crate::{
    domain::worker_count::{CountTotal, FinishedRun, ReportedModel, WorkerCount, WorkerRun},
    worker::{model_reports, start_time},
};

/// Objects that left the node and whose totals are kept. Bounded for controllers of an earlier
/// version, which do not reply which objects are gone for good.
const MAX_DEPARTED: usize = 256;

/// Prefix of the start time in the name of the run that is the sum of a gateway's processes.
const GATEWAY_RUN: &str = "gateway@";

/// The name of the run that is the sum of all processes of a gateway since this time.
pub fn gateway_run(start: &str) -> String {
    format!("{GATEWAY_RUN}{start}")
}

/// The counts by object UID and worker. A renamed worker keeps counting for its object.
///
/// Totals of an object that left the node are kept, because it may return, and because the cloud
/// may not have them yet.
#[derive(Debug, Default)]
pub struct Counts {
    counts: BTreeMap<(String, WorkerName), WorkerCount>,
    /// Workers whose counts changed or were removed since the last save.
    unsaved: BTreeSet<(String, WorkerName)>,
}

impl Counts {
    /// Restores the stored counts. `uids` are the objects that the node has.
    pub fn restore(
        mut counts: BTreeMap<(String, WorkerName), WorkerCount>,
        uids: &BTreeSet<&str>,
    ) -> Self {
        for count in counts.values_mut() {
            count.tally.upgrade(start_time::normalize);
        }
        let mut counts = Self { counts, unsaved: BTreeSet::new() };
        counts.depart(|uid, _| !uids.contains(uid));
        counts
    }

    /// Records a worker's message. `counts` are its counters, if they count for the object.
    ///
    /// # Errors
    /// The total would be impossible. Nothing is recorded.
    pub fn observe(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        worker: &WorkerName,
        info: &WorkerInfo,
        counts: Option<&RunReport<'_>>,
    ) -> Result<(), &'static str> {
        let key = (uid.to_owned(), worker.clone());
        let before = self.counts.get(&key);
        let mut count = before.cloned().unwrap_or_else(|| new_count(object));
        count.status.clone_from(&info.status);
        if let Some(report) = counts {
            let earlier = count.tally.total();
            count.tally.observe(report);
            let new = count.tally.total().minus(earlier);
            if new.hard > 0 || new.fallback > 0 {
                // A gateway knows and reports why: a cloud that refuses requests is reachable.
                count.cloud_unreachable = new.hard == 0 && info.gateway.is_none();
            }
            let start =
                info.task_info.as_ref().map(|task| task.start_time.as_str()).unwrap_or_default();
            if count.first_start.is_empty() {
                start.clone_into(&mut count.first_start);
            }
            let others = self.counts.iter().filter(|((object_uid, _), _)| object_uid == uid);
            let others = others.filter(|(known, _)| **known != key);
            let total = others.fold(count.tally.total(), |sum, (_, it)| sum.plus(it.tally.total()));
            if !total.are_possible() {
                return Err("the total of taskInfo.inferenceNumber over all runs exceeds 2^53");
            }
        }
        if before != Some(&count) {
            self.counts.insert(key.clone(), count);
            self.unsaved.insert(key);
        }
        Ok(())
    }

    /// Records the observed run of a worker. The status of an earlier run no longer applies.
    /// `alive_boot` is the boot ID of the machine if the run is alive.
    pub fn observe_run(
        &mut self,
        object: &ObjectKey,
        (uid, worker): (&str, &WorkerName),
        name: &str,
        alive_boot: Option<&str>,
    ) {
        self.update_run(object, (uid, worker), |count| {
            if count.run.name != name {
                // Stored by an earlier version of the agent: the status may be of this run.
                if !count.run.name.is_empty() {
                    count.status.clear();
                }
                name.clone_into(&mut count.run.name);
                count.run.boot.clear();
            }
            if let Some(boot) = alive_boot {
                boot.clone_into(&mut count.run.boot);
            }
        });
    }

    /// Records whether a worker is finished.
    pub fn set_finished(
        &mut self,
        object: &ObjectKey,
        (uid, worker): (&str, &WorkerName),
        finished: Option<FinishedRun>,
    ) {
        self.update_run(object, (uid, worker), |count| count.run.finished = finished);
    }

    fn update_run(
        &mut self,
        object: &ObjectKey,
        (uid, worker): (&str, &WorkerName),
        update: impl FnOnce(&mut WorkerCount),
    ) {
        let key = (uid.to_owned(), worker.clone());
        let before = self.counts.get(&key);
        let mut count = before.cloned().unwrap_or_else(|| new_count(object));
        update(&mut count);
        if before != Some(&count) {
            self.counts.insert(key.clone(), count);
            self.unsaved.insert(key);
        }
    }

    /// Returns the last observed run of a worker; `None` if none was observed.
    pub fn run(&self, uid: &str, worker: &WorkerName) -> Option<&WorkerRun> {
        self.counts.get(&(uid.to_owned(), worker.clone())).map(|count| &count.run)
    }

    /// How a worker finished, if it is not to be started again with that specification.
    pub fn finished(&self, uid: &str, worker: &WorkerName) -> Option<&FinishedRun> {
        self.run(uid, worker)?.finished.as_ref()
    }

    /// Records what a worker that was [observed](Self::observe) reports of a model.
    pub fn record_model(
        &mut self,
        uid: &str,
        worker: &WorkerName,
        reported: ReportedModel,
        wall: Timestamp,
    ) {
        let key = (uid.to_owned(), worker.clone());
        let Some(count) = self.counts.get_mut(&key) else { return };
        let before = count.models.clone();
        model_reports::record(&mut count.models, reported, wall);
        if count.models != before {
            self.unsaved.insert(key);
        }
    }

    /// The last reports of a worker on models, the newest last.
    pub fn reported_models(&self, uid: &str, worker: &WorkerName) -> &[ReportedModel] {
        self.counts.get(&(uid.to_owned(), worker.clone())).map_or(&[], |count| &count.models)
    }

    /// The newest report of an object's workers on each model.
    pub fn models(&self, uid: &str) -> Vec<ModelOutput> {
        let counts = self.counts.iter().filter(|((object_uid, _), _)| object_uid == uid);
        model_reports::newest(counts.flat_map(|(_, count)| &count.models))
    }

    /// Applies changes of the node's objects. Returns whether totals departed.
    pub fn on_changes(&mut self, changes: &[ReplicaChange], replica: &Replica) -> bool {
        let mut has_departed = false;
        for change in changes {
            match change {
                ReplicaChange::Set(key) => {
                    let uid = &replica.objects()[key].content.metadata.uid;
                    has_departed |= self.set_current(key, Some(uid));
                }
                ReplicaChange::Removed(key) => has_departed |= self.set_current(key, None),
                ReplicaChange::Index => self.forget_gone(&replica.index().gone_uids),
                ReplicaChange::Renewed(_) => {}
            }
        }
        has_departed
    }

    /// The object of this name left the node, or has this UID now. Returns whether totals departed.
    fn set_current(&mut self, object: &ObjectKey, current_uid: Option<&str>) -> bool {
        for (key, count) in &mut self.counts {
            if count.departed > 0 && Some(key.0.as_str()) == current_uid {
                count.departed = 0;
                self.unsaved.insert(key.clone());
            }
        }
        self.depart(|uid, count| count.object == *object && Some(uid) != current_uid)
    }

    /// The object of this UID left the node before the last message of its worker.
    pub fn set_departed(&mut self, uid: &str) {
        self.depart(|object_uid, _| object_uid == uid);
    }

    /// Marks counts as departed. Returns whether any counters were.
    fn depart(&mut self, is_departing: impl Fn(&str, &WorkerCount) -> bool) -> bool {
        let order = self.counts.values().map(|count| count.departed).max().unwrap_or_default() + 1;
        let is_departing =
            |uid: &str, count: &WorkerCount| count.departed == 0 && is_departing(uid, count);
        let mut has_departed = false;
        for (key, count) in &mut self.counts {
            if is_departing(&key.0, count) {
                count.departed = order;
                count.status.clear();
                count.run = WorkerRun::default();
                count.models.clear();
                self.unsaved.insert(key.clone());
                has_departed |= !count.tally.runs.is_empty();
            }
        }
        // What reported no counters has nothing to keep.
        self.remove(|_, count| count.departed > 0 && count.tally.runs.is_empty());
        while let Some(oldest) = self.oldest_departed_beyond(MAX_DEPARTED) {
            self.remove(|uid, count| count.departed > 0 && uid == oldest);
        }
        has_departed
    }

    fn oldest_departed_beyond(&self, limit: usize) -> Option<String> {
        let departed = self.counts.iter().filter(|(_, count)| count.departed > 0);
        let orders: BTreeMap<&str, u64> =
            departed.map(|((uid, _), count)| (uid.as_str(), count.departed)).collect();
        let oldest = orders.iter().min_by_key(|(_, order)| **order);
        oldest.filter(|_| orders.len() > limit).map(|(uid, _)| (*uid).to_owned())
    }

    fn remove(&mut self, is_removed: impl Fn(&str, &WorkerCount) -> bool) {
        let unsaved = &mut self.unsaved;
        self.counts.retain(|key, count| {
            let is_kept = !is_removed(&key.0, count);
            if !is_kept {
                unsaved.insert(key.clone());
            }
            is_kept
        });
    }

    /// Deletes the totals of departed objects that no longer exist in the cluster.
    fn forget_gone(&mut self, uids: &BTreeSet<String>) {
        self.remove(|uid, count| count.departed > 0 && uids.contains(uid));
    }

    /// Whether the cloud worker answered none of a worker's last hard samples.
    pub fn is_cloud_unreachable(&self, uid: &str, worker: &WorkerName) -> bool {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()));
        count.is_some_and(|count| count.cloud_unreachable)
    }

    /// All counts as those of a new instance, which starts at zero: the cloud has everything so far
    /// from the earlier one.
    pub fn rebased(&self) -> BTreeMap<(String, WorkerName), WorkerCount> {
        let mut counts = self.counts.clone();
        for count in counts.values_mut() {
            count.tally.rebase();
        }
        counts
    }

    /// The totals of the objects that left the node, by UID.
    pub fn departed(&self) -> BTreeMap<String, DepartedTotals> {
        let departed = self.counts.iter().filter(|(_, count)| count.departed > 0);
        let totals = |((uid, _), count): (&(String, WorkerName), &WorkerCount)| {
            let (object, counters) = (count.object.clone(), self.total(uid).counters);
            let totals = DepartedTotals { object, counters };
            (uid.clone(), totals)
        };
        departed.map(totals).collect()
    }

    /// The sum over all workers that the object of this UID ever had on this node.
    pub fn total(&self, uid: &str) -> CountTotal {
        let mut total = CountTotal::default();
        for (_, count) in self.counts.iter().filter(|((object_uid, _), _)| object_uid == uid) {
            total.has_counted |= !count.tally.runs.is_empty();
            total.counters = total.counters.plus(count.tally.total());
            let start = &count.first_start;
            if !start.is_empty() && (total.first_start.is_empty() || *start < total.first_start) {
                total.first_start.clone_from(start);
            }
        }
        total
    }

    /// Whether the run of a report is known, or can be counted as a new one.
    pub fn is_known_run(&self, uid: &str, worker: &WorkerName, report: &RunReport<'_>) -> bool {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()));
        report.run.is_some() || count.is_some_and(|count| count.tally.is_known(report))
    }

    /// Whether a run of this object's worker stated this start time.
    pub fn has_start(&self, uid: &str, worker: &WorkerName, start: &str) -> bool {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()));
        let runs = count.into_iter().flat_map(|count| &count.tally.runs);
        !start.is_empty() && runs.flat_map(|run| &run.starts).any(|known| known == start)
    }

    /// Whether a run that is a container was counted and began at this instant or later.
    pub fn has_container_run_since(&self, uid: &str, worker: &WorkerName, start: &str) -> bool {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()));
        let runs = count.into_iter().flat_map(|count| &count.tally.runs);
        let of_containers = runs.filter(|run| !run.name.starts_with(GATEWAY_RUN));
        let mut starts = of_containers.flat_map(|run| &run.starts);
        // Of equal length: both are instants.
        starts.any(|known| known.len() == start.len() && known.as_str() >= start)
    }

    /// The last run of a worker that was counted.
    pub fn last_run(&self, uid: &str, worker: &WorkerName) -> Option<&str> {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()))?;
        Some(&count.tally.runs.last()?.name)
    }

    /// The last status that the worker reported; empty without one.
    pub fn status(&self, uid: &str, worker: &WorkerName) -> &str {
        self.counts.get(&(uid.to_owned(), worker.clone())).map_or("", |count| &count.status)
    }

    /// The counts that are not stored yet; `None` for removed ones.
    pub fn unsaved(&self) -> impl Iterator<Item = (&(String, WorkerName), Option<&WorkerCount>)> {
        self.unsaved.iter().map(|key| (key, self.counts.get(key)))
    }

    pub fn is_saved(&self) -> bool {
        self.unsaved.is_empty()
    }

    /// Marks all counts as stored.
    pub fn mark_saved(&mut self) {
        self.unsaved.clear();
    }
}

fn new_count(object: &ObjectKey) -> WorkerCount {
    WorkerCount {
        object: object.clone(),
        tally: RunTotals::default(),
        status: String::new(),
        run: WorkerRun::default(),
        first_start: String::new(),
        models: Vec::new(),
        departed: 0,
        cloud_unreachable: false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{Counters, MAX_COUNTER};

    use super::*;

    fn service() -> ObjectKey {
        "d/jointinferenceservices/s".parse().unwrap()
    }

    fn try_observe(
        counts: &mut Counts,
        uid: &str,
        (worker, run, start): (&str, &str, &str),
        inference: u64,
    ) -> Result<(), &'static str> {
        let task = serde_json::json!({
            "inferenceNumber": inference, "hardExampleNumber": inference / 10, "startTime": start,
        });
        let info = serde_json::from_value(serde_json::json!({ "taskInfo": task })).unwrap();
        let counters = Counters { inference, hard: inference / 10, ..Counters::default() };
        let report = RunReport { run: Some(run), start, counters, is_inherited: false };
        counts.observe(&service(), uid, &worker.parse().unwrap(), &info, Some(&report))
    }

    fn observe(counts: &mut Counts, worker: &str, run: &str, inference: u64) {
        try_observe(counts, "uid", (worker, run, run), inference).unwrap();
    }

    #[test]
    fn cloud_is_unreachable_after_fallbacks_until_it_answers() {
        let (mut counts, worker) = (Counts::default(), "w".parse().unwrap());
        let info = serde_json::from_value(serde_json::json!({})).unwrap();
        let mut is_unreachable = |inference, hard, fallback| {
            let counters = Counters { inference, hard, fallback, ..Counters::default() };
            let report = RunReport { run: Some("c"), start: "", counters, is_inherited: false };
            counts.observe(&service(), "uid", &worker, &info, Some(&report)).unwrap();
            counts.is_cloud_unreachable("uid", &worker)
        };
        let reports = [(5, 0, 0), (9, 1, 0), (12, 1, 2), (20, 1, 2), (25, 2, 3), (30, 2, 4)];
        let seen =
            reports.map(|(inference, hard, fallback)| is_unreachable(inference, hard, fallback));
        assert_eq!(seen, [false, false, true, true, false, true]);
        assert_eq!(counts.total("uid").counters.fallback, 4);
        let stored = serde_json::to_value(counts.counts.values().next()).unwrap();
        assert_eq!(stored["cloudUnreachable"], true, "kept when the agent restarts");
        let gateway = serde_json::from_value(serde_json::json!({"gateway": {}})).unwrap();
        let counters = Counters { inference: 31, hard: 2, fallback: 5, ..Counters::default() };
        let report = RunReport { run: Some("c"), start: "", counters, is_inherited: false };
        counts.observe(&service(), "uid", &worker, &gateway, Some(&report)).unwrap();
        assert!(!counts.is_cloud_unreachable("uid", &worker), "a gateway reports the cause");
    }

    #[test]
    fn total_includes_all_runs_of_all_workers_of_the_object() {
        let mut counts = Counts::default();
        observe(&mut counts, "old-name", "2026-01-02", 10);
        observe(&mut counts, "new-name", "2026-01-03", 50);
        observe(&mut counts, "new-name", "2026-01-04", 10);
        let total = counts.total("uid");
        assert_eq!(total.counters, Counters { inference: 70, hard: 7, ..Counters::default() });
        assert_eq!(total.first_start, "2026-01-02");
        assert!(total.has_counted);
        assert_eq!(counts.total("another").counters, Counters::default());
    }

    #[test]
    fn unchanged_counts_are_not_stored_again() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10);
        assert_eq!(counts.unsaved().count(), 1);
        counts.mark_saved();
        observe(&mut counts, "w", "1", 10);
        assert!(counts.is_saved());
    }

    #[test]
    fn impossible_total_is_refused() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", MAX_COUNTER);
        let refused = try_observe(&mut counts, "uid", ("w", "2", "t"), 1);
        assert!(refused.is_err_and(|why| why.contains("2^53")));
        assert_eq!(counts.total("uid").counters.inference, MAX_COUNTER);
    }

    #[test]
    fn object_that_returns_to_the_node_continues_its_totals() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 1000);
        assert!(counts.set_current(&service(), None));
        assert_eq!(counts.departed()["uid"].counters.inference, 1000);
        assert!(!counts.set_current(&service(), Some("uid")));
        assert!(counts.departed().is_empty());
        observe(&mut counts, "w", "2", 50);
        assert_eq!(counts.total("uid").counters.inference, 1050);
    }

    #[test]
    fn totals_are_kept_until_the_object_is_gone_for_good() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10);
        counts.set_current(&service(), Some("newer uid"));
        counts.forget_gone(&["another".to_owned()].into());
        observe(&mut counts, "w", "1", 20);
        assert_eq!(counts.departed()["uid"].counters.inference, 20, "its last message");
        counts.mark_saved();
        counts.forget_gone(&["uid".to_owned()].into());
        assert_eq!(counts.departed(), BTreeMap::new());
        assert!(counts.unsaved().eq([(&("uid".to_owned(), "w".parse().unwrap()), None)]));
    }

    #[test]
    fn current_totals_are_kept_when_their_uid_is_listed_as_gone() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10);
        counts.forget_gone(&["uid".to_owned()].into());
        assert_eq!(counts.total("uid").counters.inference, 10);
    }

    #[test]
    fn stored_totals_of_an_object_that_left_are_departed() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10);
        let stored = counts.counts;
        let restore =
            |uids: &[&str]| Counts::restore(stored.clone(), &uids.iter().copied().collect());
        assert!(restore(&["uid"]).departed().is_empty());
        assert_eq!(restore(&[]).departed().len(), 1);
    }

    #[test]
    fn new_instance_starts_at_zero_and_its_runs_continue() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 100);
        let mut rebased = Counts::restore(counts.rebased(), &["uid"].into());
        assert_eq!(rebased.total("uid").counters, Counters::default());
        observe(&mut rebased, "w", "1", 130);
        assert_eq!(
            rebased.total("uid").counters,
            Counters { inference: 30, hard: 3, ..Counters::default() }
        );
    }

    #[test]
    fn oldest_departed_totals_beyond_the_limit_are_removed() {
        let mut counts = Counts::default();
        for n in 0..MAX_DEPARTED + 2 {
            try_observe(&mut counts, &n.to_string(), ("w", "1", "t"), 10).unwrap();
            counts.set_current(&service(), None);
        }
        let departed = counts.departed();
        assert_eq!(departed.len(), MAX_DEPARTED);
        assert!(!departed.contains_key("1") && departed.contains_key("2"));
    }
}
