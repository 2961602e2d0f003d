//! The steps of a service, and the keys by which it is found.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::{NodeName, ObjectKey, Resource};

use super::{
    chain::total_upload::TotalMemory,
    facts::ServiceFacts,
    gateway::{hard_example::threshold_warning, open::open_gateway, ports::taken_ports},
    plan,
    resolved::{PlacedService, ValidService},
    spec::{
        forms::{gateway_settings, has_gateway},
        names::{cloud_model_name, edge_model_name, other_name},
        placement::{has_slices, is_on_all_nodes, placed_nodes},
    },
    status::{
        events::{events, summary_event},
        next::{is_same_status, next_status},
        observed::ServiceObservation,
        silence,
    },
    validate,
};
use crate::{
    finding::Finding,
    fleet::Retained,
    index_key::{IndexKey, Indexed, selector_keys},
    kubernetes::labels::Labels,
    model::used_edge_model,
    port_contention,
    reason::Reason,
    rollout::policy::all_at_once,
    steps::{ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps, WorkloadMessages},
    worker::{needs, ports},
};

impl Steps for JointInferenceService {
    type Facts = ServiceFacts;
    type Valid = ValidService;
    type Placed = PlacedService;
    type Observation = ServiceObservation;
    type Memory = TotalMemory;

    const MESSAGES: ControllerMessages = ControllerMessages {
        shorten: "shorten its parameters and env",
        workload: Some(WorkloadMessages {
            created: "CloudWorkerCreated",
            what: "cloud worker",
            rename: "spec.cloudWorker.name",
            refused: Reason::CloudWorkerRefused,
        }),
    };

    fn validate(&self, facts: &ServiceFacts) -> Result<ValidService, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, valid: &ValidService, fetch_image: &str) -> ObjectPlan {
        plan::plan(self, valid, fetch_image)
    }

    fn guards_models(&self) -> bool {
        self.spec.rollout.is_some()
    }

    fn warnings(&self, facts: &ServiceFacts) -> Vec<String> {
        let algorithm = &self.spec.edge_worker.hard_example_algorithm;
        let threshold = threshold_warning(algorithm).filter(|_| has_gateway(self));
        let needs_rollout = is_on_all_nodes(self) && self.spec.rollout.is_none();
        let selected = Some(&facts.edge_selected).filter(|_| needs_rollout);
        let rollout = selected.and_then(|nodes| all_at_once("spec.edgeWorker.nodeSelector", nodes));
        let silence = silence::warning(&self.spec);
        let open = open_gateway(self);
        threshold.into_iter().chain(rollout).chain(silence).chain(open).collect()
    }

    fn node_warnings(&self, facts: &ServiceFacts, valid: &ValidService) -> Vec<String> {
        let of_cloud = valid.unmet_cloud.iter().map(|(node, unmet)| (node, unmet));
        let source = |node: &NodeName| facts.edge_view(node).map(|view| view.source);
        needs::warnings(valid.unmet.iter().chain(of_cloud), source)
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, None, key)
    }

    fn retained_by(&self, key: &ObjectKey, facts: &ServiceFacts) -> Retained {
        plan::retained(self, facts.sliced.as_ref(), key)
    }

    fn yielded(&self, facts: &ServiceFacts) -> BTreeSet<NodeName> {
        let taken = taken_ports(self, &facts.gateway.ports);
        taken.into_iter().filter_map(|(_, port)| port.node.parse().ok()).collect()
    }

    fn next_status(
        &self,
        previous: &JointInferenceServiceStatus,
        inputs: &StatusInputs<ServiceObservation>,
    ) -> JointInferenceServiceStatus {
        next_status(previous, inputs)
    }

    fn recompute_at(observed: &ServiceObservation) -> Option<Timestamp> {
        let rollout = observed.rollout.as_ref().and_then(|rollout| rollout.due_at);
        rollout.into_iter().chain(observed.silence_due_at).min()
    }

    fn is_same_status(
        previous: &JointInferenceServiceStatus,
        next: &JointInferenceServiceStatus,
    ) -> bool {
        is_same_status(previous, next)
    }

    fn observed_generation(status: &JointInferenceServiceStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(
        previous: &JointInferenceServiceStatus,
        next: &JointInferenceServiceStatus,
    ) -> Vec<ObjectEvent> {
        events(previous, next)
    }

    fn summary_event(status: &JointInferenceServiceStatus) -> Option<ObjectEvent> {
        summary_event(status)
    }
}

