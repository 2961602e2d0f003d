//! Properties of Models that objects with rollouts share with others: two services, the first always
//! with a rollout, and the placement of the Model, over random changes, grants, syncs and restarts.

#![allow(clippy::unwrap_used)]
use std::{collections::BTreeSet, sync::Arc};

use neptune_wire::{
    AgentInstance, NodeName, ObjectContent, ObjectKey, Replica, SyncNotices,
    source::DownstreamMessage,
};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::{FleetDesired, Generations, Retained, pending::PendingPlan};
use crate::fleet::encode_contents;

const NODES: [&str; 3] = ["edge0", "edge1", "edge2"];

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The Model changes in place.
    Change,
    PlanModel,
    PlanService(usize),
    /// The controller of a service cannot plan it.
    Invalid(usize),
    Grant(usize, usize),
    Deliver,
    Sync(usize),
    Wipe(usize),
    Restart,
}

#[derive(Debug, Default)]
struct Service {
    has_rollout: bool,
    /// The version of the Model when it was planned last, which is its revision.
    revision: u32,
    granted: BTreeSet<usize>,
}

struct Cluster {
    desired: FleetDesired,
    version: u32,
    services: [Service; 2],
    replicas: [Replica; 3],
    wall_ms: u64,
}

fn model() -> ObjectKey {
    "default/models/shared".parse().unwrap()
}

fn service(at: usize) -> ObjectKey {
    format!("default/jointinferenceservices/{}", ["a", "b"][at]).parse().unwrap()
}

fn node(at: usize) -> NodeName {
    NODES[at].parse().unwrap()
}

fn content(key: &ObjectKey, version: u32) -> ObjectContent {
    serde_json::from_value(json!({
        "apiVersion": "v", "kind": "k", "spec": version,
        "metadata": {"namespace": "default", "name": key.name, "uid": "u"},
    }))
    .unwrap()
}

impl Cluster {
    fn new(has_second_rollout: bool) -> Self {
        let service = |has_rollout| Service { has_rollout, revision: 1, granted: (0..3).collect() };
        let mut cluster = Self {
            desired: FleetDesired::default(),
            version: 1,
            services: [service(true), service(has_second_rollout)],
            replicas: Default::default(),
            wall_ms: 1,
        };
        cluster.start();
        cluster.deliver();
        cluster
    }

    /// A controller that has just started, and does not know which nodes have what.
    fn start(&mut self) {
        self.desired = FleetDesired::default();
        let objects = [model(), service(0), service(1)].into();
        self.desired.begin_initial_sync(objects, BTreeSet::new());
        // The Model comes first: nothing may depend on the order.
        self.plan(&model(), (0..3).collect(), &BTreeSet::new());
        for at in 0..2 {
            self.plan_service(at);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Change => self.version += 1,
            Event::PlanModel => self.plan(&model(), (0..3).collect(), &BTreeSet::new()),
            Event::PlanService(at) => self.plan_service(at),
            Event::Invalid(at) => self.retain(at),
            Event::Grant(at, node) => {
                if self.services[at].revision == self.version {
                    self.services[at].granted.insert(node);
                }
                self.plan_service(at);
            }
            Event::Deliver => self.deliver(),
            Event::Sync(at) => self.sync(at),
            Event::Wipe(at) => {
                self.replicas[at] = Replica::default();
                self.sync(at);
            }
            Event::Restart => {
                for service in &mut self.services {
                    service.granted.clear();
                }
                for at in 0..2 {
                    self.find_grants(at);
                }
                self.start();
            }
        }
    }

    /// The nodes that report the revision have a grant.
    fn find_grants(&mut self, at: usize) {
        let has_all = |replica: &Replica| {
            [service(at), model()].iter().all(|key| has(replica, key) == Some(self.version))
        };
        let nodes = self.replicas.iter().enumerate().filter(|(_, replica)| has_all(replica));
        let nodes: Vec<_> = nodes.map(|(node, _)| node).collect();
        self.services[at].granted.extend(nodes);
    }

    fn plan_service(&mut self, at: usize) {
        let state = &mut self.services[at];
        self.desired.set_guard(&service(at), state.has_rollout);
        let is_new = state.revision != self.version;
        state.revision = self.version;
        if state.has_rollout && is_new {
            state.granted.clear();
            return self.retain(at);
        }
        let all: BTreeSet<_> = (0..3).collect();
        let granted = if state.has_rollout { state.granted.clone() } else { all.clone() };
        let kept = &all - &granted;
        self.plan(&service(at), granted, &kept);
    }

    fn plan(&mut self, object: &ObjectKey, nodes: BTreeSet<usize>, kept: &BTreeSet<usize>) {
        let keys = [object.clone(), model()];
        let contents = keys.clone().map(|key| (key.clone(), content(&key, self.version)));
        let contents = encode_contents(contents.into());
        let requirements = nodes.into_iter().map(|at| (node(at), Arc::clone(&contents)));
        let generations = [(model(), i64::from(self.version))].into();
        let kept = retained(object, kept);
        let requirements = requirements.collect();
        let mut plan = PendingPlan::new(object.clone(), requirements, generations, kept);
        while !self.desired.apply(&mut plan) {}
    }

    fn retain(&mut self, at: usize) {
        self.desired.retain(&service(at), &retained(&service(at), &(0..3).collect()));
    }

    fn sync(&mut self, at: usize) {
        let sync = self.replicas[at].sync(AgentInstance("i".to_owned()), 1);
        self.desired.on_sync(&node(at), sync, SyncNotices::default());
    }

