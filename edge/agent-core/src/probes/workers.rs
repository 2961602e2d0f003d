//! The probes of all workers of the node: one history for each run of a container.

use std::{collections::BTreeMap, net::IpAddr, time::Instant};

use neptune_wire::{ContainerProbe, ContainerProbes, WorkerName};

use super::run::{RunProbes, StartedProbe};
use crate::domain::{
    observed_container::{ContainerState, ObservedContainer},
    probe::{ProbeAnswer, ProbeKind, ProbeVerdict},
};

/// The histories of the probes, by worker. A restart of the agent empties them.
#[derive(Debug, Default)]
pub struct WorkerProbes {
    runs: BTreeMap<WorkerName, ProbedRun>,
    /// The probes that each worker has, also while its container does not run.
    wanted: BTreeMap<WorkerName, ContainerProbes>,
    /// The container that this agent started for each worker with probes.
    started: BTreeMap<WorkerName, String>,
}

#[derive(Debug)]
struct ProbedRun {
    /// The name of the run, see [`ObservedContainer::run_name`].
    name: String,
    container: String,
    address: Option<IpAddr>,
    probes: RunProbes,
}

/// A container that is to be probed.
#[derive(Debug, Clone, Copy)]
pub struct ProbedContainer<'a> {
    pub worker: &'a WorkerName,
    pub probes: &'a ContainerProbes,
    pub container: &'a ObservedContainer,
    /// Whether the engine describes it at present.
    pub is_described: bool,
}

/// A probe to run now, and the run of a container to which it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueProbe {
    pub worker: WorkerName,
    pub run: String,
    /// The ID of the container.
    pub container: String,
    /// The address of the container on its Docker network; `None` on the network of the node.
    pub address: Option<IpAddr>,
    pub kind: ProbeKind,
    pub probe: ContainerProbe,
    /// The exec of an earlier probe that may still run.
    pub running_exec: Option<String>,
}

