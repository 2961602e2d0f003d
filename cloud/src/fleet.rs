//! What the nodes say: who is there, how each object fares, and what was counted and is not in a
//! status yet. In memory only; retained messages and the agents' repetitions fill it again. Pure.
//!
//! Messages come late, twice and out of order. An instance's messages are ordered by (epoch, seq);
//! of two instances of one node, the one that said something new last is the node's present one.

use std::{collections::BTreeMap, ops::RangeInclusive};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_wire::{
    AgentInstance, Counters, ModelOutput, NodeName, NodeReport, ObjectKey, StatusReport,
};

/// A node that misses this many heartbeats is offline: one may be lost, two may be late.
const MISSED: u32 = 3;

/// No node may ask for more patience than of heartbeats an hour apart, nor be given less than of one a second.
const HEARTBEATS: RangeInclusive<u32> = 1..=3600;

/// Data directories remembered a node. More come from somebody who makes them up.
const INSTANCES: usize = 64;

/// Everything that the nodes said and that still matters.
#[derive(Debug, Clone)]
pub struct Fleet {
    started: Timestamp,
    /// How often, in seconds, an agent speaks that does not say how often it does.
    heartbeat: u32,
    nodes: BTreeMap<NodeName, Node>,
    reports: BTreeMap<(ObjectKey, NodeName), StatusReport>,
    unread: BTreeMap<String, Vec<Counted>>,
    /// By the uid of the model.
    evaluations: BTreeMap<String, Evaluation>,
}

#[derive(Debug, Clone)]
struct Node {
    /// The newest (epoch, seq) of each data directory that spoke; node reports have no seq.
    newest: BTreeMap<AgentInstance, (u64, u64)>,
    present: AgentInstance,
    online: bool,
    /// It is not online because it was not heard.
    expired: bool,
    heard: Timestamp,
    /// How often, in seconds, it says that it speaks at least.
    heartbeat: u32,
    address: Option<String>,
}

/// Whether a node's agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It said so not long ago.
    Online,
    /// Its last will came, or nothing did for too long.
    Offline {
        /// When it was last heard.
        since: Timestamp,
    },
    /// It has never spoken to this controller.
    Unheard,
}

/// What a data directory counted for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The node.
    pub node: NodeName,
    /// The data directory.
    pub instance: AgentInstance,
    /// The epoch of the newest message.
    pub epoch: u64,
    /// The newest message's number in the epoch.
    pub seq: u64,
    /// Cumulative numbers.
    pub counters: Counters,
}

/// The newest that a worker said of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation {
    /// The node.
    pub node: NodeName,
    /// Whose worker it was.
    pub object: ObjectKey,
    /// When it was said. A time that had not come yet when it was heard counts as the one when it was.
    pub taken: Timestamp,
    /// What.
    pub output: ModelOutput,
}

/// Who has to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    /// Nobody: the message said nothing new.
    None,
    /// The object that the report speaks of.
    Object,
    /// Every object with a worker on the node.
    Node,
}

/// How many nodes are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Nodes that are there.
    pub online: usize,
    /// Nodes that were there.
    pub offline: usize,
}

impl Fleet {
    /// A controller that starts now and has heard nobody. Agents that do not say how often they speak
    /// do so every `heartbeat` seconds.
    pub fn new(started: Timestamp, heartbeat: u32) -> Self {
        Self {
            started,
            heartbeat,
            nodes: BTreeMap::new(),
            reports: BTreeMap::new(),
            unread: BTreeMap::new(),
            evaluations: BTreeMap::new(),
        }
    }

