//! Which nodes' agents are online, by their messages and the time since the last one.
//!
//! Messages come late, twice and out of order. The messages of one agent instance are ordered by
//! (epoch, seq); of two instances of a node, the one whose newer message came last is the current
//! one.
//!
//! Times are those of the fleet's monotonic clock, so a step of the wall clock expires no node. Each
//! message costs the same for any number of nodes.

mod agents;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_wire::{AgentInstance, KeyPin, NodeName, NodeReport, PeerEndpoint, SortedMap};

use crate::nodes::status::AgentDetails;

/// A node that misses this many heartbeats is offline: one may be lost, two may be late.
const MAX_MISSED_HEARTBEATS: u32 = 3;

/// The seconds between heartbeats that an agent may announce.
const HEARTBEATS: RangeInclusive<u32> = 1..=3600;

/// Agent instances remembered per node. Only invented ones are more.
const MAX_INSTANCES: usize = 64;

/// The place of a message among those of its instance: (epoch, seq).
pub type MessageOrder = (u64, u64);

/// The nodes whose agents have reported since this controller started.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "they are the nodes")]
pub struct Nodes {
    /// The heartbeat, in seconds, of agents that do not announce theirs.
    heartbeat: u32,
    nodes: BTreeMap<NodeName, NodePresence>,
    /// The nodes that are online, by the time at which they expire.
    expiries: BTreeSet<(Timestamp, NodeName)>,
    /// The nodes that are online and report a problem.
    with_problems: BTreeSet<NodeName>,
}

#[derive(Debug, Clone)]
struct NodePresence {
    /// The newest message of each instance; node reports have no seq.
    newest: SortedMap<AgentInstance, MessageOrder>,
    current: AgentInstance,
    /// A start that is earlier than the newest one and still sends heartbeats, and since when.
    earlier: Option<(AgentInstance, u64, Timestamp)>,
    online: bool,
    /// Whether the node is offline because its heartbeats stopped, not because of a last will.
    expired: bool,
    last_seen: Timestamp,
    /// Seconds between its heartbeats.
    heartbeat: u32,
    address: Option<String>,
    key_pin: Option<KeyPin>,
    peers: Option<PeerEndpoint>,
    runs: Runs,
    /// What it reported of itself; `None` until a report of an agent that is online.
    details: Option<Box<AgentDetails>>,
}

/// What a node's agent can run beside workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Runs {
    aggregators: bool,
    sessions: bool,
}

/// Whether a node's agent is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The last sign of life of the node is recent.
    Online,
    /// The last will of the node came, or its heartbeats stopped.
    Offline {
        /// The time of its last message.
        since: Timestamp,
    },
    /// The node has not reported since this controller started.
    NeverSeen,
}

/// What a message changed of a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentChange {
    /// The message brought nothing new.
    Nothing,
    /// Only whether the agent is connected, or which one is.
    Presence,
    /// Its address, its key, its peer endpoint, what it runs or what it offers, too.
    Facts,
}

/// How many nodes are online and offline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Nodes that are online.
    pub online: usize,
    /// Nodes that were online.
    pub offline: usize,
    /// Nodes that are online and report a problem.
    pub with_problems: usize,
}

/// How long a node with this heartbeat, in seconds, may be silent.
pub fn offline_after(heartbeat: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(heartbeat) * i64::from(MAX_MISSED_HEARTBEATS))
}

impl Nodes {
    /// No node has reported. Agents that do not announce their heartbeat have one every `heartbeat`
    /// seconds.
    pub fn new(heartbeat: u32) -> Self {
        Self {
            heartbeat,
            nodes: BTreeMap::new(),
            expiries: BTreeSet::new(),
            with_problems: BTreeSet::new(),
        }
    }

