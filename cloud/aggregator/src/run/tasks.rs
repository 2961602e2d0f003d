//! The tasks of a run: a function of its state.

use std::collections::BTreeSet;

use neptune_wire::{
    ContentReference, TaskId, TaskKind,
    aggregator::{RunEvaluation, RunTask},
};

use super::{Run, Stage, Verdict};
use crate::task::{TaskIdentity, seed};

impl Run {
    /// Returns the tasks without a result.
    pub fn open_tasks(&self) -> Vec<RunTask> {
        if matches!(self.stage, Stage::Closing(_)) {
            return Vec::new();
        }
        let mut tasks = self.current_tasks();
        tasks.retain(|it| !self.results.contains_key(&it.worker));
        tasks
    }

    /// Returns a task of the current round, also with a result.
    pub fn task(&self, id: &TaskId) -> Option<RunTask> {
        self.current_tasks().into_iter().find(|it| it.id == *id)
    }

    /// Returns the tasks whose results can count now, in the order of the workers.
    fn current_tasks(&self) -> Vec<RunTask> {
        match &self.stage {
            Stage::Initializing | Stage::Open { .. } | Stage::Closing(_) => {
                let workers = self.selected.iter();
                workers.filter_map(|worker| self.worker_task(worker)).collect()
            }
            Stage::Evaluating { round, weights, attempt } => {
                let task = |evaluation| self.evaluation_task(evaluation, *round, weights, *attempt);
                self.settings.evaluation.as_ref().map(task).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn worker_task(&self, worker: &str) -> Option<RunTask> {
        let kind =
            if self.stage == Stage::Initializing { TaskKind::Initialize } else { TaskKind::Train };
        let assigned = self.settings.workers.get(worker)?;
        let task = RunTask {
            worker: worker.to_owned(),
            node: assigned.node.clone(),
            dataset: assigned.dataset.clone(),
            id: TaskId(String::new()),
            kind,
            round: self.round,
            seed: seed(self.settings.seed, worker, self.round),
            base: self.base.clone(),
        };
        Some(self.identified(task))
    }

    /// Each attempt has another seed, and therefore another ID.
    fn evaluation_task(
        &self,
        evaluation: &RunEvaluation,
        round: u32,
        weights: &ContentReference,
        attempt: u32,
    ) -> RunTask {
        let seeded = if attempt == 1 { String::new() } else { format!("/{attempt}") };
        self.identified(RunTask {
            worker: String::new(),
            node: evaluation.node.clone(),
            dataset: evaluation.dataset.clone(),
            id: TaskId(String::new()),
            kind: TaskKind::Evaluate,
            round,
            seed: seed(self.settings.seed, &seeded, round),
            base: Some(weights.clone()),
        })
    }

    fn identified(&self, task: RunTask) -> RunTask {
        let identity = TaskIdentity {
            uid: &self.uid,
            run: self.number,
            round: task.round,
            kind: task.kind,
            base: task.base.as_ref().map(|it| &*it.sha256),
            worker: &task.worker,
            dataset: &task.dataset,
            workload: &self.settings.workload,
            seed: task.seed,
        };
        let id = identity.id();
        RunTask { id, ..task }
    }

    /// Returns the digests of the contents that the run or its results need.
    pub fn needed_contents(&self) -> BTreeSet<String> {
        let mut needed = self.published_contents();
        let mut add = |content: Option<&ContentReference>| {
            needed.extend(content.map(|it| it.sha256.clone()));
        };
        add(self.base.as_ref());
        add(self.velocity.as_ref());
        add(self.best.as_ref().map(|it| &it.weights));
        add(self.present.as_ref().map(|it| &it.weights));
        match &self.stage {
            Stage::Closing(closing) => {
                let outputs = closing.outputs.as_ref();
                add(outputs.map(|it| &it.weights));
                add(outputs.and_then(|it| it.velocity.as_ref()));
            }
            Stage::Evaluating { weights, .. } => add(Some(weights)),
            _ => {}
        }
        if matches!(self.stage, Stage::Initializing | Stage::Open { .. } | Stage::Closing(_)) {
            for result in self.results.values() {
                if let Verdict::Accepted(update) = &result.verdict {
                    add(Some(&update.content));
                }
            }
        }
        if self.base.is_none() {
            needed.extend(self.settings.initial.as_ref().map(|it| it.sha256.clone()));
        }
        needed.extend(self.settings.evaluation.as_ref().and_then(|it| it.present.clone()));
        needed
    }

    /// Returns the digests of the contents that anybody may download.
    pub fn published_contents(&self) -> BTreeSet<String> {
        let mut published = self.keep.clone();
        if self.stage == Stage::Succeeded {
            published.extend(self.best.as_ref().map(|it| it.weights.sha256.clone()));
        }
        published
    }

    /// Whether a node needs the content for a task, or anybody may download it.
    pub fn is_readable_by_nodes(&self, sha256: &str) -> bool {
        let is_base = |task: &RunTask| task.base.as_ref().is_some_and(|it| it.sha256 == sha256);
        self.open_tasks().iter().any(is_base) || self.published_contents().contains(sha256)
    }
}
