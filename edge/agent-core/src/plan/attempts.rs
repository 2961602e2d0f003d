//! The attempts to run one worker or model server: the step in flight, the failures, and when the
//! next attempt is due. Which steps follow is decided by the plan.

use std::time::{Duration, Instant};

use neptune_wire::{ContentHash, RestartTime, WorkerReason};

use crate::{
    backoff::{CONTAINER_REFUSED, IMAGE_PULL, RECHECK_INTERVAL, WORKER_RESTART},
    domain::{
        observed_container::{ContainerExit, ContainerState, ObservedContainer},
        outcome::StepOutcome,
        probe::FailedProbe,
        problem::Problem,
    },
};

/// A run of this length resets the failures. Twice the longest restart backoff.
const HEALTHY: Duration = Duration::from_secs(10 * 60);

/// The state of a worker beside its target and its observed containers.
#[derive(Debug, Clone, Default)]
pub struct Attempts {
    /// A step is in flight.
    pub busy: bool,
    /// The number of the first observation that includes the result of the last step.
    pub fresh_from: u64,
    pub failures: u32,
    pub next_try: Option<Instant>,
    pub problem: Option<Problem>,
    /// Why the container that last ran is no longer running.
    pub ending: Option<String>,
    /// The hash of the last started spec, and how often it was started before.
    pub started: Option<(String, u32)>,
    /// The units of devices of the last step, until an observation includes its result.
    pub units: Vec<String>,
    /// `problem` is that devices are not there or not free, and no step failed because of it.
    waits_for_devices: bool,
    /// The hash of the spec to which the failures belong.
    target: Option<ContentHash>,
    /// The latest requested restart to which the failures belong.
    restarted_at: Option<RestartTime>,
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
    /// How the container exited, if it was the one with this hash, which must run.
    pub fn ending_of(&self, hash: Option<&ContentHash>) -> Option<&str> {
        let started = self.started.as_ref().map(|(started, _)| started.as_str());
        self.ending.as_deref().filter(|_| started == hash.map(ContentHash::as_str))
    }

    /// Sets the spec that the worker must have, and the last restart that a person requested. Failures
    /// of another spec, or before that restart, do not delay it.
    pub fn set_target(&mut self, spec: &ContentHash, requested: Option<&RestartTime>) {
        let is_restart = self.restarted_at.as_ref() < requested;
        if is_restart {
            self.restarted_at = requested.cloned();
        }
        if is_restart || self.target.as_ref() != Some(spec) {
            self.target = Some(spec.clone());
            self.failures = 0;
            self.pull_failures = 0;
            self.next_pull = None;
            self.next_try = None;
            self.problem = None;
        }
    }

    /// Resets the failures for another version, which may use the same container.
    pub fn reset_failures(&mut self) {
        self.target = None;
        self.failures = 0;
        self.pull_failures = 0;
        self.next_pull = None;
        self.next_try = None;
        self.problem = None;
        self.ending = None;
    }

