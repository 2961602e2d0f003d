//! What a controller observes of a rollout: its nodes by their reports, and the step that follows.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{RolloutState, RolloutStatus};
use neptune_wire::{NodeName, ObjectKey, PresenceState, StatusReport, WorkerReason};

use super::{
    memory::RolloutMemory,
    node::{Grant, Has, RolloutNode},
    policy::Policy,
    rank::Rank,
    step::{Moment, step},
};
use crate::{
    fleet::{FleetState, Presence, SilentNodes},
    kubernetes::labels::{Labels, contains},
    reason::Reason,
};

/// What a node reports of the object, of any revision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedState {
    /// Whether it is ready.
    pub is_ready: bool,
    /// Why it failed, if it did.
    pub failure: Option<Reason>,
    /// Whether it waits for the hours in which it may download.
    pub is_deferred: bool,
}

/// The object of a rollout.
#[derive(Debug, Clone)]
pub struct RolloutObject<'a> {
    /// The key of the object.
    pub key: &'a ObjectKey,
    /// The uid of the object.
    pub uid: &'a str,
    /// The settings of its rollout.
    pub policy: Policy,
    /// The labels of the nodes that get a change first.
    pub canaries: &'a Labels,
    /// The revision of what the nodes should run.
    pub revision: &'a str,
    /// Whether no node had the object before.
    pub is_first: bool,
    /// The rollout in its stored status.
    pub stored: Option<&'a RolloutStatus>,
    /// The nodes that count no samples; `None` if the object counts none.
    pub silent: Option<&'a SilentNodes>,
}

/// The result of an observation.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutObservation {
    /// The next status of the rollout.
    pub status: RolloutStatus,
    /// New grants, which apply once the API server has the status.
    pub grants: Vec<(NodeName, Grant)>,
    /// Whether grants were withdrawn, so that the plan has to be made again.
    pub has_withdrawn: bool,
    /// When the next step is due although no node reports anything.
    pub due_at: Option<Timestamp>,
}

/// Collects the nodes of a rollout.
pub struct RolloutObserver<'a> {
    object: RolloutObject<'a>,
    memory: &'a mut RolloutMemory,
    /// The nodes on which a Model waits for the rollout of another object.
    delayed: BTreeSet<NodeName>,
    names: Vec<&'a NodeName>,
    nodes: Vec<RolloutNode<'a>>,
    moment: Moment,
    /// Whether a node has not reported since this controller started.
    has_unseen: bool,
}

impl<'a> RolloutObserver<'a> {
    /// Begins an observation without nodes. On the nodes in `delayed` a Model waits for the rollout of
    /// another object.
    pub fn new(
        object: RolloutObject<'a>,
        memory: &'a mut RolloutMemory,
        delayed: BTreeSet<NodeName>,
        moment: Moment,
    ) -> Self {
        memory.begin(object.revision);
        let (names, nodes) = (Vec::new(), Vec::new());
        Self { object, memory, delayed, names, nodes, moment, has_unseen: false }
    }

    /// Adds a node with these labels. `state` reads a report on the object.
    pub fn add(
        &mut self,
        node: &'a NodeName,
        labels: Option<&Labels>,
        fleet: &FleetState,
        state: impl Fn(&StatusReport) -> ReportedState,
    ) {
        let RolloutObject { key, uid, revision, canaries, .. } = &self.object;
        let report = fleet.report(node, key, uid);
        let mut reported = report.map(&state).unwrap_or_default();
        let has = match report {
            Some(report) => self.revision_of(node, report, fleet, &mut reported),
            None if fleet.lacks(node, key) => Has::Nothing,
            None => Has::Old,
        };
        let is_delayed = has == Has::Old
            && self.delayed.contains(node)
            && reported.is_ready
            && report.is_some_and(|report| self.has_task(node, report));
        let waits = is_delayed || reported.is_deferred;
        let grant = self.memory.observe_wait(node, waits, self.moment.now);
        let presence = fleet.presence(node);
        self.has_unseen |= presence == Presence::NeverSeen;
        let is_online = presence == Presence::Online;
        let is_canary =
            !canaries.is_empty() && labels.is_some_and(|labels| contains(labels, canaries));
        let rank = Rank::new(is_canary, uid, revision, node.as_str());
        let is_ready_with_new = reported.is_ready && has == Has::New;
        let times = (self.moment.now, self.object.policy.min_ready);
        let ready_since = self.memory.observe(node, (is_online, is_ready_with_new), times);
        let is_silent = self.is_silent(node, ready_since);
        self.names.push(node);
        self.nodes.push(RolloutNode {
            name: node.as_str(),
            rank,
            has,
            is_online,
            is_ready: reported.is_ready,
            ready_since,
            failure: reported.failure.or(is_silent.then_some(Reason::NoSamples)),
            is_deferred: reported.is_deferred,
            is_delayed,
            grant,
        });
    }