    /// Processes a birth, a heartbeat or a last will. One that is not `live` was retained by the
    /// broker. Returns what changed of the node's agent.
    pub fn on_node_report(
        &mut self,
        node: &NodeName,
        report: NodeReport,
        live: bool,
        now: Timestamp,
    ) -> AgentChange {
        let details = AgentDetails::from_report(&report);
        let NodeReport {
            instance,
            epoch,
            online,
            address,
            heartbeat_seconds,
            problems,
            key_pin,
            peers,
            runs_aggregators,
            runs_sessions,
            ..
        } = report;
        if self.is_outdated(node, &instance, epoch) {
            if !(live && online && self.is_connected_again(node, &instance, epoch, now)) {
                return AgentChange::Nothing;
            }
            self.reset(node, &instance, epoch);
        }
        let known = self.nodes.get(node);
        // A retained message of an agent whose heartbeats stopped is no sign of life.
        let is_expired = known.is_some_and(|known| known.expired && known.current == instance);
        let is_same_start = || self.newest(node, &instance).is_some_and(|(held, _)| held == epoch);
        if !live && is_expired && is_same_start() {
            return AgentChange::Nothing;
        }
        // A last will concerns one instance: after a message of a later one it is outdated.
        if !online && known.is_some_and(|known| known.current != instance) {
            return AgentChange::Nothing;
        }
        let state = |known: &NodePresence| {
            let NodePresence { online, address, current, key_pin, peers, runs, .. } = known;
            let facts = (address.clone(), *runs, key_pin.clone(), peers.clone());
            ((*online, current.clone()), facts)
        };
        let before = known.map(state);
        let known_details = known.and_then(|known| known.details.as_deref());
        let offers_other = online
            && known_details.is_none_or(|known| !known.offer.is_same_for_plans(&details.offer));
        let after = self.record(node, &instance, (epoch, 0), now, |entry| {
            entry.online = online;
            if let Some(announced) = heartbeat_seconds {
                entry.heartbeat = announced.clamp(*HEARTBEATS.start(), *HEARTBEATS.end());
            }
            // A last will does not repeat the address, and the workers are still there.
            entry.address = address.or(entry.address.take());
            entry.details = online.then(|| Box::new(details)).or(entry.details.take());
            // An agent that is online without a key is an earlier version.
            if online || key_pin.is_some() {
                entry.key_pin = key_pin;
                entry.runs = Runs { aggregators: runs_aggregators, sessions: runs_sessions };
            }
            if online || peers.is_some() {
                entry.peers = peers;
            }
            state(entry)
        });
        if online && !problems.is_empty() {
            self.with_problems.insert(node.clone());
        } else {
            self.with_problems.remove(node);
        }
        match before {
            Some((presence, facts)) if facts == after.1 && !offers_other => {
                if presence == after.0 {
                    AgentChange::Nothing
                } else {
                    AgentChange::Presence
                }
            }
            _ => AgentChange::Facts,
        }
    }

    /// Processes any other live message as a sign of life. Returns whether the node was not online
    /// before.
    pub fn on_sign_of_life(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        order: MessageOrder,
        now: Timestamp,
    ) -> bool {
        let was_online = self.presence(node) == Presence::Online;
        self.record(node, instance, order, now, |entry| entry.online = true);
        !was_online
    }

    /// Processes a live report on an object. While another instance is connected it is no sign of
    /// life: that one sends heartbeats. Returns whether the node was not online before.
    pub fn on_object_report(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        order: MessageOrder,
        now: Timestamp,
    ) -> bool {
        let is_other = self.current(node).is_some_and(|current| current != instance);
        if is_other && self.presence(node) == Presence::Online {
            return false;
        }
        self.on_sign_of_life(node, instance, order, now)
    }

    /// The instance whose message was the last sign of life.
    pub fn current(&self, node: &NodeName) -> Option<&AgentInstance> {
        self.nodes.get(node).map(|known| &known.current)
    }

    /// The newest start of an instance that reported.
    pub fn newest_epoch(&self, node: &NodeName, instance: &AgentInstance) -> Option<u64> {
        self.newest(node, instance).map(|(epoch, _)| epoch)
    }

