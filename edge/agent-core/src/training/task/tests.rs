//! The life of a task as a table, and any order of events as a property.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::domain::training::{CleanProblem, OutputWeights, TaskOutput};

const LIMIT: u32 = 2;

fn id(n: usize) -> TaskId {
    TaskId(format!("{n:064x}"))
}

fn problem() -> TaskProblem {
    TaskProblem::new(TrainingReason::ScriptFailed, "why")
}

fn output() -> TaskOutput {
    let weights = OutputWeights { name: "weights.npz".into(), sha256: "00".into(), bytes: 9 };
    TaskOutput { weights: Some(weights), report: neptune_wire::aggregator::UpdateReport::default() }
}

fn slots(most: usize) -> Slots {
    Slots::closed(most).opened()
}

fn in_state(state: TaskState) -> TaskInstance {
    TaskInstance::new(TaskRecord { state, ..TaskRecord::default() }, 1)
}

fn planned(task: &TaskInstance, now: Instant) -> Vec<Activity> {
    let plan = plan(&[(id(1), task.clone())].into(), |_| Ok(()), slots(1), now);
    plan.begin.into_iter().map(|(_, activity)| activity).collect()
}

/// The state after an event, and whether the next activity waits.
fn after(state: TaskState, event: TaskEvent) -> (TaskState, bool) {
    let now = Instant::now();
    let mut task = in_state(state);
    assert!(!task.on_event(event, LIMIT, now, 0));
    (task.record.state, task.next_try.is_some())
}

#[test]
fn each_event_leads_to_its_state() {
    use TaskEvent::{Prepared, Ran, Uploaded, Verified};
    use TaskState::{Accepted, Preparing, Refused, Training, Uploading, Verifying};
    let refused = |reason| Verdict::Refused { reason, message: String::new() };
    for (state, event, expected) in [
        (Preparing, Prepared(Ok(())), (Preparing, false)),
        (Preparing, Prepared(Err(problem())), (Preparing, true)),
        (Training, Ran(RunOutcome::Succeeded { seconds: 4 }), (Verifying, false)),
        (Training, Ran(RunOutcome::SessionEnded), (Accepted, false)),
        (Training, Ran(RunOutcome::Failed(problem())), (Training, true)),
        (Training, Ran(RunOutcome::Refused(problem())), (Refused, false)),
        (Training, Ran(RunOutcome::InputMissing(problem())), (Preparing, true)),
        (Training, Ran(RunOutcome::Interrupted(problem())), (Training, true)),
        (Training, Ran(RunOutcome::Lost(problem())), (Training, true)),
        (Verifying, Verified(Ok(output())), (Uploading, false)),
        (Verifying, Verified(Err(VerifyProblem::Refused(problem()))), (Refused, false)),
        (Verifying, Verified(Err(VerifyProblem::Lost(problem()))), (Preparing, true)),
        (Verifying, Verified(Err(VerifyProblem::Retry(problem()))), (Verifying, true)),
        (Uploading, Uploaded(Verdict::Accepted), (Accepted, false)),
        (Uploading, Uploaded(refused(None)), (Refused, false)),
        (Uploading, Uploaded(Verdict::Lost(problem())), (Preparing, true)),
        (Uploading, TaskEvent::Cancelled, (Uploading, false)),
    ] {
        assert_eq!(after(state, event.clone()), expected, "{state:?} {event:?}");
    }
}