    /// Takes a birth, a heartbeat or a last will. One that is not `live` the broker had kept.
    pub fn node_report(
        &mut self,
        node: &NodeName,
        report: NodeReport,
        live: bool,
        now: Timestamp,
    ) -> Nudge {
        let NodeReport { instance, epoch, online, address, heartbeat_seconds, .. } = report;
        if self.is_past(node, &instance, epoch) {
            return Nudge::None;
        }
        let known = self.nodes.get(node);
        // What the broker still has of an agent that fell silent since is no sign of life.
        let is_silent = known.is_some_and(|known| known.expired && known.present == instance);
        if !live && is_silent && self.newest(node, &instance).is_some_and(|(held, _)| held == epoch)
        {
            return Nudge::None;
        }
        // A will is the will of one data directory: after a later one it is history.
        if !online && known.is_some_and(|known| known.present != instance) {
            return Nudge::None;
        }
        let before = known.map(|known| (known.online, known.address.clone()));
        let entry = self.heard(node, &instance, (epoch, 0), now);
        entry.online = online;
        if let Some(stated) = heartbeat_seconds {
            entry.heartbeat = stated.clamp(*HEARTBEATS.start(), *HEARTBEATS.end());
        }
        // A will does not repeat the address, and the workers are still where they were.
        entry.address = address.or(entry.address.take());
        let after = (entry.online, entry.address.clone());
        if before == Some(after) { Nudge::None } else { Nudge::Node }
    }

    /// Nothing could be heard until now: no node's silence meant anything.
    pub fn listens_anew(&mut self) {
        self.nodes.values_mut().for_each(|node| node.expired = false);
    }

    /// Takes any other word of a node as the sign of life that it is.
    pub fn spoke(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        epoch: u64,
        now: Timestamp,
    ) -> Nudge {
        if self.is_past(node, instance, epoch) {
            return Nudge::None;
        }
        self.alive(node, instance, (epoch, 0), now)
    }

    /// Takes a report on an object that exists. Its counters count whenever they come; its states
    /// only if they are news; and it is a sign of life only if it is `live`, not a message that the
    /// broker had kept.
    pub fn status(
        &mut self,
        node: &NodeName,
        key: &ObjectKey,
        report: StatusReport,
        live: bool,
        now: Timestamp,
    ) -> Nudge {
        let counted = self.count(node, &report);
        let place = (key.clone(), node.clone());
        if !self.is_news(&place, &report) {
            return if counted { Nudge::Object } else { Nudge::None };
        }
        let order = (report.epoch, report.seq);
        let nudge = if live { self.alive(node, &report.instance, order, now) } else { Nudge::None };
        self.reports.insert(place, report);
        if nudge == Nudge::Node { Nudge::Node } else { Nudge::Object }
    }

    /// Takes what a worker of an object on a node said of a model that exists. Returns whether it is the
    /// newest now. Of several workers the one that spoke last wins, by their nodes' clocks.
    pub fn evaluated(
        &mut self,
        node: &NodeName,
        object: &ObjectKey,
        output: &ModelOutput,
        now: Timestamp,
    ) -> bool {
        let said: Option<Timestamp> = output.time.parse().ok();
        let taken = said.map_or(now, |said| said.min(now));
        let held = self.evaluations.get(&output.uid);
        let is_newest = held.is_none_or(|held| {
            let is_same_source = held.node == *node && held.object == *object;
            let is_known = is_same_source && held.output == *output;
            let goes_on = is_same_source && held.output.time < output.time;
            !is_known && (goes_on || taken > held.taken)
        });
        // One without metrics says only which file is loaded.
        if output.metrics.is_empty() || !is_newest {
            return false;
        }
        let (node, object, output) = (node.clone(), object.clone(), output.clone());
        self.evaluations.insert(output.uid.clone(), Evaluation { node, object, taken, output });
        true
    }

    /// The newest that was said of the model of that uid.
    pub fn evaluation(&self, uid: &str) -> Option<&Evaluation> {
        self.evaluations.get(uid)
    }

