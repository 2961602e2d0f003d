//! What the nodes report: presence, the newest status per object, counters and metrics that are not
//! in a status yet. In memory only: retained messages and the agents' repetitions restore it.

mod keys;
mod samples;
mod slices;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{
    AgentInstance, Batch, Counters, ModelOutput, NodeName, NodeReport, ObjectKey, PeerEndpoint,
    StatusReport, Sync,
};

pub use self::samples::SilentNodes;
use self::slices::SliceSettings;
use super::{
    cloud_workers::{CloudWorkerReport, CloudWorkerReports},
    delays::Delays,
    evaluations::{Evaluation, Evaluations},
    inventories::Inventories,
    observed::AgentState,
    presence::{AgentChange, MessageOrder, NodeCounts, Nodes, Presence, offline_after},
    refused::{RefusedCounters, RefusedReports},
    reports::{Place, Reports},
    rows::{CounterReport, Rows},
};
use crate::nodes::keys::KeyRecord;

/// Everything that the nodes reported and that still matters.
#[derive(Debug, Clone)]
pub struct FleetState {
    started: Timestamp,
    heartbeat: u32,
    nodes: Nodes,
    delays: Delays,
    reports: Reports,
    refused: RefusedReports,
    /// The counters of each object, by its uid.
    rows: BTreeMap<String, Rows>,
    slices: SliceSettings,
    evaluations: Evaluations,
    inventories: Inventories,
    cloud_workers: CloudWorkerReports,
    /// Whether a key is used only if a person trusts it.
    requires_known_keys: bool,
    keys: BTreeMap<NodeName, KeyRecord>,
    /// The nodes of which what is in their `EdgeNode` may have changed.
    changed_nodes: BTreeSet<NodeName>,
}

/// The objects that a message affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affected {
    /// No object: the message brought nothing new.
    None,
    /// The object of the report.
    Object,
    /// The status of every object with a worker on the node: its agent is connected, or is not.
    Presence,
    /// Every object with a worker on the node.
    Node,
}

impl Affected {
    /// Returns at least the object, for a message that always affects it.
    #[must_use]
    pub fn or_object(self) -> Self {
        if self == Self::None { Self::Object } else { self }
    }
}

impl FleetState {
    /// No node has reported. Agents that do not announce their heartbeat have one every `heartbeat`
    /// seconds.
    pub fn new(started: Timestamp, heartbeat: u32) -> Self {
        Self {
            started,
            heartbeat,
            nodes: Nodes::new(heartbeat),
            delays: Delays::default(),
            reports: Reports::default(),
            refused: RefusedReports::default(),
            rows: BTreeMap::new(),
            slices: SliceSettings::default(),
            evaluations: Evaluations::default(),
            inventories: Inventories::default(),
            cloud_workers: CloudWorkerReports::default(),
            requires_known_keys: false,
            keys: BTreeMap::new(),
            changed_nodes: BTreeSet::new(),
        }
    }

    /// Processes a birth, a heartbeat or a last will. One that is not `live` was retained by the
    /// broker.
    pub fn on_node_report(
        &mut self,
        node: &NodeName,
        report: NodeReport,
        live: bool,
        now: Timestamp,
    ) -> Affected {
        let (instance, epoch) = (report.instance.clone(), report.epoch);
        let before = self.nodes.newest_epoch(node, &instance);
        let details = self.nodes.details(node).cloned();
        let changed = self.nodes.on_node_report(node, report, live, now);
        let was_reset = self.nodes.newest_epoch(node, &instance) < before;
        if was_reset {
            // Reports of starts that the connected agent does not know.
            self.reports.drop_newer(node, &instance, epoch);
        }
        if changed != AgentChange::Nothing || details.as_ref() != self.nodes.details(node) {
            self.changed_nodes.insert(node.clone());
        }
        match changed {
            AgentChange::Facts => Affected::Node,
            AgentChange::Presence => Affected::Presence,
            AgentChange::Nothing => presence_if(was_reset),
        }
    }

    /// Processes any other live message of a node as a sign of life.
    pub fn on_sign_of_life(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        epoch: u64,
        now: Timestamp,
    ) -> Affected {
        if self.nodes.is_outdated(node, instance, epoch) {
            return Affected::None;
        }
        // The reports of the instance that sends messages are the ones that count.
        let is_other = self.nodes.current(node) != Some(instance);
        let changed = self.nodes.on_sign_of_life(node, instance, (epoch, 0), now) || is_other;
        if changed {
            self.changed_nodes.insert(node.clone());
        }
        presence_if(changed)
    }

