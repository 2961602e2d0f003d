//! The node's training tasks: stores their states, and begins the activities that
//! `training/task.rs` decides.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_agent_core::{
    desired::{Desired, WantedTraining},
    domain::training::{SweepState, TaskEvent, TaskProblem, TaskRecord},
    supervision::Slots,
    training::{
        container::TaskInputs,
        task::{Activity, TaskInstance, plan},
        volumes::KeptTrainings,
    },
};
use neptune_program::random::random;
use neptune_wire::{
    AggregatorEndpoint, ObjectKey, TaskId, TaskReport, TaskState, TrainingContent, TrainingReason,
    TrainingReport,
};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use super::{
    Agent,
    training_inputs::{TrainingContext, inputs},
};
use crate::{
    storage::Store,
    training::{
        activity::Work,
        aggregator_client::aggregator_client,
        job::{TaskJob, TrainingNode},
        output::TaskFiles,
    },
};

/// Pause between a failed write of a state and the next attempt.
const STORE_RETRY: Duration = Duration::from_secs(3);

/// The training tasks of the node.
pub struct Training {
    node: TrainingNode,
    /// How many containers may run at a time.
    slots: Slots,
    tasks: BTreeMap<TaskId, TaskInstance>,
    running: BTreeMap<TaskId, RunningActivity>,
    /// Number of tasks that have arrived.
    arrivals: u64,
    /// `None` before the removal of what unknown tasks left behind began.
    swept: Option<SweepState>,
}

/// An activity that can be cancelled.
struct RunningActivity {
    cancel: Arc<Notify>,
    aggregator: AggregatorEndpoint,
}

impl Agent {
    /// Begins the activities of training tasks. Returns when to do so again.
    pub(super) fn train(&mut self, now: Instant) -> Option<Instant> {
        let mut context = TrainingContext {
            desired: &self.desired.desired,
            datasets: &self.artifacts.datasets,
            downloads: &self.artifacts.downloads,
            key: &self.key,
            store: &mut self.store,
            devices: &mut self.devices,
            containers: &self.containers,
        };
        self.training.plan(&mut context, now)
    }
}

impl Training {
    /// Takes over the stored states. No task is wanted yet.
    pub fn new(node: TrainingNode, slots: usize, stored: BTreeMap<TaskId, TaskRecord>) -> Self {
        let task =
            |(id, record)| (id, TaskInstance { is_wanted: false, ..TaskInstance::new(record, 0) });
        Self {
            node,
            slots: Slots::closed(slots),
            tasks: stored.into_iter().map(task).collect(),
            running: BTreeMap::new(),
            arrivals: 0,
            swept: None,
        }
    }

    /// Sets the tasks to run. Others are stopped, and their files removed.
    pub fn set_wanted(&mut self, wanted: &WantedTraining) {
        for (id, task) in &mut self.tasks {
            task.is_wanted = wanted.tasks.contains_key(id);
        }
        for (id, wanted) in &wanted.tasks {
            if !self.tasks.contains_key(id) {
                info!(task = id.0, object = %wanted.owner, worker = wanted.task.worker, round = wanted.task.round, "training task received");
                self.arrivals += 1;
                let task = TaskInstance::new(TaskRecord::default(), self.arrivals);
                self.tasks.insert(id.clone(), task);
            }
        }
    }

    /// Sets the trainings whose volumes stay.
    pub fn keep_volumes(&self, kept: KeptTrainings) {
        self.node.volumes.set_kept(kept);
    }

    /// Records what is removed of unknown tasks.
    pub fn on_swept(&mut self, state: SweepState) {
        if state == SweepState::Containers {
            self.slots = self.slots.opened();
        }
        self.swept = Some(state);
    }

