//! The `JointInferenceService` controller: an edge worker, and a cloud worker run by an agent or by
//! a Deployment.

#[cfg(test)]
mod crd_consistency;
mod events;
mod facts;
#[cfg(test)]
mod fixtures;
mod observe;
mod observed;
mod plan;
mod ports;
mod status;
mod validate;
mod worker;
mod workload;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::ObjectKey;

use self::{
    observed::ObservedWorker,
    validate::{ServiceFacts, ValidService},
};
use super::{
    model::enqueue_used_models,
    runtime::{
        Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
        WorkloadMessages,
    },
};
use crate::{finding::Finding, fleet::Retained, kubernetes::nodes::is_agent_node, reason::Reason};

impl Controller for JointInferenceService {
    type Facts = ServiceFacts;
    type Valid = ValidService;
    type Observation = [ObservedWorker; 2];

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
        _valid: Option<&ValidService>,
        context: &Context,
        now: Timestamp,
    ) -> [ObservedWorker; 2] {
        observe::workers(self, key, context, now)
    }

    fn next_status(
        &self,
        previous: &JointInferenceServiceStatus,
        inputs: &StatusInputs<[ObservedWorker; 2]>,
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

    fn concerns(&self, node: &str) -> bool {
        self.spec.edge_worker.node_name == node || self.spec.cloud_worker.node_name == node
    }

    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            enqueue_port_neighbours(self, context);
        }
        // When the node changes, its workers may move between the agent and the kubelet.
        enqueue_used_models(self, context);
    }
}

/// Enqueues the services whose cloud worker is on the same agent's node: their ports depend on each
/// other.
fn enqueue_port_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    if context.caches().node(node).as_deref().is_some_and(is_agent_node) {
        context.enqueue_where(|other: &JointInferenceService| {
            other.spec.cloud_worker.node_name == *node
        });
    }
}
