//! Which containers of workers are probed, and what the probes mean for the health of a worker.

use std::collections::BTreeMap;

use neptune_wire::{WorkerName, WorkerReason};

use crate::{
    desired::Desired,
    domain::{
        health::WorkerHealth,
        observed_container::ObservedContainer,
        probe::{ProbeKind, ProbeVerdict},
    },
    plan::attempts::Attempts,
    probes::ProbedContainer,
    worker::{container::RunnableWorkers, health::waiting},
};

/// The containers to probe: those that run what their worker wants. Another one is replaced, or kept
/// because its worker lacks an input, so that it could not be started again.
pub fn probed_containers<'a>(
    desired: &'a Desired,
    resolved: &RunnableWorkers<'_>,
    containers: &'a [ObservedContainer],
    undescribed: &BTreeMap<WorkerName, String>,
) -> Vec<ProbedContainer<'a>> {
    let probed = desired.workers.iter().filter_map(|(worker, wanted)| {
        let probes = &wanted.worker.program.probes;
        let Some(Ok(target)) = resolved.get(worker).filter(|_| !probes.is_empty()) else {
            return None;
        };
        let hash = &target.container.hash;
        let container = containers.iter().find(|container| {
            container.identity.worker == *worker && container.is_alive() && container.has_spec(hash)
        })?;
        let is_described = !undescribed.contains_key(worker);
        Some(ProbedContainer { worker, probes, container, is_described })
    });
    probed.collect()
}

/// The health of a worker that waits for its first success of a probe.
pub fn not_ready(kind: ProbeKind, why: Option<&str>) -> WorkerHealth {
    let message = match why {
        Some(why) => format!("waiting for {kind}: {why}"),
        None => format!("waiting for {kind}"),
    };
    waiting(WorkerReason::Starting, &message)
}

/// Whether a worker was restarted because of a probe, and its probes have not succeeded since.
pub fn is_unconfirmed(attempts: &Attempts, verdict: ProbeVerdict<'_>) -> bool {
    let is_open = matches!(verdict, ProbeVerdict::NotReady(..) | ProbeVerdict::Unconfirmed);
    let problem = attempts.problem.as_ref().map(|problem| problem.reason);
    is_open && problem == Some(WorkerReason::Unhealthy)
}
