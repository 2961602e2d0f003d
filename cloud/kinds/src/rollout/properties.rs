//! Properties of rollouts over random fleets, failures, restarts and changes.

#![allow(clippy::unwrap_used)]
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{RolloutState, RolloutStatus};
use neptune_wire::NodeName;
use proptest::{collection::vec, prelude::*};

use super::{
    memory::RolloutMemory,
    node::{Grant, GrantCause, Has, RolloutNode},
    policy::{Amount, Policy},
    rank::Rank,
    step::{Moment, step},
};
use crate::reason::Reason;

/// Seconds from a grant to the start of the new container, and from there until it is ready.
const APPLY: i64 = 2;
const START: i64 = 5;

/// What happens between two steps. Nodes are chosen by a number.
#[derive(Debug, Clone, Copy)]
enum Event {
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

#[derive(Debug, Clone)]
struct Node {
    name: NodeName,
    rank: Rank,
    is_canary: bool,
    is_online: bool,
    is_broken: bool,
    /// The revision that it has, and since when.
    has: Option<(usize, i64)>,
    /// The revision that was published to it, and when.
    published: Option<(usize, i64)>,
    /// What the rollout of the present revision did to it: when, and whether it was ready.
    taken: Option<(i64, bool)>,
    /// Whether it was ready for long enough since.
    was_done: bool,
    ready_since: Option<i64>,
}

/// A fleet with its controller. Time is in seconds.
struct Fleet {
    nodes: BTreeMap<usize, Node>,
    next: usize,
    policy: Policy,
    /// Whether each revision fails on each node.
    revisions: Vec<bool>,
    stored: Option<RolloutStatus>,
    memory: RolloutMemory,
    now: i64,
    /// Restarts while a node that the rollout took down was away, or had not applied the revision.
    losses: usize,
    restarted_at: i64,
}

impl Node {
    fn new(number: usize, is_canary: bool) -> Self {
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
    fn new(size: usize, canaries: usize, policy: Policy) -> Self {
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

    fn change(&mut self, is_bad: bool) {
        self.revisions.push(is_bad);
        for node in self.nodes.values_mut() {
            (node.taken, node.was_done) = (None, false);
        }
        self.rank();
    }

    fn rank(&mut self) {
        let revision = self.text();
        for node in self.nodes.values_mut() {
            node.rank = Rank::new(node.is_canary, "uid", &revision, node.name.as_str());
        }
    }

    fn text(&self) -> String {
        format!("r{}", self.revision())
    }

    fn revision(&self) -> usize {
        self.revisions.len() - 1
    }

    fn min_ready(&self) -> i64 {
        self.policy.min_ready.as_secs()
    }

    fn is_ready(&self, node: &Node) -> bool {
        let Some((revision, since)) = node.has else { return false };
        !self.revisions[revision] && !node.is_broken && since + START <= self.now
    }

    fn fails(&self, node: &Node) -> bool {
        node.has.is_some_and(|(revision, since)| {
            (self.revisions[revision] || node.is_broken) && since + START <= self.now
        })
    }

    /// The nodes that the rollout took down and that are neither done nor failed.
    fn in_flight(&self) -> usize {
        let is_in_flight = |node: &&Node| {
            let deadline = self.policy.deadline.as_secs();
            let is_taken = node
                .taken
                .is_some_and(|(since, was_ready)| was_ready && since + deadline > self.now);
            let has_new = node.has.is_some_and(|(revision, _)| revision == self.revision());
            is_taken && !node.was_done && !(has_new && self.fails(node))
        };
        self.nodes.values().filter(is_in_flight).count()
    }

    fn event(&mut self, event: Event) {
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
    fn wait(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.advance(1);
        }
    }

    /// The nodes that are ready with what they have.
    fn ready(&self) -> BTreeSet<usize> {
        let ready = self.nodes.iter().filter(|(_, node)| self.is_ready(node));
        ready.map(|(key, _)| *key).collect()
    }

    /// Lets time pass, with one step after it.
    fn advance(&mut self, seconds: i64) {
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
    fn step(&mut self, survives: bool) {
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
    fn use_grants(&mut self, grants: Vec<(usize, Grant)>, ready: &BTreeSet<usize>) {
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
        // A controller that has just started does not see what a node has not applied yet.
        if has_cost && self.restarted_at + 2 * APPLY < now {
            let limit = self.policy.limit(self.nodes.len());
            assert!(self.in_flight() <= limit, "{} of {limit}", self.in_flight());
        }
    }

    /// A grant follows from what was stored before this step, and nothing is granted while paused.
    fn check(
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
    fn reached(&self) -> usize {
        let is_reached = |node: &&Node| node.taken.is_some_and(|(_, was_ready)| was_ready);
        self.nodes.values().filter(is_reached).count()
    }

    fn state(&self) -> RolloutState {
        self.stored.as_ref().unwrap().state
    }
}

fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![(0_usize..20).prop_map(Amount::Count), (0_usize..40).prop_map(Amount::Percent)]
}

fn policies() -> impl Strategy<Value = Policy> {
    (amounts(), amounts(), 0_i64..20, 20_i64..120).prop_map(
        |(unavailable, failures, ready, late)| Policy {
            max_unavailable: unavailable,
            pause_on_failure: failures,
            min_ready: SignedDuration::from_secs(ready),
            deadline: SignedDuration::from_secs(ready + late),
            is_paused: false,
            resumed_at: None,
        },
    )
}

/// What does not change which revision is rolled out, or whether it may be.
fn incidents() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u8..20).prop_map(Event::Time),
        2 => any::<usize>().prop_map(Event::Leave),
        2 => any::<usize>().prop_map(Event::Return),
        1 => any::<bool>().prop_map(|after_store| Event::Restart { after_store }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => incidents(),
        1 => any::<usize>().prop_map(Event::Break),
        1 => any::<usize>().prop_map(Event::Repair),
        1 => any::<usize>().prop_map(Event::Wipe),
        1 => any::<usize>().prop_map(Event::Remove),
        1 => Just(Event::Add),
        1 => any::<bool>().prop_map(|is_bad| Event::Change { is_bad }),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn rollout_keeps_its_limits_and_completes_once_nodes_are_healthy(
        size in 1_usize..300,
        canaries in 0_usize..12,
        policy in policies(),
        events in vec(events(), 0..40),
    ) {
        let mut fleet = Fleet::new(size, canaries, policy);
        for event in events {
            fleet.event(event);
        }
        for node in fleet.nodes.values_mut() {
            (node.is_online, node.is_broken) = (true, false);
        }
        fleet.policy.is_paused = false;
        fleet.change(false);
        // The longest: one node after the other.
        for _ in 0..=fleet.nodes.len() + 4 {
            for seconds in [1, 1, APPLY, START, fleet.min_ready(), 1] {
                fleet.advance(seconds);
            }
        }
        prop_assert_eq!(fleet.state(), RolloutState::Complete, "{:?}", fleet.stored);
        let revision = fleet.revision();
        let has_new = |node: &Node| node.has.is_some_and(|(has, _)| has == revision);
        prop_assert!(fleet.nodes.values().all(has_new));
    }

    #[test]
    fn bad_revision_reaches_the_canaries_or_one_more_than_may_fail(
        size in 1_usize..300,
        canaries in 0_usize..12,
        policy in policies(),
        incidents in vec(incidents(), 0..40),
    ) {
        let mut fleet = Fleet::new(size, canaries, policy);
        *fleet.revisions.last_mut().unwrap() = true;
        let has_losses = !incidents.iter().all(|incident| matches!(incident, Event::Time(_)));
        for incident in incidents {
            fleet.event(incident);
        }
        fleet.wait(300);
        let allowed = fleet.policy.pause_on_failure.of_nodes(size);
        let limit = fleet.policy.limit(size);
        let most = if has_losses {
            // Canaries may return after other nodes failed.
            allowed + (canaries + 1).min(limit) + fleet.losses * limit
        } else {
            canaries.min(limit).max(1 + allowed)
        };
        prop_assert!(fleet.reached() <= most, "{} of {most}", fleet.reached());
    }
}

fn defaults() -> Policy {
    Policy::new(&neptune_api::Rollout::default(), None)
}

#[test]
fn bad_version_on_3000_nodes_meets_one_node_or_ten_canaries() {
    for (canaries, reached) in [(0, 1), (10, 10)] {
        let mut fleet = Fleet::new(3000, canaries, defaults());
        *fleet.revisions.last_mut().unwrap() = true;
        fleet.wait(60);
        assert_eq!((fleet.reached(), fleet.state()), (reached, RolloutState::Paused));
        let status = fleet.stored.as_ref().unwrap();
        assert_eq!(status.reason.as_deref(), Some("RolloutFailed"));
        assert_eq!((status.total, status.failed), (3000, i32::try_from(reached).unwrap()));
    }
}

#[test]
fn waves_double_until_the_limit_and_offline_nodes_do_not_block() {
    let mut fleet = Fleet::new(3000, 0, defaults());
    for key in 0..600 {
        fleet.nodes.get_mut(&key).unwrap().is_online = false;
    }
    let mut waves = Vec::new();
    let mut before = 0;
    for _ in 0..1_000 {
        fleet.wait(1);
        let reached = fleet.reached();
        if reached > before {
            waves.push(reached - before);
            before = reached;
        }
        if fleet.state() == RolloutState::Complete {
            break;
        }
    }
    assert_eq!(fleet.state(), RolloutState::Complete);
    assert_eq!(waves[..9], [1, 1, 2, 4, 8, 16, 32, 64, 128]);
    assert_eq!((waves.iter().max(), before), (Some(&300), 2400));
    for key in 0..600 {
        fleet.nodes.get_mut(&key).unwrap().is_online = true;
    }
    fleet.wait(1);
    assert_eq!(fleet.in_flight(), 300, "nodes that return follow as fast as the others");
    fleet.wait(100);
    assert_eq!(fleet.reached(), 3000);
}

#[test]
fn resume_forgives_what_failed_and_a_correction_reaches_all() {
    let mut fleet = Fleet::new(20, 0, defaults());
    *fleet.revisions.last_mut().unwrap() = true;
    fleet.wait(60);
    assert_eq!((fleet.reached(), fleet.state()), (1, RolloutState::Paused));
    fleet.event(Event::Resume);
    fleet.wait(60);
    let status = fleet.stored.clone().unwrap();
    assert_eq!((fleet.reached(), status.state, status.forgiven), (2, RolloutState::Paused, 1));
    fleet.change(false);
    fleet.wait(600);
    let status = fleet.stored.clone().unwrap();
    assert_eq!((status.state, status.ready, status.forgiven), (RolloutState::Complete, 20, 0));
    assert_eq!(status.summary, "20/20");
}

#[test]
fn first_placement_needs_no_waves() {
    let mut fleet = Fleet::new(50, 0, defaults());
    fleet.stored = None;
    for node in fleet.nodes.values_mut() {
        node.has = None;
    }
    fleet.step(true);
    assert_eq!(fleet.state(), RolloutState::Complete);
    fleet.wait(APPLY + START + 2);
    assert!(fleet.nodes.values().all(|node| fleet.is_ready(node)));
}
