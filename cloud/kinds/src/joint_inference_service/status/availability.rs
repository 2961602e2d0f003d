//! Decides the condition of a service whose edge workers are on several nodes: nodes that are
//! offline, and a few that are not ready, do not stop the others.

use neptune_api::{JisConditionType, NodeCounts};

use crate::{
    availability::{problems, tolerated},
    finding::Finding,
    joint_inference_service::status::observed::{
        EdgeObservation, ObservedWorker, ServiceObservation,
    },
    reason::Reason,
};

/// The edge workers in one state, and the first one of them.
#[derive(Debug, Clone, Copy, Default)]
struct Group<'a> {
    count: usize,
    first: Option<(&'a str, &'a Finding)>,
}

impl<'a> Group<'a> {
    fn add(&mut self, edge: &'a EdgeObservation, finding: &'a Finding) {
        self.count += 1;
        self.first.get_or_insert((&edge.node, finding));
    }

    fn finding(&self) -> Option<&'a Finding> {
        self.first.map(|(_, finding)| finding)
    }

    /// The number of nodes, and the first of them with its reason; `None` if there is none.
    fn described(&self, state: &str) -> Option<String> {
        let (node, finding) = self.first?;
        Some(format!("{} {state} ({node}: {})", self.count, finding.reason))
    }
}

/// The edge workers of a service by their state.
#[derive(Debug, Default)]
struct Groups<'a> {
    /// Those that run, also degraded or with an update in progress.
    ready: usize,
    waiting: Group<'a>,
    completed: Group<'a>,
    failed: Group<'a>,
    offline: Group<'a>,
    /// Those that have not reported since the controller started.
    unknown: Group<'a>,
    /// Those of `ready` that count no samples.
    silent: Group<'a>,
    /// The others of `ready` that are not as they should be.
    degraded: Group<'a>,
}

impl<'a> Groups<'a> {
    fn new(edges: &'a [EdgeObservation]) -> Self {
        let mut groups = Self::default();
        for edge in edges {
            groups.ready += usize::from(edge.worker.is_active());
            match &edge.worker {
                ObservedWorker::Running => {}
                ObservedWorker::Degraded(finding) if finding.reason == Reason::NoSamples => {
                    groups.silent.add(edge, finding);
                }
                ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => {
                    groups.degraded.add(edge, finding);
                }
                ObservedWorker::Waiting(finding) => groups.waiting.add(edge, finding),
                ObservedWorker::Completed(finding) => groups.completed.add(edge, finding),
                ObservedWorker::Failed(finding) => groups.failed.add(edge, finding),
                ObservedWorker::Offline(finding) => groups.offline.add(edge, finding),
                ObservedWorker::Unknown(finding) => groups.unknown.add(edge, finding),
            }
        }
        groups
    }

    /// The nodes that are not ready, and those without samples, as a part of a sentence. Empty if all
    /// are ready.
    fn problems(&self) -> String {
        if self.offline.count + self.failed.count + self.waiting.count == 0 {
            return String::new();
        }
        let others = [self.failed.described("failed"), self.waiting.described("not running yet")];
        problems(self.offline.count, others.into_iter().chain([self.without_samples()]))
    }

    fn without_samples(&self) -> Option<String> {
        self.silent.described("without samples")
    }
}

/// The state of a service whose cloud worker runs and that has edge workers on several nodes, and
/// why. `None`: no node is reachable, and the last known state stays.
///
/// Nodes that are offline are not counted among those that should be ready. The service is running
/// while at most a tenth of the others, rounded down, is not.
pub fn of_nodes(observed: &ServiceObservation) -> (Option<JisConditionType>, Finding) {
    use JisConditionType::{Completed, Failed, Pending, Running};
    let groups = Groups::new(&observed.edges);
    let Groups { ready, waiting, completed, failed, offline, unknown, .. } = &groups;
    let desired = observed.edges.len();
    let reachable = desired - offline.count - unknown.count;
    let not_ready = waiting.count + failed.count;
    let tolerated = tolerated(reachable);
    let is_running = ready + completed.count > 0 && not_ready <= tolerated;
    let (state, finding) = if reachable == 0 {
        (None, offline.finding().or(unknown.finding()))
    } else if completed.count == desired {
        (Some(Completed), completed.finding())
    } else if is_running {
        (Some(Running), None)
    } else if failed.count > tolerated {
        (Some(Failed), failed.finding())
    } else {
        (Some(Pending), waiting.finding().or(failed.finding()))
    };
    let problem = finding.map(|finding| (finding.reason, finding.message.clone()));
    let finding = match problem.or_else(|| remark(&observed.cloud, &groups)) {
        Some((reason, why)) => {
            Finding::new(reason, format!("{ready} of {desired} edge workers are running; {why}"))
        }
        None => Finding::new(
            Reason::WorkersRunning,
            format!("{ready} of {desired} edge workers and the cloud worker are running"),
        ),
    };
    (state, finding)
}

/// The numbers of nodes by the state of their edge worker.
pub fn node_counts(edges: &[EdgeObservation]) -> NodeCounts {
    let groups = Groups::new(edges);
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    NodeCounts {
        summary: format!("{}/{}", groups.ready, edges.len()),
        desired: number(edges.len()),
        ready: number(groups.ready),
        pending: number(groups.waiting.count),
        failed: number(groups.failed.count),
        completed: number(groups.completed.count),
        offline: number(groups.offline.count),
        unknown: number(groups.unknown.count),
        silent: number(groups.silent.count),
    }
}