    /// The states on one node changed for good: the object is not there any more.
    pub fn cleared(&mut self, node: &NodeName, key: &ObjectKey) -> Nudge {
        match self.reports.remove(&(key.clone(), node.clone())) {
            Some(_) => Nudge::Object,
            None => Nudge::None,
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) {
        self.reports.retain(|(held, _), report| held != key || report.uid != uid);
        self.unread.remove(uid);
        self.evaluations.remove(uid);
    }

    /// Takes note of the time. Returns the nodes that were online until now.
    pub fn expire(&mut self, now: Timestamp) -> Vec<NodeName> {
        let mut expired = Vec::new();
        for (name, node) in &mut self.nodes {
            if node.online && node.silent_at() <= now {
                node.online = false;
                node.expired = true;
                expired.push(name.clone());
            }
        }
        expired
    }

    /// When [`Fleet::expire`] may have something to say next.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.nodes.values().filter(|node| node.online).map(Node::silent_at).min()
    }

    /// Until when a node's silence means nothing, because this controller has not listened long enough.
    pub fn settled_at(&self) -> Timestamp {
        self.started + patience(self.heartbeat)
    }

    /// Whether a node is there.
    pub fn presence(&self, node: &NodeName) -> Presence {
        match self.nodes.get(node) {
            None => Presence::Unheard,
            Some(node) if node.online => Presence::Online,
            Some(node) => Presence::Offline { since: node.heard },
        }
    }

    /// The address that a node's agent gave of itself.
    pub fn address(&self, node: &NodeName) -> Option<&str> {
        self.nodes.get(node)?.address.as_deref()
    }

    /// What a node said last of an object.
    pub fn report(&self, node: &NodeName, key: &ObjectKey, uid: &str) -> Option<&StatusReport> {
        self.reports.get(&(key.clone(), node.clone())).filter(|report| report.uid == uid)
    }

    /// What was counted for an object and is not in its status.
    pub fn unread(&self, uid: &str) -> &[Counted] {
        self.unread.get(uid).map_or(&[], Vec::as_slice)
    }

    /// What stands in the object's status now. What was counted since stays unread.
    pub fn read(&mut self, uid: &str, read: &[Counted]) {
        if let Some(unread) = self.unread.get_mut(uid) {
            unread.retain(|counted| !read.contains(counted));
            if unread.is_empty() {
                self.unread.remove(uid);
            }
        }
    }

    /// How many nodes are in which state.
    pub fn census(&self) -> Census {
        let online = self.nodes.values().filter(|node| node.online).count();
        Census { online, offline: self.nodes.len() - online }
    }

    fn count(&mut self, node: &NodeName, report: &StatusReport) -> bool {
        let Some(info) = &report.output.task_info else { return false };
        let said = Counted {
            node: node.clone(),
            instance: report.instance.clone(),
            epoch: report.epoch,
            seq: report.seq,
            counters: info.counters(),
        };
        let unread = self.unread.entry(report.uid.clone()).or_default();
        let same = |held: &&mut Counted| held.node == *node && held.instance == report.instance;
        let Some(held) = unread.iter_mut().find(same) else {
            unread.push(said);
            return true;
        };
        let highest = held.counters.max(said.counters);
        let changed = highest != held.counters;
        held.counters = highest;
        (held.epoch, held.seq) = (held.epoch, held.seq).max((said.epoch, said.seq));
        changed
    }

    /// Whether the words of this start of an agent are older than what it said after a later start.
    fn is_past(&self, node: &NodeName, instance: &AgentInstance, epoch: u64) -> bool {
        self.newest(node, instance).is_some_and(|(newest, _)| epoch < newest)
    }

    fn is_news(&self, place: &(ObjectKey, NodeName), report: &StatusReport) -> bool {
        let order = (report.epoch, report.seq);
        match self.reports.get(place) {
            Some(held) if held.instance == report.instance && held.uid == report.uid => {
                order > (held.epoch, held.seq)
            }
            _ => {
                let is_present =
                    self.nodes.get(&place.1).is_none_or(|node| node.present == report.instance);
                is_present || self.newest(&place.1, &report.instance).is_none_or(|n| order > n)
            }
        }
    }