impl Indexed for JointInferenceService {
    fn index_keys(&self) -> Vec<IndexKey> {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let (edge, cloud) = (&self.spec.edge_worker, &self.spec.cloud_worker);
        let named = edge.node_name.iter().chain(&cloud.node_name).map(String::as_str);
        let is_sliced = has_slices(self);
        let placed = placed_nodes(self).filter(|_| !is_sliced);
        let nodes: BTreeSet<&str> = named.chain(placed).collect();
        let reports = self.status.iter().flat_map(|status| &status.reports);
        let left: BTreeSet<&str> = reports.map(|report| report.node.as_str()).collect();
        let left = left.difference(&nodes).map(|node| IndexKey::ReportsOf((*node).to_owned()));
        let mut keys: Vec<_> = left.collect();
        keys.extend(is_sliced.then_some(IndexKey::OnManyNodes));
        keys.extend(nodes.into_iter().map(|node| IndexKey::Node(node.to_owned())));
        if has_gateway(self) && awaits_port(self) {
            let settings = gateway_settings(self);
            keys.extend(ports::gateway_ports(&settings).map(port_contention::awaits));
        }
        let big = cloud.model.as_ref().map(|model| model.name.as_str());
        let models = used_edge_model(self).into_iter().chain(big);
        let models = models.map(|name| (Resource::Models, name.to_owned()));
        let captures = self.spec.gateway.iter().filter_map(|gateway| gateway.capture.as_ref());
        let datasets = edge.dataset.iter().map(|set| &set.name);
        let datasets = datasets.chain(captures.map(|capture| &capture.dataset));
        let datasets = datasets.map(|name| (Resource::Datasets, name.clone()));
        let servers = [edge_model_name(self), cloud_model_name(self)];
        let servers = servers.into_iter().flatten().map(|name| (Resource::InferenceModels, name));
        let others = other_name(self);
        let others = others.map(|name| (Resource::JointInferenceServices, name.to_owned()));
        let used = models.chain(datasets).chain(servers).chain(others);
        keys.extend(used.map(|(kind, name)| IndexKey::Uses(kind, namespace.clone(), name)));
        keys
    }

    fn selector_keys(&self) -> Vec<Vec<IndexKey>> {
        let edge = &self.spec.edge_worker;
        let has_nodes = !has_slices(self) && placed_nodes(self).next().is_some();
        let selects = if has_nodes { IndexKey::SelectsNodes } else { IndexKey::SelectsAgents };
        let of_nodes =
            edge.node_name.is_none().then(|| selector_keys(&edge.node_selector, selects));
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let models = edge.model.iter().filter_map(|model| model.selector.as_ref());
        let of_models = models.map(|selector| {
            selector_keys(&selector.match_labels, |name, value| {
                IndexKey::Selects(Resource::Models, namespace.to_owned(), name, value)
            })
        });
        of_nodes.into_iter().chain(of_models).collect()
    }

    fn selects_nodes(&self) -> Option<&Labels> {
        Some(&self.spec.edge_worker.node_selector)
    }
}

/// Whether the gateway waits for a port, on any of its nodes. Of many nodes the status lists only some.
fn awaits_port(service: &JointInferenceService) -> bool {
    let taken = Reason::PortTaken.to_string();
    let mut rows = service.status.iter().flat_map(|status| &status.edge_workers);
    has_slices(service)
        || has_reason(service, Reason::PortTaken)
        || rows.any(|row| row.reason.as_ref() == Some(&taken))
}

