//! The `JointInferenceService` controller: an edge worker, and a cloud worker run by an agent or by
//! a Deployment.

mod collect;
#[cfg(test)]
mod port_contest;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, JointInferenceServiceStatus, Placement, RolloutState};
use neptune_cloud_kinds::{
    joint_inference_service::{
        facts::ServiceFacts,
        resolved::PlacedService,
        spec::{
            forms::{gateway_settings, has_gateway},
            placement::{has_slices, needs_offers, placed_nodes},
        },
        status::observed::ServiceObservation,
    },
    model::{is_selected, used_edge_model, uses_differ},
    port_contention::OccupiedPorts,
    worker::{
        config::{objects::ConfigObjects, references::ConfigName},
        ports,
    },
};
use neptune_wire::{NodeName, ObjectKey};
use serde_json::{Value, json};

use self::collect::{
    chain::{all_callers, enqueue_total},
    facts::{collect_facts, config_references, on_cloud_node},
    observe::observation,
};
use super::{
    model::{enqueue_used_models, mark_node, mark_used_models},
    port_contention::enqueue_contenders,
    rollout::use_grants,
    runtime::{AgentChange, Cause, Context, Controller},
};

impl Controller for JointInferenceService {
    fn facts(&self, context: &Context) -> ServiceFacts {
        collect_facts(self, context)
    }

    fn config_references(&self, context: &Context) -> BTreeSet<ConfigName> {
        config_references(self, context)
    }

    fn use_config(facts: &mut ServiceFacts, config: ConfigObjects) {
        facts.config = config;
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

    fn complete_rollout(&self) -> Option<(&str, Value)> {
        let status = self.status.as_ref().filter(|_| self.spec.rollout.is_some())?;
        let rollout = status.rollout.as_deref()?;
        let is_complete = rollout.state == RolloutState::Complete
            && status.observed_generation == self.metadata.generation;
        is_complete.then(|| (rollout.revision.as_str(), json!(self.spec)))
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_port_neighbours(self, context);
            enqueue_callers(self, context);
            // Also if it was deleted.
            enqueue_total(None, self, context);
            enqueue_contenders(&occupied_ports(self, context), self, context);
        }
        if cause == Cause::Workload {
            // They may call its Service.
            enqueue_callers(self, context);
            return;
        }
        // When the node changes, its workers may move between the agent and the kubelet.
        mark_used_models(self, None, context);
    }

    fn enqueue_by_agent(&self, node: &NodeName, change: AgentChange, context: &Context) {
        if depends_on_agent(self, node, change) {
            context.enqueue_by_nodes(self);
        }
        context.enqueue_unchanged(self);
        mark_node(self, node, context);
    }

    fn on_status_stored(&self, observed: &ServiceObservation, context: &Context) {
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        let counted = &observed.counted;
        {
            let mut fleet = context.fleet();
            let rows = fleet.rows(uid);
            rows.acknowledge(counted.clock);
            rows.on_status_written(&counted.nodes);
        }
        use_grants(self, observed.rollout.as_ref(), context);
    }

