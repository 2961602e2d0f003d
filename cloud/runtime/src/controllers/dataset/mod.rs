//! The `Dataset` controller: publishes datasets to their nodes, whose agents count the samples.

use k8s_openapi::jiff::Timestamp;
use neptune_api::{Dataset, TrainingModel};
use neptune_cloud_kinds::{
    dataset::{
        content,
        observed::{DatasetOnNode, observe, refusal},
        place::{self, PlacedDataset},
        replicas::{ReplicaObservation, ReplicasObservation},
        status::DatasetObservation,
        validate::DatasetFacts,
    },
    finding::Finding,
    fleet::{Presence, observed::Observed},
    index_key::IndexKey,
    reason::Reason,
};
use neptune_wire::{ContentHash, NodeName, ObjectKey, Resource};

use super::runtime::{Cause, Context, Controller};

impl Controller for Dataset {
    fn facts(&self, context: &Context) -> DatasetFacts {
        let node = |name: &String| (name.clone(), context.caches().node(name));
        DatasetFacts {
            node: context.caches().node(&self.spec.node_name),
            replicas: place::names(self).iter().map(node).collect(),
        }
    }

    fn observe(
        &self,
        key: &ObjectKey,
        valid: Option<&PlacedDataset>,
        context: &Context,
        now: Timestamp,
    ) -> DatasetObservation {
        let Ok(node) = self.spec.node_name.parse::<NodeName>() else {
            // The finding of `validate` takes precedence.
            let why = Finding::new(Reason::NodeRequired, "spec.nodeName is not a node name");
            return DatasetObservation { source: Observed::Pending(why), replicas: None };
        };
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        // Hashed before the lock: reports of nodes must not wait for it.
        let hash = valid.map(|_| content(self, key, &node).hash());
        let replicas = valid.filter(|_| !place::names(self).is_empty()).map(|placed| {
            let hash = |node: &NodeName| (node.clone(), content(self, key, node).hash());
            (placed, placed.replicas.iter().map(hash).collect::<Vec<_>>())
        });
        let fleet = context.fleet();
        let source = observe(DatasetOnNode {
            node: &node,
            content: hash,
            agent: fleet.agent(&node, now),
            report: fleet.report(&node, key, uid),
            connected: context.publisher().transport().is_connected(),
        });
        let replica = |(node, hash): &(NodeName, ContentHash)| {
            let report = fleet.report(node, key, uid).and_then(|report| report.dataset.clone());
            ReplicaObservation {
                agent: fleet.agent(node, now),
                has_peers: fleet.peers(node).is_some(),
                crowded: valid.and_then(|placed| context.rosters().crowded(&placed.source, node)),
                report: report.filter(|report| report.content == *hash),
                node: node.clone(),
            }
        };
        let replicas = replicas.map(|(placed, hashes)| ReplicasObservation {
            refusal: if fleet.presence(&node) == Presence::Online {
                refusal(&node, fleet.peers(&node))
            } else {
                None
            },
            nodes: hashes.iter().map(replica).collect(),
            unusable: placed.unusable.clone(),
        });
        DatasetObservation { source, replicas }
    }

    /// Makes the source and its replicas peers, if the source allows it.
    fn drive(&self, key: &ObjectKey, placed: Option<&PlacedDataset>, context: &Context) {
        let allowed = placed.filter(|placed| {
            context.fleet().peers(&placed.source).is_some_and(|endpoint| endpoint.allows_replicas)
        });
        let pairs = allowed.into_iter().flat_map(|placed| {
            placed.replicas.iter().map(|replica| (placed.source.clone(), replica.clone()))
        });
        let created = self.metadata.creation_timestamp.as_ref().map(|created| created.0);
        context.rosters().set_pairs(key, created, pairs.collect());
    }

    /// Enqueues the services whose edge worker uses the dataset, and the trainings, which also read its
    /// node.
    fn enqueue_related(&self, cause: Cause, context: &Context) {
        if cause == Cause::Spec {
            let namespace = self.metadata.namespace.clone().unwrap_or_default();
            let name = self.metadata.name.clone().unwrap_or_default();
            let used = IndexKey::Uses(Resource::Datasets, namespace, name);
            context.enqueue_key::<neptune_api::JointInferenceService>(&used);
        }
        enqueue_trainings(self, None, context);
    }

    /// Enqueues the trainings that start when the dataset has grown, or that its labels select.
    fn enqueue_by_object(&self, before: Option<&Self>, context: &Context) {
        let read = |dataset: &Self| {
            let samples = dataset.status.as_ref().and_then(|status| status.number_of_samples);
            (samples, dataset.metadata.labels.clone())
        };
        if before.map(read) != Some(read(self)) {
            enqueue_trainings(self, before, context);
        }
    }
}

/// Enqueues the trainings that name the dataset, or that select one of its labels, now or `before`.
fn enqueue_trainings(dataset: &Dataset, before: Option<&Dataset>, context: &Context) {
    let namespace = dataset.metadata.namespace.clone().unwrap_or_default();
    let name = dataset.metadata.name.clone().unwrap_or_default();
    let versions = [before, Some(dataset)].map(|dataset| dataset?.metadata.labels.as_ref());
    context.enqueue_selecting::<TrainingModel>(Resource::Datasets, &namespace, versions);
    context.enqueue_key::<TrainingModel>(&IndexKey::Uses(Resource::Datasets, namespace, name));
}