/// Whether the current state of a service has this reason.
pub fn has_reason(service: &JointInferenceService, reason: Reason) -> bool {
    let conditions = service.status.iter().filter_map(|status| status.conditions.last());
    conditions.into_iter().any(|current| current.reason == Some(reason.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{AgentCounters, EdgeWorkerStatus, JisCondition};
    use serde_json::json;

    use super::*;
    use crate::joint_inference_service::fixtures;

    #[test]
    fn service_with_slices_is_found_by_its_labels_and_not_by_its_rows() {
        let mut service = fixtures::service();
        let edge = &mut service.spec.edge_worker;
        edge.node_name = None;
        edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
        service.status = Some(fixtures::placed_on(&["e1"]));
        let of_node = |service: &JointInferenceService| {
            service.index_keys().contains(&IndexKey::Node("e1".to_owned()))
        };
        assert!(of_node(&service) && !service.index_keys().contains(&IndexKey::OnManyNodes));
        let status = service.status.get_or_insert_default();
        status.slices = Some(neptune_api::NodeSlices::default());
        assert!(!of_node(&service) && service.index_keys().contains(&IndexKey::OnManyNodes));
        let agents = IndexKey::SelectsAgents("area".to_owned(), "north".to_owned());
        assert_eq!(service.selector_keys(), [[agents]], "agents change the states of its nodes");
    }

    #[test]
    fn service_whose_port_is_taken_awaits_it() {
        let awaits = |status: JointInferenceServiceStatus| {
            let service = JointInferenceService { status: Some(status), ..fixtures::assistant() };
            service.index_keys().iter().any(|key| matches!(key, IndexKey::AwaitsPort(_)))
        };
        let taken = Some(Reason::PortTaken.to_string());
        let placed = fixtures::placed_on(&["e1", "e2"]);
        assert!(!awaits(placed.clone()));
        let mut on_a_node = placed.clone();
        on_a_node.edge_workers[1].reason = taken.clone();
        assert!(awaits(on_a_node), "on one of its nodes");
        let condition = |reason: Option<String>| -> JisCondition {
            let condition = json!({"type": "Pending", "status": "True", "reason": reason});
            serde_json::from_value(condition).unwrap()
        };
        let conditions = vec![condition(taken.clone())];
        assert!(awaits(JointInferenceServiceStatus { conditions, ..placed.clone() }));
        let conditions = vec![condition(taken), condition(None)];
        assert!(!awaits(JointInferenceServiceStatus { conditions, ..placed.clone() }), "not now");
        let slices = Some(neptune_api::NodeSlices::default());
        assert!(awaits(JointInferenceServiceStatus { slices, ..placed }), "it may, on any node");
    }

    #[test]
    fn service_is_found_by_its_labels_nodes_and_reports() {
        let mut service = fixtures::service();
        let edge = &mut service.spec.edge_worker;
        edge.node_name = None;
        edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
        service.spec.cloud_worker.node_name = Some("cloud".to_owned());
        let area = |key: fn(String, String) -> IndexKey| key("area".to_owned(), "north".to_owned());
        assert_eq!(service.selector_keys(), [[area(IndexKey::SelectsAgents)]]);

        let counters = |node: &str| AgentCounters { node: node.to_owned(), ..Default::default() };
        let status = service.status.get_or_insert_default();
        status.reports = vec![counters("left"), counters("now"), counters("left")];
        status.edge_workers =
            vec![EdgeWorkerStatus { node: "now".to_owned(), ..Default::default() }];
        assert_eq!(service.selector_keys(), [[area(IndexKey::SelectsNodes)]]);
        let on_nodes: Vec<_> = service
            .index_keys()
            .into_iter()
            .filter(|key| matches!(key, IndexKey::Node(_) | IndexKey::ReportsOf(_)))
            .collect();
        let node = |name: &str| IndexKey::Node(name.to_owned());
        let left = IndexKey::ReportsOf("left".to_owned());
        assert_eq!(on_nodes, [left, node("cloud"), node("now")]);
    }
}
