//! Services whose gateways want one port of a node, in any order of creation and reconciliation.
#![allow(clippy::unwrap_used)]

use neptune_api::JointInferenceService;
use neptune_link::LinkOptions;
use neptune_wire::{NodeName, ObjectKey};
use proptest::prelude::*;

use super::{fixtures, plan, validate::validate};
use crate::{
    controllers::runtime::Controller as _, fleet::Publisher, kubernetes::identity::key,
    metrics::Metrics, reason::Reason, transport::Mqtt, worker::ports,
};

/// A service that the status of which lists its node. All are created in one second.
fn service(number: usize) -> JointInferenceService {
    let mut service = fixtures::assistant();
    service.metadata.name = Some(format!("s{number}"));
    service.metadata.uid = Some(format!("uid-{number}"));
    service.status = Some(fixtures::placed_on(&["edge0"]));
    service
}

fn key_of(service: &JointInferenceService) -> ObjectKey {
    key(service).unwrap()
}

/// Does what a reconcile does. Returns the reasons of the findings.
fn reconcile(number: usize, created: &[usize], publisher: &Publisher) -> Vec<Reason> {
    let (service, mut facts) = (service(number), fixtures::assistant_facts());
    let others = created.iter().filter(|other| **other != number);
    facts.gateway.ports = others.flat_map(|it| ports::of_gateway(&self::service(*it))).collect();
    let (key, uid) = (key_of(&service), service.metadata.uid.clone().unwrap());
    match validate(&service, &facts) {
        Ok(valid) => {
            let plan = plan::plan(&service, &valid, "fetch:test");
            assert!(publisher.set(&key, &uid, plan.requirements, &plan.generations).is_empty());
            Vec::new()
        }
        Err(findings) => {
            let retained = service.retained_by(&key, &facts);
            publisher.retain(&key, &uid, &retained, &service.yielded(&facts));
            findings.into_iter().map(|finding| finding.reason).collect()
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Create,
    Reconcile(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![Just(Step::Create), (0..4_usize).prop_map(Step::Reconcile)];
    prop::collection::vec(step, 0..20)
}

#[test]
fn one_gateway_has_the_port_after_any_order_of_creation() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let node: NodeName = "edge0".parse().unwrap();
    let order = Just(vec![0, 1, 2, 3]).prop_shuffle();
    proptest!(|(order in order, steps in steps(), last in Just(vec![0, 1, 2, 3]).prop_shuffle())| {
        // No broker listens on this port; that is not an error.
        let options = LinkOptions::new("mqtt://127.0.0.1:1".parse().unwrap(), "test".to_owned());
        let prefix = "neptune".parse().unwrap();
        let (transport, _events) = Mqtt::start(options, prefix, Metrics::default()).unwrap();
        let publisher = Publisher::new(transport);
        publisher.begin_initial_sync([].into(), [].into());
        let mut created = 0;
        for step in steps {
            match step {
                Step::Create if created < order.len() => created += 1,
                Step::Reconcile(which) if which < created => {
                    reconcile(order[which], &order[..created], &publisher);
                }
                Step::Create | Step::Reconcile(_) => {}
            }
        }
        // Each creation enqueues all that name the port.
        let mut reasons = vec![Vec::new(); order.len()];
        for number in last {
            reasons[number] = reconcile(number, &order, &publisher);
        }
        let taken = vec![Reason::PortTaken];
        prop_assert_eq!(&reasons, &[vec![], taken.clone(), taken.clone(), taken]);
        let has = |number: &usize| {
            publisher.published_hash(&node, &key_of(&service(*number))).is_some()
        };
        prop_assert_eq!((0..order.len()).filter(has).collect::<Vec<_>>(), [0]);
    });
}