    /// Measures how late a batch arrived that is not older than the node's newest.
    pub fn on_batch_arrived(
        &mut self,
        node: &NodeName,
        batch: &Batch,
        arrived: Timestamp,
    ) -> Affected {
        presence_if(self.delays.on_batch(node, batch, arrived))
    }

    /// The seconds by which a node's messages are late, at least; `None` if they are not.
    pub fn delay(&self, node: &NodeName) -> Option<u32> {
        self.delays.delay(node)
    }

    /// Processes a report on an object that exists. Its counters count whenever they come; its
    /// states only if they are new; and it is a sign of life only if it is `live`, not retained by
    /// the broker.
    pub fn on_status_report(
        &mut self,
        node: &NodeName,
        key: &ObjectKey,
        report: StatusReport,
        live: bool,
        now: Timestamp,
    ) -> Affected {
        let place = (key.clone(), node.clone());
        let mut counted = false;
        if let Some(info) = &report.output.task_info {
            let (instance, counters) = (&report.instance, info.counters);
            let order = (report.epoch, report.seq);
            counted = self.on_counters(node, &report.uid, (instance, order), counters, now);
            counted |= self.refused.accept(node, key);
        }
        if !self.is_new(&place, &report) {
            return if counted { Affected::Object } else { Affected::None };
        }
        let order = (report.epoch, report.seq);
        let is_back = live && self.nodes.on_object_report(node, &report.instance, order, now);
        self.reports.insert(place, report, self.nodes.current(node));
        if is_back {
            self.changed_nodes.insert(node.clone());
        }
        if is_back { Affected::Presence } else { Affected::Object }
    }

    /// Processes the counters of an object that exists, from a report or a sync of a node that may
    /// count for it, which arrived at this time. Returns whether they are higher than known.
    pub fn on_counters(
        &mut self,
        node: &NodeName,
        uid: &str,
        (instance, (epoch, seq)): (&AgentInstance, MessageOrder),
        counters: Counters,
        now: Timestamp,
    ) -> bool {
        let (node, instance) = (node.clone(), instance.clone());
        let report = CounterReport { node, instance, epoch, seq, counters };
        self.rows(uid).on_counters(&report, now)
    }

    /// The counters of a node's report on an object were refused.
    pub fn on_refused_counters(&mut self, node: &NodeName, key: &ObjectKey, reason: String) {
        self.refused.add(node, key, reason);
    }

    /// Reports of a node on an object whose counters were refused.
    pub fn refused(&self, node: &NodeName, key: &ObjectKey) -> Option<&RefusedCounters> {
        self.refused.get(node, key)
    }

    /// The newest start of an agent instance on a node.
    pub fn newest_epoch(&self, node: &NodeName, instance: &AgentInstance) -> Option<u64> {
        self.nodes.newest_epoch(node, instance)
    }

    /// Processes what a worker of `object` reports of a model that exists. Returns whether it is
    /// the newest now.
    pub fn on_model_output(
        &mut self,
        node: &NodeName,
        object: &ObjectKey,
        output: &ModelOutput,
        now: Timestamp,
    ) -> bool {
        self.evaluations.add(node, object, output, now)
    }

    /// Processes a report of the cloud worker of the service with this uid. Returns whether it
    /// changed something; `None` if it came too soon.
    pub fn on_cloud_worker_report(
        &mut self,
        uid: &str,
        report: CloudWorkerReport,
        now: Timestamp,
    ) -> Option<bool> {
        self.cloud_workers.add(uid, report, now)
    }

    /// The newest report of the cloud worker of the service with this uid.
    pub fn cloud_worker_report(&self, uid: &str) -> Option<&CloudWorkerReport> {
        self.cloud_workers.get(uid)
    }

    /// A node no longer has an object.
    pub fn on_status_cleared(&mut self, node: &NodeName, key: &ObjectKey) -> Affected {
        let was_held = self.reports.remove(&(key.clone(), node.clone()));
        if was_held { Affected::Object } else { Affected::None }
    }

