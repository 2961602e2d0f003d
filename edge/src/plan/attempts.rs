//! What the agent remembers of a worker from one turn to the next: whether a step is in flight, how
//! often it failed, and when it may be tried again. Pure.

use std::time::{Duration, Instant};

use neptune_wire::{ContentHash, WorkerReason};

use crate::{
    backoff::{CONTAINER_REFUSED, IMAGE_PULL, RECHECK_INTERVAL, WORKER_RESTART},
    domain::{
        observed_container::{ContainerExit, ContainerState, ObservedContainer},
        outcome::StepOutcome,
        problem::Problem,
    },
};

/// A worker that ran so long has no history of failing. Twice the longest wait.
const HEALTHY: Duration = Duration::from_secs(10 * 60);

/// What is known of a worker beside what it should be and what Docker shows.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    /// An operation is in flight.
    pub busy: bool,
    /// Observations begun before this one saw the worker in the middle of an operation.
    pub fresh_from: u64,
    pub failures: u32,
    pub next_try: Option<Instant>,
    pub problem: Option<Problem>,
    /// How the container that was last seen running ended.
    pub ending: Option<String>,
    /// The last spec that was started, and how often it was started before.
    pub started: Option<(String, u32)>,
    /// The spec that the failures belong to.
    target: Option<ContentHash>,
    running: Option<RunningSince>,
    pull_failures: u32,
    next_pull: Option<Instant>,
}

#[derive(Debug, Clone)]
struct RunningSince {
    id: String,
    since: Instant,
}

impl Attempts {
    /// The worker should now have this spec. Failures of another spec do not delay it.
    pub fn set_target(&mut self, spec: &ContentHash) {
        if self.target.as_ref() != Some(spec) {
            self.target = Some(spec.clone());
            self.failures = 0;
            self.pull_failures = 0;
            self.next_pull = None;
            self.next_try = None;
            self.problem = None;
        }
    }

    /// Another version is to run, maybe in the same container: it has failed at nothing yet.
    pub fn reset_failures(&mut self) {
        self.target = None;
        self.failures = 0;
        self.pull_failures = 0;
        self.next_pull = None;
        self.next_try = None;
        self.problem = None;
        self.ending = None;
    }

    /// Takes note of what Docker shows of the worker while no operation is in flight.
    pub fn observe(&mut self, containers: &[&ObservedContainer], now: Instant, random: u64) {
        if let Some(container) = containers.iter().find(|container| container.is_alive()) {
            let identity = &container.identity;
            if self.running.as_ref().is_none_or(|running| running.id != container.id) {
                self.running = Some(RunningSince { id: container.id.clone(), since: now });
                self.started = Some((identity.spec_hash.clone(), identity.restarts));
            }
            if self.has_run_for(HEALTHY, now) {
                self.failures = 0;
            }
            return;
        }
        if self.started.is_none()
            && let Some(container) = containers.first()
        {
            self.started =
                Some((container.identity.spec_hash.clone(), container.identity.restarts));
        }
        let Some(running) = self.running.take() else { return };
        let ended = containers.iter().find(|container| container.id == running.id);
        self.fail(now, random);
        let (reason, what) = ending(ended.map(|container| &container.state));
        let again = WORKER_RESTART.step(self.failures).as_secs();
        let message = format!("{what}; it is started again within {again} s");
        self.problem = Some(Problem { reason, message });
        self.ending = Some(what);
    }