    /// Records an event of an activity. A new state counts once it is stored.
    pub fn on_event(
        &mut self,
        id: &TaskId,
        event: TaskEvent,
        desired: &Desired,
        store: &mut Store,
        now: Instant,
    ) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if !matches!(event, TaskEvent::Progress { .. }) {
            self.running.remove(id);
        }
        let wanted = desired.training.tasks.get(id);
        let limit = wanted.map_or(0, |wanted| wanted.container.backoff_limit);
        let mut next = task.clone();
        let is_over = next.on_event(event, limit, now, random());
        let stored = if is_over {
            store.delete_training_task(id)
        } else if next.record == task.record {
            Ok(())
        } else {
            store.save_training_task(id, &next.record)
        };
        if let Err(error) = stored {
            error!(%error, task = id.0, "failed to store the state of a training task; retrying");
            task.activity = None;
            task.is_cancelled = false;
            task.next_try = Some(now + STORE_RETRY);
            return;
        }
        log(id, task, &next);
        if !is_over {
            *task = next;
        } else if task.is_wanted {
            // It was listed again meanwhile.
            *task = TaskInstance::new(TaskRecord::default(), task.order);
        } else {
            self.tasks.remove(id);
        }
    }

    /// Begins and cancels activities. Returns when to do so again.
    fn plan(&mut self, context: &mut TrainingContext<'_>, now: Instant) -> Option<Instant> {
        if self.swept.is_none() {
            self.swept = Some(SweepState::Nothing);
            self.node.clone().sweep(self.tasks.keys().cloned().collect());
            self.node.collect_volumes();
        }
        if self.swept < Some(SweepState::Files) || self.tasks.is_empty() {
            return None;
        }
        let desired = context.desired;
        let tasks = desired.training.tasks.iter();
        let available: BTreeMap<TaskId, Result<TaskInputs, TaskProblem>> =
            tasks.map(|(id, wanted)| (id.clone(), inputs(wanted, context))).collect();
        let is_ready = |id: &TaskId| match available.get(id) {
            Some(inputs) => inputs.as_ref().map(drop).map_err(Clone::clone),
            None => Ok(()),
        };
        context.devices.retain_tasks(|id| {
            let task = self.tasks.get(id);
            task.is_some_and(|task| task.activity == Some(Activity::Run) || task.may_run)
        });
        let planned = plan(&self.tasks, is_ready, self.slots, now);
        for (id, task) in &mut self.tasks {
            let is_waiting = task.is_wanted
                && task.activity.is_none()
                && task.record.state == TaskState::Preparing
                && !task.is_prepared;
            if is_waiting && let Err(problem) = is_ready(id) {
                task.problem = Some(problem);
            }
        }
        for id in planned.cancel {
            self.cancel(&id);
        }
        for id in self.moved(desired) {
            self.cancel(&id);
        }
        let mut next_at = planned.next_at;
        for (id, activity) in planned.begin {
            let inputs = available.get(&id).cloned();
            if let Err(problem) = self.begin(&id, activity, inputs, context) {
                let at = now + STORE_RETRY;
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.problem = Some(problem);
                    task.next_try = Some(at);
                }
                next_at = Some(next_at.map_or(at, |earlier| earlier.min(at)));
            }
        }
        next_at
    }

    /// The tasks whose transfers go to an aggregator that is not theirs any more.
    fn moved(&self, desired: &Desired) -> Vec<TaskId> {
        let is_moved = |(id, running): &(&TaskId, &RunningActivity)| {
            let wanted = desired.training.tasks.get(*id);
            let activity = self.tasks.get(*id).and_then(|task| task.activity);
            wanted.is_some_and(|wanted| wanted.aggregator != running.aggregator)
                && matches!(activity, Some(Activity::Prepare | Activity::Upload))
        };
        self.running.iter().filter(is_moved).map(|(id, _)| id.clone()).collect()
    }

    fn cancel(&mut self, id: &TaskId) {
        if let (Some(task), Some(running)) = (self.tasks.get_mut(id), self.running.get(id))
            && !task.is_cancelled
        {
            task.is_cancelled = true;
            running.cancel.notify_one();
        }
    }

    fn begin(
        &mut self,
        id: &TaskId,
        activity: Activity,
        inputs: Option<Result<TaskInputs, TaskProblem>>,
        context: &mut TrainingContext<'_>,
    ) -> Result<(), TaskProblem> {
        let Some(task) = self.tasks.get(id) else { return Ok(()) };
        let wanted = context.desired.training.tasks.get(id);
        let (Some(wanted), Some(inputs), false) = (wanted, inputs, activity == Activity::Clean)
        else {
            self.node.clone().clean(id.clone());
            if let Some(task) = self.tasks.get_mut(id) {
                task.activity = Some(Activity::Clean);
            }
            return Ok(());
        };
        let key = context.key.get().map_err(|problem| {
            TaskProblem::new(TrainingReason::NodeNotTrusted, problem.message.clone())
        })?;
        let client = aggregator_client(key, &wanted.aggregator)?;
        let work = match activity {
            Activity::Prepare | Activity::Clean => Work::Prepare,
            Activity::Run => Work::Run,
            Activity::Verify => Work::Verify(task.record.clone()),
            Activity::Upload => match &task.record.output {
                Some(output) => Work::Upload(output.clone()),
                None => Work::Verify(task.record.clone()),
            },
        };
        let node = &self.node.context.node;
        let units = match activity {
            Activity::Run => {
                let (containers, desired) = (context.containers, context.desired);
                context.devices.grant_task(wanted, containers, desired, node)?
            }
            _ => Vec::new(),
        };
        let mut record = task.record.clone();
        if activity == Activity::Run && record.state != TaskState::Training {
            record.state = TaskState::Training;
            record.counted = inputs.as_ref().ok().and_then(|inputs| inputs.counted);
            context.store.save_training_task(id, &record).map_err(|error| {
                error!(%error, task = id.0, "failed to store the state of a training task; retrying");
                TaskProblem::new(TrainingReason::DiskFull, format!("cannot store the state of the task: {error}; retrying"))
            })?;
        }
        let job = TaskJob {
            wanted: Arc::new(wanted.clone()),
            inputs,
            units,
            files: TaskFiles::new(&self.node.context.data_dir, id),
            node: self.node.clone(),
            client,
            same_base: context.desired.training.same_base(id, wanted),
        };
        let cancel = Arc::new(Notify::new());
        job.begin(work, Arc::clone(&cancel));
        let aggregator = wanted.aggregator.clone();
        self.running.insert(id.clone(), RunningActivity { cancel, aggregator });
        if let Some(task) = self.tasks.get_mut(id) {
            let next = TaskInstance { activity: Some(activity), record, ..task.clone() };
            log(id, task, &next);
            *task = next;
        }
        Ok(())
    }

    /// The report of an object's tasks.
    pub fn report(
        &self,
        owner: &ObjectKey,
        content: &TrainingContent,
        wanted: &WantedTraining,
    ) -> TrainingReport {
        let tasks = content.tasks.iter().enumerate().map(|(at, task)| {
            let report = TaskReport {
                worker: task.worker.clone(),
                id: task.id.clone(),
                round: task.round,
                state: TaskState::Preparing,
                reason: None,
                message: String::new(),
                failures: 0,
                uploaded_bytes: None,
                update_bytes: None,
            };
            if let Some(problem) = wanted.refused.get(&(owner.clone(), at)) {
                let (reason, message) = (problem.reported_reason(), problem.message.clone());
                return TaskReport { state: TaskState::Failed, reason, message, ..report };
            }
            match self.tasks.get(&task.id) {
                Some(instance) => instance_report(instance, report),
                None => report,
            }
        });
        TrainingReport { tasks: tasks.collect() }
    }
}