    fn newest(&self, node: &NodeName, instance: &AgentInstance) -> Option<(u64, u64)> {
        self.nodes.get(node)?.newest.get(instance).copied()
    }

    fn alive(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        order: (u64, u64),
        now: Timestamp,
    ) -> Nudge {
        let was_online = self.presence(node) == Presence::Online;
        self.heard(node, instance, order, now).online = true;
        if was_online { Nudge::None } else { Nudge::Node }
    }

    fn heard(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        order: (u64, u64),
        now: Timestamp,
    ) -> &mut Node {
        let heartbeat = self.heartbeat;
        let entry = self.nodes.entry(node.clone()).or_insert_with(|| Node {
            newest: BTreeMap::new(),
            present: instance.clone(),
            online: true,
            expired: false,
            heard: now,
            heartbeat,
            address: None,
        });
        if entry.newest.len() >= INSTANCES && !entry.newest.contains_key(instance) {
            entry.newest.clear();
        }
        let newest = entry.newest.entry(instance.clone()).or_default();
        *newest = order.max(*newest);
        entry.present = instance.clone();
        entry.heard = now;
        entry.expired = false;
        entry
    }
}

impl Node {
    /// When its silence means that it is not there.
    fn silent_at(&self) -> Timestamp {
        self.heard + patience(self.heartbeat)
    }
}