    /// Records the result of a step. `seq` is the number of the next observation.
    pub fn done(
        &mut self,
        outcome: StepOutcome,
        spec: Option<(String, u32)>,
        seq: u64,
        now: Instant,
        random: u64,
    ) {
        self.busy = false;
        self.fresh_from = seq;
        if !matches!(outcome, StepOutcome::Placed(_)) {
            self.running = None;
        }
        match outcome {
            // The container was not touched.
            StepOutcome::Placed(Ok(_)) => {}
            StepOutcome::Placed(Err(problem)) => {
                self.next_try = Some(now + RECHECK_INTERVAL);
                self.problem = Some(problem);
            }
            StepOutcome::Started { id } => self.container_started(id, spec, now),
            StepOutcome::Removed => self.next_try = None,
            StepOutcome::ImageAbsent => {
                self.next_try =
                    Some(self.next_pull.map_or(now, |pull| pull.min(now + RECHECK_INTERVAL)));
                let has_reason = |problem: &Problem| problem.reason == WorkerReason::ImageMissing;
                if !self.problem.as_ref().is_some_and(has_reason) {
                    let message = "the image is not on the node; pulling it".to_owned();
                    self.problem = Some(Problem { reason: WorkerReason::Starting, message });
                }
            }
            StepOutcome::PullFailed(message) => {
                self.pull_failures = self.pull_failures.saturating_add(1);
                self.next_pull = Some(now + IMAGE_PULL.after(self.pull_failures, random));
                self.next_try = Some(now + RECHECK_INTERVAL);
                self.problem = Some(Problem { reason: WorkerReason::ImageMissing, message });
            }
            StepOutcome::Failed(problem) => self.step_failed(problem, now, random),
        }
    }

    fn container_started(&mut self, id: String, spec: Option<(String, u32)>, now: Instant) {
        self.running = Some(RunningSince { id, since: now });
        self.started = spec;
        self.next_try = None;
        self.next_pull = None;
        self.pull_failures = 0;
        // Whether it stays up is not known yet, so that a history of crashes stays.
        let keeps_ending = |problem: &Problem| {
            matches!(problem.reason, WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory)
        };
        if !self.problem.as_ref().is_some_and(keeps_ending) {
            self.problem = None;
            self.failures = 0;
        }
    }

    fn step_failed(&mut self, problem: Problem, now: Instant, random: u64) {
        match problem.reason {
            WorkerReason::ScriptMissing
            | WorkerReason::ModelUnavailable
            | WorkerReason::DatasetUnavailable
            | WorkerReason::DockerUnavailable => self.next_try = Some(now + RECHECK_INTERVAL),
            _ => {
                self.failures = self.failures.saturating_add(1);
                self.next_try = Some(now + CONTAINER_REFUSED.after(self.failures, random));
            }
        }
        self.problem = Some(problem);
    }

    /// Whether an image that is missing may be pulled now.
    pub fn may_pull(&self, now: Instant) -> bool {
        let was_absent = self.problem.as_ref().is_some_and(|problem| {
            matches!(problem.reason, WorkerReason::Starting | WorkerReason::ImageMissing)
        });
        was_absent && self.next_pull.is_none_or(|at| at <= now)
    }

    /// Whether the container that is there has been seen running for so long.
    pub fn has_run_for(&self, time: Duration, now: Instant) -> bool {
        self.running.as_ref().is_some_and(|running| now.duration_since(running.since) >= time)
    }

    /// When the container that is there was first seen running.
    pub fn running_since(&self) -> Option<Instant> {
        self.running.as_ref().map(|running| running.since)
    }

    /// How often this spec was started before a start that comes now.
    pub fn restarts_of(&self, spec: &ContentHash) -> u32 {
        match &self.started {
            Some((started, restarts)) if started == spec.as_str() => restarts.saturating_add(1),
            _ => 0,
        }
    }

    fn fail(&mut self, now: Instant, random: u64) {
        self.failures = self.failures.saturating_add(1);
        self.next_try = Some(now + WORKER_RESTART.after(self.failures, random));
    }
}

