//! The `JointInferenceService` controller: an edge worker, and a cloud worker run by an agent or by
//! a Deployment.

#[cfg(test)]
mod crd_consistency;
mod events;
mod facts;
#[cfg(test)]
mod fixtures;
mod gateway_status;
mod observe;
mod observed;
mod place;
mod plan;
mod pod;
mod ports;
mod status;
mod validate;
mod worker;
mod workload;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::{ObjectKey, Resource};

use self::{
    observed::ServiceObservation,
    validate::{EdgeNodes, ServiceFacts, ValidService},
};
use super::{
    model::enqueue_used_models,
    runtime::{
        Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
        WorkloadMessages,
    },
};
use crate::{
    cache::{IndexKey, Indexed},
    finding::Finding,
    fleet::Retained,
    kubernetes::nodes::is_agent_node,
    reason::Reason,
};

impl Controller for JointInferenceService {
    type Facts = ServiceFacts;
    type Valid = ValidService;
    type Placed = EdgeNodes;
    type Observation = ServiceObservation;

    const MESSAGES: ControllerMessages = ControllerMessages {
        shorten: "shorten its parameters and env",
        workload: Some(WorkloadMessages {
            created: "CloudWorkerCreated",
            what: "cloud worker",
            rename: "spec.cloudWorker.name",
            refused: Reason::CloudWorkerRefused,
        }),
    };

    fn facts(&self, context: &Context) -> ServiceFacts {
        facts::facts(self, context)
    }

    fn validate(&self, facts: &ServiceFacts) -> Result<ValidService, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, valid: &ValidService, fetch_image: &str) -> ObjectPlan {
        plan::plan(self, valid, fetch_image)
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn observe(
        &self,
        key: &ObjectKey,
        placed: Option<&EdgeNodes>,
        context: &Context,
        now: Timestamp,
    ) -> ServiceObservation {
        observe::observation(self, key, placed, context, now)
    }

    fn next_status(
        &self,
        previous: &JointInferenceServiceStatus,
        inputs: &StatusInputs<ServiceObservation>,
    ) -> JointInferenceServiceStatus {
        status::next(previous, inputs)
    }

    fn is_same_status(
        previous: &JointInferenceServiceStatus,
        next: &JointInferenceServiceStatus,
    ) -> bool {
        status::is_same_status(previous, next)
    }

    fn observed_generation(status: &JointInferenceServiceStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(
        previous: &JointInferenceServiceStatus,
        next: &JointInferenceServiceStatus,
    ) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_port_neighbours(self, context);
        }
        // When the node changes, its workers may move between the agent and the kubelet.
        enqueue_used_models(self, context);
    }

    fn enqueue_by_status(&self, next: &JointInferenceServiceStatus, context: &Context) {
        let next = next.edge_workers.iter().map(|worker| worker.node.as_str());
        if !next.eq(place::placed_nodes(self)) {
            // Nodes that the status lists now may get the edge worker and its model.
            context.enqueue(self);
            enqueue_used_models(self, context);
        }
    }
}

impl Indexed for JointInferenceService {
    fn index_keys(&self) -> Vec<IndexKey> {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let (edge, cloud) = (&self.spec.edge_worker, &self.spec.cloud_worker);
        // Labels may select any node.
        let named = edge.node_name.clone().map_or(IndexKey::EveryNode, IndexKey::Node);
        let mut keys = vec![named, IndexKey::Node(cloud.node_name.clone())];
        keys.extend(place::placed_nodes(self).map(|node| IndexKey::Node(node.to_owned())));
        let models = [&edge.model.name, &cloud.model.name];
        let models = models.map(|model| (Resource::Models, model));
        let datasets = edge.dataset.as_ref().map(|dataset| (Resource::Datasets, &dataset.name));
        let used = models.into_iter().chain(datasets);
        keys.extend(used.map(|(kind, name)| IndexKey::Uses(kind, namespace.clone(), name.clone())));
        keys
    }
}

/// Enqueues the services on the same agent's node whose port depends on this one.
fn enqueue_port_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    if context.caches().node(node).as_deref().is_some_and(is_agent_node) {
        let on_node = facts::on_cloud_node(node, context.caches());
        let on_node: Vec<_> = on_node.iter().map(AsRef::as_ref).collect();
        for other in ports::moved_by(service, &on_node) {
            context.enqueue(other);
        }
    }
}