    /// Delivers all messages. A service that waits for its rollout, or is not planned with the present
    /// Model, keeps the Model of the node.
    fn deliver(&mut self) {
        self.wall_ms += 1;
        while let Some((name, messages)) = self.desired.next(self.wall_ms) {
            let at = NODES.iter().position(|it| *it == name.as_str()).unwrap();
            let before = has(&self.replicas[at], &model());
            for message in messages {
                let replica = &mut self.replicas[at];
                match message {
                    DownstreamMessage::Insert(key, insert) => {
                        drop(replica.insert(&key, insert.into()));
                    }
                    DownstreamMessage::Delete(key, delete) => drop(replica.delete(&key, &delete)),
                    DownstreamMessage::Index(index) => drop(replica.index_received(index)),
                }
            }
            let after = has(&self.replicas[at], &model());
            let mut rollouts = self.services.iter().filter(|service| service.has_rollout);
            let is_released = rollouts
                .all(|service| service.granted.contains(&at) && Some(service.revision) == after);
            assert!(before.is_none() || before == after || is_released, "{before:?} {after:?}");
        }
    }

    /// All nodes of all rollouts are released.
    fn release(&mut self) {
        self.plan(&model(), (0..3).collect(), &BTreeSet::new());
        for at in 0..2 {
            self.plan_service(at);
            self.services[at].granted = (0..3).collect();
            self.plan_service(at);
        }
        self.deliver();
    }
}

/// The version that a node has of an object.
fn has(replica: &Replica, key: &ObjectKey) -> Option<u32> {
    serde_json::from_value(replica.objects().get(key)?.content.spec.clone()).ok()
}

fn retained(object: &ObjectKey, nodes: &BTreeSet<usize>) -> Retained {
    let keys = Arc::new([object.clone(), model()].into());
    nodes.iter().map(|at| (node(*at), Arc::clone(&keys))).collect()
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Change),
        2 => Just(Event::PlanModel),
        3 => (0_usize..2).prop_map(Event::PlanService),
        1 => (0_usize..2).prop_map(Event::Invalid),
        5 => (0_usize..2, 0_usize..3).prop_map(|(at, node)| Event::Grant(at, node)),
        5 => Just(Event::Deliver),
        2 => (0_usize..3).prop_map(Event::Sync),
        1 => (0_usize..3).prop_map(Event::Wipe),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #[test]
    fn shared_model_is_replaced_after_the_last_rollout_releases_the_node(
        has_second_rollout in any::<bool>(),
        events in vec(events(), 0..60),
    ) {
        let mut cluster = Cluster::new(has_second_rollout);
        for event in events {
            cluster.event(event);
        }
        cluster.release();
        for at in 0..3 {
            cluster.sync(at);
        }
        cluster.deliver();
        for replica in &cluster.replicas {
            for key in [model(), service(0), service(1)] {
                prop_assert_eq!(has(replica, &key), Some(cluster.version), "{}", key);
            }
            prop_assert!(replica.is_complete());
        }
        prop_assert!(cluster.desired.delayed.is_empty());
    }
}

#[test]
fn node_keeps_the_shared_model_for_the_slower_of_two_services() {
    let mut cluster = Cluster::new(true);
    cluster.event(Event::Change);
    cluster.event(Event::PlanModel);
    cluster.deliver();
    let first = |cluster: &Cluster| has(&cluster.replicas[0], &model());
    let awaited = |cluster: &Cluster| cluster.desired.awaited_rollout(&node(0), &model()).cloned();
    assert_eq!((first(&cluster), awaited(&cluster)), (Some(1), Some(service(0))));
    for at in 0..2 {
        cluster.event(Event::PlanService(at));
    }
    cluster.event(Event::Grant(0, 0));
    cluster.deliver();
    assert_eq!((first(&cluster), awaited(&cluster)), (Some(1), Some(service(1))));
    assert_eq!(cluster.desired.delayed_nodes(&service(0)).len(), 3);
    let hash = cluster.desired.published_hash(&node(0), &model()).unwrap();
    assert_eq!(hash, content(&model(), 1).hash());
    cluster.event(Event::Grant(1, 0));
    cluster.deliver();
    assert_eq!((first(&cluster), awaited(&cluster)), (Some(2), None));
    cluster.desired.remove(&service(1));
    cluster.desired.set_guard(&service(1), false);
    cluster.services[1].has_rollout = false;
    cluster.event(Event::Grant(0, 1));
    cluster.deliver();
    assert_eq!(has(&cluster.replicas[1], &model()), Some(2), "nothing else keeps it");
}

#[test]
fn earlier_model_stays_on_a_node_that_a_restarted_controller_keeps_back() {
    let earlier: ObjectKey = "default/models/earlier".parse().unwrap();
    let mut cluster = Cluster::new(false);
    let contents = [(earlier.clone(), content(&earlier, 1))].into();
    let on_node = [(node(0), encode_contents(contents))].into();
    let mut plan = PendingPlan::new(earlier.clone(), on_node, Generations::new(), Retained::new());
    while !cluster.desired.apply(&mut plan) {}
    cluster.deliver();
    cluster.event(Event::Change);
    cluster.event(Event::Restart);
    cluster.deliver();
    assert!(cluster.replicas[0].objects().contains_key(&earlier), "the node has not sent a sync");
    cluster.sync(0);
    cluster.deliver();
    assert!(
        cluster.replicas[0].objects().contains_key(&earlier) && cluster.replicas[0].is_complete()
    );
    cluster.release();
    assert!(!cluster.replicas[0].objects().contains_key(&earlier), "it has the revision");
}
