//! Services whose gateways want ports of two nodes, in any order of creation, edits of their port,
//! deletion and reconciliation, and with restarts of the controller.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use neptune_api::{JointInferenceService, Placement};
use neptune_cloud_fleet::{Mqtt, Publisher};
use neptune_cloud_kinds::{
    fleet::PendingPlan,
    joint_inference_service::{
        facts::ServiceFacts, fixtures, plan, resolved::PlacedService, validate::validate,
    },
    kubernetes::identity::key,
    reason::Reason,
    steps::Steps as _,
    worker::ports,
};
use neptune_cloud_metrics::Metrics;
use neptune_link::LinkOptions;
use neptune_wire::{NodeName, ObjectKey};
use proptest::prelude::*;

const SERVICES: usize = 4;

const PORTS: std::ops::Range<u16> = 8080..8083;

const NODES: [&str; 2] = ["edge0", "edge1"];

/// The nodes of a service: one names its node, and the others are on each that labels select.
fn nodes(number: usize) -> &'static [&'static str] {
    match number {
        0 => &NODES[..1],
        1 => &NODES[1..],
        _ => &NODES,
    }
}

/// A service the status of which lists its nodes. All are created in one second, so that the one with
/// the smallest number is the oldest.
fn service_with_facts(number: usize, port: u16) -> (JointInferenceService, ServiceFacts) {
    let (mut service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
    if number > 0 {
        fixtures::select(&mut service, &mut facts, nodes(number));
        service.spec.edge_worker.placement = Some(Placement::All);
    }
    service.metadata.name = Some(format!("s{number}"));
    service.metadata.uid = Some(format!("uid-{number}"));
    service.status = Some(fixtures::placed_on(nodes(number)));
    service.spec.gateway.get_or_insert_default().port = Some(port.into());
    (service, facts)
}

fn service(number: usize, port: u16) -> JointInferenceService {
    service_with_facts(number, port).0
}

fn key_of(service: &JointInferenceService) -> ObjectKey {
    key(service).unwrap()
}

fn uid_of(service: &JointInferenceService) -> String {
    service.metadata.uid.clone().unwrap()
}

/// The services of a cluster, the controller's publisher, and the nodes.
struct Cluster {
    /// The ports in the specs of the services that exist.
    specs: BTreeMap<usize, u16>,
    publisher: Publisher,
    /// The ports of the tasks that were planned last.
    planned: BTreeMap<usize, u16>,
    /// The ports of the gateways that run, by service and node.
    running: BTreeMap<(usize, &'static str), u16>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            specs: BTreeMap::new(),
            publisher: Self::publisher(&[]),
            planned: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    fn publisher(services: &[ObjectKey]) -> Publisher {
        // No broker listens on this port; that is not an error.
        let options = LinkOptions::new("mqtt://127.0.0.1:1".parse().unwrap(), "test".to_owned());
        let prefix = "neptune".parse().unwrap();
        let (transport, _events) = Mqtt::start(options, prefix, Metrics::default()).unwrap();
        let publisher = Publisher::new(transport);
        publisher.begin_initial_sync(services.iter().cloned().collect(), [].into());
        publisher
    }

    fn existing(&self) -> impl Iterator<Item = JointInferenceService> {
        self.specs.iter().map(|(number, port)| service(*number, *port))
    }

    /// Does what a reconcile does. Returns the nodes with a finding, and its reason.
    fn reconcile(&mut self, number: usize) -> BTreeMap<String, Reason> {
        let Some(port) = self.specs.get(&number) else { return BTreeMap::new() };
        let (service, mut facts) = service_with_facts(number, *port);
        let (key, uid) = (key_of(&service), uid_of(&service));
        let others = self.existing().filter(|other| uid_of(other) != uid);
        facts.gateway.ports = others.flat_map(|other| ports::of_gateway(&other)).collect();
        match validate(&service, &facts) {
            Ok(valid) => {
                let plan = plan::plan(&service, &valid, "fetch:test");
                let (generations, kept) = (plan.generations, plan.kept);
                let plan = PendingPlan::new(key.clone(), plan.requirements, generations, kept);
                assert_eq!(self.publisher.set(&key, &uid, plan), None);
                self.planned.insert(number, *port);
                let taken = PlacedService::from(valid).taken_ports.into_iter();
                taken.map(|(node, finding)| (node.to_string(), finding.reason)).collect()
            }
            Err(findings) => {
                let retained = service.retained_by(&key, &facts);
                self.publisher.retain(&key, &uid, retained, &service.yielded(&facts));
                let named = nodes(number)[0].to_owned();
                findings.into_iter().map(|finding| (named.clone(), finding.reason)).collect()
            }
        }
    }

    fn delete(&mut self, number: usize) {
        if let Some(port) = self.specs.remove(&number) {
            let service = service(number, port);
            self.publisher.remove(&key_of(&service), &uid_of(&service));
        }
    }

    fn restart_controller(&mut self) {
        let services: Vec<ObjectKey> = self.existing().map(|service| key_of(&service)).collect();
        self.publisher = Self::publisher(&services);
        self.planned.clear();
    }

    /// The port of the gateway that the node should run.
    fn published(&self, number: usize, node: &str) -> Option<u16> {
        let (node, key): (NodeName, _) = (node.parse().unwrap(), key_of(&service(number, 1)));
        self.publisher.published_hash(&node, &key)?;
        self.planned.get(&number).copied()
    }

    /// Does what the agent does for one gateway: it removes another container first, and starts one
    /// only on a free port. While the controller has not planned every service, the node keeps what
    /// it has.
    fn apply_on_node(&mut self, number: usize, node: &'static str) {
        let place = (number, node);
        if !self.publisher.is_synced()
            || self.running.get(&place) == self.published(number, node).as_ref()
        {
            return;
        }
        self.running.remove(&place);
        let mut on_node = self.running.iter().filter(|((_, other), _)| *other == node);
        if let Some(port) = self.published(number, node)
            && !on_node.any(|(_, used)| *used == port)
        {
            self.running.insert(place, port);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Creates the service, or edits its port.
    Apply(usize, u16),
    Delete(usize),
    Reconcile(usize),
    ApplyOnNode(usize, &'static str),
    RestartController,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0..SERVICES;
    let step = prop_oneof![
        3 => (any.clone(), PORTS).prop_map(|(number, port)| Step::Apply(number, port)),
        1 => any.clone().prop_map(Step::Delete),
        4 => any.clone().prop_map(Step::Reconcile),
        4 => (any, prop::sample::select(NODES.to_vec()))
            .prop_map(|(number, node)| Step::ApplyOnNode(number, node)),
        1 => Just(Step::RestartController),
    ];
    prop::collection::vec(step, 0..40)
}

#[test]
fn oldest_service_of_a_port_has_it_after_any_order_of_changes() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let order = Just((0..SERVICES).collect::<Vec<_>>()).prop_shuffle();
    proptest!(|(steps in steps(), last in order)| {
        let mut cluster = Cluster::new();
        for step in steps {
            match step {
                Step::Apply(number, port) => {
                    cluster.specs.insert(number, port);
                }
                Step::Delete(number) => cluster.delete(number),
                Step::Reconcile(number) => {
                    cluster.reconcile(number);
                }
                Step::ApplyOnNode(number, node) => cluster.apply_on_node(number, node),
                Step::RestartController => cluster.restart_controller(),
            }
        }
        // Each change enqueues all that name the port, or named it.
        let reasons: BTreeMap<usize, _> =
            last.iter().map(|number| (*number, cluster.reconcile(*number))).collect();
        let mut owners: BTreeMap<(u16, &str), usize> = BTreeMap::new();
        for (number, port) in &cluster.specs {
            for node in nodes(*number) {
                owners.entry((*port, *node)).or_insert(*number);
            }
        }
        let expected: BTreeMap<(usize, &str), u16> =
            owners.into_iter().map(|((port, node), number)| ((number, node), port)).collect();
        for number in 0..SERVICES {
            let is_taken =
                |node: &&&str| cluster.specs.contains_key(&number) && !expected.contains_key(&(number, **node));
            let taken = nodes(number).iter().filter(is_taken);
            let taken = taken.map(|node| ((*node).to_owned(), Reason::PortTaken));
            prop_assert_eq!(&reasons[&number], &taken.collect::<BTreeMap<_, _>>());
            for node in NODES {
                prop_assert_eq!(cluster.published(number, node), expected.get(&(number, node)).copied());
            }
        }
        // The agent tries again until the port is free, also when two services swap their ports.
        for number in last.iter().chain(&last) {
            for node in NODES {
                cluster.apply_on_node(*number, node);
            }
        }
        prop_assert_eq!(cluster.running, expected);
    });
}
