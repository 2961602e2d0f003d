//! The `InferenceModel` controller: a model server run by an agent or by a Deployment.

#[cfg(test)]
mod crd_consistency;
mod events;
mod facts;
#[cfg(test)]
mod fixtures;
mod manifest;
mod model_source;
mod observe;
mod observed;
mod place;
mod plan;
mod program;
mod rollout;
mod servers;
mod status;
mod target;
mod validate;
mod workload;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, InferenceModelStatus, JointInferenceService};
use neptune_wire::{NodeName, ObjectKey, Resource};

use self::{
    status::ServerObservation,
    target::{InferenceModelFacts, nodes_of},
    validate::ValidInferenceModel,
};
use super::model::enqueue_source;
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
    WorkloadMessages,
};
use crate::{
    cache::{IndexKey, Indexed, by_owner},
    finding::Finding,
    fleet::Retained,
    reason::Reason,
    worker::ports,
};

impl Controller for InferenceModel {
    type Facts = InferenceModelFacts;
    type Valid = ValidInferenceModel;
    type Placed = ValidInferenceModel;
    type Observation = ServerObservation;
    type Memory = ();

    const MESSAGES: ControllerMessages = ControllerMessages {
        shorten: "list fewer versions in spec.manifest",
        workload: Some(WorkloadMessages {
            created: "ServerCreated",
            what: "model server",
            rename: "the InferenceModel",
            refused: Reason::ServerRefused,
        }),
    };

    fn facts(&self, context: &Context) -> InferenceModelFacts {
        facts::facts(self, context)
    }

    fn validate(&self, facts: &InferenceModelFacts) -> Result<ValidInferenceModel, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, valid: &ValidInferenceModel, fetch_image: &str) -> ObjectPlan {
        plan::plan(self, valid, fetch_image)
    }

    fn warnings(&self) -> Vec<String> {
        let warning = place::one_per_node(self).filter(|_| self.spec.deploy_to_layer == "edge");
        warning.into_iter().collect()
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn yielded(&self, facts: &InferenceModelFacts) -> BTreeSet<NodeName> {
        facts.used_ports.iter().filter_map(|used| used.node.parse().ok()).collect()
    }

    fn observe(
        &self,
        key: &ObjectKey,
        valid: Option<&ValidInferenceModel>,
        context: &Context,
        now: Timestamp,
    ) -> ServerObservation {
        observe::observe(self, key, valid, context, now)
    }

    fn next_status(
        &self,
        previous: &InferenceModelStatus,
        inputs: &StatusInputs<ServerObservation>,
    ) -> InferenceModelStatus {
        status::next(previous, inputs)
    }

    fn is_same_status(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> bool {
        previous == next
    }

    fn observed_generation(status: &InferenceModelStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_port_conflicts(self, context);
            enqueue_services(self, context);
            enqueue_source(self, None, context);
        }
    }

    /// A gateway calls the URL of its model server, and a service that chooses among models reads the
    /// last failure.
    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        let status = self.status.clone().unwrap_or_default();
        let previous = before.and_then(|before| before.status.clone()).unwrap_or_default();
        let moved = !nodes_of(&previous).eq(nodes_of(&status));
        if moved {
            enqueue_port_conflicts(self, context);
            // The agent of a new node may have changed before the index had the node.
            context.enqueue(self);
        }
        if let Some(before) = before.filter(|it| it.spec.model != self.spec.model) {
            enqueue_source(self, Some(before), context);
        }
        let served = (previous.url, previous.ready_replicas) != (status.url, status.ready_replicas);
        if moved || served || status.last_failure.is_some() {
            enqueue_services(self, context);
        }
    }
}

impl Indexed for InferenceModel {
    fn index_keys(&self) -> Vec<IndexKey> {
        let named = self.spec.node_name.as_ref().filter(|name| !name.is_empty());
        let before = self.status.iter().flat_map(nodes_of).map(str::to_owned);
        // Without a node name, labels may select any node, by its agent too. Without labels, any node
        // may have the address of the Service.
        let any = if self.spec.node_selector.is_empty() {
            IndexKey::EveryNodeObject
        } else {
            IndexKey::EveryNode
        };
        let named = named.map_or(any, |named| IndexKey::Node(named.clone()));
        let owners = by_owner(&self.metadata);
        let source = self.spec.model.iter().map(|model| {
            let namespace = self.metadata.namespace.clone().unwrap_or_default();
            IndexKey::Uses(Resource::Models, namespace, model.name.clone())
        });
        let owners = owners.into_iter().chain(source);
        [named].into_iter().chain(before.map(IndexKey::Node)).chain(owners).collect()
    }

    fn selects_nodes(&self) -> Option<&BTreeMap<String, String>> {
        Some(&self.spec.node_selector)
    }

    fn has_nodes(&self) -> bool {
        self.status.iter().flat_map(nodes_of).next().is_some()
    }
}

/// Enqueues the services that use this model, those whose gateway waits for a port that this one may
/// have released, and those whose cloud worker may have to use another port because of this one.
fn enqueue_services(model: &InferenceModel, context: &Context) {
    let namespace = model.metadata.namespace.clone().unwrap_or_default();
    let name = model.metadata.name.clone().unwrap_or_default();
    let used = IndexKey::Uses(Resource::InferenceModels, namespace, name);
    context.enqueue_key::<JointInferenceService>(&used);
    let taken = Reason::PortTaken.to_string();
    let nodes = if ports::model_ports(model).any(ports::may_be_of_cloud_worker) {
        ports::model_nodes(model)
    } else {
        Vec::new()
    };
    context.enqueue_where(|service: &JointInferenceService| {
        let conditions = service.status.iter().filter_map(|status| status.conditions.last());
        conditions.into_iter().any(|current| current.reason.as_ref() == Some(&taken))
            || nodes.iter().any(|node| ports::has_cloud_worker_on(service, node))
    });
}

/// Enqueues the models with a port of this one, and those that wait for a port that this one may
/// have released.
fn enqueue_port_conflicts(model: &InferenceModel, context: &Context) {
    let taken = Reason::ServingPortTaken.to_string();
    let is_waiting = |other: &InferenceModel| {
        let conditions = other.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.reason == taken)
    };
    let own: Vec<u16> = ports::model_ports(model).collect();
    context.enqueue_where(|other: &InferenceModel| {
        let has_port = ports::model_ports(other).any(|port| own.contains(&port));
        other.metadata.uid != model.metadata.uid && (has_port || is_waiting(other))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_in_the_cloud_is_not_affected_by_agents_of_other_nodes() {
        let model = |change: fn(&mut InferenceModel)| {
            let mut model = InferenceModel::new("m", neptune_api::InferenceModelSpec::default());
            change(&mut model);
            model.index_keys()
        };
        let labels = |model: &mut InferenceModel| {
            model.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
        };
        assert_eq!(model(|_| {}), [IndexKey::EveryNodeObject]);
        assert_eq!(model(labels), [IndexKey::EveryNode]);
        let named = model(|model| model.spec.node_name = Some("edge0".to_owned()));
        assert_eq!(named, [IndexKey::Node("edge0".to_owned())]);
    }
}
