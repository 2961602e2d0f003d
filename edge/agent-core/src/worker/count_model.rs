//! A model of counting: services move between nodes, messages are lost, doubled and reordered,
//! workers and agents restart. No counter is ever above what was counted, and each is equal when
//! everything was delivered.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{
    AgentInstance, Counters, ObjectContent, ObjectKey, Replica, RunReport, Source, Sync,
    SyncNotices, TaskInfo, WorkerInfo, WorkerName, WorkerTaskInfo, source::DownstreamMessage,
};
use proptest::{prelude::*, sample::Index as Pick};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{domain::worker_count::WorkerCount, worker::counts::Counts};

const NODES: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// The service moves to this node, or to none.
    Move(Option<usize>),
    /// The service is deleted and created again with another UID.
    Recreate,
    /// The worker of a node counts these samples and reports them to its agent.
    Count(usize, Counters),
    /// The container of a worker starts again; its clock may state the same start time.
    RestartWorker(usize, bool),
    RestartAgent(usize),
    /// A node reports the status of its object.
    Report(usize),
    /// A node sends a sync.
    Sync(usize),
    Deliver(Pick),
    Duplicate(Pick),
    Lose(Pick),
}

#[derive(Debug, Clone)]
enum Message {
    Down(usize, DownstreamMessage),
    Status(usize, String, TaskInfo),
    Sync(usize, Sync),
}

struct Node {
    replica: Replica,
    counts: Counts,
    /// The encoded counts, as a restarted agent reads them.
    disk: BTreeMap<(String, WorkerName), String>,
    source: Source,
    container: u64,
    start: u64,
    /// What the present process of the worker counted.
    counters: Counters,
}

struct World {
    nodes: Vec<Node>,
    place: Option<usize>,
    uid: u64,
    in_flight: Vec<Message>,
    /// What the controller has counted, per UID and node.
    counted: BTreeMap<(String, usize), Counters>,
    /// What the workers counted, per UID.
    expected: BTreeMap<String, Counters>,
    containers: u64,
}

fn key() -> ObjectKey {
    "d/jointinferenceservices/s".parse().unwrap()
}

fn worker() -> WorkerName {
    "w".parse().unwrap()
}

/// A message after its way over a topic.
fn sent<T: Serialize + DeserializeOwned>(message: &T) -> T {
    serde_json::from_value(serde_json::to_value(message).unwrap()).unwrap()
}

/// Counters of different primes: those of `small` in this order.
fn primes(inference: u64, decided_hard: u64, small: &[u64]) -> Counters {
    let &[hard, fallback, over_budget, unjudged, shadow, deadline, ref tiers @ ..] = small else {
        unreachable!("there are eight")
    };
    let tiers = tiers.iter().copied().collect();
    let of_gateway = Counters { decided_hard, over_budget, unjudged, ..Counters::default() };
    Counters { inference, hard, fallback, shadow, deadline, tiers, ..of_gateway }
}

/// What a worker counts between two reports: each counter grows by another prime.
fn samples() -> impl Strategy<Value = Counters> {
    let inference = prop::sample::select(vec![53, 59, 61, 67]);
    let decided_hard = prop::sample::select(vec![29, 31, 37, 41]);
    let small = Just(vec![2, 3, 5, 7, 11, 13, 17, 19]).prop_shuffle();
    (inference, decided_hard, small)
        .prop_map(|(inference, decided_hard, small)| primes(inference, decided_hard, &small))
}

/// What a worker counts between its last report and its end.
fn last() -> Counters {
    primes(23, 19, &[7, 5, 3, 17, 13, 2, 11])
}

impl World {
    fn new() -> Self {
        let node = || Node {
            replica: Replica::default(),
            counts: Counts::default(),
            disk: BTreeMap::new(),
            source: Source::default(),
            container: 0,
            start: 0,
            counters: Counters::default(),
        };
        Self {
            nodes: (0..NODES).map(|_| node()).collect(),
            place: None,
            uid: 1,
            in_flight: Vec::new(),
            counted: BTreeMap::new(),
            expected: BTreeMap::new(),
            containers: 0,
        }
    }

