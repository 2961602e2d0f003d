//! The probes of one run of a container. At most one is in flight.

use std::time::{Duration, Instant};

use neptune_wire::{ContainerProbe, ContainerProbes};

use crate::domain::probe::{FailedProbe, ProbeAnswer, ProbeKind, ProbeResult, ProbeVerdict};

/// Minimum period of a probe, to limit its load.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// The history of the probes in one run of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunProbes {
    probes: ContainerProbes,
    startup: Progress,
    liveness: Progress,
    readiness: Progress,
    in_flight: Option<InFlight>,
    failed: Option<FailedProbe>,
    /// The container is paused, or the engine does not answer.
    is_suspended: bool,
    /// It ran before its probes were known. It counts as ready until one of them fails.
    is_adopted: bool,
}

/// The history of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Progress {
    next_at: Instant,
    failures: u32,
    successes: u32,
    /// It succeeded in this run.
    has_passed: bool,
    last_failure: Option<String>,
    /// The exec of an earlier probe that may still run.
    running_exec: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct InFlight {
    kind: ProbeKind,
    since: Instant,
    /// Whether its result counts for the container.
    counts: bool,
}

/// A probe to run now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedProbe {
    pub kind: ProbeKind,
    pub probe: ContainerProbe,
    /// The exec of an earlier probe that may still run. Until it ended, no other one is started.
    pub running_exec: Option<String>,
}

impl RunProbes {
    /// The history at the start of a container. `is_adopted`: it ran before its probes were known.
    pub fn new(probes: ContainerProbes, is_adopted: bool, now: Instant) -> Self {
        let progress = |probe: &Option<Box<ContainerProbe>>| Progress {
            next_at: now + probe.as_deref().map_or(Duration::ZERO, initial_delay),
            failures: 0,
            successes: 0,
            has_passed: false,
            last_failure: None,
            running_exec: None,
        };
        Self {
            startup: progress(&probes.startup),
            liveness: progress(&probes.liveness),
            readiness: progress(&probes.readiness),
            probes,
            in_flight: None,
            failed: None,
            is_suspended: false,
            is_adopted,
        }
    }

    /// Records that its probes were known when it started.
    pub fn set_started(&mut self) {
        self.is_adopted = false;
    }

    pub fn probes(&self) -> &ContainerProbes {
        &self.probes
    }

    /// The history of the same run with other probes. What still runs in the container is known.
    #[must_use]
    pub fn with_probes(&self, probes: ContainerProbes, now: Instant) -> Self {
        let mut changed = Self::new(probes, true, now);
        for kind in ProbeKind::ALL {
            let running = self.progress(kind).running_exec.clone();
            changed.progress_mut(kind).running_exec = running;
        }
        let in_flight = self.in_flight.clone();
        changed.in_flight = in_flight.map(|probe| InFlight { counts: false, ..probe });
        changed
    }

    /// Starts the probe that is due first, if one is due and none is in flight.
    pub fn start_due(&mut self, now: Instant) -> Option<StartedProbe> {
        let (kind, _) = self.next().filter(|(_, at)| *at <= now)?;
        let probe = self.probe(kind)?.clone();
        self.in_flight = Some(InFlight { kind, since: now, counts: true });
        let running_exec = self.progress(kind).running_exec.clone();
        Some(StartedProbe { kind, probe, running_exec })
    }

    /// When the next probe is due; `None` while one is in flight or none is wanted.
    pub fn next_at(&self) -> Option<Instant> {
        self.next().map(|(_, at)| at)
    }

    /// Records the result of the probe in flight.
    pub fn record(&mut self, answer: ProbeAnswer, now: Instant) {
        let Some(InFlight { kind, since, counts }) = self.in_flight.take() else { return };
        let ProbeAnswer { result, running_exec } = answer;
        self.progress_mut(kind).running_exec = running_exec;
        let Some(probe) = self.probe(kind) else { return };
        let (period, failures, successes) = (period(probe), probe.failures, probe.successes);
        let progress = self.progress_mut(kind);
        if !counts {
            // Its container did not run all the time, or had other probes.
            progress.next_at = progress.next_at.max(now);
            return;
        }
        progress.next_at = (since + period).max(now);
        match result {
            ProbeResult::Success => {
                progress.failures = 0;
                progress.successes = progress.successes.saturating_add(1);
                progress.has_passed |= progress.successes >= successes;
            }
            ProbeResult::Failure(why) => {
                progress.successes = 0;
                progress.failures = progress.failures.saturating_add(1);
                progress.last_failure = Some(why.clone());
                // The kubelet restarts no container that is not ready.
                if progress.failures >= failures && kind != ProbeKind::Readiness {
                    let failures = progress.failures;
                    self.failed = Some(FailedProbe { kind, failures, why });
                }
            }
            ProbeResult::Unknown => {}
        }
    }

