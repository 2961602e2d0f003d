//! The `JointInferenceService` controller: an edge worker, and a cloud worker run by an agent or by
//! a Deployment.

#[cfg(test)]
mod cases;
mod chain;
mod cloud;
mod collect;
#[cfg(test)]
mod crd_consistency;
mod edge;
mod facts;
#[cfg(test)]
mod fixtures;
mod gateway;
#[cfg(test)]
mod leaves;
mod plan;
#[cfg(test)]
mod port_contest;
mod resolved;
mod selection;
mod server;
mod spec;
mod status;
mod validate;
mod worker;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::{NodeName, ObjectKey, Resource};

use self::{
    chain::total_upload::TotalMemory,
    collect::{
        chain::{all_callers, enqueue_total},
        facts::{collect_facts, on_cloud_node},
        observe::observation,
    },
    facts::ServiceFacts,
    gateway::{hard_example::threshold_warning, ports::taken_ports},
    resolved::{PlacedService, ValidService},
    spec::{
        forms::{gateway_settings, has_gateway},
        names::{cloud_model_name, edge_model_name, other_name},
        placement::placed_nodes,
    },
    status::{
        events::events,
        next::{is_same_status, next_status},
        observed::ServiceObservation,
    },
};
use super::{
    model::{is_selected, mark_node, mark_used_models, used_edge_model, uses_differ},
    port_contention::{self, OccupiedPorts},
    runtime::{
        Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
        Steps, WorkloadMessages,
    },
};
use crate::{
    cache::{IndexKey, Indexed, selector_keys},
    finding::Finding,
    fleet::Retained,
    kubernetes::{labels::Labels, nodes::is_agent_node},
    reason::Reason,
    worker::ports,
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

    fn warnings(&self) -> Vec<String> {
        let algorithm = &self.spec.edge_worker.hard_example_algorithm;
        let warning = threshold_warning(algorithm).filter(|_| has_gateway(self));
        warning.into_iter().collect()
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
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
}

impl Controller for JointInferenceService {
    fn facts(&self, context: &Context) -> ServiceFacts {
        collect_facts(self, context)
    }

    fn observe(
        &self,
        key: &ObjectKey,
        placed: Option<&PlacedService>,
        context: &Context,
        now: Timestamp,
    ) -> ServiceObservation {
        observation(self, key, placed, context, now)
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_port_neighbours(self, context);
            enqueue_callers(self, context);
            // Also if it was deleted.
            enqueue_total(None, self, context);
            occupied_ports(self).enqueue_contenders(self, context);
        }
        if cause == Cause::Workload {
            // They may call its Service.
            enqueue_callers(self, context);
            return;
        }
        // When the node changes, its workers may move between the agent and the kubelet.
        mark_used_models(self, None, context);
    }

    fn enqueue_by_agent(&self, node: &NodeName, context: &Context) {
        context.enqueue(self);
        mark_node(self, node, context);
    }

    fn enqueue_by_status(&self, next: &JointInferenceServiceStatus, context: &Context) {
        let nodes = next.edge_workers.iter().map(|worker| worker.node.as_str());
        if !nodes.eq(placed_nodes(self)) {
            // Nodes that the status lists now may get the edge worker and its model.
            context.enqueue(self);
        }
        let named = self.spec.edge_worker.node_name.iter();
        let is_new = |node: &String| {
            let before = self.status.iter().flat_map(|status| &status.nodes);
            next.nodes.contains(node) && !before.into_iter().any(|known| known == node)
        };
        if named.into_iter().any(is_new) {
            // The named node may get the edge worker.
            context.enqueue(self);
        }
        let total = self.status.as_ref().and_then(|status| status.total_upload.as_ref());
        if next.total_upload.as_ref() != total {
            // The gateway sends up what the status has.
            context.enqueue(self);
        }
        if let Some(chosen) = next.model.as_deref()
            && used_edge_model(self) != Some(chosen.name.as_str())
            && is_selected(self)
        {
            context.metrics().model_switched(chosen.cause);
            // The plan follows the status.
            context.enqueue(self);
        }
    }

    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        let placed = |service: &Self| placed_nodes(service).map(str::to_owned).collect();
        let nodes: Vec<String> = placed(self);
        let moved = nodes != before.map(placed).unwrap_or_default();
        if moved {
            enqueue_callers(self, context);
            // The agent of a new node may have changed before the index had the node.
            context.enqueue(self);
        }
        let occupied = occupied_ports(self);
        let occupied_before = before.map(occupied_ports).unwrap_or_default();
        if occupied != occupied_before {
            occupied.and(occupied_before).enqueue_contenders(self, context);
        }
        if uses_differ(before, self) {
            mark_used_models(self, before, context);
        }
        let url = |service: &Self| service.status.as_ref()?.gateway.as_ref()?.url.clone();
        if url(self) != before.and_then(url) {
            enqueue_callers(self, context);
        }
        enqueue_total(before, self, context);
    }
}