/// What to say of a container that ended, or is gone.
fn ending(state: Option<&ContainerState>) -> (WorkerReason, String) {
    match state {
        Some(ContainerState::Exited(ContainerExit { out_of_memory: true, .. })) => (
            WorkerReason::OutOfMemory,
            "the container used more memory than workerSpec.resources allows, or than the node has"
                .to_owned(),
        ),
        Some(ContainerState::Exited(ContainerExit { exit_code, log_tail, .. })) => {
            // Podman does not always say of what the kernel ended that it was for its memory.
            let killed = match exit_code {
                137 => " (killed: by somebody, or by the kernel for its memory)",
                _ => "",
            };
            let tail = match log_tail.as_str() {
                "" => " and wrote nothing".to_owned(),
                tail => format!(", its last words: {tail}"),
            };
            let message = format!("the container ended with exit code {exit_code}{killed}{tail}");
            (WorkerReason::CrashLoopBackOff, message)
        }
        _ => (WorkerReason::CrashLoopBackOff, "the container was removed from outside".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ContentHash {
        ContentHash::of(&name)
    }

    fn failed(reason: WorkerReason) -> StepOutcome {
        StepOutcome::Failed(Problem { reason, message: "why".into() })
    }

    #[test]
    fn exit_message_names_the_likely_cause() {
        let described = |exit_code, out_of_memory, tail: &str| {
            let log_tail = tail.to_owned();
            ending(Some(&ContainerState::Exited(ContainerExit {
                exit_code,
                out_of_memory,
                log_tail,
            })))
        };
        assert_eq!(described(137, true, "").0, WorkerReason::OutOfMemory);
        let (reason, message) = described(137, false, "");
        assert_eq!(reason, WorkerReason::CrashLoopBackOff);
        assert!(message.contains("for its memory) and wrote nothing"), "{message}");
        assert_eq!(
            described(3, false, "no").1,
            "the container ended with exit code 3, its last words: no"
        );
    }

    #[test]
    fn missing_inputs_are_rechecked_at_a_constant_interval() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for reason in [
            WorkerReason::ScriptMissing,
            WorkerReason::ModelUnavailable,
            WorkerReason::DockerUnavailable,
        ] {
            for _ in 0..50 {
                attempts.done(failed(reason), None, 1, now, u64::MAX);
                assert_eq!(attempts.next_try, Some(now + RECHECK_INTERVAL));
                assert_eq!(attempts.failures, 0);
            }
        }
        for _ in 0..50 {
            attempts.done(failed(WorkerReason::ContainerRefused), None, 1, now, u64::MAX);
        }
        assert!(attempts.next_try.is_some_and(|at| at <= now + Duration::from_secs(30)));
    }

    #[test]
    fn start_resets_refusals_and_long_run_resets_crashes() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        attempts.set_target(&spec("a"));
        attempts.done(failed(WorkerReason::ContainerRefused), None, 1, now, 0);
        let started = || StepOutcome::Started { id: "1".into() };
        attempts.done(started(), Some(("a".into(), 0)), 2, now, 0);
        assert_eq!((attempts.failures, &attempts.problem), (0, &None));

        attempts.observe(&[], now, 0);
        assert_eq!(attempts.failures, 1, "it is gone, and nobody here removed it");
        assert!(
            attempts
                .problem
                .as_ref()
                .is_some_and(|problem| problem.message.contains("removed from outside"))
        );
        attempts.observe(&[], now, 0);
        assert_eq!(attempts.failures, 1, "that is known already");
        attempts.done(started(), Some(("a".into(), 1)), 3, now, 0);
        assert_eq!(attempts.failures, 1);
        attempts.set_target(&spec("a"));
        assert_eq!(attempts.failures, 1);
        attempts.set_target(&spec("b"));
        assert_eq!((attempts.failures, attempts.next_try), (0, None));
    }

    #[test]
    fn restarts_are_counted_per_spec() {
        let mut attempts =
            Attempts { started: Some((spec("a").to_string(), 4)), ..Attempts::default() };
        assert_eq!((attempts.restarts_of(&spec("a")), attempts.restarts_of(&spec("b"))), (5, 0));
        attempts.started = Some((spec("a").to_string(), u32::MAX));
        assert_eq!(attempts.restarts_of(&spec("a")), u32::MAX);
    }
}