    /// A node lists in a live sync what it has.
    pub fn on_inventory(&mut self, node: &NodeName, sync: &Sync) {
        self.inventories.on_sync(node, sync);
    }

    /// Whether a node listed what it has since this controller started, and not this object.
    pub fn lacks(&self, node: &NodeName, key: &ObjectKey) -> bool {
        self.inventories.lacks(node, key)
    }

    /// Forgets which nodes expired during a time without a connection: they may be online.
    pub fn on_reconnected(&mut self) {
        self.nodes.on_reconnected();
    }

    /// Forgets a deleted object.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) {
        self.reports.forget(key, uid);
        self.refused.forget(key);
        self.rows.remove(uid);
        self.evaluations.forget(uid);
        self.cloud_workers.forget(uid);
    }

    /// Forgets a deleted node. What it counted stays.
    pub fn forget_node(&mut self, node: &NodeName) {
        self.nodes.forget(node);
        self.delays.forget(node);
        self.inventories.forget(node);
        self.changed_nodes.insert(node.clone());
    }

    /// Returns the nodes whose heartbeats stopped and that were online until now.
    pub fn expire(&mut self, now: Timestamp) -> Vec<NodeName> {
        let expired = self.nodes.expire(now);
        for node in &expired {
            self.delays.forget(node);
        }
        self.changed_nodes.extend(expired.iter().cloned());
        expired
    }

    /// Returns the earliest time at which [`FleetState::expire`] may return a node.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.nodes.next_expiry()
    }

    /// Until when a missing report means nothing, because this controller has just started.
    pub fn settled_at(&self) -> Timestamp {
        self.started + offline_after(self.heartbeat)
    }

    /// Whether a node's agent is connected.
    pub fn presence(&self, node: &NodeName) -> Presence {
        self.nodes.presence(node)
    }

    /// What is known of a node's agent.
    pub fn agent(&self, node: &NodeName, now: Timestamp) -> AgentState {
        AgentState { presence: self.presence(node), settled: now >= self.settled_at() }
    }

    /// The address that a node's agent reports.
    pub fn address(&self, node: &NodeName) -> Option<&str> {
        self.nodes.address(node)
    }

    /// How a node's agent exchanges content with other nodes; `None` if it does not.
    pub fn peers(&self, node: &NodeName) -> Option<&PeerEndpoint> {
        self.nodes.peers(node)
    }

    /// Whether a node's agent runs aggregators.
    pub fn runs_aggregators(&self, node: &NodeName) -> bool {
        self.nodes.runs_aggregators(node)
    }

    /// Whether a node's agent is connected and cannot run sessions.
    pub fn lacks_sessions(&self, node: &NodeName) -> bool {
        self.nodes.lacks_sessions(node)
    }

    /// The newest report on an object of the node's connected agent.
    pub fn report(&self, node: &NodeName, key: &ObjectKey, uid: &str) -> Option<&StatusReport> {
        let place = (key.clone(), node.clone());
        let report = match self.nodes.current(node) {
            Some(current) => self.reports.get(&place, current),
            None => self.reports.any(&place),
        };
        report.filter(|report| report.uid == uid)
    }

    /// The newest metrics of the model of that uid.
    pub fn evaluation(&self, uid: &str) -> Option<&Evaluation> {
        self.evaluations.get(uid)
    }

    /// The counters of the service with this uid.
    pub fn rows(&mut self, uid: &str) -> &mut Rows {
        if !self.rows.contains_key(uid) {
            self.rows.insert(uid.to_owned(), self.slices.new_rows());
        }
        self.rows.get_mut(uid).expect("it was inserted")
    }

    /// How many nodes are online and offline.
    pub fn node_counts(&self) -> NodeCounts {
        self.nodes.counts()
    }

    /// How many nodes' messages arrive late.
    pub fn delayed_nodes(&self) -> usize {
        self.delays.count()
    }

    fn is_new(&self, place: &Place, report: &StatusReport) -> bool {
        let order = (report.epoch, report.seq);
        match self.reports.get(place, &report.instance) {
            Some(held) if held.uid == report.uid => order > (held.epoch, held.seq),
            _ => self.nodes.is_current_or_newer(&place.1, &report.instance, order),
        }
    }
}

