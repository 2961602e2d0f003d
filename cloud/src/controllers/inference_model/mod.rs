//! The `InferenceModel` controller: a model server run by an agent or by a Deployment.

#[cfg(test)]
mod crd_consistency;
mod events;
mod facts;
#[cfg(test)]
mod fixtures;
mod manifest;
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

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, InferenceModelStatus};
use neptune_wire::ObjectKey;

use self::{
    status::ServerObservation,
    target::{InferenceModelFacts, nodes_of},
    validate::ValidInferenceModel,
};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
    WorkloadMessages,
};
use crate::{
    cache::{IndexKey, Indexed},
    finding::Finding,
    fleet::Retained,
    reason::Reason,
};

impl Controller for InferenceModel {
    type Facts = InferenceModelFacts;
    type Valid = ValidInferenceModel;
    type Placed = ValidInferenceModel;
    type Observation = ServerObservation;

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

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
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
        }
    }

    fn enqueue_by_status(&self, next: &InferenceModelStatus, context: &Context) {
        let before = self.status.iter().flat_map(nodes_of);
        if !before.eq(nodes_of(next)) {
            enqueue_port_conflicts(self, context);
        }
    }
}

impl Indexed for InferenceModel {
    fn index_keys(&self) -> Vec<IndexKey> {
        let named = self.spec.node_name.as_ref().filter(|name| !name.is_empty());
        let before = self.status.iter().flat_map(nodes_of).map(str::to_owned);
        // Without a node name any node may be selected, or may have the address of the Service.
        let named = named.map_or(IndexKey::EveryNode, |named| IndexKey::Node(named.clone()));
        [named].into_iter().chain(before.map(IndexKey::Node)).collect()
    }
}

/// Enqueues the models with the port of this one, and those that wait for a port that this one may
/// have released.
fn enqueue_port_conflicts(model: &InferenceModel, context: &Context) {
    let taken = Reason::ServingPortTaken.to_string();
    let is_waiting = |other: &InferenceModel| {
        let conditions = other.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.reason == taken)
    };
    context.enqueue_where(|other: &InferenceModel| {
        let has_port = other.spec.serving_port == model.spec.serving_port;
        other.metadata.uid != model.metadata.uid && (has_port || is_waiting(other))
    });
}