    /// Whether an earlier start sends heartbeats, and no newer one does: the data directory was
    /// restored from a copy, or the newer start was invented. A single heartbeat may be late.
    fn is_connected_again(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        epoch: u64,
        now: Timestamp,
    ) -> bool {
        let Some(known) = self.nodes.get_mut(node) else { return true };
        let same = known.earlier.as_ref().filter(|(held, at, _)| held == instance && *at == epoch);
        let half = SignedDuration::from_secs(i64::from(known.heartbeat)) / 2;
        let Some((_, _, since)) = same else {
            known.earlier = Some((instance.clone(), epoch, now));
            return false;
        };
        now.duration_since(*since) >= half
    }

    /// Forgets the starts of an instance after this one.
    fn reset(&mut self, node: &NodeName, instance: &AgentInstance, epoch: u64) {
        if let Some(newest) = self.nodes.get_mut(node).and_then(|it| it.newest.get_mut(instance)) {
            *newest = (epoch, 0);
        }
    }

    /// Forgets which nodes expired during a time without a connection: they may be online.
    pub fn on_reconnected(&mut self) {
        self.nodes.values_mut().for_each(|node| node.expired = false);
    }

    /// Returns the nodes whose heartbeats stopped and that were online until now.
    pub fn expire(&mut self, now: Timestamp) -> Vec<NodeName> {
        let mut expired = Vec::new();
        while self.expiries.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.expiries.pop_first() else { break };
            if let Some(node) = self.nodes.get_mut(&name) {
                node.online = false;
                node.expired = true;
            }
            self.with_problems.remove(&name);
            expired.push(name);
        }
        expired
    }

    /// Forgets a deleted node. Its messages are refused, so it would count as offline.
    pub fn forget(&mut self, node: &NodeName) {
        if let Some(known) = self.nodes.remove(node) {
            self.expiries.remove(&(known.expires_at(), node.clone()));
        }
        self.with_problems.remove(node);
    }

    /// Returns the earliest time at which [`Nodes::expire`] may return a node.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Whether a node's agent is connected.
    pub fn presence(&self, node: &NodeName) -> Presence {
        match self.nodes.get(node) {
            None => Presence::NeverSeen,
            Some(node) if node.online => Presence::Online,
            Some(node) => Presence::Offline { since: node.last_seen },
        }
    }

    /// How many nodes are online and offline.
    pub fn counts(&self) -> NodeCounts {
        let online = self.expiries.len();
        let offline = self.nodes.len() - online;
        NodeCounts { online, offline, with_problems: self.with_problems.len() }
    }

    /// Whether a later start of this instance has reported already.
    pub fn is_outdated(&self, node: &NodeName, instance: &AgentInstance, epoch: u64) -> bool {
        self.newest(node, instance).is_some_and(|(newest, _)| epoch < newest)
    }

    /// Whether a message is of the node's current instance, or newer than all of its own instance.
    pub fn is_current_or_newer(
        &self,
        node: &NodeName,
        instance: &AgentInstance,
        order: MessageOrder,
    ) -> bool {
        self.nodes.get(node).is_none_or(|known| known.current == *instance)
            || self.newest(node, instance).is_none_or(|newest| order > newest)
    }

    fn newest(&self, node: &NodeName, instance: &AgentInstance) -> Option<MessageOrder> {
        self.nodes.get(node)?.newest.get(instance).copied()
    }

    /// Records a message, and applies `change` to the node.
    fn record<T>(
        &mut self,
        node: &NodeName,
        instance: &AgentInstance,
        order: MessageOrder,
        now: Timestamp,
        change: impl FnOnce(&mut NodePresence) -> T,
    ) -> T {
        let heartbeat = self.heartbeat;
        let entry = self.nodes.entry(node.clone()).or_insert_with(|| NodePresence {
            newest: SortedMap::default(),
            current: instance.clone(),
            earlier: None,
            online: false,
            expired: false,
            last_seen: now,
            heartbeat,
            address: None,
            key_pin: None,
            peers: None,
            runs: Runs::default(),
            details: None,
        });
        if entry.online {
            self.expiries.remove(&(entry.expires_at(), node.clone()));
        }
        if entry.newest.len() >= MAX_INSTANCES && !entry.newest.contains_key(instance) {
            entry.newest = SortedMap::default();
        }
        let newest = entry.newest.get(instance).map_or(order, |newest| order.max(*newest));
        entry.newest.insert(instance.clone(), newest);
        entry.current = instance.clone();
        entry.earlier = None;
        entry.last_seen = now;
        entry.expired = false;
        let result = change(entry);
        if entry.online {
            self.expiries.insert((entry.expires_at(), node.clone()));
        }
        result
    }
}

