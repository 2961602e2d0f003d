//! The results of probes, and the container that a failed one restarts.

use std::fmt;

use neptune_wire::WorkerReason;

use crate::domain::problem::Problem;

/// The probes that a worker can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];
}

/// The field of the spec that has the probe.
impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "startupProbe",
            Self::Liveness => "livenessProbe",
            Self::Readiness => "readinessProbe",
        })
    }
}

/// How one probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeAnswer {
    pub result: ProbeResult,
    /// The ID of the exec that may still run in the container.
    pub running_exec: Option<String>,
}

/// What one probe shows of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    /// What was requested and what is wrong.
    Failure(String),
    /// Nothing: the engine did not answer, or the container was not running.
    Unknown,
}

impl From<Result<(), String>> for ProbeAnswer {
    fn from(result: Result<(), String>) -> Self {
        let result = result.map_or_else(ProbeResult::Failure, |()| ProbeResult::Success);
        Self { result, running_exec: None }
    }
}

/// A probe that failed as often as its container may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedProbe {
    pub kind: ProbeKind,
    pub failures: u32,
    /// What was wrong the last time.
    pub why: String,
}

impl fmt::Display for FailedProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, failures, why } = self;
        match failures {
            1 => write!(f, "{kind} failed ({why})"),
            _ => write!(f, "{kind} failed {failures} times ({why})"),
        }
    }
}

impl FailedProbe {
    /// The problem of a container that is being stopped because of it.
    pub fn stopping(&self) -> Problem {
        let message = format!("{self}; stopping the container to restart it");
        Problem { reason: WorkerReason::Unhealthy, message }
    }
}

/// What the probes show of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeVerdict<'a> {
    /// It runs as it should, or no probe shows otherwise.
    Healthy,
    /// Its `livenessProbe` has not succeeded yet.
    Unconfirmed,
    /// It waits for the first success of this probe. The text is the last failure.
    NotReady(ProbeKind, Option<&'a str>),
    /// It has to be restarted.
    Unhealthy(&'a FailedProbe),
}
