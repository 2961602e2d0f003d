//! A fleet with its controller, for the property tests of rollouts.

#![allow(clippy::unwrap_used)]
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use neptune_api::{RolloutState, RolloutStatus};
use neptune_wire::NodeName;

use super::{
    memory::RolloutMemory,
    node::{Grant, GrantCause, Has, RolloutNode},
    policy::Policy,
    rank::Rank,
    step::{Moment, step},
};
use crate::reason::Reason;

/// Seconds from a grant to the start of the new container, and from there until it is ready.
pub const APPLY: i64 = 2;
pub const START: i64 = 5;

/// What happens between two steps. Nodes are chosen by a number.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    Time(u8),
    Leave(usize),
    Return(usize),
    /// The node is not ready with anything, for another reason than a change.
    Break(usize),
    Repair(usize),
    Wipe(usize),
    Remove(usize),
    Add,
    /// Kills the controller, before or after it uses the status that it stored.
    Restart {
        after_store: bool,
    },
    Change {
        is_bad: bool,
    },
    Pause(bool),
    Resume,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
#[derive(Debug, Clone)]
pub struct Node {
    pub name: NodeName,
    pub rank: Rank,
    pub is_canary: bool,
    pub is_online: bool,
    pub is_broken: bool,
    /// The revision that it has, and since when.
    pub has: Option<(usize, i64)>,
    /// The revision that was published to it, and when.
    pub published: Option<(usize, i64)>,
    /// What the rollout of the present revision did to it: when, and whether it was ready.
    pub taken: Option<(i64, bool)>,
    /// Whether it was ready for long enough since.
    pub was_done: bool,
    pub ready_since: Option<i64>,
}

/// A fleet with its controller. Time is in seconds.
pub struct Fleet {
    pub nodes: BTreeMap<usize, Node>,
    pub next: usize,
    pub policy: Policy,
    /// Whether each revision fails on each node.
    pub revisions: Vec<bool>,
    pub stored: Option<RolloutStatus>,
    pub memory: RolloutMemory,
    pub now: i64,
    /// Restarts while a node that the rollout took down was away, or had not applied the revision.
    pub losses: usize,
    pub restarted_at: i64,
}

