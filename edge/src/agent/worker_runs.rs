//! Records the observed runs of the workers: to which run a reported status belongs, and which
//! workers are finished.

use neptune_agent_core::{
    desired::{Desired, WantedWorker},
    domain::{
        observed_container::{ContainerState, ObservedContainer},
        worker_count::{FinishedRun, ReportedStatus},
    },
    worker::completion::{WorkerRunFacts, finished_after},
};
use neptune_wire::WorkerName;

use super::{containers::Containers, values::NodeValues, worker_pool::WorkerPool};

impl WorkerPool {
    /// Records the runs of all workers, and drops what gateways reported in earlier ones. Called
    /// before messages that arrived earlier than their containers are handled, because they belong
    /// to these runs.
    pub fn observe_runs(&mut self, desired: &Desired, containers: &Containers) {
        self.gateways.retain(|uid, name, run| {
            let wanted = desired.workers.get(name).filter(|wanted| wanted.uid == uid);
            let container = wanted.and_then(|wanted| current(containers, name, wanted));
            container.is_some_and(|it| it.is_alive() && it.run_name() == run)
        });
        for (name, wanted) in &desired.workers {
            if let Some(container) = current(containers, name, wanted) {
                let boot = container.is_alive().then_some(self.boot_id.as_str());
                let run = container.run_name();
                self.counts.observe_run(&wanted.owner, (&wanted.uid, name), &run, boot);
            }
        }
    }

    /// Decides which workers are finished. A worker whose container was removed stays finished. `values`
    /// has the Secrets that the stored message must not have.
    pub fn update_finished(
        &mut self,
        desired: &Desired,
        containers: &Containers,
        values: &NodeValues,
    ) {
        for (name, wanted) in &desired.workers {
            if containers.may_appear(name) {
                continue;
            }
            let Some(container) = current(containers, name, wanted) else { continue };
            let run = self.counts.run(&wanted.uid, name);
            let boot = run.map(|run| run.boot.as_str()).unwrap_or_default();
            let is_rebooted = !boot.is_empty() && boot != self.boot_id;
            let facts = WorkerRunFacts {
                policy: wanted.restart_policy(),
                spec_hash: &container.identity.spec_hash,
                restarted_at: container.identity.restarted_at.as_ref(),
                reported: ReportedStatus::parse(self.counts.status(&wanted.uid, name)),
                is_interrupted: is_rebooted || containers.is_interrupted(&container.id),
            };
            let before = run.and_then(|run| run.finished.clone());
            let finished = finished_after(before, &container.state, facts)
                .map(|run| FinishedRun { message: values.mask(name.as_str(), run.message), ..run });
            self.counts.set_finished(&wanted.owner, (&wanted.uid, name), finished);
        }
    }
}

/// The worker's container, preferably a running one. Containers of earlier objects are ignored, and
/// those whose run is not known.
fn current<'a>(
    containers: &'a Containers,
    name: &'a WorkerName,
    wanted: &WantedWorker,
) -> Option<&'a ObservedContainer> {
    let is_known = |it: &&ObservedContainer| it.state != ContainerState::Unknown;
    let of_object = containers.observed_of(name).filter(|it| it.identity.uid == wanted.uid);
    let of_object = of_object.filter(is_known);
    of_object.max_by_key(|it| it.is_alive())
}