    /// Whether a node reports the task of the revision, with any model.
    fn has_task(&self, node: &NodeName, report: &StatusReport) -> bool {
        let mut expected = self.memory.expected(node).into_iter().flat_map(|all| all.iter());
        let task = expected.find(|object| object.key == *self.object.key);
        task.is_some_and(|task| report.hash.as_ref().is_none_or(|hash| *hash == task.hash))
    }

    /// Whether a node counts no samples for too long with the revision, and not only with the one
    /// before.
    fn is_silent(&self, node: &NodeName, ready_since: Option<Timestamp>) -> bool {
        let silent = self.object.silent;
        silent.filter(|silent| silent.since.contains_key(node.as_str())).is_some_and(|silent| {
            ready_since.is_some_and(|since| since + silent.limit <= self.moment.now)
        })
    }

    /// Whether a node reports the revision: of the task, and of each model that it needs. A model
    /// that it does not have yet is one for which it waits.
    fn revision_of(
        &self,
        node: &NodeName,
        report: &StatusReport,
        fleet: &FleetState,
        reported: &mut ReportedState,
    ) -> Has {
        let Some(expected) = self.memory.expected(node) else { return Has::Old };
        let has_grant = self.memory.grant(node).is_some();
        for object in expected.iter() {
            let report = if object.key == *self.object.key {
                Some(report)
            } else {
                fleet.report(node, &object.key, &object.uid)
            };
            let Some(report) = report else { return Has::Old };
            // Agents of earlier versions report no hash.
            if report.hash.as_ref().map_or(!has_grant, |hash| *hash != object.hash) {
                return Has::Old;
            }
            if let Some(model) = report.model.as_deref() {
                reported.is_ready &= model.state == PresenceState::Present;
                reported.is_deferred |= model.reason == Some(WorkerReason::DownloadWindow);
            }
        }
        Has::New
    }