/// What is not as it should be while a service is running, if there is something.
fn remark(cloud: &ObservedWorker, groups: &Groups<'_>) -> Option<(Reason, String)> {
    let problems = groups.problems();
    if !problems.is_empty() {
        return Some((Reason::SomeNodesNotReady, problems));
    }
    if let (Some(silent), Some(finding)) = (groups.without_samples(), groups.silent.finding()) {
        return Some((finding.reason, format!("{silent}: {}", finding.message)));
    }
    let cloud = match cloud {
        ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => Some(finding),
        _ => None,
    };
    let finding = groups.degraded.finding().or(cloud)?;
    Some((finding.reason, finding.message.clone()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::joint_inference_service::status::fixtures::{
        failed, offline, on, selected, unknown, waiting,
    };

    fn completed() -> ObservedWorker {
        ObservedWorker::Completed(Finding::new(Reason::Completed, "c"))
    }

    fn degraded() -> ObservedWorker {
        ObservedWorker::Degraded(Finding::new(Reason::WorkerDegraded, "d"))
    }

    fn crashed() -> ObservedWorker {
        failed(Reason::CrashLoopBackOff)
    }

    fn starting() -> ObservedWorker {
        waiting(Reason::Starting)
    }

    fn observed(groups: &[(usize, ObservedWorker)]) -> ServiceObservation {
        let workers = groups.iter().flat_map(|(count, worker)| vec![worker; *count]);
        let mut service = selected(&[]).observed;
        service.edges =
            workers.enumerate().map(|(at, worker)| on(&format!("n{at}"), worker.clone())).collect();
        service
    }

    fn condition(groups: &[(usize, ObservedWorker)]) -> String {
        let (state, finding) = of_nodes(&observed(groups));
        format!("{} {}", state.map_or("last".to_owned(), |it| it.to_string()), finding.reason)
    }

    #[test]
    fn few_nodes_that_are_not_ready_leave_a_large_service_running() {
        use ObservedWorker::Running;
        let cases = [
            (vec![(3000, Running)], "Running WorkersRunning"),
            (vec![(2999, Running), (1, offline())], "Running SomeNodesNotReady"),
            (vec![(1, Running), (2999, offline())], "Running SomeNodesNotReady"),
            (vec![(2700, Running), (300, crashed())], "Running SomeNodesNotReady"),
            (vec![(2699, Running), (301, crashed())], "Failed CrashLoopBackOff"),
            (vec![(2699, Running), (301, starting())], "Pending Starting"),
            (vec![(2650, Running), (200, crashed()), (150, starting())], "Pending Starting"),
            // Of the 2,000 reachable ones, 200 may be not ready.
            (
                vec![(1800, Running), (200, crashed()), (1000, offline())],
                "Running SomeNodesNotReady",
            ),
            (vec![(1799, Running), (201, crashed()), (1000, offline())], "Failed CrashLoopBackOff"),
            (vec![(3000, degraded())], "Running WorkerDegraded"),
            (vec![(3000, completed())], "Completed Completed"),
            (vec![(1500, completed()), (1500, Running)], "Running WorkersRunning"),
            (vec![(1, Running), (1, crashed())], "Failed CrashLoopBackOff"),
            (vec![(8, Running), (1, starting())], "Pending Starting"),
            (vec![(9, Running), (1, starting())], "Running SomeNodesNotReady"),
            (vec![(2999, offline()), (1, unknown())], "last NodeOffline"),
            (vec![(2, offline()), (1, crashed())], "Failed CrashLoopBackOff"),
        ];
        for (groups, expected) in cases {
            assert_eq!(condition(&groups), expected, "{groups:?}");
        }
    }

    #[test]
    fn message_counts_the_nodes_and_names_the_first_of_each_state() {
        let message = |groups: &[(usize, ObservedWorker)]| of_nodes(&observed(groups)).1.message;
        let running = || ObservedWorker::Running;
        assert_eq!(
            message(&[(2988, running()), (9, offline()), (1, crashed()), (2, starting())]),
            "2988 of 3000 edge workers are running; 9 nodes are offline, 1 failed (n2997: CrashLoopBackOff), 2 not running yet (n2998: Starting)"
        );
        assert_eq!(
            message(&[(1, running()), (1, offline())]),
            "1 of 2 edge workers are running; 1 node is offline"
        );
        assert_eq!(message(&[(2, degraded())]), "2 of 2 edge workers are running; d");
        assert_eq!(
            message(&[(2, running())]),
            "2 of 2 edge workers and the cloud worker are running"
        );
    }

    fn any_worker() -> impl Strategy<Value = ObservedWorker> {
        prop_oneof![
            4 => Just(ObservedWorker::Running),
            1 => Just(offline()),
            1 => Just(crashed()),
            1 => Just(starting()),
            1 => Just(completed()),
            1 => Just(degraded()),
            1 => Just(unknown()),
        ]
    }

    proptest! {
        /// A service is running or completed exactly if one of its reachable nodes is, and at most a
        /// tenth of them is neither.
        #[test]
        fn state_follows_from_the_reachable_nodes(workers in prop::collection::vec(any_worker(), 2..40)) {
            let is_away = |worker: &&ObservedWorker| {
                matches!(worker, ObservedWorker::Offline(_) | ObservedWorker::Unknown(_))
            };
            let reachable: Vec<_> = workers.iter().filter(|worker| !is_away(worker)).collect();
            let not_ready = reachable
                .iter()
                .filter(|it| matches!(it, ObservedWorker::Failed(_) | ObservedWorker::Waiting(_)))
                .count();
            let is_healthy = not_ready < reachable.len() && not_ready * 10 <= reachable.len();
            let groups: Vec<_> = workers.iter().map(|worker| (1, worker.clone())).collect();
            let state = condition(&groups);
            let is_up = state.starts_with("Running") || state.starts_with("Completed");
            prop_assert_eq!(is_up, is_healthy, "{}", state);
        }
    }
}