impl NodePresence {
    fn expires_at(&self) -> Timestamp {
        self.last_seen + offline_after(self.heartbeat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_instances_use_bounded_memory() {
        let node: NodeName = "edge0".parse().expect("a name");
        let mut nodes = Nodes::new(30);
        for n in 0..1000 {
            let instance = AgentInstance(n.to_string());
            nodes.on_sign_of_life(&node, &instance, (1, 0), Timestamp::UNIX_EPOCH);
        }
        assert!(nodes.nodes[&node].newest.len() <= MAX_INSTANCES);
        assert_eq!(nodes.expiries.len(), 1);
    }

    #[test]
    fn deleted_node_is_not_counted() {
        let (mut nodes, instance) = (Nodes::new(30), AgentInstance("a".to_owned()));
        let now = Timestamp::UNIX_EPOCH;
        let [online, offline]: [NodeName; 2] =
            ["on", "off"].map(|name| name.parse().expect("a name"));
        nodes.on_sign_of_life(&offline, &instance, (1, 0), now);
        let later = now + offline_after(30);
        nodes.expire(later);
        nodes.on_sign_of_life(&online, &instance, (1, 0), later);
        assert_eq!((nodes.counts().online, nodes.counts().offline), (1, 1));
        nodes.forget(&offline);
        nodes.forget(&online);
        assert_eq!(nodes.counts(), NodeCounts::default());
        assert_eq!(nodes.next_expiry(), None);
        assert_eq!(nodes.presence(&offline), Presence::NeverSeen);
    }

    #[test]
    fn expiry_visits_only_nodes_that_expire() {
        let (mut nodes, instance) = (Nodes::new(30), AgentInstance("a".to_owned()));
        let at = |second| Timestamp::from_second(second).expect("a time");
        for n in 0..1000 {
            let node: NodeName = format!("edge{n}").parse().expect("a name");
            nodes.on_sign_of_life(&node, &instance, (1, 0), at(n));
            nodes.on_sign_of_life(&node, &instance, (1, 1), at(n + 1));
        }
        assert_eq!(nodes.counts(), NodeCounts { online: 1000, ..NodeCounts::default() });
        assert_eq!(nodes.next_expiry(), Some(at(91)));
        assert_eq!(nodes.expire(at(92)).len(), 2);
        assert_eq!(nodes.counts(), NodeCounts { online: 998, offline: 2, with_problems: 0 });
        assert_eq!(nodes.next_expiry(), Some(at(93)));
    }

    #[test]
    fn node_with_a_problem_is_counted_until_it_is_solved_or_the_node_is_offline() {
        let node: NodeName = "edge0".parse().expect("a name");
        let now = Timestamp::UNIX_EPOCH;
        let report = |online: bool, problems: &str| -> NodeReport {
            let text = format!(
                r#"{{"instance": "a", "epoch": 1, "online": {online}, "problems": [{problems}]}}"#
            );
            serde_json::from_str(&text).expect("a report")
        };
        let full = r#"{"reason": "DiskFull", "message": "free space"}"#;
        let newer = r#"{"reason": "OfANewerAgent", "message": "m"}"#;
        let mut nodes = Nodes::new(30);
        for (online, problems, expected) in [
            (true, "", 0),
            (true, full, 1),
            (true, newer, 1),
            (true, "", 0),
            (true, full, 1),
            (false, "", 0),
            (true, full, 1),
        ] {
            nodes.on_node_report(&node, report(online, problems), true, now);
            assert_eq!(nodes.counts().with_problems, expected, "{online} {problems}");
        }
        nodes.expire(now + offline_after(30));
        assert_eq!(nodes.counts(), NodeCounts { offline: 1, ..NodeCounts::default() });
    }
}