    /// Records the observed containers of the worker while no step is in flight.
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
        let exited = containers.iter().find(|container| container.id == running.id);
        self.fail(now, random);
        let (reason, what) = exit_problem(exited.map(|container| &container.state));
        let backoff = WORKER_RESTART.step(self.failures).as_secs();
        let message = format!("{what}; restarting within {backoff} s");
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
        self.waits_for_devices &= !matches!(outcome, StepOutcome::Failed(_));
        if !matches!(outcome, StepOutcome::Placed(_)) {
            self.running = None;
        }
        match outcome {
            // The container is unchanged.
            StepOutcome::Placed(Ok(_)) => {}
            StepOutcome::Placed(Err(problem)) => {
                self.next_try = Some(now + RECHECK_INTERVAL);
                self.problem = Some(problem);
            }
            StepOutcome::Started { id } => self.container_started(id, spec, now),
            StepOutcome::Stopped { failed, at, .. } => self.stopped(&failed, at, random),
            StepOutcome::Removed => self.next_try = None,
            StepOutcome::ImageAbsent => {
                self.next_try =
                    Some(self.next_pull.map_or(now, |pull| pull.min(now + RECHECK_INTERVAL)));
                let has_reason = |problem: &Problem| problem.reason == WorkerReason::ImageMissing;
                if !self.problem.as_ref().is_some_and(has_reason) {
                    let message = "image not found on the node; pulling it".to_owned();
                    self.problem = Some(Problem { reason: WorkerReason::Starting, message });
                }
            }
            StepOutcome::PullFailed(message) => {
                self.pull_failures = self.pull_failures.saturating_add(1);
                self.next_pull = Some(now + IMAGE_PULL.delay(self.pull_failures, random));
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
        // The container may exit again, so that the failures of earlier crashes remain.
        let is_crash = |problem: &Problem| {
            matches!(
                problem.reason,
                WorkerReason::CrashLoopBackOff
                    | WorkerReason::OutOfMemory
                    | WorkerReason::Unhealthy
            )
        };
        if !self.problem.as_ref().is_some_and(is_crash) {
            self.problem = None;
            self.failures = 0;
        }
    }

    /// Records that the container is being stopped because of a probe.
    pub fn stopping(&mut self, failed: &FailedProbe) {
        self.problem = Some(failed.stopping());
    }

    /// The backoff begins with the stop, so that a long grace period is a part of it.
    fn stopped(&mut self, failed: &FailedProbe, at: Instant, random: u64) {
        self.fail(at, random);
        let backoff = WORKER_RESTART.step(self.failures).as_secs();
        let message = format!("{failed}; restarted, next attempt in {backoff} s");
        self.problem = Some(Problem { reason: WorkerReason::Unhealthy, message });
    }

    fn step_failed(&mut self, problem: Problem, now: Instant, random: u64) {
        match problem.reason {
            WorkerReason::ScriptMissing
            | WorkerReason::ModelUnavailable
            | WorkerReason::DatasetUnavailable
            | WorkerReason::DockerUnavailable
            | WorkerReason::PortInUse
            | WorkerReason::DeviceMissing
            | WorkerReason::DeviceBusy
            | WorkerReason::VolumeNotAllowed
            | WorkerReason::VolumeMissing
            | WorkerReason::SecretUnreadable => self.next_try = Some(now + RECHECK_INTERVAL),
            _ => {
                self.failures = self.failures.saturating_add(1);
                self.next_try = Some(now + CONTAINER_REFUSED.delay(self.failures, random));
            }
        }
        self.problem = Some(problem);
    }

    /// Records why the worker waits for devices, or that it does not wait any more. Returns whether
    /// that changed.
    pub fn set_device_problem(&mut self, problem: Option<&Problem>) -> bool {
        let is_changed = match problem {
            Some(_) => self.problem.as_ref() != problem,
            None => self.waits_for_devices,
        };
        self.waits_for_devices = problem.is_some();
        if is_changed {
            self.problem = problem.cloned();
        }
        is_changed
    }

    /// Whether a missing image may be pulled now.
    pub fn may_pull(&self, now: Instant) -> bool {
        let was_absent = self.problem.as_ref().is_some_and(|problem| {
            matches!(problem.reason, WorkerReason::Starting | WorkerReason::ImageMissing)
        });
        was_absent && self.next_pull.is_none_or(|at| at <= now)
    }

    /// Whether the present container has been observed running for this long.
    pub fn has_run_for(&self, time: Duration, now: Instant) -> bool {
        self.running.as_ref().is_some_and(|running| now.duration_since(running.since) >= time)
    }

    /// When the present container was first observed running.
    pub fn running_since(&self) -> Option<Instant> {
        self.running.as_ref().map(|running| running.since)
    }

    /// The restart count of this spec if it is started now.
    pub fn restarts_of(&self, spec: &ContentHash) -> u32 {
        match &self.started {
            Some((started, restarts)) if started == spec.as_str() => restarts.saturating_add(1),
            _ => 0,
        }
    }

    fn fail(&mut self, now: Instant, random: u64) {
        self.failures = self.failures.saturating_add(1);
        self.next_try = Some(now + WORKER_RESTART.delay(self.failures, random));
    }
}

/// The reason and message for a container that exited or was removed.
fn exit_problem(state: Option<&ContainerState>) -> (WorkerReason, String) {
    match state {
        Some(ContainerState::Exited(ContainerExit { out_of_memory: true, .. })) => (
            WorkerReason::OutOfMemory,
            "container exceeded the memory of workerSpec.resources or of the node; raise the limit or free memory"
                .to_owned(),
        ),
        Some(ContainerState::Exited(ContainerExit { exit_code, log_tail, .. })) => {
            // Podman does not always report that the kernel killed a container for lack of memory.
            let killed = match exit_code {
                137 => " (SIGKILL by another program, or by the kernel for lack of memory)",
                _ => "",
            };
            let log = match log_tail.as_str() {
                "" => "no output".to_owned(),
                lines => format!("last log lines: {lines}"),
            };
            let message = format!("container exited with exit code {exit_code}{killed}, {log}");
            (WorkerReason::CrashLoopBackOff, message)
        }
        _ => (WorkerReason::CrashLoopBackOff, "container was removed by another program".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    fn spec(name: &str) -> ContentHash {
        ContentHash::compute(&name)
    }

    fn failed(reason: WorkerReason) -> StepOutcome {
        StepOutcome::Failed(Problem { reason, message: "why".into() })
    }

    #[test]
    fn exit_message_names_the_likely_cause() {
        let problem_of = |exit_code, out_of_memory, log: &str| {
            let log_tail = log.to_owned();
            exit_problem(Some(&ContainerState::Exited(ContainerExit {
                exit_code,
                out_of_memory,
                log_tail,
            })))
        };
        assert_eq!(problem_of(137, true, "").0, WorkerReason::OutOfMemory);
        let (reason, message) = problem_of(137, false, "");
        assert_eq!(reason, WorkerReason::CrashLoopBackOff);
        assert!(message.contains("for lack of memory), no output"), "{message}");
        assert_eq!(
            problem_of(3, false, "no").1,
            "container exited with exit code 3, last log lines: no"
        );
    }

    #[test]
    fn missing_input_is_checked_at_a_constant_interval() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        for reason in [
            WorkerReason::ScriptMissing,
            WorkerReason::ModelUnavailable,
            WorkerReason::DockerUnavailable,
            WorkerReason::PortInUse,
            WorkerReason::DeviceMissing,
            WorkerReason::DeviceBusy,
            WorkerReason::VolumeNotAllowed,
            WorkerReason::VolumeMissing,
            WorkerReason::SecretUnreadable,
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
    fn wait_for_devices_ends_with_its_problem_and_a_refusal_stays() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        let busy = Problem { reason: WorkerReason::DeviceBusy, message: "in use".into() };
        assert!(!attempts.set_device_problem(None));
        assert!(attempts.set_device_problem(Some(&busy)));
        assert!(!attempts.set_device_problem(Some(&busy)), "the same");
        assert_eq!(attempts.problem, Some(busy));
        assert!(attempts.set_device_problem(None));
        assert_eq!(attempts.problem, None);
        attempts.done(failed(WorkerReason::DeviceMissing), None, 1, now, 0);
        assert!(!attempts.set_device_problem(None), "the engine knows no such device");
        assert!(attempts.problem.is_some());
    }

    #[test]
    fn start_resets_refusals_and_new_spec_resets_crashes() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        attempts.set_target(&spec("a"), None);
        attempts.done(failed(WorkerReason::ContainerRefused), None, 1, now, 0);
        let started = || StepOutcome::Started { id: "1".into() };
        attempts.done(started(), Some(("a".into(), 0)), 2, now, 0);
        assert_eq!((attempts.failures, &attempts.problem), (0, &None));

        attempts.observe(&[], now, 0);
        assert_eq!(attempts.failures, 1, "removed by another program");
        assert!(
            attempts
                .problem
                .as_ref()
                .is_some_and(|problem| problem.message.contains("removed by another program"))
        );
        attempts.observe(&[], now, 0);
        assert_eq!(attempts.failures, 1, "the removal counts once");
        attempts.done(started(), Some(("a".into(), 1)), 3, now, 0);
        assert_eq!(attempts.failures, 1);
        attempts.set_target(&spec("a"), None);
        assert_eq!(attempts.failures, 1);
        attempts.set_target(&spec("b"), None);
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
