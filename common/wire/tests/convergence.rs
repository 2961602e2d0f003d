//! The guarantee of the protocol: after any loss, duplication, delay and reordering of messages,
//! and any restarts of both sides, one sync whose response arrives makes the objects of the agent
//! equal to those that the newest controller desires.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{
    AgentInstance, Index, ObjectContent, ObjectKey, Replica, Revision, Source, Sync,
    replica::{ReplicaChange, StoredObject},
    source::DownstreamMessage,
};
use proptest::{prelude::*, sample::Index as Pick};
use serde_json::json;

/// One step of a simulation. A [`Pick`] selects one of the messages in flight.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A user changes or deletes an object.
    Desire { object: u8, version: Option<u8> },
    /// The controller cannot determine the content of an object.
    Keep { object: u8 },
    /// A message arrives, in any order.
    Deliver(Pick),
    /// A message is lost.
    Lose(Pick),
    /// A message arrives and stays in flight: it arrives again.
    Double(Pick),
    /// The agent is killed after it stored only so many of the changes of the next message.
    KillAgentWithin(Pick, u8),
    /// The agent sends a sync, as it does periodically.
    Sync,
    /// Another controller becomes leader, on a machine whose clock differs by so many milliseconds.
    /// Messages of the previous leader may still be in flight.
    LeaderChange { clock_ms: i32 },
    /// The previous leader, which has not noticed the change, publishes its snapshot again.
    FormerLeaderPublishes,
    /// The link of the controller was down: it publishes its snapshot again.
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..4, prop::option::weighted(0.7, 0u8..3))
            .prop_map(|(object, version)| Step::Desire { object, version }),
        1 => (0u8..4).prop_map(|object| Step::Keep { object }),
        8 => any::<Pick>().prop_map(Step::Deliver),
        3 => any::<Pick>().prop_map(Step::Lose),
        2 => any::<Pick>().prop_map(Step::Double),
        1 => (any::<Pick>(), 0u8..4).prop_map(|(pick, stored)| Step::KillAgentWithin(pick, stored)),
        1 => Just(Step::Sync),
        1 => clock_ms().prop_map(|clock_ms| Step::LeaderChange { clock_ms }),
        1 => Just(Step::FormerLeaderPublishes),
        1 => Just(Step::Reconnect),
    ]
}

/// Two leaders have equal revisions if their clocks are equal, or differ by the time that passed.
fn clock_ms() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), Just(-10), Just(10), -30i32..30, -100_000i32..100_000]
}

fn key(object: u8) -> ObjectKey {
    format!("default/models/m{object}").parse().unwrap()
}

fn content(object: u8, version: u8) -> ObjectContent {
    serde_json::from_value(json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"namespace": "default", "name": format!("m{object}"), "uid": "u"},
        "spec": {"modelUrl": version},
    }))
    .unwrap()
}

#[derive(Debug, Clone)]
enum Message {
    Down(DownstreamMessage),
    Up(Sync),
}

struct Controller {
    source: Source,
    clock_ms: i64,
}

impl Controller {
    fn wall(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.clock_ms)
    }

    fn set(&mut self, desired: &BTreeMap<u8, Option<u8>>, now: u64) -> Vec<DownstreamMessage> {
        let keep = desired.iter().filter(|(_, v)| v.is_none()).map(|(o, _)| key(*o)).collect();
        let planned = desired.iter().filter_map(|(o, v)| Some((key(*o), content(*o, (*v)?))));
        let wall = self.wall(now);
        self.source.set(planned.collect(), keep, wall)
    }

    fn answer(&mut self, sync: &Sync, now: u64) -> Vec<DownstreamMessage> {
        let wall = self.wall(now);
        self.source.answer(sync, neptune_wire::SyncNotices::default(), wall)
    }
}

/// The state that the agent stores, written only from the changes that the replica returns.
#[derive(Debug, Clone, Default)]
struct Disk {
    objects: BTreeMap<ObjectKey, StoredObject>,
    tombstones: BTreeMap<ObjectKey, Revision>,
    index: Index,
}

impl Disk {
    fn store(&mut self, change: &ReplicaChange, replica: &Replica) {
        match change {
            ReplicaChange::Set(key) => {
                self.tombstones.remove(key);
                self.objects.insert(key.clone(), replica.objects()[key].clone());
            }
            ReplicaChange::Renewed(key) => {
                self.tombstones.remove(key);
                self.objects.get_mut(key).unwrap().revision = replica.objects()[key].revision;
            }
            ReplicaChange::Removed(key) => {
                self.objects.remove(key);
                if let Some(revision) = replica.tombstone(key) {
                    self.tombstones.insert(key.clone(), revision);
                }
            }
            ReplicaChange::Index => {
                self.index = replica.index().clone();
                let index = self.index.revision;
                self.tombstones.retain(|_, revision| *revision > index);
            }
        }
    }