#[test]
fn program_that_fails_too_often_has_failed() {
    let now = Instant::now();
    let mut task = in_state(TaskState::Training);
    let mut waits = Vec::new();
    for failures in 1..=LIMIT {
        task.on_event(TaskEvent::Ran(RunOutcome::Failed(problem())), LIMIT, now, u64::MAX);
        assert_eq!((task.record.state, task.record.failures), (TaskState::Training, failures));
        waits.push(task.next_try.unwrap());
        assert_eq!(planned(&task, now), []);
    }
    assert!(waits.is_sorted());
    // Neither the engine nor a missing input count.
    task.on_event(TaskEvent::Ran(RunOutcome::Interrupted(problem())), LIMIT, now, 0);
    assert_eq!(task.record.failures, LIMIT);
    task.on_event(TaskEvent::Ran(RunOutcome::Failed(problem())), LIMIT, now, 0);
    assert_eq!(
        (task.record.state, task.record.problem.clone()),
        (TaskState::Failed, Some(problem()))
    );
    assert_eq!(planned(&task, now + Duration::from_secs(3600)), []);
}

#[test]
fn each_state_continues_with_its_activity_after_a_restart() {
    let now = Instant::now();
    for (state, expected) in [
        (TaskState::Preparing, vec![Activity::Prepare]),
        (TaskState::Training, vec![Activity::Run]),
        (TaskState::Verifying, vec![Activity::Verify]),
        (TaskState::Uploading, vec![Activity::Upload]),
        (TaskState::Accepted, vec![]),
        (TaskState::Refused, vec![]),
        (TaskState::Failed, vec![]),
    ] {
        let mut task = in_state(state);
        assert_eq!(planned(&task, now), expected, "{state:?}");
        task.is_wanted = false;
        assert_eq!(planned(&task, now), [Activity::Clean], "{state:?}");
    }
}

#[test]
fn containers_wait_in_order_and_running_ones_come_first() {
    let now = Instant::now();
    let prepared = |order, state| TaskInstance {
        is_prepared: true,
        ..TaskInstance::new(TaskRecord { state, ..TaskRecord::default() }, order)
    };
    let mut tasks: BTreeMap<TaskId, TaskInstance> = [
        (id(1), prepared(3, TaskState::Preparing)),
        (id(2), prepared(2, TaskState::Preparing)),
        (id(3), prepared(1, TaskState::Preparing)),
        (id(4), prepared(9, TaskState::Training)),
    ]
    .into();
    let order = |tasks: &BTreeMap<TaskId, TaskInstance>, most| {
        let plan = plan(tasks, |_| Ok(()), slots(most), now);
        plan.begin.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(order(&tasks, 3), [id(4), id(3), id(2)]);
    tasks.get_mut(&id(4)).unwrap().activity = Some(Activity::Run);
    assert_eq!(order(&tasks, 1), []);
    assert_eq!(order(&tasks, 2), [id(3)]);
    // Its container may run until the removal is done.
    let ending = tasks.get_mut(&id(4)).unwrap();
    (ending.is_wanted, ending.activity) = (false, Some(Activity::Clean));
    assert_eq!(order(&tasks, 1), []);
    // Without its input a task does not wait for a slot.
    tasks.get_mut(&id(3)).unwrap().is_prepared = false;
    let waiting = plan(&tasks, |_| Err(problem()), slots(2), now);
    assert_eq!(waiting.begin, [(id(2), Activity::Run)]);
}

#[test]
fn container_that_may_still_run_keeps_its_slot() {
    let now = Instant::now();
    let waiting = |order| TaskInstance {
        is_prepared: true,
        ..TaskInstance::new(TaskRecord::default(), order)
    };
    let mut tasks: BTreeMap<TaskId, TaskInstance> = [
        (id(1), TaskInstance { activity: Some(Activity::Run), ..in_state(TaskState::Training) }),
        (id(2), waiting(2)),
    ]
    .into();
    let begun =
        |tasks: &BTreeMap<TaskId, TaskInstance>, now| plan(tasks, |_| Ok(()), slots(1), now).begin;
    let lost = TaskEvent::Ran(RunOutcome::Lost(problem()));
    tasks.get_mut(&id(1)).unwrap().on_event(lost, LIMIT, now, 0);
    assert_eq!(begun(&tasks, now), [], "nothing else starts meanwhile");
    let later = now + Duration::from_secs(600);
    assert_eq!(begun(&tasks, later), [(id(1), Activity::Run)]);
    let ended = TaskEvent::Ran(RunOutcome::Interrupted(problem()));
    tasks.get_mut(&id(1)).unwrap().on_event(ended, LIMIT, later, 0);
    assert_eq!(begun(&tasks, later), [(id(2), Activity::Run)]);
    // Files that cannot be removed do not keep the slot, a container does.
    for (is_container_removed, expected) in [(true, vec![(id(2), Activity::Run)]), (false, vec![])]
    {
        let task = tasks.get_mut(&id(1)).unwrap();
        (task.is_wanted, task.activity) = (false, Some(Activity::Clean));
        let message = "why".to_owned();
        let event = TaskEvent::Cleaned(Err(CleanProblem { is_container_removed, message }));
        assert!(!task.on_event(event, LIMIT, later, 0));
        assert_eq!(begun(&tasks, later), expected);
    }
}

/// What may happen to a task from outside, and how an activity may end.
#[derive(Debug, Clone)]
enum Step {
    /// The activity of this task ends, in the way of this number.
    End(usize, u8),
    Want(usize, bool),
    Wait,
    /// The agent is killed. Containers that run keep running.
    Kill,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize, any::<u8>()).prop_map(|(task, how)| Step::End(task, how)),
        2 => (0..3_usize, any::<bool>()).prop_map(|(task, wanted)| Step::Want(task, wanted)),
        2 => Just(Step::Wait),
        1 => Just(Step::Kill),
    ]
}