    fn uid(&self) -> String {
        format!("uid-{}", self.uid)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Move(place) => {
                self.place = place;
                self.publish();
            }
            Op::Recreate => {
                self.uid += 1;
                self.publish();
            }
            Op::Count(node, samples) => self.count(node, samples),
            Op::RestartWorker(node, same_clock) => {
                self.containers += 1;
                let node = &mut self.nodes[node];
                (node.container, node.counters) = (self.containers, Counters::default());
                node.start += u64::from(!same_clock);
            }
            Op::RestartAgent(node) => {
                let Node { replica, counts, disk, .. } = &mut self.nodes[node];
                let objects = replica.objects().values();
                let uids: BTreeSet<_> =
                    objects.map(|object| object.content.metadata.uid.as_str()).collect();
                let stored = disk.iter().map(|(key, count)| {
                    let count: WorkerCount = serde_json::from_str(count).unwrap();
                    (key.clone(), count)
                });
                *counts = Counts::restore(stored.collect(), &uids);
            }
            Op::Report(node) => {
                let (held, counts) = (&self.nodes[node].replica, &self.nodes[node].counts);
                if let Some(object) = held.objects().get(&key()) {
                    let uid = object.content.metadata.uid.clone();
                    let total = counts.total(&uid).counters;
                    let report = TaskInfo {
                        counters: total,
                        upload_cloud_ratio: total.upload_cloud_ratio(),
                        start_time: String::new(),
                        current_time: String::new(),
                    };
                    self.in_flight.push(Message::Status(node, uid, report));
                }
            }
            Op::Sync(node) => {
                let sync = self.sync(node);
                self.in_flight.push(Message::Sync(node, sync));
            }
            Op::Deliver(pick) if !self.in_flight.is_empty() => {
                let message = self.in_flight.remove(pick.index(self.in_flight.len()));
                self.deliver(message);
            }
            Op::Duplicate(pick) if !self.in_flight.is_empty() => {
                self.deliver(self.in_flight[pick.index(self.in_flight.len())].clone());
            }
            Op::Lose(pick) if !self.in_flight.is_empty() => {
                self.in_flight.remove(pick.index(self.in_flight.len()));
            }
            Op::Deliver(_) | Op::Duplicate(_) | Op::Lose(_) => {}
        }
    }

    fn publish(&mut self) {
        let uid = self.uid();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let content: ObjectContent = serde_json::from_value(json!({
                "apiVersion": "v", "kind": "k",
                "metadata": {"namespace": "d", "name": "s", "uid": uid},
            }))
            .unwrap();
            let is_here = self.place == Some(number);
            let desired = is_here.then(|| (key(), content)).into_iter().collect();
            let messages = node.source.set(desired, BTreeSet::new(), 1);
            self.in_flight.extend(messages.into_iter().map(|it| Message::Down(number, it)));
        }
    }

    fn sync(&self, node: usize) -> Sync {
        let Node { replica, counts, .. } = &self.nodes[node];
        let sync = replica.sync(AgentInstance(node.to_string()), 1);
        Sync { departed: counts.departed(), ..sync }
    }

    /// Counts samples of the worker, which runs only while the node has the object.
    fn count(&mut self, node: usize, samples: Counters) {
        let held = self.nodes[node].replica.objects().get(&key());
        if let Some(uid) = held.map(|object| object.content.metadata.uid.clone()) {
            self.observe(node, &uid, samples);
        }
    }

    fn observe(&mut self, node: usize, uid: &str, samples: Counters) {
        let node = &mut self.nodes[node];
        node.counters = node.counters.plus(samples);
        let expected = self.expected.entry(uid.to_owned()).or_default();
        *expected = expected.plus(samples);
        let (run, start) = (format!("{}@s", node.container), format!("t{}", node.start));
        let task = sent(&WorkerTaskInfo {
            counters: node.counters,
            upload_cloud_ratio: 0.0,
            start_time: start.clone(),
            update_time: String::new(),
            earlier_runs: None,
        });
        let counters = task.checked().unwrap();
        let info: WorkerInfo = serde_json::from_value(json!({ "taskInfo": task })).unwrap();
        let report = RunReport { run: Some(&run), start: &start, counters, is_inherited: false };
        node.counts.observe(&key(), uid, &worker(), &info, Some(&report)).unwrap();
        node.save();
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Down(number, message) => self.on_down(number, message),
            Message::Status(node, uid, report) => {
                self.on_counted(node, uid, sent(&report).counters);
            }
            Message::Sync(number, sync) => {
                let (sync, current) = (sent(&sync), self.uid());
                for (uid, totals) in &sync.departed {
                    self.on_counted(number, uid.clone(), totals.counters);
                }
                let gone_uids = sync.departed.keys().filter(|uid| **uid != current).cloned();
                let notices = SyncNotices { gone_uids: gone_uids.collect(), newer_start: None };
                let messages = self.nodes[number].source.answer(&sync, notices, 1);
                self.in_flight.extend(messages.into_iter().map(|it| Message::Down(number, it)));
            }
        }
    }

    fn on_counted(&mut self, node: usize, uid: String, counters: Counters) {
        let counted = self.counted.entry((uid, node)).or_default();
        *counted = counted.max(counters);
    }

    fn on_down(&mut self, number: usize, message: DownstreamMessage) {
        let node = &mut self.nodes[number];
        let before = node.replica.objects().get(&key()).map(|it| it.content.metadata.uid.clone());
        let changes: Vec<_> = match message {
            DownstreamMessage::Insert(key, insert) => {
                node.replica.insert(&key, insert.into()).into_iter().collect()
            }
            DownstreamMessage::Delete(key, delete) => {
                node.replica.delete(&key, &delete).into_iter().collect()
            }
            DownstreamMessage::Index(index) => node.replica.index_received(index),
        };
        node.counts.on_changes(&changes, &node.replica);
        node.save();
        let after = node.replica.objects().get(&key()).map(|it| it.content.metadata.uid.clone());
        if before == after {
            return;
        }
        if let Some(uid) = before {
            // The worker reports once more when it is stopped.
            self.observe(number, &uid, last());
            self.nodes[number].counts.set_departed(&uid);
            self.nodes[number].save();
        }
        self.apply(Op::RestartWorker(number, false));
    }

    fn total(&self, uid: &str) -> Counters {
        let of_uid = self.counted.iter().filter(|((object_uid, _), _)| object_uid == uid);
        of_uid.fold(Counters::default(), |sum, (_, counters)| sum.plus(*counters))
    }

    /// Everything is delivered, and every node reports.
    fn settle(&mut self) {
        self.in_flight.clear();
        for _ in 0..4 {
            for node in 0..NODES {
                self.apply(Op::Sync(node));
                self.apply(Op::Report(node));
            }
            while !self.in_flight.is_empty() {
                let message = self.in_flight.remove(0);
                self.deliver(message);
            }
        }
    }
}

