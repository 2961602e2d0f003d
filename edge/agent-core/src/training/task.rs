//! Decides the next state of a training task, and which activities to begin or to cancel.
//!
//! A task has at most one activity at a time. Its state is stored before the activity begins that
//! follows from it, and each activity can be repeated: an agent that was killed continues with the
//! stored state.
//!
//! | state | activity |
//! |---|---|
//! | Preparing | `Prepare`; then it waits for a slot |
//! | Training | `Run`: starts the container, or adopts it |
//! | Verifying | `Verify` |
//! | Uploading | `Upload` |
//! | any, if the task is not wanted any more | `Clean` |

use std::{collections::BTreeMap, time::Instant};

use neptune_wire::{TaskId, TaskState, TrainingReason};

use crate::{
    backoff::{TRAINING_INPUTS, TRAINING_RESTART},
    domain::training::{RunOutcome, TaskEvent, TaskProblem, TaskRecord, Verdict, VerifyProblem},
    supervision::Slots,
};

/// What is done for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Downloads the weights and the image, and checks the program and the dataset.
    Prepare,
    /// Runs the container until it ends.
    Run,
    /// Checks the files in the output directory against the limits, and hashes them.
    Verify,
    /// Sends the output until the aggregator answers.
    Upload,
    /// Removes the container and the files.
    Clean,
}

/// A task on this node.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a task")]
pub struct TaskInstance {
    pub record: TaskRecord,
    /// Whether the cloud lists it.
    pub is_wanted: bool,
    /// The order in which tasks arrived.
    pub order: u64,
    pub activity: Option<Activity>,
    pub is_cancelled: bool,
    /// Whether its inputs are on the node since this start of the agent.
    pub is_prepared: bool,
    /// Whether its container may run although no activity watches it.
    pub may_run: bool,
    /// Why it does not progress now.
    pub problem: Option<TaskProblem>,
    pub uploaded: Option<u64>,
    /// The next activity does not begin before.
    pub next_try: Option<Instant>,
    /// Repetitions of the present activity.
    pub retries: u32,
}

/// What to do now, and when to plan again.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct TrainingPlan {
    pub begin: Vec<(TaskId, Activity)>,
    pub cancel: Vec<TaskId>,
    pub next_at: Option<Instant>,
}

impl TaskInstance {
    /// A task with this stored state.
    pub fn new(record: TaskRecord, order: u64) -> Self {
        Self {
            record,
            is_wanted: true,
            order,
            activity: None,
            is_cancelled: false,
            is_prepared: false,
            may_run: false,
            problem: None,
            uploaded: None,
            next_try: None,
            retries: 0,
        }
    }

    /// Whether its container may run.
    fn has_slot(&self) -> bool {
        match self.activity {
            Some(Activity::Run) => true,
            Some(Activity::Clean) => self.record.state == TaskState::Training || self.may_run,
            _ => self.may_run,
        }
    }

    /// Records an event. Returns whether the task is over and to be forgotten.
    pub fn on_event(
        &mut self,
        event: TaskEvent,
        backoff_limit: u32,
        now: Instant,
        random: u64,
    ) -> bool {
        if let TaskEvent::Progress { uploaded, problem } = event {
            self.uploaded = Some(uploaded);
            self.problem = problem;
            return false;
        }
        // A container that is not watched any more keeps its place until it is seen or removed.
        match &event {
            TaskEvent::Ran(outcome) => self.may_run = matches!(outcome, RunOutcome::Lost(_)),
            TaskEvent::Cancelled if self.activity == Some(Activity::Run) => self.may_run = true,
            TaskEvent::Verified(Ok(_) | Err(VerifyProblem::Refused(_))) => self.may_run = false,
            TaskEvent::Cleaned(Err(problem)) if problem.is_container_removed => {
                self.may_run = false;
            }
            TaskEvent::Cleaned(Err(_)) => self.may_run |= self.record.state == TaskState::Training,
            _ => {}
        }
        self.activity = None;
        self.is_cancelled = false;
        self.next_try = None;
        match event {
            TaskEvent::Progress { .. } | TaskEvent::Cancelled => {}
            TaskEvent::Prepared(Ok(())) => {
                self.is_prepared = true;
                self.retries = 0;
                self.problem = None;
            }
            TaskEvent::Prepared(Err(problem)) => self.retry_inputs(problem, now, random),
            TaskEvent::Ran(outcome) => self.on_ran(outcome, backoff_limit, now, random),
            TaskEvent::Verified(Ok(output)) => {
                self.record.output = Some(output);
                self.enter(TaskState::Uploading);
            }
            TaskEvent::Verified(Err(VerifyProblem::Refused(problem))) => {
                self.enter(TaskState::Refused);
                self.record.problem = Some(problem);
            }
            TaskEvent::Verified(Err(VerifyProblem::Retry(problem))) => {
                self.retry_inputs(problem, now, random);
            }
            TaskEvent::Uploaded(Verdict::Accepted) => {
                self.uploaded = None;
                self.enter(TaskState::Accepted);
            }
            TaskEvent::Uploaded(Verdict::Refused { reason, message }) => {
                self.enter(TaskState::Refused);
                let reason = reason.unwrap_or(TrainingReason::Unknown);
                self.record.problem = Some(TaskProblem { reason, message });
            }
            // The container runs again, and writes the same.
            TaskEvent::Verified(Err(VerifyProblem::Lost(problem)))
            | TaskEvent::Uploaded(Verdict::Lost(problem)) => {
                self.record =
                    TaskRecord { failures: self.record.failures, ..TaskRecord::default() };
                self.retry_inputs(problem, now, random);
            }
            TaskEvent::Cleaned(Ok(())) => return true,
            TaskEvent::Cleaned(Err(problem)) => {
                let problem = TaskProblem::new(TrainingReason::Unknown, problem.message);
                self.retry_inputs(problem, now, random);
            }
        }
        false
    }