    /// The step that follows from what was observed.
    pub fn finish(self) -> RolloutObservation {
        let Self { object, memory, names, nodes, moment, has_unseen, delayed: _ } = self;
        let moment = Moment { is_settled: moment.is_settled || !has_unseen, ..moment };
        memory.retain(&names);
        let RolloutObject { policy, revision, is_first, stored, .. } = object;
        let next = step(&policy, (revision, is_first), stored, &nodes, moment);
        let is_paused = next.status.state == RolloutState::Paused;
        let delayed = nodes.iter().zip(&names).filter(|(node, _)| is_paused && node.is_delayed);
        // The other rollout must not bring the Model of a paused one.
        let has_withdrawn = memory.withdraw(&delayed.map(|(_, name)| *name).collect::<Vec<_>>());
        let grants = next.grants.into_iter().map(|(at, grant)| (names[at].clone(), grant));
        RolloutObservation {
            status: next.status,
            grants: grants.collect(),
            has_withdrawn,
            due_at: next.due_at,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::SignedDuration;
    use neptune_api::{Rollout, RolloutState};
    use neptune_wire::{ContentHash, NodeReport, fixtures::sync};
    use serde_json::json;

    use super::*;
    use crate::rollout::{
        node::GrantCause,
        planned::{ExpectedContent, ExpectedObject, PlannedRollout},
    };

    const TASK: &str = "default/jointinferenceservices/s";
    const MODEL: &str = "default/models/m";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn hash(version: u32) -> ContentHash {
        ContentHash::compute(&version)
    }

    fn online(fleet: &mut FleetState, node: &NodeName) {
        let report: NodeReport =
            serde_json::from_value(json!({"instance": "i", "epoch": 1, "online": true})).unwrap();
        fleet.on_node_report(node, report, true, at(0));
    }

    fn report(fleet: &mut FleetState, node: &NodeName, key: &str, version: u32) {
        let mut report = json!({
            "instance": "i", "epoch": 1, "seq": version, "uid": "u", "revision": 1,
            "phase": "Running", "status": "", "output": {}, "hash": hash(version),
        });
        if key == MODEL {
            report["model"] =
                json!({"state": if version == 3 { "Downloading" } else { "Present" }});
        }
        let report = serde_json::from_value(report).unwrap();
        fleet.on_status_report(node, &key.parse().unwrap(), report, true, at(0));
    }

    /// The memory of a plan in which each node should have this version of the task and the model.
    fn planned(nodes: &[NodeName], version: u32) -> RolloutMemory {
        let object = |key: &str| ExpectedObject {
            key: key.parse().unwrap(),
            uid: "u".to_owned(),
            hash: hash(version),
        };
        let content: ExpectedContent = [object(TASK), object(MODEL)].into();
        let expected = nodes.iter().map(|node| (node.clone(), content.clone())).collect();
        let mut memory = RolloutMemory::default();
        memory.planned(PlannedRollout { revision: "r".to_owned(), expected });
        memory
    }

    fn observed(
        fleet: &FleetState,
        nodes: &[NodeName],
        memory: &mut RolloutMemory,
    ) -> RolloutObservation {
        observed_with(fleet, nodes, memory, Case::default())
    }

    /// What differs from an observation of a rollout that is not paused, in second 0, by a controller
    /// that knows its nodes.
    #[derive(Default)]
    struct Case<'a> {
        has_just_started: bool,
        delayed: &'a [NodeName],
        is_paused: bool,
        second: i64,
        silent: Option<&'a SilentNodes>,
    }

    fn observed_with(
        fleet: &FleetState,
        nodes: &[NodeName],
        memory: &mut RolloutMemory,
        Case { has_just_started, delayed, is_paused, second, silent }: Case<'_>,
    ) -> RolloutObservation {
        let (key, canaries) = (TASK.parse().unwrap(), Labels::new());
        let stored = RolloutStatus {
            revision: "r".to_owned(),
            state: if is_paused { RolloutState::Paused } else { RolloutState::Complete },
            frontier: Some(Rank::LAST.to_string()),
            ..RolloutStatus::default()
        };
        let object = RolloutObject {
            key: &key,
            uid: "u",
            policy: Policy::new(&Rollout { paused: is_paused, ..Rollout::default() }, None),
            canaries: &canaries,
            revision: "r",
            is_first: false,
            stored: Some(&stored),
            silent,
        };
        let moment = Moment { now: at(second), wall: at(second), is_settled: !has_just_started };
        let delayed = delayed.iter().cloned().collect();
        let mut observer = RolloutObserver::new(object, memory, delayed, moment);
        for node in nodes {
            let ready = |_: &StatusReport| ReportedState { is_ready: true, ..Default::default() };
            observer.add(node, None, fleet, ready);
        }
        observer.finish()
    }

    #[test]
    fn node_has_the_revision_if_it_reports_its_task_and_its_model() {
        let nodes = ["new", "old-task", "old-model", "no-model"]
            .map(|name| name.parse::<NodeName>().unwrap());
        let mut fleet = FleetState::new(at(0), 30);
        for (node, (task, model)) in nodes.iter().zip([(2, 2), (1, 2), (2, 1), (2, 0)]) {
            online(&mut fleet, node);
            report(&mut fleet, node, TASK, task);
            if model > 0 {
                report(&mut fleet, node, MODEL, model);
            }
        }
        let mut memory = planned(&nodes, 2);
        let seen = observed(&fleet, &nodes, &mut memory);
        assert_eq!((seen.status.total, seen.status.updated), (4, 1));
        let causes: Vec<_> =
            seen.grants.iter().map(|(node, grant)| (node.as_str(), grant.cause)).collect();
        assert!(causes.contains(&("new", GrantCause::Known)), "{causes:?}");
    }

    #[test]
    fn paused_rollout_withdraws_the_grants_of_nodes_that_another_one_delays() {
        let nodes =
            ["delayed", "old-task", "granted"].map(|name| name.parse::<NodeName>().unwrap());
        let mut fleet = FleetState::new(at(0), 30);
        for (node, task) in nodes.iter().zip([2, 1, 2]) {
            online(&mut fleet, node);
            report(&mut fleet, node, TASK, task);
            report(&mut fleet, node, MODEL, 1);
        }
        let mut memory = planned(&nodes, 2);
        let grant = Grant { since: at(0), cause: GrantCause::Wave };
        memory.add_grants("r", nodes.iter().map(|node| (node.clone(), grant)).collect());
        let seen = observed_with(
            &fleet,
            &nodes,
            &mut memory,
            Case { delayed: &nodes[..2], ..Case::default() },
        );
        assert!(!seen.has_withdrawn);
        let seen = observed_with(
            &fleet,
            &nodes,
            &mut memory,
            Case { delayed: &nodes[..2], is_paused: true, ..Case::default() },
        );
        assert!(seen.has_withdrawn);
        let has_grant = nodes.each_ref().map(|node| memory.grant(node).is_some());
        assert_eq!(has_grant, [false, true, true], "a task that is not there yet is on its way");
        let seen = observed_with(
            &fleet,
            &nodes,
            &mut memory,
            Case { delayed: &nodes[..2], is_paused: true, ..Case::default() },
        );
        assert!(!seen.has_withdrawn && seen.grants.is_empty());
    }

    #[test]
    fn controller_that_has_just_started_moves_a_rollout_once_all_its_nodes_reported() {
        let nodes = ["a", "b"].map(|name| name.parse::<NodeName>().unwrap());
        let mut fleet = FleetState::new(at(0), 30);
        let mut memory = planned(&nodes, 2);
        let granted = nodes.each_ref().map(|node| {
            online(&mut fleet, node);
            report(&mut fleet, node, TASK, 1);
            let case = Case { has_just_started: true, ..Case::default() };
            observed_with(&fleet, &nodes, &mut memory, case).grants.len()
        });
        assert_eq!(granted, [0, 1]);
    }

    #[test]
    fn node_that_downloads_its_model_is_not_ready() {
        let nodes = ["a".parse::<NodeName>().unwrap()];
        let mut fleet = FleetState::new(at(0), 30);
        online(&mut fleet, &nodes[0]);
        report(&mut fleet, &nodes[0], TASK, 3);
        report(&mut fleet, &nodes[0], MODEL, 3);
        let mut memory = planned(&nodes, 3);
        let seen = observed(&fleet, &nodes, &mut memory);
        assert_eq!((seen.status.updated, seen.due_at), (1, Some(at(0))));
        let later = Case { second: 10_000, ..Case::default() };
        let seen = observed_with(&fleet, &nodes, &mut memory, later);
        assert_eq!((seen.status.updated, seen.status.ready), (1, 0));
        assert_eq!(memory.observe(&nodes[0], (false, true), (at(1), SignedDuration::ZERO)), None);
    }

    #[test]
    fn node_without_samples_failed_once_it_had_the_revision_for_so_long() {
        let nodes = ["a", "b"].map(|name| name.parse::<NodeName>().unwrap());
        let mut fleet = FleetState::new(at(0), 30);
        for node in &nodes {
            online(&mut fleet, node);
            report(&mut fleet, node, TASK, 2);
            report(&mut fleet, node, MODEL, 2);
        }
        let mut memory = planned(&nodes, 2);
        let since = [("a".to_owned(), at(0))].into();
        let silent = SilentNodes { limit: SignedDuration::from_secs(60), since, due_at: None };
        let mut failed = |second, silent: &SilentNodes| {
            let case = Case { second, silent: Some(silent), ..Case::default() };
            let status = observed_with(&fleet, &nodes, &mut memory, case).status;
            (status.failed, status.message.unwrap())
        };
        assert_eq!(failed(100, &silent).0, 0, "it was silent with the revision before");
        assert_eq!(failed(159, &silent).0, 0);
        let (count, message) = failed(160, &silent);
        assert!(count == 1 && message.contains("1 failed (a: NoSamples)"), "{message}");
        assert_eq!(failed(161, &SilentNodes::default()).0, 0, "a sample came");
    }

    #[test]
    fn only_a_node_that_listed_what_it_has_is_known_to_have_nothing() {
        let nodes = ["silent", "wiped", "busy"].map(|name| name.parse::<NodeName>().unwrap());
        let mut fleet = FleetState::new(at(0), 30);
        for node in &nodes {
            online(&mut fleet, node);
        }
        fleet.on_inventory(&nodes[1], &sync(1));
        fleet.on_inventory(&nodes[2], &sync(1));
        report(&mut fleet, &nodes[2], TASK, 1);
        let mut memory = planned(&nodes, 2);
        let seen = observed(&fleet, &nodes, &mut memory);
        let cause = |name: &str| {
            let mut grants = seen.grants.iter();
            grants.find(|(node, _)| node.as_str() == name).map(|(_, grant)| grant.cause)
        };
        let causes = ["silent", "wiped", "busy"].map(cause);
        let [wave, join] = [GrantCause::Wave, GrantCause::Join].map(Some);
        assert_eq!(causes, [wave, join, wave]);
        fleet.forget_node(&nodes[1]);
        assert!(!fleet.lacks(&nodes[1], &TASK.parse().unwrap()));
    }
}