fn ending(activity: Activity, how: u8) -> TaskEvent {
    let is_good = !how.is_multiple_of(3);
    match activity {
        Activity::Prepare if is_good => TaskEvent::Prepared(Ok(())),
        Activity::Prepare => TaskEvent::Prepared(Err(problem())),
        Activity::Run if is_good => TaskEvent::Ran(RunOutcome::Succeeded { seconds: 1 }),
        Activity::Run => TaskEvent::Ran(match how % 5 {
            0 => RunOutcome::Failed(problem()),
            1 => RunOutcome::Refused(problem()),
            2 => RunOutcome::InputMissing(problem()),
            3 => RunOutcome::Lost(problem()),
            _ => RunOutcome::Interrupted(problem()),
        }),
        Activity::Verify if is_good => TaskEvent::Verified(Ok(output())),
        Activity::Verify => TaskEvent::Verified(Err(VerifyProblem::Retry(problem()))),
        Activity::Upload if is_good => TaskEvent::Uploaded(Verdict::Accepted),
        Activity::Upload => TaskEvent::Uploaded(Verdict::Lost(problem())),
        Activity::Clean if is_good => TaskEvent::Cleaned(Ok(())),
        Activity::Clean => {
            let (is_container_removed, message) = (how.is_multiple_of(2), "why".to_owned());
            TaskEvent::Cleaned(Err(CleanProblem { is_container_removed, message }))
        }
    }
}

/// The container of the task in the simulated engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Absent,
    Exited,
    Running,
}

/// A model of the agent: the tasks, and the containers of the engine. A container runs until its
/// program ends or it is removed, whether the agent watches it or not.
struct Model {
    tasks: BTreeMap<TaskId, TaskInstance>,
    wanted: Vec<bool>,
    containers: Vec<Container>,
    /// Which containers run is not known after that.
    was_killed: bool,
    now: Instant,
    slots: usize,
}

impl Model {
    fn new(slots: usize) -> Self {
        let now = Instant::now();
        let mut model = Self {
            tasks: BTreeMap::new(),
            wanted: vec![true; 3],
            containers: vec![Container::Absent; 3],
            was_killed: false,
            now,
            slots,
        };
        model.sync();
        model
    }

