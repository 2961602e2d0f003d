//! Decides for the supervisor of containers which of them is adopted, how many may run, and what
//! the engine's answers mean. Requests to the engine are in the supervisor of `edge/engine`.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::domain::problem::Problem;

/// What a container with the label of its kind is for the one that is supervised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The one that is wanted. It is used as it is, if its state allows that.
    Current,
    /// An earlier one, or one in its place. It is removed.
    Outdated,
    /// Another one, which stays as it is.
    Foreign,
}

/// The state of a container, as far as its supervision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    Running {
        /// Start time by the clock of the engine; `None` if the engine does not state it.
        started_at: Option<Timestamp>,
    },
    Exited(Exit),
    /// It never ran, or is being removed, or does not exist.
    Unusable,
}

/// How a container exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: i64,
    pub out_of_memory: bool,
    /// How long the container ran, in seconds.
    pub seconds: u64,
}

/// Whether a container that exited is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// A container that exited with 0 is done.
    OnFailure,
    /// It runs until it is removed.
    Always,
}

/// What is done with a current container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Adopt,
    /// It exited as it should.
    Done(Exit),
    /// It is removed, and another one started.
    Replace,
}

impl RestartPolicy {
    /// What is done with a current container in this state. One that failed while no agent watched it
    /// may have been killed with the engine or the machine: it runs again.
    pub fn decide(self, state: &RunState) -> Use {
        match state {
            RunState::Running { .. } => Use::Adopt,
            RunState::Exited(exit) if exit.code == 0 && self == Self::OnFailure => Use::Done(*exit),
            RunState::Exited(_) | RunState::Unusable => Use::Replace,
        }
    }
}

/// How many containers of a kind may run at a time. None starts before those that earlier processes
/// left behind are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    most: usize,
    is_open: bool,
}

impl Slots {
    /// Slots of which none may be used yet.
    pub fn closed(most: usize) -> Self {
        Self { most, is_open: false }
    }

    /// The slots after the containers of earlier processes were removed.
    #[must_use]
    pub fn opened(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// How many containers may start while this many may run.
    pub fn free(self, used: usize) -> usize {
        if self.is_open { self.most.saturating_sub(used) } else { 0 }
    }
}

/// The limits of one run. `P` is why the supervisor ended it.
#[derive(Debug)]
pub struct Limits<P> {
    /// When the container has to end, and the reason after that; `None` without a limit.
    pub deadline: Option<(Instant, P)>,
    /// Interval between two checks of what the program does; `None` without checks.
    pub check_interval: Option<Duration>,
    /// After this time without an answer of the engine nothing is known of the container.
    pub engine_timeout: Duration,
}

impl<P> Limits<P> {
    /// When to look at the limits again, if they were checked now.
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        let check = self.check_interval.map(|interval| now + interval);
        let deadline = self.deadline.as_ref().map(|(at, _)| *at);
        check.into_iter().chain(deadline).min()
    }

    /// The reason to end the container, if its time is over.
    pub fn exceeded(&mut self, now: Instant) -> Option<P> {
        self.deadline.take_if(|(at, _)| *at <= now).map(|(_, reason)| reason)
    }
}

/// When a container that ran this long has to end; `None` without a limit.
pub fn deadline(limit: Option<Duration>, ran: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(limit?.saturating_sub(ran))
}

/// How a run ended, as far as the engine reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(Exit),
    /// It failed while the engine was away, which may have ended it itself.
    WithEngine,
    /// Another program removed it.
    Removed,
    /// The engine does not answer. The container may run.
    EngineLost(Problem),
}

/// What the engine's answers mean for one run.
#[derive(Debug, Default)]
pub struct RunWatch {
    failing_since: Option<Instant>,
    is_engine_lost: bool,
}