    /// Records that the container is paused or that the engine does not answer. Neither is a failure
    /// of the container, so that those before do not count either.
    pub fn suspend(&mut self) {
        self.is_suspended = true;
        self.failed = None;
        for kind in ProbeKind::ALL {
            let progress = self.progress_mut(kind);
            (progress.failures, progress.successes) = (0, 0);
        }
        if let Some(probe) = &mut self.in_flight {
            probe.counts = false;
        }
    }

    /// Records that the container runs. After a pause it has a period to recover.
    pub fn resume(&mut self, now: Instant) {
        if !std::mem::take(&mut self.is_suspended) {
            return;
        }
        for kind in ProbeKind::ALL {
            let pause = self.probe(kind).map_or(Duration::ZERO, period);
            let progress = self.progress_mut(kind);
            progress.next_at = progress.next_at.max(now + pause);
        }
    }

    /// What the probes show of the container.
    pub fn verdict(&self) -> ProbeVerdict<'_> {
        if let Some(failed) = &self.failed {
            return ProbeVerdict::Unhealthy(failed);
        }
        for kind in [ProbeKind::Startup, ProbeKind::Readiness] {
            let Progress { has_passed, last_failure, .. } = self.progress(kind);
            let is_ready = *has_passed || self.is_adopted && last_failure.is_none();
            if self.probe(kind).is_some() && !is_ready {
                return ProbeVerdict::NotReady(kind, last_failure.as_deref());
            }
        }
        match self.probe(ProbeKind::Liveness) {
            Some(_) if !self.liveness.has_passed => ProbeVerdict::Unconfirmed,
            _ => ProbeVerdict::Healthy,
        }
    }

    /// The wanted probe that is due first, if none is in flight.
    fn next(&self) -> Option<(ProbeKind, Instant)> {
        if self.in_flight.is_some() || self.is_suspended {
            return None;
        }
        let wanted = ProbeKind::ALL.into_iter().filter(|kind| self.is_wanted(*kind));
        wanted.map(|kind| (kind, self.progress(kind).next_at)).min_by_key(|(_, at)| *at)
    }

    fn is_wanted(&self, kind: ProbeKind) -> bool {
        if self.failed.is_some() || self.probe(kind).is_none() {
            return false;
        }
        let has_started = self.probe(ProbeKind::Startup).is_none() || self.startup.has_passed;
        match kind {
            ProbeKind::Startup => !self.startup.has_passed,
            ProbeKind::Liveness => has_started,
            ProbeKind::Readiness => has_started && !self.readiness.has_passed,
        }
    }

    /// The probe of this kind, if this agent can run it.
    fn probe(&self, kind: ProbeKind) -> Option<&ContainerProbe> {
        let probe = match kind {
            ProbeKind::Startup => &self.probes.startup,
            ProbeKind::Liveness => &self.probes.liveness,
            ProbeKind::Readiness => &self.probes.readiness,
        };
        probe.as_deref().filter(|probe| probe.action().is_some())
    }

    fn progress(&self, kind: ProbeKind) -> &Progress {
        match kind {
            ProbeKind::Startup => &self.startup,
            ProbeKind::Liveness => &self.liveness,
            ProbeKind::Readiness => &self.readiness,
        }
    }

    fn progress_mut(&mut self, kind: ProbeKind) -> &mut Progress {
        match kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
        }
    }
}

/// The longest time that a probe may have, so that no sum of times overflows: a year.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

fn initial_delay(probe: &ContainerProbe) -> Duration {
    Duration::from_millis(probe.initial_delay_ms).min(MAX_TIME)
}

fn period(probe: &ContainerProbe) -> Duration {
    Duration::from_millis(probe.period_ms).clamp(MIN_PERIOD, MAX_TIME)
}

#[cfg(test)]
mod tests;