impl Node {
    pub fn new(number: usize, is_canary: bool) -> Self {
        Self {
            name: format!("shop-{number:04}").parse().unwrap(),
            rank: Rank::LAST,
            is_canary,
            is_online: true,
            is_broken: false,
            has: None,
            published: None,
            taken: None,
            was_done: false,
            ready_since: None,
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Fleet {
    /// All nodes have the first revision and are ready.
    pub fn new(size: usize, canaries: usize, policy: Policy) -> Self {
        let node = |number| Node {
            has: Some((0, -1_000)),
            ready_since: Some(-1_000),
            ..Node::new(number, number < canaries)
        };
        let nodes = (0..size).map(|index| (index, node(index))).collect();
        let mut fleet = Self {
            nodes,
            next: size,
            policy,
            revisions: vec![false],
            stored: None,
            memory: RolloutMemory::default(),
            now: 0,
            losses: 0,
            restarted_at: -1_000,
        };
        fleet.rank();
        fleet.step(true);
        fleet.step(true);
        fleet.change(false);
        fleet
    }

    pub fn change(&mut self, is_bad: bool) {
        self.revisions.push(is_bad);
        for node in self.nodes.values_mut() {
            (node.taken, node.was_done) = (None, false);
        }
        self.rank();
    }

    pub fn rank(&mut self) {
        let revision = self.text();
        for node in self.nodes.values_mut() {
            node.rank = Rank::new(node.is_canary, "uid", &revision, node.name.as_str());
        }
    }

    pub fn text(&self) -> String {
        format!("r{}", self.revision())
    }

    pub fn revision(&self) -> usize {
        self.revisions.len() - 1
    }

    pub fn min_ready(&self) -> i64 {
        self.policy.min_ready.as_secs()
    }

    pub fn is_ready(&self, node: &Node) -> bool {
        let Some((revision, since)) = node.has else { return false };
        !self.revisions[revision] && !node.is_broken && since + START <= self.now
    }

    pub fn fails(&self, node: &Node) -> bool {
        node.has.is_some_and(|(revision, since)| {
            (self.revisions[revision] || node.is_broken) && since + START <= self.now
        })
    }

    /// The nodes that the rollout took down and that are neither done nor failed. Not those that an
    /// earlier controller took while the present one cannot see that: what it granted is forgotten, and
    /// a node that has the revision from before and is offline must not block the others.
    pub fn in_flight(&self) -> usize {
        let is_in_flight = |node: &&Node| {
            let Some((since, true)) = node.taken else { return false };
            let is_forgotten = since <= self.restarted_at
                && match self.memory.grant(&node.name).map(|grant| grant.cause) {
                    None => true,
                    Some(GrantCause::Known) => !node.is_online,
                    Some(GrantCause::Wave | GrantCause::Join) => false,
                };
            let is_late = since + self.policy.deadline.as_secs() <= self.now;
            let has_new = node.has.is_some_and(|(revision, _)| revision == self.revision());
            let has_failed = has_new && self.fails(node);
            !(is_forgotten || is_late || node.was_done || has_failed)
        };
        self.nodes.values().filter(is_in_flight).count()
    }

    pub fn event(&mut self, event: Event) {
        let keys: Vec<usize> = self.nodes.keys().copied().collect();
        let pick = |number: usize| keys.get(number % keys.len().max(1)).copied();
        match event {
            Event::Time(seconds) => return self.wait(i64::from(seconds)),
            Event::Leave(number) | Event::Return(number) => {
                if let Some(node) = pick(number).and_then(|key| self.nodes.get_mut(&key)) {
                    node.is_online = matches!(event, Event::Return(_));
                }
            }
            Event::Break(number) | Event::Repair(number) => {
                if let Some(node) = pick(number).and_then(|key| self.nodes.get_mut(&key)) {
                    node.is_broken = matches!(event, Event::Break(_));
                }
            }
            Event::Wipe(number) => {
                if let Some(node) = pick(number).and_then(|key| self.nodes.get_mut(&key)) {
                    (node.has, node.published, node.taken) = (None, None, None);
                }
            }
            Event::Remove(number) => {
                pick(number).map(|key| self.nodes.remove(&key));
            }
            Event::Add => {
                self.nodes.insert(self.next, Node::new(self.next, false));
                self.next += 1;
                self.rank();
            }
            Event::Restart { after_store } => {
                if after_store {
                    self.step(false);
                }
                let has_new = |node: &Node| node.has.is_some_and(|(it, _)| it == self.revision());
                let is_lost =
                    |node: &Node| node.taken.is_some() && !(node.is_online && has_new(node));
                self.losses += usize::from(self.nodes.values().any(is_lost));
                self.memory = RolloutMemory::default();
                self.restarted_at = self.now;
            }
            Event::Change { is_bad } => self.change(is_bad),
            Event::Pause(is_paused) => self.policy.is_paused = is_paused,
            Event::Resume => self.policy.resumed_at = Some(at(self.now)),
        }
        self.wait(1);
    }

    /// Lets time pass, with a step each second.
    pub fn wait(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.advance(1);
        }
    }

    /// The nodes that are ready with what they have.
    pub fn ready(&self) -> BTreeSet<usize> {
        let ready = self.nodes.iter().filter(|(_, node)| self.is_ready(node));
        ready.map(|(key, _)| *key).collect()
    }

    /// Lets time pass, with one step after it.
    pub fn advance(&mut self, seconds: i64) {
        self.now += seconds;
        let (now, revision) = (self.now, self.revision());
        for node in self.nodes.values_mut().filter(|node| node.is_online) {
            if let Some((new, _)) = node.published.take_if(|(_, since)| *since + APPLY <= now) {
                node.has = Some((new, now));
            }
        }
        let min_ready = self.min_ready();
        let ready = self.ready();
        for (key, node) in &mut self.nodes {
            let is_ready = ready.contains(key) && node.is_online;
            let has_new = node.has.is_some_and(|(has, _)| has == revision);
            node.ready_since = is_ready.then(|| node.ready_since.unwrap_or(now));
            let is_done = node.ready_since.is_some_and(|since| since + min_ready <= now);
            node.was_done |= is_done && has_new;
        }
        self.step(true);
    }

    /// One step of the controller. `survives`: whether it lives long enough to use what it stored.
    pub fn step(&mut self, survives: bool) {
        let (revision, text) = (self.revision(), self.text());
        self.memory.begin(&text);
        let (keys, ready): (Vec<_>, _) = (self.nodes.keys().copied().collect(), self.ready());
        let mut views = Vec::with_capacity(keys.len());
        for (key, node) in &self.nodes {
            let has = match node.has {
                None => Has::Nothing,
                Some((has, _)) if has == revision => Has::New,
                Some(_) => Has::Old,
            };
            let is_ready = ready.contains(key);
            let times = (at(self.now), self.policy.min_ready);
            let readiness = (node.is_online, is_ready && has == Has::New);
            views.push(RolloutNode {
                name: node.name.as_str(),
                rank: node.rank,
                has,
                is_online: node.is_online,
                is_ready,
                ready_since: self.memory.observe(&node.name, readiness, times),
                failure: self.fails(node).then_some(Reason::CrashLoopBackOff),
                is_deferred: false,
                is_delayed: false,
                grant: self.memory.grant(&node.name),
            });
        }
        let stored = self.stored.as_ref();
        let moment = Moment { now: at(self.now), wall: at(self.now), is_settled: true };
        let next = step(&self.policy, (&text, true), stored, &views, moment);
        self.check(stored, &views, &next.grants, &text);
        self.stored = Some(next.status);
        if survives {
            let grants = next.grants.into_iter().map(|(index, grant)| (keys[index], grant));
            self.use_grants(grants.collect(), &ready);
        }
    }

    /// Publishes the revision to the nodes with a grant.
    pub fn use_grants(&mut self, grants: Vec<(usize, Grant)>, ready: &BTreeSet<usize>) {
        let (revision, now) = (self.revision(), self.now);
        let mut has_cost = false;
        let mut named = Vec::new();
        for (key, grant) in grants {
            let node = self.nodes.get_mut(&key).unwrap();
            let was_ready = grant.cause == GrantCause::Wave && ready.contains(&key);
            has_cost |= was_ready;
            if grant.cause != GrantCause::Known {
                node.taken = node.taken.or(Some((now, was_ready)));
                node.was_done = false;
            }
            named.push((node.name.clone(), grant));
        }
        self.memory.add_grants(&self.text(), named);
        for node in self.nodes.values_mut().filter(|node| self.memory.grant(&node.name).is_some()) {
            let has_new = node.has.is_some_and(|(has, _)| has == revision);
            if !has_new && node.published.is_none_or(|(published, _)| published != revision) {
                node.published = Some((revision, now));
            }
        }
        if has_cost {
            let limit = self.policy.limit(self.nodes.len());
            assert!(self.in_flight() <= limit, "{} of {limit}", self.in_flight());
        }
    }

    /// A grant follows from what was stored before this step, and nothing is granted while paused.
    pub fn check(
        &self,
        stored: Option<&RolloutStatus>,
        views: &[RolloutNode],
        grants: &[(usize, Grant)],
        revision: &str,
    ) {
        for (index, grant) in grants {
            let (view, stored) = (&views[*index], stored.expect("the first step grants nothing"));
            assert_eq!(stored.revision, revision);
            assert!(view.grant.is_none());
            match grant.cause {
                GrantCause::Known => assert_eq!(view.has, Has::New),
                GrantCause::Join => assert_eq!(view.has, Has::Nothing),
                GrantCause::Wave => {
                    let frontier: Rank = stored.frontier.as_ref().unwrap().parse().unwrap();
                    assert!(view.has == Has::Old && view.rank <= frontier && view.is_online);
                }
            }
            assert!(!self.policy.is_paused || grant.cause == GrantCause::Known);
        }
    }

    /// The nodes that had another revision, were ready, and have or get the present one.
    pub fn reached(&self) -> usize {
        let is_reached = |node: &&Node| node.taken.is_some_and(|(_, was_ready)| was_ready);
        self.nodes.values().filter(is_reached).count()
    }

    pub fn state(&self) -> RolloutState {
        self.stored.as_ref().unwrap().state
    }
}
