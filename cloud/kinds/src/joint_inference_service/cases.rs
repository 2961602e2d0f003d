//! Changes of the fixtures and the findings that they cause, for the tests of the rooms.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::{
    DatasetReference, Gateway, InferenceModelReference, JointInferenceService,
    JointInferenceServiceReference, Model, ServerProtocol, WorkerSpec,
};
use neptune_wire::{NodeName, ObjectContent, ObjectKey, Resource};

use crate::{
    finding::Finding,
    joint_inference_service::{
        facts::{CloudService, OtherService, ServiceFacts},
        fixtures,
        plan::plan,
        resolved::EdgeSide,
        validate::validate,
    },
    reason::Reason,
    steps::ObjectPlan,
};

pub type Case =
    (&'static str, fn(&mut JointInferenceService, &mut ServiceFacts), Reason, &'static str);

/// Each case has exactly one finding, with this reason and this text.
pub fn assert_findings(cases: &[Case]) {
    for (name, change, reason, text) in cases {
        let findings = findings(*change);
        assert_eq!(findings.iter().map(|f| f.reason).collect::<Vec<_>>(), [*reason], "{name}");
        assert!(findings[0].message.contains(text), "{name}: {}", findings[0].message);
    }
}

pub fn findings(change: fn(&mut JointInferenceService, &mut ServiceFacts)) -> Vec<Finding> {
    let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
    change(&mut service, &mut facts);
    validate(&service, &facts).err().unwrap_or_default()
}

pub fn change_model(model: &mut Option<Arc<Model>>, change: impl Fn(&mut Model)) {
    change(Arc::make_mut(model.as_mut().unwrap()));
}

pub fn edge_program(service: &mut JointInferenceService) -> &mut WorkerSpec {
    service.spec.edge_worker.worker_spec.as_mut().unwrap()
}

pub fn cloud_program(service: &mut JointInferenceService) -> &mut WorkerSpec {
    service.spec.cloud_worker.worker_spec.as_mut().unwrap()
}

pub fn name_dataset(service: &mut JointInferenceService) {
    let name = "frames".to_owned();
    service.spec.edge_worker.dataset = Some(DatasetReference { name });
}

pub fn assistant(service: &mut JointInferenceService, facts: &mut ServiceFacts) {
    (*service, *facts) = (fixtures::assistant(), fixtures::assistant_facts());
}

pub fn grpc(service: &mut JointInferenceService) {
    service.spec.gateway = Some(Box::new(Gateway { grpc_port: Some(8082), ..Gateway::default() }));
}

pub fn named_model(name: &str) -> InferenceModelReference {
    InferenceModelReference { name: name.to_owned() }
}

pub fn edge_inference_model(
    service: &mut JointInferenceService,
    facts: &mut ServiceFacts,
    node: &str,
) {
    let edge = &mut service.spec.edge_worker;
    (edge.server, edge.model) = (None, None);
    edge.inference_model = Some(named_model("digits"));
    facts.gateway.edge_server = Some(fixtures::inference_model("digits", "llamacpp", node));
}

pub fn cloud_inference_model(
    service: &mut JointInferenceService,
    facts: &mut ServiceFacts,
    framework: &str,
) {
    let cloud = &mut service.spec.cloud_worker;
    cloud.endpoint = None;
    cloud.inference_model = Some(named_model("big"));
    facts.gateway.cloud_server = Some(fixtures::inference_model("big", framework, ""));
    facts.gateway.cloud_server_service =
        Some(CloudService { cluster_ip: Some([10, 96, 0, 9].into()) });
}

pub fn other_service(
    service: &mut JointInferenceService,
    facts: &mut ServiceFacts,
    change: Option<fn(&mut OtherService)>,
) {
    assistant(service, facts);
    service.spec.cloud_worker.endpoint = None;
    service.spec.cloud_worker.service =
        Some(JointInferenceServiceReference { name: "site".to_owned(), ..Default::default() });
    facts.gateway.other = change.map(|change| {
        let mut other = OtherService {
            is_exposed: true,
            returns_here: None,
            url: Some("http://192.0.2.20:8080".to_owned()),
            addresses: BTreeMap::new(),
            has_grpc: true,
            grpc_url: Some("http://192.0.2.20:8082".to_owned()),
            model_name: Some("middle".to_owned()),
            protocol: Some(ServerProtocol::Openai),
        };
        change(&mut other);
        other
    });
}

pub fn config(service: &JointInferenceService, facts: &ServiceFacts) -> serde_json::Value {
    let EdgeSide::Gateway { gateway, .. } = validate(service, facts).unwrap().edge else {
        unreachable!("it has a gateway")
    };
    serde_json::to_value(&gateway.config).unwrap()
}

/// The plan once the status lists the named node.
pub fn planned(service: &JointInferenceService, facts: &ServiceFacts) -> ObjectPlan {
    let mut service = service.clone();
    let named = service.spec.edge_worker.node_name.clone();
    service.status.get_or_insert_default().nodes.extend(named);
    plan_of(&service, facts)
}

pub fn plan_of(service: &JointInferenceService, facts: &ServiceFacts) -> ObjectPlan {
    plan(service, &validate(service, facts).unwrap(), "neptune-edge:test")
}

pub fn task(plan: &ObjectPlan, node: &str) -> ObjectContent {
    let node: NodeName = node.parse().unwrap();
    let is_task = |key: &&ObjectKey| key.resource == Resource::JointInferenceServices;
    let key = plan.requirements[&node].keys().find(is_task).unwrap();
    plan.requirements[&node][key].content()
}

pub fn keys(plan: &ObjectPlan, node: &str) -> Vec<String> {
    plan.requirements[&node.parse::<NodeName>().unwrap()].keys().map(ToString::to_string).collect()
}
