//! Adds up what the node's workers counted, over all their runs. Pure; the caller stores it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use neptune_wire::{Counters, ModelOutput, ObjectKey, RunTotals, WorkerInfo, WorkerName};

use crate::{
    domain::worker_count::{CountTotal, ReportedModel, WorkerCount},
    worker::model_reports,
};

/// The counts by object UID and worker. A renamed worker keeps counting for its object.
#[derive(Debug, Default)]
pub struct Counts {
    counts: BTreeMap<(String, WorkerName), WorkerCount>,
    unsaved: BTreeSet<(String, WorkerName)>,
}

impl Counts {
    /// Restores the stored counts.
    pub fn restore(counts: BTreeMap<(String, WorkerName), WorkerCount>) -> Self {
        Self { counts, unsaved: BTreeSet::new() }
    }

    /// Records a worker's message. `counts` is the run and its counters, if they count for the
    /// object.
    pub fn observe(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        worker: &WorkerName,
        info: &WorkerInfo,
        counts: Option<(&str, Counters)>,
    ) {
        let key = (uid.to_owned(), worker.clone());
        let initial = || WorkerCount {
            object: object.clone(),
            tally: RunTotals::default(),
            status: String::new(),
            first_start: String::new(),
            models: Vec::new(),
        };
        let count = self.counts.entry(key.clone()).or_insert_with(initial);
        let before = count.clone();
        count.status.clone_from(&info.status);
        if let Some((run, counters)) = counts {
            count.tally.observe(run, counters);
            let start =
                info.task_info.as_ref().map(|task| task.start_time.as_str()).unwrap_or_default();
            if count.first_start.is_empty() {
                start.clone_into(&mut count.first_start);
            }
        }
        if *count != before {
            self.unsaved.insert(key);
        }
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
        let counts = self.counts.iter().filter(|((of, _), _)| of == uid);
        model_reports::newest(counts.flat_map(|(_, count)| &count.models))
    }

    /// Removes the counts of an object, except those of the current object of that name.
    pub fn forget(&mut self, object: &ObjectKey, current_uid: Option<&str>) {
        self.counts
            .retain(|(uid, _), count| count.object != *object || Some(uid.as_str()) == current_uid);
        self.unsaved.retain(|key| self.counts.contains_key(key));
    }

    /// The sum over all workers that the object of this UID ever had on this node.
    pub fn total(&self, uid: &str) -> CountTotal {
        let mut total = CountTotal::default();
        for (_, count) in self.counts.iter().filter(|((of, _), _)| of == uid) {
            total.has_counted |= !count.tally.runs.is_empty();
            total.counters = total.counters.plus(count.tally.total());
            let start = &count.first_start;
            if !start.is_empty() && (total.first_start.is_empty() || *start < total.first_start) {
                total.first_start.clone_from(start);
            }
        }
        total
    }

    /// Whether this run of a worker was counted before.
    pub fn contains_run(&self, uid: &str, worker: &WorkerName, run: &str) -> bool {
        let count = self.counts.get(&(uid.to_owned(), worker.clone()));
        count.is_some_and(|count| count.tally.contains_run(run))
    }

    /// The last status that the worker reported; empty without one.
    pub fn status(&self, uid: &str, worker: &WorkerName) -> &str {
        self.counts.get(&(uid.to_owned(), worker.clone())).map_or("", |count| &count.status)
    }

    /// The counts that are not stored yet.
    pub fn unsaved(&self) -> impl Iterator<Item = (&(String, WorkerName), &WorkerCount)> {
        self.unsaved.iter().filter_map(|key| self.counts.get_key_value(key))
    }

    pub fn is_saved(&self) -> bool {
        self.unsaved.is_empty()
    }

    /// Marks all counts as stored.
    pub fn mark_saved(&mut self) {
        self.unsaved.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::WorkerTaskInfo;

    use super::*;

    fn observe(counts: &mut Counts, worker: &str, run: &str, inference: u64, hard: u64) {
        let task_info = WorkerTaskInfo {
            inference_number: inference,
            hard_example_number: hard,
            upload_cloud_ratio: 0.0,
            start_time: run.into(),
            update_time: String::new(),
        };
        let mut info: WorkerInfo = serde_json::from_str("{}").unwrap();
        info.task_info = Some(task_info);
        let object = "d/jointinferenceservices/s".parse().unwrap();
        counts.observe(
            &object,
            "uid",
            &worker.parse().unwrap(),
            &info,
            Some((run, Counters { inference, hard })),
        );
    }

    #[test]
    fn total_includes_all_runs_of_all_workers_of_the_object() {
        let mut counts = Counts::default();
        observe(&mut counts, "old-name", "2026-01-02", 10, 1);
        observe(&mut counts, "new-name", "2026-01-03", 5, 2);
        observe(&mut counts, "new-name", "2026-01-04", 1, 1);
        let total = counts.total("uid");
        assert_eq!(total.counters, Counters { inference: 16, hard: 4 });
        assert_eq!(total.first_start, "2026-01-02");
        assert!(total.has_counted);
        assert_eq!(counts.total("another").counters, Counters::default());
    }

    #[test]
    fn unchanged_counts_are_not_stored_again() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10, 1);
        assert_eq!(counts.unsaved().count(), 1);
        counts.mark_saved();
        observe(&mut counts, "w", "1", 10, 1);
        assert!(counts.is_saved());
    }

    #[test]
    fn counts_of_deleted_object_are_removed() {
        let mut counts = Counts::default();
        observe(&mut counts, "w", "1", 10, 1);
        let object = "d/jointinferenceservices/s".parse().unwrap();
        counts.forget(&object, Some("uid"));
        assert_eq!(counts.total("uid").counters, Counters { inference: 10, hard: 1 });
        counts.forget(&object, None);
        assert_eq!(counts.total("uid").counters, Counters::default());
        assert!(counts.is_saved());
    }
}