impl Indexed for JointInferenceService {
    fn index_keys(&self) -> Vec<IndexKey> {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let (edge, cloud) = (&self.spec.edge_worker, &self.spec.cloud_worker);
        let named = edge.node_name.iter().chain(&cloud.node_name).map(String::as_str);
        let nodes: BTreeSet<&str> = named.chain(placed_nodes(self)).collect();
        let reports = self.status.iter().flat_map(|status| &status.reports);
        let left: BTreeSet<&str> = reports.map(|report| report.node.as_str()).collect();
        let left = left.difference(&nodes).map(|node| IndexKey::ReportsOf((*node).to_owned()));
        let mut keys: Vec<_> = left.collect();
        keys.extend(nodes.into_iter().map(|node| IndexKey::Node(node.to_owned())));
        if has_gateway(self) && has_reason(self, Reason::PortTaken) {
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
        let has_nodes = placed_nodes(self).next().is_some();
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

/// The ports that the gateway and the cloud worker of a service may have, and their nodes.
fn occupied_ports(service: &JointInferenceService) -> OccupiedPorts {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let mut occupied = OccupiedPorts::default();
    if has_gateway(service) {
        let placed = placed_nodes(service).map(str::to_owned);
        occupied.nodes.extend(placed.chain(edge.node_name.clone()));
        occupied.ports.extend(ports::gateway_ports(&gateway_settings(service)));
    }
    if cloud.worker_spec.is_some() {
        occupied.of_cloud_worker.extend(cloud.node_name.clone());
    }
    occupied
}

/// Enqueues the services whose cloud is the gateway of this one, also through others: they may be a
/// loop, or the chain of their tiers is another one.
fn enqueue_callers(service: &JointInferenceService, context: &Context) {
    for caller in all_callers(service, context.caches()) {
        context.enqueue(&*caller);
    }
}

/// Whether the current state of a service has this reason.
pub fn has_reason(service: &JointInferenceService, reason: Reason) -> bool {
    let conditions = service.status.iter().filter_map(|status| status.conditions.last());
    conditions.into_iter().any(|current| current.reason == Some(reason.to_string()))
}

/// Enqueues the services whose cloud worker has another port because of this one.
fn enqueue_port_neighbours(service: &JointInferenceService, context: &Context) {
    let of_gateway = ports::of_gateway(service).into_iter();
    let may_move = |port: &ports::NodePort| ports::may_be_of_cloud_worker(port.port);
    let mut nodes: Vec<String> = of_gateway.filter(may_move).map(|port| port.node).collect();
    nodes.extend(service.spec.cloud_worker.node_name.clone());
    nodes.sort();
    nodes.dedup();
    let caches = context.caches();
    for node in nodes {
        if !caches.node(&node).as_deref().is_some_and(is_agent_node) {
            continue;
        }
        let on_node = on_cloud_node(&node, caches);
        let on_node: Vec<_> = on_node.iter().map(AsRef::as_ref).collect();
        let used = caches.node_ports(&[node.clone()].into());
        let used: Vec<_> =
            used.into_iter().filter(|used| used.used_for != ports::PortUse::CloudWorker).collect();
        for other in ports::moved_by(&node, service, &on_node, &used) {
            context.enqueue(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use neptune_api::{AgentCounters, EdgeWorkerStatus};

    use super::*;

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
