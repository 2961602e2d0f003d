//! Runs the probes of workers that are due. When that is, and what the results mean, is decided by
//! `neptune_agent_core::probes`.

use std::{sync::Arc, time::Instant};

use neptune_agent_core::{
    desired::Desired,
    probes::WorkerProbes,
    worker::{container::RunnableWorkers, probed::probed_containers},
};

use super::{Agent, containers::Containers};
use crate::{event::AgentEvent, probes::worker};

/// Records which containers are to be probed. Workers whose probes changed start without backoff.
pub fn observe(
    probes: &mut WorkerProbes,
    desired: &Desired,
    resolved: &RunnableWorkers<'_>,
    containers: &mut Containers,
    now: Instant,
) {
    let wanted = desired.workers.iter();
    let wanted = wanted.map(|(name, wanted)| (name, &wanted.worker.program.probes));
    for name in probes.set_wanted(wanted) {
        containers.attempts_of(&name).reset_failures();
    }
    let engine = &containers.observer;
    match engine.latest() {
        Ok((observed, _)) => {
            let undescribed = engine.undescribed();
            probes.observe(&probed_containers(desired, resolved, observed, undescribed), now);
        }
        Err(_) => probes.suspend(),
    }
}

impl Agent {
    /// Starts the probes that are due, each in its own task. Returns when the next one is due.
    pub(super) fn send_worker_probes(&mut self, now: Instant) -> Option<Instant> {
        let on_network = self.containers.executor.context.network.is_some();
        for due in self.probes.start_due(now) {
            let docker = Arc::clone(&self.containers.executor.supervisor.docker);
            let events = self.containers.executor.events.clone();
            tokio::spawn(async move {
                let answer = worker::run(&docker, &due, on_network).await;
                let (worker, run) = (due.worker, due.run);
                // The receiver is dropped only when the process exits.
                let _ = events.send(AgentEvent::WorkerProbeDone { worker, run, answer }).await;
            });
        }
        self.probes.next_at()
    }
}
