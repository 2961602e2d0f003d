//! The pure steps of an `InferenceModel`, and what it refers to.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use neptune_api::{InferenceModel, InferenceModelStatus, Placement};
use neptune_wire::{NodeName, ObjectKey, Resource};

use super::{
    events, place, plan,
    status::{self, ServerObservation},
    target::{InferenceModelFacts, is_on_many, nodes_of},
    validate::{self, ValidInferenceModel},
    waves,
};
use crate::{
    finding::Finding,
    fleet::Retained,
    index_key::{IndexKey, Indexed, by_owner, selector_keys},
    kubernetes::labels::Labels,
    port_contention,
    reason::Reason,
    rollout::policy::all_at_once,
    steps::{ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps, WorkloadMessages},
    worker::{needs, ports},
};

impl Steps for InferenceModel {
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

    fn validate(&self, facts: &InferenceModelFacts) -> Result<ValidInferenceModel, Vec<Finding>> {
        let valid = validate::validate(self, facts)?;
        Ok(waves::with_rollout(self, valid, facts))
    }

    fn plan(&self, valid: &ValidInferenceModel, fetch_image: &str) -> ObjectPlan {
        plan::plan(self, valid, fetch_image)
    }

    fn warnings(&self, facts: &InferenceModelFacts) -> Vec<String> {
        if self.spec.deploy_to_layer != "edge" {
            return Vec::new();
        }
        let needs_rollout =
            self.spec.placement == Some(Placement::All) && self.spec.rollout.is_none();
        let selected = Some(&facts.selected).filter(|_| needs_rollout);
        let rollout = selected.and_then(|nodes| all_at_once("spec.nodeSelector", nodes));
        place::one_per_node(self).into_iter().chain(rollout).collect()
    }

    fn node_warnings(&self, _: &InferenceModelFacts, valid: &ValidInferenceModel) -> Vec<String> {
        needs::warnings(valid.unmet.iter(), |_| None)
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn retained_by(&self, key: &ObjectKey, facts: &InferenceModelFacts) -> Retained {
        let mut retained = plan::retained(self, key);
        if is_on_many(self) {
            let selected = facts.selected.nodes.iter().filter(|node| node.is_edge);
            let keys = Arc::new([key.clone()].into());
            retained.extend(selected.map(|node| (node.name.clone(), Arc::clone(&keys))));
        }
        retained
    }

    fn yielded(&self, facts: &InferenceModelFacts) -> BTreeSet<NodeName> {
        facts.used_ports.iter().filter_map(|used| used.node.parse().ok()).collect()
    }

    fn next_status(
        &self,
        previous: &InferenceModelStatus,
        inputs: &StatusInputs<ServerObservation>,
    ) -> InferenceModelStatus {
        status::next(previous, inputs)
    }

    fn recompute_at(observed: &ServerObservation) -> Option<Timestamp> {
        observed.rollout.as_ref()?.due_at
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
}

impl Indexed for InferenceModel {
    fn index_keys(&self) -> Vec<IndexKey> {
        let named = self.spec.node_name.as_ref().filter(|name| !name.is_empty());
        // Of more nodes than the status lists, the labels find the object.
        let before = self.status.iter().filter(|_| !is_on_many(self));
        let before = before.flat_map(nodes_of).map(str::to_owned);
        // Without labels, any node may have the address of the Service.
        let any = self.spec.node_selector.is_empty() && place::is_external(self);
        let place = match named {
            Some(named) => Some(IndexKey::Node(named.clone())),
            None => any.then_some(IndexKey::CloudNodes),
        };
        let waiting = awaits_port(self).then(|| ports::model_ports(self));
        let waiting = waiting.into_iter().flatten().map(port_contention::awaits);
        let owners = by_owner(&self.metadata).into_iter().chain(waiting);
        let source = self.spec.model.iter().map(|model| {
            let namespace = self.metadata.namespace.clone().unwrap_or_default();
            IndexKey::Uses(Resource::Models, namespace, model.name.clone())
        });
        let on_many = is_on_many(self).then_some(IndexKey::OnManyNodes);
        let owners = owners.chain(source).chain(on_many);
        place.into_iter().chain(before.map(IndexKey::Node)).chain(owners).collect()
    }

    fn selector_keys(&self) -> Vec<Vec<IndexKey>> {
        if self.spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
            return Vec::new();
        }
        let has_nodes = self.status.iter().flat_map(nodes_of).next().is_some();
        let has_nodes = has_nodes && !is_on_many(self);
        let selects = if has_nodes { IndexKey::SelectsNodes } else { IndexKey::SelectsAgents };
        vec![selector_keys(&self.spec.node_selector, selects)]
    }

    fn selects_nodes(&self) -> Option<&Labels> {
        Some(&self.spec.node_selector)
    }
}

/// Whether a model waits for a port that another object uses.
fn awaits_port(model: &InferenceModel) -> bool {
    let taken = Reason::ServingPortTaken.to_string();
    model.status.iter().any(|status| {
        let on_node = status.servers.iter().map(|server| &server.reason);
        let reasons = status.conditions.iter().map(|condition| &condition.reason).chain(on_node);
        reasons.into_iter().any(|reason| *reason == taken)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_in_the_cloud_is_not_affected_by_agents_of_other_nodes() {
        let model = |change: fn(&mut InferenceModel)| {
            let mut model = InferenceModel::new("m", neptune_api::InferenceModelSpec::default());
            change(&mut model);
            let mut keys = model.index_keys();
            keys.extend(model.selector_keys().into_iter().flatten());
            keys
        };
        let labels = |model: &mut InferenceModel| {
            model.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
        };
        assert_eq!(model(|_| {}), [IndexKey::CloudNodes]);
        let internal = model(|model| model.spec.service_type = Some("ClusterIP".to_owned()));
        assert_eq!(internal, [], "its address does not depend on a node");
        let area = |key: fn(String, String) -> IndexKey| key("area".to_owned(), "north".to_owned());
        assert_eq!(model(labels), [area(IndexKey::SelectsAgents)]);
        let named = model(|model| model.spec.node_name = Some("edge0".to_owned()));
        assert_eq!(named, [IndexKey::Node("edge0".to_owned())]);
    }
}
