//! The `InferenceModel` controller: a model server run by an agent or by a Deployment.

mod facts;
mod observe;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use neptune_api::{
    InferenceModel, InferenceModelStatus, JointInferenceService, Placement, RolloutState,
};
use neptune_cloud_kinds::{
    index_key::IndexKey,
    inference_model::{
        place::needs_offers,
        status::ServerObservation,
        target::{InferenceModelFacts, nodes_of},
        validate::ValidInferenceModel,
    },
    port_contention::OccupiedPorts,
    worker::{
        config::{objects::ConfigObjects, references::ConfigName},
        ports,
    },
};
use neptune_wire::{NodeName, ObjectKey, Resource};
use serde_json::{Value, json};

use super::model::enqueue_source;
use super::port_contention::enqueue_contenders;
use super::rollout::use_grants;
use super::runtime::{AgentChange, Cause, Context, Controller};

impl Controller for InferenceModel {
    fn facts(&self, context: &Context) -> InferenceModelFacts {
        facts::facts(self, context)
    }

    fn config_references(&self, _context: &Context) -> BTreeSet<ConfigName> {
        facts::config_references(self)
    }

    fn use_config(facts: &mut InferenceModelFacts, config: ConfigObjects) {
        facts.config = config;
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

    fn on_status_stored(&self, observed: &ServerObservation, context: &Context) {
        use_grants(self, observed.rollout.as_ref(), context);
    }

    fn enqueue_by_status(&self, next: &InferenceModelStatus, context: &Context) {
        let revision = |status: &InferenceModelStatus| {
            status.rollout.as_ref().map(|rollout| rollout.revision.clone())
        };
        if revision(next) != self.status.as_ref().and_then(revision) {
            // Nodes may get what they waited for.
            context.enqueue(self);
        }
    }

    fn complete_rollout(&self) -> Option<(&str, Value)> {
        let status = self.status.as_ref().filter(|_| self.spec.rollout.is_some())?;
        let rollout = status.rollout.as_deref()?;
        let is_complete = rollout.state == RolloutState::Complete
            && status.observed_generation == self.metadata.generation
            // A service that owns the model has the history.
            && self.owner_references().iter().all(|owner| owner.controller != Some(true));
        is_complete.then(|| (rollout.revision.as_str(), json!(self.spec)))
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_services(self, context);
            enqueue_source(self, None, context);
            enqueue_contenders(&occupied_ports(self), self, context);
        }
    }

    /// The plan depends on agents while a node is chosen, of which a connected one is preferred, and
    /// by what they offer.
    fn enqueue_by_agent(&self, _node: &NodeName, change: AgentChange, context: &Context) {
        let has_nodes = self.status.iter().flat_map(nodes_of).next().is_some();
        let chooses = !has_nodes && self.spec.placement != Some(Placement::All);
        if chooses || change == AgentChange::Facts && needs_offers(self) {
            context.enqueue_by_nodes(self);
        }
        context.enqueue_unchanged(self);
    }

    /// A gateway calls the URL of its model server, and a service that chooses among models reads the
    /// last failure.
    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        let status = self.status.clone().unwrap_or_default();
        let previous = before.and_then(|before| before.status.clone()).unwrap_or_default();
        // Of more nodes than the status lists, the labels find the object.
        let moved = status.node_counts.is_none() && !nodes_of(&previous).eq(nodes_of(&status));
        if moved {
            // The agent of a new node may have changed before the index had the node.
            context.enqueue(self);
        }
        let occupied = occupied_ports(self);
        let occupied_before = before.map(occupied_ports).unwrap_or_default();
        if occupied != occupied_before {
            enqueue_contenders(&occupied.and(occupied_before), self, context);
        }
        if let Some(before) = before.filter(|it| it.spec.model != self.spec.model) {
            enqueue_source(self, Some(before), context);
        }
        let is_ready = |status: &InferenceModelStatus| status.ready_replicas > Some(0);
        let served = previous.url != status.url || is_ready(&previous) != is_ready(&status);
        let rolled = previous.rollout != status.rollout;
        if moved || served || rolled || previous.last_failure != status.last_failure {
            enqueue_services(self, context);
        }
    }
}

/// The ports of a model server, and the nodes whose agents serve it.
fn occupied_ports(model: &InferenceModel) -> OccupiedPorts {
    OccupiedPorts {
        nodes: ports::model_nodes(model).into_iter().collect(),
        ports: ports::model_ports(model).collect(),
        ..OccupiedPorts::default()
    }
}

/// Enqueues the services that use this model.
fn enqueue_services(model: &InferenceModel, context: &Context) {
    let namespace = model.metadata.namespace.clone().unwrap_or_default();
    let name = model.metadata.name.clone().unwrap_or_default();
    let used = IndexKey::Uses(Resource::InferenceModels, namespace, name);
    context.enqueue_key::<JointInferenceService>(&used);
}