    fn enqueue_by_status(&self, next: &JointInferenceServiceStatus, context: &Context) {
        let nodes = next.edge_workers.iter().map(|worker| worker.node.as_str());
        // The nodes of slices get the edge worker when these are stored.
        if next.slices.is_none() && !nodes.eq(placed_nodes(self)) {
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
        let rollout = |status: &JointInferenceServiceStatus| {
            status.rollout.as_ref().map(|rollout| (rollout.revision.clone(), rollout.state))
        };
        if rollout(next) != self.status.as_ref().and_then(rollout) {
            // Nodes may get what they waited for, and after the end a better model may be chosen.
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
        let is_sliced = has_slices(self);
        let placed = |service: &Self| -> Vec<String> {
            placed_nodes(service).filter(|_| !is_sliced).map(str::to_owned).collect()
        };
        let nodes = placed(self);
        let moved = nodes != before.map(placed).unwrap_or_default();
        if moved {
            enqueue_callers(self, context);
            // The agent of a new node may have changed before the index had the node.
            context.enqueue(self);
        }
        // The gateway of a service with slices has its ports where its labels select, by its spec.
        if !(is_sliced && before.is_some_and(has_slices)) {
            let occupied = occupied_ports(self, context);
            let before = before.map(|before| occupied_ports(before, context)).unwrap_or_default();
            if occupied != before {
                enqueue_contenders(&occupied.and(before), self, context);
            }
        }
        let updated = |service: &Self| {
            let rollout = service.status.as_ref()?.rollout.as_deref()?;
            Some((rollout.revision.clone(), rollout.state, rollout.updated))
        };
        if updated(self) != before.and_then(updated) {
            enqueue_used_models(self, context);
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

/// Whether the plan of a service may be another one because the agent of this node changed.
fn depends_on_agent(service: &JointInferenceService, node: &NodeName, change: AgentChange) -> bool {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    // A model is chosen by the files on the nodes that are online, and a node by whether it is.
    let is_one = edge.node_name.is_none() && edge.placement != Some(Placement::All);
    let chooses = is_selected(service) || is_one && placed_nodes(service).next().is_none();
    // The address of an exposed gateway is in the plan, and that of the cloud worker.
    let has_address = gateway_settings(service).expose == Some(true)
        || cloud.node_name.as_deref() == Some(node.as_str());
    chooses || change == AgentChange::Facts && (has_address || needs_offers(service))
}

/// A slice of the service was stored: its nodes may get the edge worker and its model.
pub fn on_slice_stored(service: &JointInferenceService, context: &Context) {
    context.enqueue(service);
    mark_used_models(service, None, context);
    enqueue_callers(service, context);
}

/// The ports that the gateway and the cloud worker of a service may have, and their nodes.
fn occupied_ports(service: &JointInferenceService, context: &Context) -> OccupiedPorts {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let mut occupied = OccupiedPorts::default();
    if has_gateway(service) {
        let placed: Vec<String> = if has_slices(service) {
            let selected = context.matching_nodes(&edge.node_selector);
            selected.iter().map(|node| node.name.to_string()).collect()
        } else {
            placed_nodes(service).map(str::to_owned).collect()
        };
        let placed = placed.into_iter();
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
        if !caches.node(&node).as_deref().is_some_and(|node| node.runs_agent) {
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
    #![allow(clippy::unwrap_used)]
    use neptune_cloud_kinds::joint_inference_service::fixtures;

    use super::*;

    /// A name, a change of the service, and whether its plan depends on the presence of an agent, and
    /// on its facts.
    type Case<'a> = (&'a str, &'a dyn Fn(&mut JointInferenceService), [bool; 2]);

    #[test]
    fn plan_depends_on_agents_only_by_a_choice_an_address_or_a_device() {
        let all = |service: &mut JointInferenceService| {
            let edge = &mut service.spec.edge_worker;
            (edge.node_name, edge.placement) = (None, Some(Placement::All));
            edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
        };
        let one = |service: &mut JointInferenceService| {
            all(service);
            service.spec.edge_worker.placement = None;
        };
        let selects = |service: &mut JointInferenceService| {
            all(service);
            let selector = serde_json::json!({"selector": {"matchLabels": {"a": "b"}}});
            service.spec.edge_worker.model = Some(serde_json::from_value(selector).unwrap());
        };
        let requests = |service: &mut JointInferenceService| {
            all(service);
            let resources = serde_json::json!({"limits": {"nvidia.com/gpu": 1}});
            let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
            program.resources = serde_json::from_value(resources).unwrap();
        };
        let cases: [Case; 8] = [
            ("a worker with a device", &requests, [false, true]),
            ("a named node", &|_| {}, [false, false]),
            ("all nodes", &all, [false, false]),
            ("one node to choose", &one, [true, true]),
            (
                "one chosen node",
                &|service| {
                    one(service);
                    service.status = Some(fixtures::placed_on(&["edge0"]));
                },
                [false, false],
            ),
            ("a model to choose", &selects, [true, true]),
            (
                "an exposed gateway",
                &|service| {
                    all(service);
                    service.spec.gateway.get_or_insert_default().expose = Some(true);
                },
                [false, true],
            ),
            (
                "the cloud worker",
                &|service| service.spec.cloud_worker.node_name = Some("edge0".to_owned()),
                [false, true],
            ),
        ];
        let node = "edge0".parse().unwrap();
        for (name, change, expected) in cases {
            let mut service = fixtures::service();
            change(&mut service);
            let depends = [AgentChange::Presence, AgentChange::Facts]
                .map(|change| depends_on_agent(&service, &node, change));
            assert_eq!(depends, expected, "{name}");
        }
    }
}