impl WorkerProbes {
    /// Sets the probes of the workers that should run. Returns those whose probes changed: failures of
    /// the former ones do not delay them.
    pub fn set_wanted<'a>(
        &mut self,
        workers: impl Iterator<Item = (&'a WorkerName, &'a ContainerProbes)>,
    ) -> Vec<WorkerName> {
        let wanted = workers.filter(|(_, probes)| !probes.is_empty());
        let wanted: BTreeMap<_, _> =
            wanted.map(|(name, probes)| (name.clone(), probes.clone())).collect();
        self.started.retain(|name, _| wanted.contains_key(name));
        let before = std::mem::replace(&mut self.wanted, wanted);
        let is_changed = |(name, probes): &(WorkerName, ContainerProbes)| {
            self.wanted.get(name).is_some_and(|wanted| wanted != probes)
        };
        before.into_iter().filter(is_changed).map(|(name, _)| name).collect()
    }

    /// Records that this agent started a container: it is ready when its probes succeed, and not
    /// before.
    pub fn started(&mut self, worker: &WorkerName, container: &str) {
        if !self.wanted.contains_key(worker) {
            return;
        }
        self.started.insert(worker.clone(), container.to_owned());
        // An observation may have been earlier.
        if let Some(run) = self.runs.get_mut(worker).filter(|run| run.container == container) {
            run.probes.set_started();
        }
    }

    /// Records the containers of the workers that have probes, as observed. Histories of other runs
    /// are dropped.
    pub fn observe(&mut self, containers: &[ProbedContainer<'_>], now: Instant) {
        let mut before = std::mem::take(&mut self.runs);
        for ProbedContainer { worker, probes, container, is_described } in containers {
            let name = container.run_name();
            let known = before.remove(*worker).filter(|run| run.container == container.id);
            let is_adopted = known.is_none() && self.started.get(*worker) != Some(&container.id);
            let known = known.filter(|run| run.name == name).map(|run| run.probes);
            let mut history = match known {
                Some(history) if history.probes() == *probes => history,
                Some(history) => history.with_probes((*probes).clone(), now),
                None => RunProbes::new((*probes).clone(), is_adopted, now),
            };
            if *is_described && container.state == ContainerState::Running {
                history.resume(now);
            } else {
                history.suspend();
            }
            let run = ProbedRun {
                name,
                container: container.id.clone(),
                address: container.address,
                probes: history,
            };
            self.runs.insert((*worker).clone(), run);
        }
    }

    /// Records that the engine does not answer.
    pub fn suspend(&mut self) {
        for run in self.runs.values_mut() {
            run.probes.suspend();
        }
    }

    /// Starts the probes that are due, at most one of each container.
    pub fn start_due(&mut self, now: Instant) -> Vec<DueProbe> {
        let due = self.runs.iter_mut().filter_map(|(worker, run)| {
            let StartedProbe { kind, probe, running_exec } = run.probes.start_due(now)?;
            Some(DueProbe {
                worker: worker.clone(),
                run: run.name.clone(),
                container: run.container.clone(),
                address: run.address,
                kind,
                probe,
                running_exec,
            })
        });
        due.collect()
    }

    /// When the next probe is due; `None` without one.
    pub fn next_at(&self) -> Option<Instant> {
        self.runs.values().filter_map(|run| run.probes.next_at()).min()
    }

    /// Records the result of a probe of this run. Returns whether that changed what is known of the
    /// container.
    pub fn record(
        &mut self,
        worker: &WorkerName,
        run: &str,
        answer: ProbeAnswer,
        now: Instant,
    ) -> bool {
        let Some(known) = self.runs.get_mut(worker).filter(|known| known.name == run) else {
            return false;
        };
        let before = known.probes.clone();
        known.probes.record(answer, now);
        known.probes.verdict() != before.verdict()
    }

    /// What the probes show of this container of a worker.
    pub fn verdict(&self, worker: &WorkerName, container: &ObservedContainer) -> ProbeVerdict<'_> {
        let run = self.runs.get(worker).filter(|run| run.name == container.run_name());
        run.map_or(ProbeVerdict::Healthy, |run| run.probes.verdict())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::fixtures::{observed_container, wanted_worker};

    fn probes(failures: u32) -> ContainerProbes {
        let probe = json!({"tcpPort": 5, "periodMs": 1000, "failures": failures});
        serde_json::from_value(json!({"liveness": probe, "readiness": probe})).unwrap()
    }

    fn started(container: &str, at: &str) -> ObservedContainer {
        ObservedContainer { started_at: at.to_owned(), ..observed_container(container) }
    }

    fn failure() -> ProbeAnswer {
        Err("no".to_owned()).into()
    }

    struct Node {
        probes: WorkerProbes,
        worker: WorkerName,
        now: Instant,
    }

    impl Node {
        fn observe(&mut self, wanted: &ContainerProbes, container: &ObservedContainer) {
            let worker = &self.worker;
            let one = ProbedContainer { worker, probes: wanted, container, is_described: true };
            self.probes.observe(&[one], self.now);
        }

        fn probe(&mut self, answer: ProbeAnswer) -> bool {
            self.now += Duration::from_secs(1);
            let due = self.probes.start_due(self.now);
            let [DueProbe { worker, run, .. }] = &due[..] else { unreachable!("{due:?}") };
            self.probes.record(worker, run, answer, self.now)
        }
    }

    fn node() -> Node {
        let (probes, worker) = (WorkerProbes::default(), wanted_worker().worker.name);
        Node { probes, worker, now: Instant::now() }
    }

    #[test]
    fn history_belongs_to_one_start_of_a_container() {
        let (mut node, wanted) = (node(), probes(1));
        let first = started("1", "a");
        node.observe(&wanted, &first);
        assert_eq!(node.probes.verdict(&node.worker, &first), ProbeVerdict::Unconfirmed, "it ran");
        assert!(node.probe(failure()));
        node.observe(&wanted, &first);
        assert!(matches!(node.probes.verdict(&node.worker, &first), ProbeVerdict::Unhealthy(_)));
        let again = started("1", "b");
        assert_eq!(node.probes.verdict(&node.worker, &again), ProbeVerdict::Healthy, "not known");
        node.observe(&wanted, &again);
        let verdict = node.probes.verdict(&node.worker, &again);
        assert_eq!(verdict, ProbeVerdict::NotReady(ProbeKind::Readiness, None));
        assert_eq!(node.probes.verdict(&node.worker, &first), ProbeVerdict::Healthy);
        node.probes.observe(&[], node.now);
        assert_eq!(node.probes.next_at(), None, "it does not run");
    }

    #[test]
    fn container_that_this_agent_started_is_ready_when_its_probes_succeed() {
        for is_observed_first in [false, true] {
            let (mut node, wanted) = (node(), probes(1));
            let (worker, container) = (node.worker.clone(), started("1", "a"));
            node.probes.set_wanted([(&worker, &wanted)].into_iter());
            if is_observed_first {
                node.observe(&wanted, &container);
            }
            node.probes.started(&worker, "1");
            node.observe(&wanted, &container);
            let verdict = node.probes.verdict(&worker, &container);
            assert_eq!(verdict, ProbeVerdict::NotReady(ProbeKind::Readiness, None));
        }
    }

    #[test]
    fn result_of_an_earlier_run_is_ignored() {
        let (mut node, wanted) = (node(), probes(1));
        node.observe(&wanted, &started("1", "a"));
        let due = node.probes.start_due(node.now).remove(0);
        let again = started("1", "b");
        node.observe(&wanted, &again);
        assert!(!node.probes.record(&due.worker, &due.run, failure(), node.now));
        assert!(!matches!(node.probes.verdict(&node.worker, &again), ProbeVerdict::Unhealthy(_)));
    }

    #[test]
    fn paused_container_and_silent_engine_are_no_failures() {
        let (mut node, wanted) = (node(), probes(2));
        let running = started("1", "a");
        let paused = ObservedContainer { state: ContainerState::Paused, ..running.clone() };
        node.observe(&wanted, &running);
        for by_engine in [false, true] {
            assert!(!node.probe(failure()) || !by_engine);
            if by_engine {
                node.probes.suspend();
            } else {
                node.observe(&wanted, &paused);
            }
            node.now += Duration::from_secs(60);
            assert_eq!(node.probes.start_due(node.now), []);
            node.observe(&wanted, &running);
        }
        node.probe(failure());
        assert!(!matches!(node.probes.verdict(&node.worker, &running), ProbeVerdict::Unhealthy(_)));
        node.probe(failure());
        assert!(!matches!(node.probes.verdict(&node.worker, &running), ProbeVerdict::Healthy));
    }

    #[test]
    fn changed_probes_are_named_and_begin_again() {
        let (mut node, running) = (node(), started("1", "a"));
        let worker = node.worker.clone();
        let set = |node: &mut Node, probes: &ContainerProbes| {
            node.probes.set_wanted([(&worker, probes)].into_iter())
        };
        assert_eq!(set(&mut node, &probes(1)), []);
        assert_eq!(set(&mut node, &probes(1)), []);
        node.observe(&probes(1), &running);
        node.probe(failure());
        assert_eq!(set(&mut node, &probes(2)), [node.worker.clone()]);
        node.observe(&probes(2), &running);
        assert_eq!(node.probes.verdict(&node.worker, &running), ProbeVerdict::Unconfirmed);
    }
}