    fn on_ran(&mut self, outcome: RunOutcome, backoff_limit: u32, now: Instant, random: u64) {
        match outcome {
            RunOutcome::Succeeded { seconds } => {
                self.record.seconds = seconds;
                self.enter(TaskState::Verifying);
            }
            RunOutcome::SessionEnded => self.enter(TaskState::Accepted),
            RunOutcome::Failed(problem) => {
                self.record.failures = self.record.failures.saturating_add(1);
                if self.record.failures > backoff_limit {
                    self.enter(TaskState::Failed);
                } else {
                    self.next_try =
                        Some(now + TRAINING_RESTART.delay(self.record.failures, random));
                }
                self.problem = None;
                self.record.problem = Some(problem);
            }
            RunOutcome::Refused(problem) => {
                self.enter(TaskState::Refused);
                self.record.problem = Some(problem);
            }
            RunOutcome::InputMissing(problem) => {
                self.record.state = TaskState::Preparing;
                self.is_prepared = false;
                self.retry_inputs(problem, now, random);
            }
            RunOutcome::Interrupted(problem) | RunOutcome::Lost(problem) => {
                self.retry_inputs(problem, now, random);
            }
        }
    }

    fn enter(&mut self, state: TaskState) {
        self.record.state = state;
        self.record.problem = None;
        self.problem = None;
        self.retries = 0;
    }

    fn retry_inputs(&mut self, problem: TaskProblem, now: Instant, random: u64) {
        self.retries = self.retries.saturating_add(1);
        self.next_try = Some(now + TRAINING_INPUTS.delay(self.retries, random));
        self.problem = Some(problem);
    }
}

/// Plans all tasks. `inputs`: what a task waits for before it can be prepared.
pub fn plan(
    tasks: &BTreeMap<TaskId, TaskInstance>,
    inputs: impl Fn(&TaskId) -> Result<(), TaskProblem>,
    slots: Slots,
    now: Instant,
) -> TrainingPlan {
    let mut plan = TrainingPlan::default();
    let mut waiting: Vec<(&TaskId, &TaskInstance)> = Vec::new();
    for (id, task) in tasks {
        match (task.is_wanted, task.activity) {
            (_, Some(Activity::Clean)) | (true, Some(_)) => {}
            (false, Some(_)) if task.is_cancelled => {}
            (false, Some(_)) => plan.cancel.push(id.clone()),
            (wanted, None) => {
                if let Some(at) = task.next_try.filter(|at| *at > now) {
                    plan.next_at = Some(plan.next_at.map_or(at, |earlier| earlier.min(at)));
                    continue;
                }
                let activity = match task.record.state {
                    _ if !wanted => Activity::Clean,
                    TaskState::Preparing if !task.is_prepared => {
                        if inputs(id).is_err() {
                            continue;
                        }
                        Activity::Prepare
                    }
                    TaskState::Preparing | TaskState::Training => {
                        waiting.push((id, task));
                        continue;
                    }
                    TaskState::Verifying => Activity::Verify,
                    TaskState::Uploading => Activity::Upload,
                    TaskState::Accepted | TaskState::Refused | TaskState::Failed => continue,
                };
                plan.begin.push((id.clone(), activity));
            }
        }
    }
    // Containers that run come first, then those that may exist.
    waiting.sort_by_key(|(_, task)| {
        (!task.may_run, task.record.state != TaskState::Training, task.order)
    });
    let beginning = plan.begin.iter().filter(|(id, activity)| {
        let task = &tasks[id];
        // One that may run is counted below.
        let may_exist = task.record.state == TaskState::Training && !task.may_run;
        *activity == Activity::Clean && may_exist
    });
    let used = tasks.values().filter(|task| task.has_slot()).count() + beginning.count();
    // Those that wait to be watched again use their own.
    let own = waiting.iter().filter(|(_, task)| task.may_run).count();
    let free = slots.free(used - own);
    plan.begin.extend(waiting.into_iter().take(free).map(|(id, _)| (id.clone(), Activity::Run)));
    plan
}

#[cfg(test)]
mod tests;