impl RunWatch {
    /// Records an answer to the question whether the container ended. `None`: ask again.
    pub fn on_answer(
        &mut self,
        answer: Result<RunState, Problem>,
        engine_timeout: Duration,
        now: Instant,
    ) -> Option<End> {
        match answer {
            // It did not end with the engine.
            Ok(RunState::Running { .. }) => {
                *self = Self::default();
                None
            }
            Ok(RunState::Unusable) => Some(End::Removed),
            Ok(RunState::Exited(exit)) if exit.code != 0 && self.is_engine_lost => {
                Some(End::WithEngine)
            }
            Ok(RunState::Exited(exit)) => Some(End::Exited(exit)),
            Err(problem) => {
                self.is_engine_lost = true;
                let since = *self.failing_since.get_or_insert(now);
                let is_over = now.duration_since(since) >= engine_timeout;
                is_over.then_some(End::EngineLost(problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use neptune_wire::WorkerReason;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn exited(code: i64) -> RunState {
        RunState::Exited(Exit { code, out_of_memory: false, seconds: 7 })
    }

    fn running() -> RunState {
        RunState::Running { started_at: None }
    }

    fn lost() -> Problem {
        Problem { reason: WorkerReason::DockerUnavailable, message: "away".into() }
    }

    #[test]
    fn only_a_container_that_may_end_is_done() {
        let done = Exit { code: 0, out_of_memory: false, seconds: 7 };
        for (policy, state, expected) in [
            (RestartPolicy::OnFailure, running(), Use::Adopt),
            (RestartPolicy::OnFailure, exited(0), Use::Done(done)),
            (RestartPolicy::OnFailure, exited(1), Use::Replace),
            (RestartPolicy::OnFailure, RunState::Unusable, Use::Replace),
            (RestartPolicy::Always, running(), Use::Adopt),
            (RestartPolicy::Always, exited(0), Use::Replace),
            (RestartPolicy::Always, exited(1), Use::Replace),
            (RestartPolicy::Always, RunState::Unusable, Use::Replace),
        ] {
            assert_eq!(policy.decide(&state), expected, "{policy:?} {state:?}");
        }
    }

    #[test]
    fn no_slot_is_free_before_earlier_containers_are_removed() {
        let slots = Slots::closed(2);
        assert_eq!(slots.free(0), 0);
        let slots = slots.opened();
        assert_eq!([0, 1, 2, 3].map(|used| slots.free(used)), [2, 1, 0, 0]);
    }

    #[test]
    fn time_limit_includes_the_time_before_an_adoption() {
        let now = Instant::now();
        assert_eq!(deadline(None, MINUTE, now), None);
        assert_eq!(
            deadline(Some(MINUTE), Duration::from_secs(20), now),
            Some(now + MINUTE * 2 / 3)
        );
        assert_eq!(deadline(Some(MINUTE), MINUTE * 2, now), Some(now));
        assert_eq!(deadline(Some(Duration::MAX), Duration::ZERO, now), None, "no such time");
    }

    #[test]
    fn limits_are_due_at_the_deadline_or_the_next_check() {
        let now = Instant::now();
        let limits = |deadline: Option<Duration>, check_interval| Limits {
            deadline: deadline.map(|after| (now + after, "late")),
            check_interval,
            engine_timeout: MINUTE,
        };
        assert_eq!(limits(None, None).next_check(now), None);
        assert_eq!(limits(Some(MINUTE), Some(MINUTE * 2)).next_check(now), Some(now + MINUTE));
        assert_eq!(limits(Some(MINUTE * 3), Some(MINUTE)).next_check(now), Some(now + MINUTE));
        let mut limits = limits(Some(MINUTE), None);
        assert_eq!(limits.exceeded(now), None);
        assert_eq!(limits.exceeded(now + MINUTE), Some("late"));
    }

    #[test]
    fn failure_counts_only_if_the_engine_answered_all_the_time() {
        let exit = |code| Exit { code, out_of_memory: false, seconds: 7 };
        for (before, answer, expected) in [
            (None, running(), None),
            (None, exited(3), Some(End::Exited(exit(3)))),
            (None, RunState::Unusable, Some(End::Removed)),
            (Some(Err(lost())), exited(3), Some(End::WithEngine)),
            (Some(Err(lost())), exited(0), Some(End::Exited(exit(0)))),
            (Some(Ok(running())), exited(3), Some(End::Exited(exit(3)))),
        ] {
            let (now, mut watch) = (Instant::now(), RunWatch::default());
            if let Some(earlier) = before {
                assert_eq!(watch.on_answer(earlier, MINUTE, now), None);
            }
            assert_eq!(watch.on_answer(Ok(answer.clone()), MINUTE, now), expected, "{answer:?}");
        }
    }

    #[test]
    fn engine_that_does_not_answer_is_lost_after_its_time() {
        let (now, mut watch) = (Instant::now(), RunWatch::default());
        assert_eq!(watch.on_answer(Err(lost()), MINUTE, now), None);
        assert_eq!(watch.on_answer(Ok(running()), MINUTE, now + MINUTE), None, "it is back");
        assert_eq!(watch.on_answer(Err(lost()), MINUTE, now + MINUTE), None);
        let end = watch.on_answer(Err(lost()), MINUTE, now + MINUTE * 2);
        assert_eq!(end, Some(End::EngineLost(lost())));
        let at_once = RunWatch::default().on_answer(Err(lost()), Duration::ZERO, now);
        assert_eq!(at_once, Some(End::EngineLost(lost())));
    }
}
