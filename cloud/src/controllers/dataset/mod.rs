//! The `Dataset` controller: publishes datasets to their nodes, whose agents count the samples.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
pub mod fixtures;
mod observed;
mod plan;
mod status;
mod validate;

use k8s_openapi::jiff::Timestamp;
use neptune_api::{Dataset, DatasetStatus, TrainingModel};
use neptune_wire::{NodeName, ObjectKey, Resource};

pub use self::plan::{content, object_key};
use self::{
    observed::{DatasetOnNode, ReportedDataset, observe},
    validate::DatasetFacts,
};
use super::runtime::{
    Cause, Context, Controller, ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs,
};
use crate::{
    cache::{IndexKey, Indexed},
    finding::Finding,
    fleet::{Retained, observed::Observed},
    reason::Reason,
};

impl Controller for Dataset {
    type Facts = DatasetFacts;
    /// The node of the dataset.
    type Valid = NodeName;
    type Placed = NodeName;
    type Observation = Observed<ReportedDataset>;

    const MESSAGES: ControllerMessages =
        ControllerMessages { shorten: "shorten it", workload: None };

    fn facts(&self, context: &Context) -> DatasetFacts {
        DatasetFacts { node: context.caches().node(&self.spec.node_name) }
    }

    fn validate(&self, facts: &DatasetFacts) -> Result<NodeName, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, node: &NodeName, _fetch_image: &str) -> ObjectPlan {
        plan::plan(self, node)
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn observe(
        &self,
        key: &ObjectKey,
        valid: Option<&NodeName>,
        context: &Context,
        now: Timestamp,
    ) -> Observed<ReportedDataset> {
        let Ok(node) = self.spec.node_name.parse::<NodeName>() else {
            // The finding of `validate` takes precedence.
            return Observed::Pending(Finding::new(
                Reason::NodeRequired,
                "spec.nodeName is not a node name",
            ));
        };
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        let fleet = context.fleet();
        observe(DatasetOnNode {
            node: &node,
            content: valid.map(|_| content(self, key).hash()),
            agent: fleet.agent(&node, now),
            report: fleet.report(&node, key, uid),
            connected: context.publisher().transport().is_connected(),
        })
    }

    fn next_status(
        &self,
        previous: &DatasetStatus,
        inputs: &StatusInputs<Observed<ReportedDataset>>,
    ) -> DatasetStatus {
        status::next(previous, inputs)
    }

    fn is_same_status(previous: &DatasetStatus, next: &DatasetStatus) -> bool {
        previous == next
    }

    fn observed_generation(status: &DatasetStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(previous: &DatasetStatus, next: &DatasetStatus) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }

    /// Enqueues the services whose edge worker uses the dataset.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            let namespace = self.metadata.namespace.clone().unwrap_or_default();
            let name = self.metadata.name.clone().unwrap_or_default();
            let used = IndexKey::Uses(Resource::Datasets, namespace, name);
            context.enqueue_key::<neptune_api::JointInferenceService>(&used);
            enqueue_trainings(self, context);
        }
    }

    /// Enqueues the trainings that start when the dataset has grown.
    fn enqueue_by_status(&self, next: &DatasetStatus, context: &Context) {
        let before = self.status.as_ref().and_then(|status| status.number_of_samples);
        if before != next.number_of_samples {
            enqueue_trainings(self, context);
        }
    }
}

impl Indexed for Dataset {
    fn index_keys(&self) -> Vec<IndexKey> {
        vec![IndexKey::Node(self.spec.node_name.clone())]
    }
}

/// Enqueues the trainings that name the dataset, or may select it by labels.
fn enqueue_trainings(dataset: &Dataset, context: &Context) {
    let namespace = dataset.metadata.namespace.clone().unwrap_or_default();
    let name = dataset.metadata.name.clone().unwrap_or_default();
    let named = IndexKey::Uses(Resource::Datasets, namespace.clone(), name);
    context.enqueue_key::<TrainingModel>(&named);
    context.enqueue_key::<TrainingModel>(&IndexKey::UsesAny(Resource::Datasets, namespace));
}