fn instance_report(instance: &TaskInstance, report: TaskReport) -> TaskReport {
    let TaskInstance { record, .. } = instance;
    let problem = instance.problem.as_ref().or(record.problem.as_ref());
    let is_queued = record.state == TaskState::Preparing && instance.is_prepared;
    let message = match problem {
        Some(problem) => problem.message.clone(),
        None if is_queued => "waiting for another training container on this node".to_owned(),
        None => String::new(),
    };
    let weights = record.output.as_ref().and_then(|output| output.weights.as_ref());
    TaskReport {
        state: record.state,
        reason: problem.and_then(TaskProblem::reported_reason),
        message,
        failures: record.failures,
        uploaded_bytes: instance.uploaded.filter(|_| record.state == TaskState::Uploading),
        update_bytes: weights.map(|weights| weights.bytes),
        ..report
    }
}

/// Logs a new state, and a new problem.
fn log(id: &TaskId, before: &TaskInstance, after: &TaskInstance) {
    if before.record.state != after.record.state {
        info!(task = id.0, state = ?after.record.state, "training task changed");
    }
    let problem = |task: &TaskInstance| task.problem.clone().or(task.record.problem.clone());
    if let Some(current) = problem(after)
        && problem(before).as_ref() != Some(&current)
    {
        warn!(task = id.0, reason = ?current.reason, problem = current.message, "training task");
    }
}