impl Node {
    fn save(&mut self) {
        for (key, count) in self.counts.unsaved() {
            match count {
                Some(count) => {
                    let count = serde_json::to_string(count).unwrap();
                    self.disk.insert(key.clone(), count);
                }
                None => drop(self.disk.remove(key)),
            }
        }
        self.counts.mark_saved();
    }
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..NODES;
    let pick = any::<Pick>;
    prop_oneof![
        3 => prop::option::weighted(0.8, node()).prop_map(Op::Move),
        1 => Just(Op::Recreate),
        6 => (node(), samples()).prop_map(|(node, samples)| Op::Count(node, samples)),
        1 => (node(), any::<bool>()).prop_map(|(node, same)| Op::RestartWorker(node, same)),
        1 => node().prop_map(Op::RestartAgent),
        4 => node().prop_map(Op::Report),
        2 => node().prop_map(Op::Sync),
        8 => pick().prop_map(Op::Deliver),
        2 => pick().prop_map(Op::Duplicate),
        2 => pick().prop_map(Op::Lose),
    ]
}

proptest! {
    #[test]
    fn totals_are_exact_over_any_sequence_of_moves(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            for (uid, expected) in &world.expected {
                prop_assert_eq!(world.total(uid).max(*expected), *expected, "{} after {:?}", uid, op);
            }
        }
        world.settle();
        let uid = world.uid();
        let expected = world.expected.get(&uid).copied().unwrap_or_default();
        prop_assert_eq!(world.total(&uid), expected);
        for node in &world.nodes {
            prop_assert!(node.counts.departed().keys().all(|departed| *departed == uid));
        }
    }
}

#[test]
fn service_moved_away_and_back_keeps_its_totals() {
    let mut world = World::new();
    let small = [2, 3, 5, 7, 11, 13, 17, 19];
    let counted = [primes(53, 29, &small), primes(59, 31, &small), primes(61, 37, &small)];
    for (place, samples) in [0, 1, 0].into_iter().zip(counted) {
        world.apply(Op::Move(Some(place)));
        world.settle();
        world.count(place, samples);
        world.settle();
    }
    // Two workers were stopped, and reported once more each.
    let expected =
        primes(173 + 46, 97 + 38, &[6 + 14, 9 + 10, 15 + 6, 21 + 34, 33 + 26, 39 + 4, 51 + 22, 57]);
    assert_eq!(world.total("uid-1"), expected);
}

#[test]
fn service_moved_away_while_its_node_was_offline_keeps_its_totals() {
    let mut world = World::new();
    world.apply(Op::Move(Some(0)));
    world.settle();
    let samples = primes(53, 29, &[2, 3, 5, 7, 11, 13, 17, 19]);
    world.count(0, samples);
    world.apply(Op::Move(Some(1)));
    world.settle();
    assert_eq!(world.total("uid-1"), samples.plus(last()));
}