fn patience(heartbeat: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(heartbeat) * i64::from(MISSED))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

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

    fn held(fleet: &Fleet) -> String {
        let report = fleet.report(&node(), &key(), "uid").unwrap();
        format!("{}/{}/{}", report.instance.0, report.epoch, report.seq)
    }

    fn counted(fleet: &Fleet) -> Vec<(&str, u64)> {
        let unread = fleet.unread("uid").iter();
        unread.map(|c| (c.instance.0.as_str(), c.counters.inference)).collect()
    }

    #[test]
    fn a_node_is_online_from_its_birth_to_its_will() {
        let mut fleet = Fleet::new(at(0), 30);
        assert_eq!(fleet.presence(&node()), Presence::Unheard);
        assert_eq!(fleet.node_report(&node(), birth("a", 1), true, at(1)), Nudge::Node);
        assert_eq!(
            fleet.node_report(&node(), birth("a", 1), true, at(31)),
            Nudge::None,
            "a heartbeat"
        );
        assert_eq!(fleet.presence(&node()), Presence::Online);
        assert_eq!(fleet.node_report(&node(), will("a", 1), true, at(40)), Nudge::Node);
        assert_eq!(fleet.presence(&node()), Presence::Offline { since: at(40) });
        assert_eq!(fleet.address(&node()), Some("10.0.0.1"), "it stays known");
        assert_eq!(
            fleet.node_report(&node(), birth("a", 1), true, at(41)),
            Nudge::Node,
            "it is back"
        );
        assert_eq!(fleet.census(), Census { online: 1, offline: 0 });
    }

    #[test]
    fn a_will_of_an_earlier_start_or_instance_is_stale() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.node_report(&node(), birth("a", 1), true, at(1));
        fleet.node_report(&node(), birth("a", 2), true, at(2));
        assert_eq!(fleet.node_report(&node(), will("a", 1), true, at(3)), Nudge::None);
        assert_eq!(fleet.presence(&node()), Presence::Online);
        fleet.node_report(&node(), birth("b", 1), true, at(4));
        assert_eq!(fleet.node_report(&node(), will("a", 2), true, at(5)), Nudge::None);
        assert_eq!(fleet.presence(&node()), Presence::Online);
    }

    #[test]
    fn three_missed_heartbeats_are_offline_and_any_live_word_is_online_again() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.node_report(&node(), birth("a", 1), true, at(0));
        assert_eq!(fleet.next_expiry(), Some(at(90)));
        assert!(fleet.expire(at(89)).is_empty());
        assert_eq!(fleet.expire(at(90)), [node()]);
        assert!(fleet.expire(at(91)).is_empty(), "said once");
        assert_eq!(fleet.presence(&node()), Presence::Offline { since: at(0) });
        assert_eq!(fleet.next_expiry(), None);
        let nudge = fleet.status(&node(), &key(), report("a", 1, 1, 5), true, at(100));
        assert_eq!(nudge, Nudge::Node);
        assert_eq!(fleet.presence(&node()), Presence::Online);
    }

    #[test]
    fn what_the_broker_kept_of_an_agent_that_fell_silent_is_no_sign_of_life() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.node_report(&node(), birth("a", 1), false, at(0));
        assert_eq!(
            fleet.presence(&node()),
            Presence::Online,
            "a controller that starts knows no better"
        );
        fleet.expire(at(90));
        let offline = Presence::Offline { since: at(0) };
        assert_eq!(fleet.node_report(&node(), birth("a", 1), false, at(91)), Nudge::None);
        assert_eq!(fleet.presence(&node()), offline);
        let mut reconnected = fleet.clone();
        reconnected.listens_anew();
        reconnected.node_report(&node(), birth("a", 1), false, at(92));
        assert_eq!(reconnected.presence(&node()), Presence::Online, "nobody could hear it");
        for (instance, epoch, live) in [("a", 1, true), ("a", 2, false), ("b", 1, false)] {
            let mut fleet = fleet.clone();
            fleet.node_report(&node(), birth(instance, epoch), live, at(92));
            assert_eq!(fleet.presence(&node()), Presence::Online, "{instance} {epoch} {live}");
        }
    }

    #[test]
    fn a_node_that_says_how_often_it_speaks_is_waited_for_so_long() {
        let mut fleet = Fleet::new(at(0), 30);
        assert_eq!(fleet.settled_at(), at(90));
        for (stated, silent_at) in [(15, 45), (300, 900), (0, 3), (u32::MAX, 3 * 3600)] {
            let report = NodeReport { heartbeat_seconds: Some(stated), ..birth("a", 1) };
            fleet.node_report(&node(), report, true, at(0));
            assert_eq!(fleet.next_expiry(), Some(at(silent_at)), "{stated}");
        }
        let nudge = fleet.node_report(&node(), birth("a", 1), true, at(0));
        assert_eq!(nudge, Nudge::None);
        assert_eq!(fleet.next_expiry(), Some(at(3 * 3600)), "what it does not repeat holds on");
    }

    #[test]
    fn a_node_that_makes_up_data_directories_fills_no_memory() {
        let mut fleet = Fleet::new(at(0), 30);
        for n in 0..1000 {
            fleet.node_report(&node(), birth(&n.to_string(), 1), true, at(0));
        }
        assert!(fleet.nodes[&node()].newest.len() <= INSTANCES);
    }

    #[test]
    fn what_the_broker_kept_is_no_sign_of_life() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.node_report(&node(), will("a", 1), true, at(1));
        let nudge = fleet.status(&node(), &key(), report("a", 1, 9, 5), false, at(2));
        assert_eq!(nudge, Nudge::Object);
        assert!(matches!(fleet.presence(&node()), Presence::Offline { .. }));
        assert_eq!(counted(&fleet), [("a", 5)], "and yet it counts");
    }

    #[test]
    fn an_older_report_changes_no_state_and_its_numbers_never_lower_what_was_counted() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.status(&node(), &key(), report("a", 1, 7, 70), true, at(1));
        assert_eq!(fleet.status(&node(), &key(), report("a", 1, 6, 60), true, at(2)), Nudge::None);
        assert_eq!((held(&fleet), counted(&fleet)), ("a/1/7".into(), vec![("a", 70)]));
        fleet.status(&node(), &key(), report("a", 2, 1, 80), true, at(3));
        assert_eq!((held(&fleet), counted(&fleet)), ("a/2/1".into(), vec![("a", 80)]));
        let late = fleet.status(&node(), &key(), report("a", 1, 8, 90), true, at(4));
        assert_eq!(late, Nudge::Object, "late, and more was counted");
        assert_eq!((held(&fleet), counted(&fleet)), ("a/2/1".into(), vec![("a", 90)]));
    }

    #[test]
    fn a_replaced_node_counts_beside_what_it_had_counted_and_its_late_words_change_no_state() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.status(&node(), &key(), report("a", 3, 7, 70), true, at(1));
        fleet.status(&node(), &key(), report("b", 1, 1, 5), true, at(2));
        assert_eq!(held(&fleet), "b/1/1");
        fleet.status(&node(), &key(), report("a", 3, 6, 60), true, at(3));
        assert_eq!(held(&fleet), "b/1/1");
        assert_eq!(counted(&fleet), [("a", 70), ("b", 5)]);
        fleet.status(&node(), &key(), report("a", 4, 1, 71), true, at(4));
        assert_eq!(held(&fleet), "a/4/1", "the old directory came back");
    }

    #[test]
    fn what_is_counted_while_a_status_is_written_stays_unread() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.status(&node(), &key(), report("a", 1, 1, 10), true, at(1));
        let written = fleet.unread("uid").to_vec();
        fleet.status(&node(), &key(), report("a", 1, 2, 20), true, at(2));
        fleet.read("uid", &written);
        assert_eq!(counted(&fleet), [("a", 20)]);
        let written = fleet.unread("uid").to_vec();
        fleet.read("uid", &written);
        assert!(fleet.unread("uid").is_empty() && fleet.unread.is_empty());
    }

    fn output(second: i64, accuracy: &str) -> ModelOutput {
        serde_json::from_value(json!({
            "model": "small", "uid": "model", "metrics": [{"key": "accuracy", "value": accuracy}],
            "time": format!("{:.3}", at(second)),
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_word_on_a_model_counts_and_a_clock_that_runs_ahead_wins_for_no_longer() {
        let mut fleet = Fleet::new(at(0), 30);
        let other: NodeName = "edge1".parse().unwrap();
        let held = |fleet: &Fleet| {
            let held = fleet.evaluation("model").unwrap();
            (held.output.metrics[0].value.clone(), held.taken)
        };
        assert!(fleet.evaluated(&node(), &key(), &output(10, "0.9"), at(11)));
        assert!(!fleet.evaluated(&node(), &key(), &output(10, "0.9"), at(12)), "doubled");
        assert!(!fleet.evaluated(&other, &key(), &output(9, "0.1"), at(13)), "older");
        assert!(fleet.evaluated(&other, &key(), &output(9_999, "0.2"), at(14)));
        assert_eq!(held(&fleet), ("0.2".to_owned(), at(14)));
        assert!(!fleet.evaluated(&other, &key(), &output(9_999, "0.2"), at(15)));
        assert!(fleet.evaluated(&node(), &key(), &output(15, "0.3"), at(16)));
        assert!(fleet.evaluated(&node(), &key(), &output(16, "0.4"), at(16)));
        let silent = ModelOutput { metrics: Vec::new(), ..output(17, "") };
        assert!(!fleet.evaluated(&node(), &key(), &silent, at(18)));
        assert_eq!(held(&fleet), ("0.4".to_owned(), at(16)));
        fleet.forget(&key(), "model");
        assert_eq!(fleet.evaluation("model"), None);
    }

    #[test]
    fn an_object_that_is_gone_leaves_nothing_behind() {
        let mut fleet = Fleet::new(at(0), 30);
        fleet.status(&node(), &key(), report("a", 1, 1, 10), true, at(1));
        fleet.forget(&key(), "uid");
        assert!(fleet.reports.is_empty() && fleet.unread.is_empty());
        fleet.status(&node(), &key(), report("a", 1, 2, 10), true, at(1));
        assert_eq!(fleet.cleared(&node(), &key()), Nudge::Object);
        assert_eq!(fleet.cleared(&node(), &key()), Nudge::None);
    }
}
