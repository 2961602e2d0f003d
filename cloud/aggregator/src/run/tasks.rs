//! The tasks of a run: a function of its state.

use std::{collections::BTreeSet, mem};

use neptune_wire::{
    ContentReference, TaskId, TaskKind,
    aggregator::{RunEvaluation, RunTask},
};

use super::{Run, Stage, Verdict};
use crate::task::{TaskIdentity, seed};

impl Run {
    /// Returns the tasks without a result.
    pub fn open_tasks(&self) -> Vec<RunTask> {
        let is_paused = self.suspended && matches!(self.stage, Stage::Open(_));
        if is_paused || matches!(self.stage, Stage::Closing(_)) {
            return Vec::new();
        }
        let mut tasks = self.current_tasks();
        tasks.retain(|it| {
            !self.results.contains_key(&it.worker) && !self.unavailable.contains_key(&it.worker)
        });
        tasks
    }

    /// Returns the task of a worker in the current round, also with a result. The evaluation has no
    /// worker.
    pub fn task_of(&self, worker: &str) -> Option<RunTask> {
        match &self.stage {
            Stage::Initializing
            | Stage::Open { .. }
            | Stage::Closing(_)
            | Stage::Session { is_ready: true, .. } => {
                self.selected.get(worker).and_then(|it| self.worker_task(it))
            }
            Stage::Evaluating { round, weights, attempt } if worker.is_empty() => {
                let evaluation = self.settings.evaluation.as_ref()?;
                Some(self.evaluation_task(evaluation, *round, weights, *attempt))
            }
            _ => None,
        }
    }

    /// Returns the tasks of the current round, also with a result. They change only with
    /// [`Run::task_epoch`].
    pub fn current_tasks(&self) -> Vec<RunTask> {
        match &self.stage {
            Stage::Evaluating { .. } => self.task_of("").into_iter().collect(),
            _ => self.selected.iter().filter_map(|it| self.task_of(it)).collect(),
        }
    }

    /// Returns a value that is equal as long as the current tasks are.
    pub fn task_epoch(&self) -> impl PartialEq + use<> {
        let (attempt, worker) = match &self.stage {
            Stage::Evaluating { attempt, .. } => (*attempt, None),
            Stage::Initializing => (0, self.selected.first().cloned()),
            Stage::Session { is_ready: true, .. } => (self.attempts.attempt, None),
            _ => (0, None),
        };
        let selected = self.selected.len();
        (self.number, self.round, mem::discriminant(&self.stage), attempt, worker, selected)
    }

    fn worker_task(&self, worker: &str) -> Option<RunTask> {
        let (kind, round) = match self.stage {
            Stage::Initializing => (TaskKind::Initialize, self.round),
            Stage::Session { .. } => (TaskKind::Session, self.attempts.attempt),
            _ => (TaskKind::Train, self.round),
        };
        let assigned = self.settings.workers.get(worker)?;
        let task = RunTask {
            worker: worker.to_owned(),
            node: assigned.node.clone(),
            dataset: assigned.dataset.clone(),
            id: TaskId(String::new()),
            kind,
            round,
            seed: seed(self.settings.seed, worker, round),
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
        self.needed().map(str::to_owned).collect()
    }

    /// Whether the run or its results need the content. Copies nothing: it is asked for each update.
    pub fn needs_content(&self, sha256: &str) -> bool {
        self.needed().any(|needed| needed == sha256)
    }

    fn needed(&self) -> impl Iterator<Item = &str> {
        let of_stage = match &self.stage {
            Stage::Closing(closing) => {
                let outputs = closing.outputs.as_ref();
                [outputs.map(|it| &it.weights), outputs.and_then(|it| it.velocity.as_ref())]
            }
            Stage::Evaluating { weights, .. } => [Some(weights), None],
            _ => [None, None],
        };
        let of_run = [
            self.base.as_ref(),
            self.velocity.as_ref(),
            self.best.as_ref().map(|it| &it.weights),
            self.present.as_ref().map(|it| &it.weights),
        ];
        let counts =
            matches!(self.stage, Stage::Initializing | Stage::Open { .. } | Stage::Closing(_));
        let updates = self.results.values().filter_map(move |result| match &result.verdict {
            Verdict::Accepted(update) if counts => Some(&update.content),
            _ => None,
        });
        let contents = of_run.into_iter().chain(of_stage).flatten().chain(updates);
        let settings = &self.settings;
        let initial = settings.initial.as_ref().filter(|_| self.base.is_none());
        let present = settings.evaluation.as_ref().and_then(|it| it.present.as_deref());
        let named = initial.map(|it| &*it.sha256).into_iter().chain(present);
        self.published().chain(contents.map(|it| &*it.sha256)).chain(named)
    }

    /// Whether anybody may download the content.
    pub fn is_published(&self, sha256: &str) -> bool {
        self.published().any(|published| published == sha256)
    }

    /// The digests of the contents that anybody may download.
    pub(super) fn published(&self) -> impl Iterator<Item = &str> {
        let best = self.best.as_ref().filter(|_| self.stage == Stage::Succeeded);
        self.keep.iter().map(String::as_str).chain(best.map(|it| &*it.weights.sha256))
    }

    /// Whether a node needs the content for a task, or anybody may download it.
    pub fn is_readable_by_nodes(&self, sha256: &str) -> bool {
        let base = match &self.stage {
            Stage::Open { .. } | Stage::Session { .. } => self.base.as_ref(),
            Stage::Evaluating { weights, .. } => Some(weights),
            _ => None,
        };
        base.is_some_and(|it| it.sha256 == sha256) || self.is_published(sha256)
    }
}