    fn load(&self) -> Replica {
        Replica::restore(self.objects.clone(), self.tombstones.clone(), self.index.clone())
    }
}

struct World {
    now: u64,
    /// Object -> its version, or `None` if the controller cannot determine it.
    desired: BTreeMap<u8, Option<u8>>,
    controller: Controller,
    former_leader: Option<Controller>,
    replica: Replica,
    disk: Disk,
    in_flight: Vec<Message>,
}

impl World {
    fn new() -> Self {
        let controller = Controller { source: Source::default(), clock_ms: 0 };
        Self {
            now: 1_000_000,
            desired: BTreeMap::new(),
            controller,
            former_leader: None,
            replica: Replica::default(),
            disk: Disk::default(),
            in_flight: Vec::new(),
        }
    }

    fn send(&mut self, messages: Vec<DownstreamMessage>) {
        self.in_flight.extend(messages.into_iter().map(Message::Down));
    }

    fn sync(&self) -> Sync {
        self.replica.sync(AgentInstance("i".to_owned()), 1)
    }

    fn pick(&mut self, pick: Pick, keep: bool) -> Option<Message> {
        if self.in_flight.is_empty() {
            return None;
        }
        let at = pick.index(self.in_flight.len());
        Some(if keep { self.in_flight[at].clone() } else { self.in_flight.remove(at) })
    }

    fn arrive(&mut self, message: Message, stored: usize) {
        match message {
            Message::Up(sync) => {
                let messages = self.controller.answer(&sync, self.now);
                self.send(messages);
            }
            Message::Down(message) => {
                let older_index = matches!(&message, DownstreamMessage::Index(i) if i.revision < self.replica.index().revision);
                let changes: Vec<ReplicaChange> = match message {
                    DownstreamMessage::Insert(key, insert) => {
                        self.replica.insert(&key, insert.into()).into_iter().collect()
                    }
                    DownstreamMessage::Delete(key, delete) => {
                        self.replica.delete(&key, &delete).into_iter().collect()
                    }
                    DownstreamMessage::Index(index) => self.replica.index_received(index),
                };
                for change in changes.iter().take(stored) {
                    self.disk.store(change, &self.replica);
                }
                if older_index {
                    let sync = self.sync();
                    self.in_flight.push(Message::Up(sync));
                }
            }
        }
    }

    fn apply(&mut self, step: Step) {
        self.now += 10;
        match step {
            Step::Desire { object, version } => {
                match version {
                    Some(version) => self.desired.insert(object, Some(version)),
                    None => self.desired.remove(&object),
                };
                let messages = self.controller.set(&self.desired, self.now);
                self.send(messages);
            }
            Step::Keep { object } => {
                self.desired.insert(object, None);
                let messages = self.controller.set(&self.desired, self.now);
                self.send(messages);
            }
            Step::Deliver(pick) => {
                if let Some(message) = self.pick(pick, false) {
                    self.arrive(message, usize::MAX);
                }
            }
            Step::Double(pick) => {
                if let Some(message) = self.pick(pick, true) {
                    self.arrive(message, usize::MAX);
                }
            }
            Step::Lose(pick) => {
                self.pick(pick, false);
            }
            Step::KillAgentWithin(pick, stored) => {
                if let Some(message) = self.pick(pick, true) {
                    self.arrive(message, stored.into());
                }
                self.replica = self.disk.load();
            }
            Step::Sync => {
                let sync = self.sync();
                self.in_flight.push(Message::Up(sync));
            }
            Step::LeaderChange { clock_ms } => {
                let fresh = Controller { source: Source::default(), clock_ms: clock_ms.into() };
                self.former_leader = Some(std::mem::replace(&mut self.controller, fresh));
                let messages = self.controller.set(&self.desired, self.now);
                self.send(messages);
            }
            Step::FormerLeaderPublishes => {
                if let Some(former_leader) = &self.former_leader {
                    let messages = former_leader.source.snapshot();
                    self.send(messages);
                }
            }
            Step::Reconnect => {
                let messages = self.controller.source.snapshot();
                self.send(messages);
            }
        }
    }