    fn sync(&mut self) {
        for (n, wanted) in self.wanted.clone().into_iter().enumerate() {
            match self.tasks.get_mut(&id(n)) {
                Some(task) => task.is_wanted = wanted,
                None if wanted => {
                    drop(self.tasks.insert(id(n), TaskInstance::new(TaskRecord::default(), 1)));
                }
                None => {}
            }
        }
    }

    fn plan(&mut self) {
        let planned = plan(&self.tasks, |_| Ok(()), slots(self.slots), self.now);
        for id in planned.cancel {
            self.tasks.get_mut(&id).unwrap().is_cancelled = true;
        }
        for (id, activity) in planned.begin {
            let n = usize::from_str_radix(&id.0, 16).unwrap();
            let task = self.tasks.get_mut(&id).unwrap();
            assert_eq!(task.activity, None, "one activity at a time");
            task.activity = Some(activity);
            match activity {
                Activity::Run => {
                    assert!(task.is_wanted, "only a wanted task runs");
                    task.record.state = TaskState::Training;
                    // An existing one is adopted.
                    self.containers[n] = Container::Running;
                }
                // It removes it first.
                Activity::Verify => self.containers[n] = Container::Absent,
                Activity::Prepare | Activity::Upload | Activity::Clean => {}
            }
        }
    }

    fn end(&mut self, n: usize, how: u8) {
        let Some(task) = self.tasks.get_mut(&id(n)) else { return };
        let Some(activity) = task.activity else { return };
        let event = if task.is_cancelled { TaskEvent::Cancelled } else { ending(activity, how) };
        let container = &mut self.containers[n];
        match &event {
            TaskEvent::Cleaned(Ok(()) | Err(CleanProblem { is_container_removed: true, .. })) => {
                *container = Container::Absent;
            }
            // It runs on, or ended unseen.
            TaskEvent::Ran(RunOutcome::Lost(_)) if how.is_multiple_of(2) => {}
            TaskEvent::Ran(RunOutcome::InputMissing(_)) => *container = Container::Absent,
            TaskEvent::Ran(_) => *container = Container::Exited,
            _ => {}
        }
        if task.on_event(event, LIMIT, self.now, 0) {
            self.tasks.remove(&id(n));
            self.sync();
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::End(n, how) => self.end(n, how),
            Step::Want(n, wanted) => {
                self.wanted[n] = wanted;
                self.sync();
            }
            Step::Wait => self.now += Duration::from_secs(600),
            Step::Kill => {
                self.was_killed = true;
                for task in self.tasks.values_mut() {
                    let record = task.record.clone();
                    *task =
                        TaskInstance { is_wanted: task.is_wanted, ..TaskInstance::new(record, 1) };
                }
            }
        }
        self.plan();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// After any events, containers are within the limit unless the agent was killed, and when all
    /// goes well from then on, wanted tasks have an end and unwanted ones leave nothing.
    #[test]
    fn any_order_of_events_ends_in_the_right_state(
        steps in prop::collection::vec(a_step(), 0..60),
        slots in 1..3_usize,
    ) {
        let mut model = Model::new(slots);
        model.plan();
        for step in &steps {
            model.step(step);
            let running = model.tasks.values().filter(|task| task.activity == Some(Activity::Run));
            prop_assert!(running.count() <= slots);
            let running = model.containers.iter().filter(|it| **it == Container::Running);
            prop_assert!(model.was_killed || running.count() <= slots);
        }
        for _ in 0..60 {
            model.step(&Step::Wait);
            for n in 0..3 {
                model.step(&Step::End(n, 1));
            }
        }
        for n in 0..3 {
            let task = model.tasks.get(&id(n));
            if model.wanted[n] {
                let state = task.unwrap().record.state;
                let is_end = matches!(
                    state,
                    TaskState::Accepted | TaskState::Refused | TaskState::Failed
                );
                prop_assert!(is_end, "{state:?}");
            } else {
                prop_assert_eq!(task, None);
            }
            let container = model.containers[n];
            prop_assert!(container != Container::Running, "a container is left behind");
        }
    }
}
