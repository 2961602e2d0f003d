//! Looks for problems of the node, which the cloud and the doctor then know. `node_problems.rs`
//! words them.

use std::time::Instant;

use neptune_edge_broker::SERVER;
use neptune_program::listen::Refusal;
use neptune_wire::NodeProblem;
use tracing::{debug, warn};

use super::{Agent, node_problems};

impl Agent {
    /// Looks for problems of the node. Returns when to do so again.
    pub(super) fn check_node(&mut self, now: Instant) -> Instant {
        let check_at = self.store.check(now);
        let (has_key, has_seal_key) = (self.key.retry(now), self.values.retry_key(now));
        if has_key || has_seal_key {
            let key = self.key.get().ok();
            self.cloud.publisher.node.seal_key = self.values.key_report(&self.config.node, key);
            self.cloud.heartbeat_at = self.cloud.heartbeat_at.map(|_| now);
            self.schedule.is_plan_stale = true;
        }
        if has_key {
            self.cloud.publisher.node.key_pin = self.key.pin();
            if let Some((peers, key)) = self.peers.as_ref().zip(self.key.get().ok()) {
                peers.start(key);
            }
        }
        let has_other_client = self.cloud.publisher.link.is_taken_over();
        let has_other_containers = self.containers.contest.is_detected(now);
        let contest = node_problems::name_in_use(
            &self.config.node,
            has_other_client.then_some(&self.config.mqtt_url),
            has_other_containers.then_some(self.config.docker_socket.as_path()),
        );
        if let Some(problem) = &contest
            && !self.cloud.problems().iter().any(|known| known.reason == problem.reason)
        {
            warn!("{}", problem.message);
        }
        let refused = Refusal::ALL.map(|cause| self.refusals.total(SERVER, cause));
        let flood = self.flood.observe(refused.iter().sum(), now);
        let no_keys = self.key.get().err().cloned().into_iter().chain(self.values.key_problem());
        let problems = self.store.problem().into_iter().chain(contest).chain(flood).chain(no_keys);
        let problems: Vec<NodeProblem> = problems.collect();
        if problems != self.cloud.problems() {
            self.save_problems(&problems);
            self.cloud.set_problems(problems, now);
            // The states of the workers contain them.
            self.schedule.is_plan_stale = true;
        }
        check_at
    }

    /// Stores the problems for the doctor, unless writes fail: the doctor finds that itself.
    fn save_problems(&mut self, problems: &[NodeProblem]) {
        if !self.store.is_failing()
            && let Err(error) = self.store.save_problems(problems)
        {
            debug!(%error, "failed to store the problems of the node");
        }
    }
}