    /// The objects of the agent, without those that the controller cannot determine now.
    fn has(&self) -> BTreeMap<ObjectKey, ObjectContent> {
        let kept =
            |name: &ObjectKey| self.desired.iter().any(|(o, v)| v.is_none() && key(*o) == *name);
        let held = self.replica.objects().iter().filter(|(key, _)| !kept(key));
        held.map(|(key, held)| (key.clone(), held.content.clone())).collect()
    }

    fn wants(&self) -> BTreeMap<ObjectKey, ObjectContent> {
        self.desired.iter().filter_map(|(o, v)| Some((key(*o), content(*o, (*v)?)))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn one_sync_after_any_faults_reaches_the_desired_state(
        steps in prop::collection::vec(step(), 0..60),
        rest in prop::collection::vec(any::<Pick>(), 0..200),
    ) {
        let mut world = World::new();
        let messages = world.controller.set(&world.desired, world.now);
        world.send(messages);
        for step in steps {
            world.apply(step);
            prop_assert_eq!(&world.disk.load(), &world.replica, "what is stored is what is known");
        }
        // The faults end: the messages in flight arrive in some order...
        for pick in rest {
            if let Some(message) = world.pick(pick, false) {
                world.arrive(message, usize::MAX);
            }
        }
        world.in_flight.clear();
        // ...and one sync is answered.
        let sync = world.sync();
        let answer = world.controller.answer(&sync, world.now);
        for message in answer {
            world.arrive(Message::Down(message), usize::MAX);
        }
        prop_assert_eq!(world.has(), world.wants());
        prop_assert!(world.replica.is_complete());
        prop_assert_eq!(&world.disk.load(), &world.replica);
        // Both sides are in sync: the controller has no more messages.
        let sync = world.sync();
        prop_assert_eq!(world.controller.answer(&sync, world.now), vec![]);
    }

    #[test]
    fn messages_of_a_response_may_arrive_in_any_order(
        steps in prop::collection::vec(step(), 0..60),
        order in any::<prop::sample::Selector>(),
        restart_between in any::<bool>(),
    ) {
        let mut world = World::new();
        let messages = world.controller.set(&world.desired, world.now);
        world.send(messages);
        for step in steps {
            world.apply(step);
        }
        world.in_flight.clear();
        let sync = world.sync();
        let answer = world.controller.answer(&sync, world.now);
        let mut left: BTreeSet<usize> = (0..answer.len()).collect();
        while !left.is_empty() {
            let at = order.select(left.iter().copied());
            left.remove(&at);
            world.arrive(Message::Down(answer[at].clone()), usize::MAX);
            if restart_between {
                world.replica = world.disk.load();
            }
        }
        prop_assert_eq!(world.has(), world.wants());
        prop_assert!(world.replica.is_complete());
    }

    #[test]
    fn restarted_controller_does_not_change_unchanged_objects(
        desired in prop::collection::btree_map(0u8..6, 0u8..3, 0..6),
        unknown in prop::collection::btree_set(0u8..6, 0..6),
        clock_ms in -100_000i64..100_000,
    ) {
        let mut world = World::new();
        world.desired = desired.into_iter().map(|(object, version)| (object, Some(version))).collect();
        for message in world.controller.set(&world.desired, world.now) {
            world.arrive(Message::Down(message), usize::MAX);
        }
        world.controller = Controller { source: Source::default(), clock_ms };
        let before = world.replica.objects().clone();
        // It does not know all objects yet that the previous one knew.
        for (_, version) in world.desired.iter_mut().filter(|(object, _)| unknown.contains(object)) {
            *version = None;
        }
        let mut changes = Vec::new();
        let messages = world.controller.set(&world.desired, world.now + 5);
        let sync = world.sync();
        for message in messages.into_iter().chain(world.controller.answer(&sync, world.now + 6)) {
            changes.extend(match message {
                DownstreamMessage::Insert(key, insert) => world.replica.insert(&key, insert.into()).into_iter().collect(),
                DownstreamMessage::Delete(key, delete) => world.replica.delete(&key, &delete).into_iter().collect(),
                DownstreamMessage::Index(index) => world.replica.index_received(index),
            });
        }
        prop_assert!(
            changes.iter().all(|change| matches!(change, ReplicaChange::Renewed(_) | ReplicaChange::Index)),
            "{changes:?}"
        );
        let contents = |objects: &BTreeMap<ObjectKey, StoredObject>| -> Vec<_> {
            objects.iter().map(|(key, held)| (key.clone(), held.content.clone())).collect()
        };
        prop_assert_eq!(contents(world.replica.objects()), contents(&before));
        prop_assert!(world.replica.is_complete());
    }
}