fn presence_if(changed: bool) -> Affected {
    if changed { Affected::Presence } else { Affected::None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{KeyPin, fixtures::pin};
    use serde_json::json;

    use super::*;
    use crate::nodes::keys::{KeyRecord, NodeKey};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node() -> NodeName {
        "edge0".parse().unwrap()
    }

    fn key() -> ObjectKey {
        "default/jointinferenceservices/demo".parse().unwrap()
    }

    fn birth(instance: &str, epoch: u64) -> NodeReport {
        NodeReport {
            instance: AgentInstance(instance.to_owned()),
            epoch,
            online: true,
            agent_version: String::new(),
            address: Some("10.0.0.1".to_owned()),
            capacity: None,
            heartbeat_seconds: None,
            problems: Vec::new(),
            key_pin: None,
            runs_aggregators: true,
            runs_sessions: true,
            supports: Vec::new(),
            devices: Vec::new(),
            remote_logs: Vec::new(),
            seal_key: None,
            peers: None,
        }
    }

    fn will(instance: &str, epoch: u64) -> NodeReport {
        NodeReport { online: false, address: None, ..birth(instance, epoch) }
    }

    fn report(instance: &str, epoch: u64, seq: u64, inference: u64) -> StatusReport {
        let report = json!({
            "instance": instance, "epoch": epoch, "seq": seq, "uid": "uid", "revision": 1,
            "phase": "Running", "status": "",
            "output": {"taskInfo": {
                "inferenceNumber": inference, "hardExampleNumber": 0, "uploadCloudRatio": 0.0,
                "startTime": "", "currentTime": "",
            }},
        });
        serde_json::from_value(report).unwrap()
    }

    fn held(fleet: &FleetState) -> String {
        let report = fleet.report(&node(), &key(), "uid").unwrap();
        format!("{}/{}/{}", report.instance.0, report.epoch, report.seq)
    }

    fn counted(fleet: &FleetState) -> Vec<(String, u64)> {
        let reports = fleet.clone().rows("uid").counted([]).reports.into_iter();
        reports.map(|it| (it.instance, it.counters.inference_number)).collect()
    }

    #[test]
    fn exchange_with_other_nodes_is_as_the_agent_reports() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), true, at(1));
        assert_eq!(fleet.peers(&node()), None);
        let addresses = vec!["10.0.0.1:7946".to_owned()];
        let endpoint = PeerEndpoint { addresses, shares_models: true, allows_replicas: false };
        let report = NodeReport { peers: Some(endpoint.clone()), ..birth("a", 2) };
        fleet.on_node_report(&node(), report, true, at(2));
        assert_eq!(fleet.peers(&node()), Some(&endpoint));
    }

    #[test]
    fn key_of_a_node_is_compared_with_the_recorded_one() {
        let mut fleet = FleetState::new(at(0), 30);
        let [first, other] = ['a', 'b'].map(pin);
        let with_key =
            |key: &KeyPin, epoch| NodeReport { key_pin: Some(key.clone()), ..birth("a", epoch) };
        fleet.on_node_report(&node(), with_key(&first, 1), true, at(1));
        assert_eq!(fleet.node_key(&node()), NodeKey::Trusted(first.clone()));
        let record = KeyRecord { trusted: Some(first.clone()), ..KeyRecord::default() };
        assert!(fleet.set_key_record(&node(), Some(record.clone())));
        assert_eq!(fleet.key_record(&node()), record);
        fleet.on_node_report(&node(), with_key(&other, 2), true, at(2));
        let changed = NodeKey::Changed { trusted: first.clone(), reported: other };
        assert_eq!(fleet.node_key(&node()), changed);
        assert_eq!(fleet.trusted_pin(&node()), Some(first));
    }

    #[test]
    fn node_is_online_from_birth_to_last_will() {
        let mut fleet = FleetState::new(at(0), 30);
        assert_eq!(fleet.presence(&node()), Presence::NeverSeen);
        assert_eq!(fleet.on_node_report(&node(), birth("a", 1), true, at(1)), Affected::Node);
        assert_eq!(
            fleet.on_node_report(&node(), birth("a", 1), true, at(31)),
            Affected::None,
            "a heartbeat"
        );
        assert_eq!(fleet.presence(&node()), Presence::Online);
        assert_eq!(fleet.on_node_report(&node(), will("a", 1), true, at(40)), Affected::Presence);
        assert_eq!(fleet.presence(&node()), Presence::Offline { since: at(40) });
        assert_eq!(fleet.address(&node()), Some("10.0.0.1"), "it stays known");
        assert_eq!(
            fleet.on_node_report(&node(), birth("a", 1), true, at(41)),
            Affected::Presence,
            "it is back"
        );
        assert_eq!(fleet.node_counts().online, 1);
    }

    #[test]
    fn what_an_agent_offers_is_a_fact_and_what_is_free_is_not() {
        let mut fleet = FleetState::new(at(0), 30);
        let mut report = |supports: &[&str], free: u32, second| {
            let devices = json!([{"resource": "a.example/b", "total": 2, "free": free}]);
            let mut birth = birth("a", 1);
            birth.supports = serde_json::from_value(json!(supports)).unwrap();
            birth.devices = serde_json::from_value(devices).unwrap();
            fleet.on_node_report(&node(), birth, true, at(second))
        };
        assert_eq!(report(&["devices"], 2, 1), Affected::Node);
        assert_eq!(report(&["devices"], 1, 2), Affected::None);
        assert_eq!(report(&[], 1, 3), Affected::Node, "an earlier agent");
        assert_eq!(fleet.details(&node()).unwrap().offer.devices[0].free, 1);
        fleet.on_node_report(&node(), will("a", 1), true, at(4));
        assert_eq!(fleet.details(&node()).unwrap().offer.devices[0].total, 2, "it stays known");
    }

    #[test]
    fn last_will_of_earlier_start_or_instance_is_ignored() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), true, at(1));
        fleet.on_node_report(&node(), birth("a", 2), true, at(2));
        assert_eq!(fleet.on_node_report(&node(), will("a", 1), true, at(3)), Affected::None);
        assert_eq!(fleet.presence(&node()), Presence::Online);
        fleet.on_node_report(&node(), birth("b", 1), true, at(4));
        assert_eq!(fleet.on_node_report(&node(), will("a", 2), true, at(5)), Affected::None);
        assert_eq!(fleet.presence(&node()), Presence::Online);
    }

    #[test]
    fn three_missed_heartbeats_are_offline_and_any_live_message_is_online() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), true, at(0));
        assert_eq!(fleet.next_expiry(), Some(at(90)));
        assert!(fleet.expire(at(89)).is_empty());
        assert_eq!(fleet.expire(at(90)), [node()]);
        assert!(fleet.expire(at(91)).is_empty(), "reported once");
        assert_eq!(fleet.presence(&node()), Presence::Offline { since: at(0) });
        assert_eq!(fleet.next_expiry(), None);
        let affected = fleet.on_status_report(&node(), &key(), report("a", 1, 1, 5), true, at(100));
        assert_eq!(affected, Affected::Presence);
        assert_eq!(fleet.presence(&node()), Presence::Online);
    }

    #[test]
    fn retained_message_of_expired_agent_is_no_sign_of_life() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), false, at(0));
        assert_eq!(fleet.presence(&node()), Presence::Online, "a starting controller cannot tell");
        fleet.expire(at(90));
        let offline = Presence::Offline { since: at(0) };
        assert_eq!(fleet.on_node_report(&node(), birth("a", 1), false, at(91)), Affected::None);
        assert_eq!(fleet.presence(&node()), offline);
        let mut reconnected = fleet.clone();
        reconnected.on_reconnected();
        reconnected.on_node_report(&node(), birth("a", 1), false, at(92));
        assert_eq!(
            reconnected.presence(&node()),
            Presence::Online,
            "the controller was disconnected"
        );
        for (instance, epoch, live) in [("a", 1, true), ("a", 2, false), ("b", 1, false)] {
            let mut fleet = fleet.clone();
            fleet.on_node_report(&node(), birth(instance, epoch), live, at(92));
            assert_eq!(fleet.presence(&node()), Presence::Online, "{instance} {epoch} {live}");
        }
    }

    #[test]
    fn announced_heartbeat_sets_the_time_until_offline() {
        let mut fleet = FleetState::new(at(0), 30);
        assert_eq!(fleet.settled_at(), at(90));
        for (stated, silent_at) in [(15, 45), (300, 900), (0, 3), (u32::MAX, 3 * 3600)] {
            let report = NodeReport { heartbeat_seconds: Some(stated), ..birth("a", 1) };
            fleet.on_node_report(&node(), report, true, at(0));
            assert_eq!(fleet.next_expiry(), Some(at(silent_at)), "{stated}");
        }
        let affected = fleet.on_node_report(&node(), birth("a", 1), true, at(0));
        assert_eq!(affected, Affected::None);
        assert_eq!(
            fleet.next_expiry(),
            Some(at(3 * 3600)),
            "a heartbeat that is not repeated stays valid"
        );
    }

    #[test]
    fn retained_status_report_is_no_sign_of_life() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), will("a", 1), true, at(1));
        let affected = fleet.on_status_report(&node(), &key(), report("a", 1, 9, 5), false, at(2));
        assert_eq!(affected, Affected::Object);
        assert!(matches!(fleet.presence(&node()), Presence::Offline { .. }));
        assert_eq!(counted(&fleet), [("a".to_owned(), 5)], "its counters count");
    }

    #[test]
    fn older_report_changes_no_state_and_lowers_no_counter() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_status_report(&node(), &key(), report("a", 1, 7, 70), true, at(1));
        assert_eq!(
            fleet.on_status_report(&node(), &key(), report("a", 1, 6, 60), true, at(2)),
            Affected::None
        );
        assert_eq!((held(&fleet), counted(&fleet)), ("a/1/7".into(), vec![("a".to_owned(), 70)]));
        fleet.on_status_report(&node(), &key(), report("a", 2, 1, 80), true, at(3));
        assert_eq!((held(&fleet), counted(&fleet)), ("a/2/1".into(), vec![("a".to_owned(), 80)]));
        let late = fleet.on_status_report(&node(), &key(), report("a", 1, 8, 90), true, at(4));
        assert_eq!(late, Affected::Object, "late, and more was counted");
        assert_eq!((held(&fleet), counted(&fleet)), ("a/2/1".into(), vec![("a".to_owned(), 90)]));
    }

    #[test]
    fn replaced_instance_counts_separately_and_late_reports_change_no_state() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_status_report(&node(), &key(), report("a", 3, 7, 70), true, at(1));
        fleet.on_node_report(&node(), birth("b", 1), true, at(2));
        fleet.on_status_report(&node(), &key(), report("b", 1, 1, 5), true, at(2));
        assert_eq!(held(&fleet), "b/1/1");
        fleet.on_status_report(&node(), &key(), report("a", 3, 6, 60), true, at(3));
        assert_eq!(held(&fleet), "b/1/1");
        assert_eq!(counted(&fleet), [("a".to_owned(), 70), ("b".to_owned(), 5)]);
        assert_eq!(fleet.on_node_report(&node(), birth("a", 4), true, at(4)), Affected::Presence);
        fleet.on_status_report(&node(), &key(), report("a", 4, 1, 71), true, at(4));
        assert_eq!(held(&fleet), "a/4/1", "the old directory came back");
    }

    #[test]
    fn report_of_an_instance_that_is_not_connected_hides_no_state() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), true, at(1));
        fleet.on_status_report(&node(), &key(), report("a", 1, 1, 5), true, at(1));
        fleet.on_status_report(&node(), &key(), report("forged", 9, 9, 0), true, at(2));
        assert_eq!(held(&fleet), "a/1/1");
        fleet.on_node_report(&node(), birth("forged", 9), true, at(3));
        assert_eq!(held(&fleet), "forged/9/9");
        assert_eq!(fleet.on_node_report(&node(), birth("a", 1), true, at(31)), Affected::Presence);
        assert_eq!(held(&fleet), "a/1/1", "the newest heartbeat");
    }

    #[test]
    fn repeated_heartbeat_of_an_earlier_epoch_is_the_connected_agent() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 2), true, at(1));
        fleet.on_node_report(&node(), birth("a", 900), true, at(2));
        fleet.on_status_report(&node(), &key(), report("a", 900, 1, 5), true, at(2));
        assert_eq!(fleet.on_node_report(&node(), birth("a", 2), true, at(31)), Affected::None);
        let forged = fleet.on_node_report(&node(), birth("a", 900), true, at(40));
        assert_eq!(forged, Affected::None, "only a heartbeat");
        fleet.on_node_report(&node(), birth("a", 2), true, at(61));
        assert_eq!(held(&fleet), "a/900/1", "one may be late");
        assert_eq!(fleet.on_node_report(&node(), birth("a", 2), true, at(91)), Affected::Presence);
        fleet.on_status_report(&node(), &key(), report("a", 2, 7, 5), true, at(92));
        assert_eq!(held(&fleet), "a/2/7");
    }

    #[test]
    fn invented_instances_hold_bounded_reports() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_node_report(&node(), birth("a", 1), true, at(1));
        fleet.on_status_report(&node(), &key(), report("a", 1, 1, 5), true, at(1));
        for n in 0..100 {
            let invented = report(&n.to_string(), 1, 1, 0);
            fleet.on_status_report(&node(), &key(), invented, true, at(2));
        }
        assert_eq!(held(&fleet), "a/1/1");
        assert!(fleet.reports.most_instances() <= 4);
    }

    #[test]
    fn refused_counters_are_remembered_until_accepted_ones() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_refused_counters(&node(), &key(), "first".to_owned());
        fleet.on_refused_counters(&node(), &key(), "too many".to_owned());
        let refused = RefusedCounters { count: 2, reason: "too many".to_owned() };
        assert_eq!(fleet.refused(&node(), &key()), Some(&refused));
        fleet.on_status_report(&node(), &key(), report("a", 1, 1, 5), true, at(1));
        assert_eq!(fleet.refused(&node(), &key()), None);
    }

    #[test]
    fn counters_that_change_during_a_status_write_are_in_the_next_one() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_status_report(&node(), &key(), report("a", 1, 1, 10), true, at(1));
        let written = fleet.rows("uid").counted([]);
        fleet.on_status_report(&node(), &key(), report("a", 1, 2, 20), true, at(2));
        fleet.rows("uid").acknowledge(written.clock);
        assert_eq!(counted(&fleet), [("a".to_owned(), 20)]);
        let written = fleet.rows("uid").counted([]);
        fleet.rows("uid").acknowledge(written.clock);
        assert_eq!(counted(&fleet), [], "the status has them");
    }

    fn output(second: i64, accuracy: &str) -> ModelOutput {
        serde_json::from_value(json!({
            "model": "small", "uid": "model", "metrics": [{"key": "accuracy", "value": accuracy}],
            "time": format!("{:.3}", at(second)),
        }))
        .unwrap()
    }

    #[test]
    fn newest_model_output_wins_and_a_future_time_counts_as_now() {
        let mut fleet = FleetState::new(at(0), 30);
        let other: NodeName = "edge1".parse().unwrap();
        let held = |fleet: &FleetState| {
            let held = fleet.evaluation("model").unwrap();
            (held.output.metrics[0].value.clone(), held.taken)
        };
        assert!(fleet.on_model_output(&node(), &key(), &output(10, "0.9"), at(11)));
        assert!(!fleet.on_model_output(&node(), &key(), &output(10, "0.9"), at(12)), "doubled");
        assert!(!fleet.on_model_output(&other, &key(), &output(9, "0.1"), at(13)), "older");
        assert!(fleet.on_model_output(&other, &key(), &output(9_999, "0.2"), at(14)));
        assert_eq!(held(&fleet), ("0.2".to_owned(), at(14)));
        assert!(!fleet.on_model_output(&other, &key(), &output(9_999, "0.2"), at(15)));
        assert!(fleet.on_model_output(&node(), &key(), &output(15, "0.3"), at(16)));
        assert!(fleet.on_model_output(&node(), &key(), &output(16, "0.4"), at(16)));
        let silent = ModelOutput { metrics: Vec::new(), ..output(17, "") };
        assert!(!fleet.on_model_output(&node(), &key(), &silent, at(18)));
        assert_eq!(held(&fleet), ("0.4".to_owned(), at(16)));
        fleet.forget(&key(), "model");
        assert_eq!(fleet.evaluation("model"), None);
    }

    #[test]
    fn deleted_object_leaves_no_state() {
        let mut fleet = FleetState::new(at(0), 30);
        fleet.on_status_report(&node(), &key(), report("a", 1, 1, 10), true, at(1));
        fleet.forget(&key(), "uid");
        assert!(fleet.reports.is_empty() && fleet.rows.is_empty());
        fleet.on_status_report(&node(), &key(), report("a", 1, 2, 10), true, at(1));
        assert_eq!(fleet.on_status_cleared(&node(), &key()), Affected::Object);
        assert_eq!(fleet.on_status_cleared(&node(), &key()), Affected::None);
    }
}
