//! What a controller observes of a rollout: its nodes by their reports, and the step that follows.
//! Pure.

use k8s_openapi::jiff::Timestamp;
use neptune_api::RolloutStatus;
use neptune_wire::{NodeName, ObjectKey, PresenceState, StatusReport, WorkerReason};

use super::{
    memory::RolloutMemory,
    node::{Grant, Has, RolloutNode},
    policy::Policy,
    rank::Rank,
    step::{Moment, step},
};
use crate::{
    fleet::{FleetState, Presence},
    kubernetes::labels::{Labels, contains},
    reason::Reason,
};

/// What a node reports of the object, of whatever revision it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedState {
    /// Whether it is ready.
    pub is_ready: bool,
    /// Why it failed.
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
    /// The settings.
    pub policy: Policy,
    /// The labels of the nodes that get a change first.
    pub canaries: &'a Labels,
    /// The revision of what the nodes should run.
    pub revision: &'a str,
    /// Whether no node had the object before.
    pub is_first: bool,
    /// The stored status.
    pub stored: Option<&'a RolloutStatus>,
}

/// The result of an observation.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutObservation {
    /// The next status.
    pub status: RolloutStatus,
    /// New grants, which apply once the API server has the status.
    pub grants: Vec<(NodeName, Grant)>,
    /// When the next step is due although no node reports anything.
    pub wake_at: Option<Timestamp>,
}

/// Collects the nodes of a rollout.
pub struct RolloutObserver<'a> {
    object: RolloutObject<'a>,
    memory: &'a mut RolloutMemory,
    names: Vec<&'a NodeName>,
    nodes: Vec<RolloutNode<'a>>,
    moment: Moment,
}

impl<'a> RolloutObserver<'a> {
    /// Begins an observation.
    pub fn new(object: RolloutObject<'a>, memory: &'a mut RolloutMemory, moment: Moment) -> Self {
        memory.begin(object.revision);
        Self { object, memory, names: Vec::new(), nodes: Vec::new(), moment }
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
        let grant = self.memory.grant(node);
        let has = match report {
            Some(report) => self.revision_of(node, report, fleet, &mut reported),
            None if fleet.lacks(node, key) => Has::Nothing,
            None => Has::Old,
        };
        let is_online = fleet.presence(node) == Presence::Online;
        let is_canary =
            !canaries.is_empty() && labels.is_some_and(|labels| contains(labels, canaries));
        let rank = Rank::new(is_canary, uid, revision, node.as_str());
        let is_ready_with_new = reported.is_ready && has == Has::New;
        let times = (self.moment.now, self.object.policy.min_ready);
        let ready_since = self.memory.observe(node, (is_online, is_ready_with_new), times);
        self.names.push(node);
        self.nodes.push(RolloutNode {
            name: node.as_str(),
            rank,
            has,
            is_online,
            is_ready: reported.is_ready,
            ready_since,
            failure: reported.failure,
            is_deferred: reported.is_deferred,
            grant,
        });
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

    /// The next step.
    pub fn finish(self) -> RolloutObservation {
        let Self { object, memory, names, nodes, moment } = self;
        memory.retain(&names);
        let RolloutObject { policy, revision, is_first, stored, .. } = object;
        let next = step(&policy, (revision, is_first), stored, &nodes, moment);
        let grants = next.grants.into_iter().map(|(at, grant)| (names[at].clone(), grant));
        RolloutObservation { status: next.status, grants: grants.collect(), wake_at: next.wake_at }
    }
}
