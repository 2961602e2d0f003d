//! Services whose gateways want ports of a node, in any order of creation, edits of their port,
//! deletion and reconciliation, and with restarts of the controller.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use neptune_api::JointInferenceService;
use neptune_cloud_fleet::{Mqtt, Publisher};
use neptune_cloud_kinds::{
    fleet::PendingPlan,
    joint_inference_service::{fixtures, plan, validate::validate},
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

/// A service that the status of which lists its node. All are created in one second, so that the one
/// with the smallest number is the oldest.
fn service(number: usize, port: u16) -> JointInferenceService {
    let mut service = fixtures::assistant();
    service.metadata.name = Some(format!("s{number}"));
    service.metadata.uid = Some(format!("uid-{number}"));
    service.status = Some(fixtures::placed_on(&["edge0"]));
    service.spec.gateway.get_or_insert_default().port = Some(port.into());
    service
}

fn key_of(service: &JointInferenceService) -> ObjectKey {
    key(service).unwrap()
}

fn uid_of(service: &JointInferenceService) -> String {
    service.metadata.uid.clone().unwrap()
}

/// The services of a cluster, the controller's publisher, and the node.
struct Cluster {
    /// The ports in the specs of the services that exist.
    specs: BTreeMap<usize, u16>,
    publisher: Publisher,
    /// The ports of the tasks that were planned last.
    planned: BTreeMap<usize, u16>,
    /// The ports of the gateways that run on the node.
    running: BTreeMap<usize, u16>,
}

impl Cluster {
    fn new() -> Self {
        let empty = BTreeMap::new;
        let publisher = Self::publisher(&[]);
        Self { specs: empty(), publisher, planned: empty(), running: empty() }
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

    /// Does what a reconcile does. Returns the reasons of the findings.
    fn reconcile(&mut self, number: usize) -> Vec<Reason> {
        let Some(port) = self.specs.get(&number) else { return Vec::new() };
        let (service, mut facts) = (service(number, *port), fixtures::assistant_facts());
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
                Vec::new()
            }
            Err(findings) => {
                let retained = service.retained_by(&key, &facts);
                self.publisher.retain(&key, &uid, retained, &service.yielded(&facts));
                findings.into_iter().map(|finding| finding.reason).collect()
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
    fn published(&self, number: usize) -> Option<u16> {
        let (node, key): (NodeName, _) = ("edge0".parse().unwrap(), key_of(&service(number, 1)));
        self.publisher.published_hash(&node, &key)?;
        self.planned.get(&number).copied()
    }

    /// Does what the agent does for one gateway: it removes another container first, and starts one
    /// only on a free port. While the controller has not planned every service, the node keeps what
    /// it has.
    fn apply_on_node(&mut self, number: usize) {
        if !self.publisher.is_synced()
            || self.running.get(&number) == self.published(number).as_ref()
        {
            return;
        }
        self.running.remove(&number);
        if let Some(port) = self.published(number)
            && !self.running.values().any(|used| *used == port)
        {
            self.running.insert(number, port);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Creates the service, or edits its port.
    Apply(usize, u16),
    Delete(usize),
    Reconcile(usize),
    ApplyOnNode(usize),
    RestartController,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0..SERVICES;
    let step = prop_oneof![
        3 => (any.clone(), PORTS).prop_map(|(number, port)| Step::Apply(number, port)),
        1 => any.clone().prop_map(Step::Delete),
        4 => any.clone().prop_map(Step::Reconcile),
        4 => any.prop_map(Step::ApplyOnNode),
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
                Step::ApplyOnNode(number) => cluster.apply_on_node(number),
                Step::RestartController => cluster.restart_controller(),
            }
        }
        // Each change enqueues all that name the port, or named it.
        let reasons: BTreeMap<usize, Vec<Reason>> =
            last.iter().map(|number| (*number, cluster.reconcile(*number))).collect();
        let mut owners: BTreeMap<u16, usize> = BTreeMap::new();
        for (number, port) in &cluster.specs {
            owners.entry(*port).or_insert(*number);
        }
        let expected: BTreeMap<usize, u16> =
            owners.into_iter().map(|(port, number)| (number, port)).collect();
        for number in 0..SERVICES {
            let is_taken = cluster.specs.contains_key(&number) && !expected.contains_key(&number);
            let finding = is_taken.then_some(Reason::PortTaken);
            prop_assert_eq!(&reasons[&number], &finding.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(cluster.published(number), expected.get(&number).copied());
        }
        // The agent tries again until the port is free, also when two services swap their ports.
        for number in last.iter().chain(&last) {
            cluster.apply_on_node(*number);
        }
        prop_assert_eq!(cluster.running, expected);
    });
}
