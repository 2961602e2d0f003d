//! The plan of a dataset: its node gets the object as it is in the API, and each replica gets it
//! without the address of the data.

use std::sync::Arc;

use neptune_api::{Dataset, DatasetDeletions, DatasetSpec};
use neptune_wire::{
    DatasetContent, NodeName, ObjectContent, ObjectKey, ObjectName, ReplicaDeletions, ReplicaOf,
    Resource,
};

use super::place::{self, PlacedDataset};
use crate::{
    fleet::{Retained, encode_contents},
    kubernetes::identity::{self, key, shared_metadata},
    steps::ObjectPlan,
};

/// The key of a Dataset in the namespace of another object.
pub fn object_key(referrer: &ObjectKey, name: ObjectName) -> ObjectKey {
    ObjectKey { namespace: referrer.namespace.clone(), resource: Resource::Datasets, name }
}

/// The plan of a dataset on its nodes.
pub fn plan(dataset: &Dataset, placed: &PlacedDataset) -> ObjectPlan {
    let Some(key) = key(dataset) else { return ObjectPlan::default() };
    let nodes = placed.replicas.iter().chain([&placed.source]);
    let requirements = nodes.map(|node| {
        let contents = [(key.clone(), content(dataset, &key, node))].into();
        (node.clone(), encode_contents(contents))
    });
    ObjectPlan { requirements: requirements.collect(), ..ObjectPlan::default() }
}

/// The content for a node. A service that uses the dataset there plans the same content.
pub fn content(dataset: &Dataset, key: &ObjectKey, node: &NodeName) -> ObjectContent {
    let is_source = dataset.spec.node_name == node.as_str();
    // The list of all replicas is no concern of a replica.
    let spec = DatasetSpec { replicas: None, ..dataset.spec.clone() };
    let mut replicas: Vec<NodeName> =
        place::names(dataset).iter().filter_map(|name| name.parse().ok()).collect();
    replicas.sort();
    let replica_of = || {
        Some(ReplicaOf {
            node: dataset.spec.node_name.parse().ok()?,
            deletions: match dataset.spec.replicas.as_ref()?.deletions {
                None | Some(DatasetDeletions::Follow) => ReplicaDeletions::Follow,
                Some(DatasetDeletions::Keep) => ReplicaDeletions::Keep,
            },
        })
    };
    ObjectContent {
        dataset: Some(Box::new(DatasetContent {
            url: if is_source { dataset.spec.data_url.clone() } else { String::new() },
            format: dataset.spec.format.clone(),
            header: dataset.spec.header,
            delimiter: dataset.spec.delimiter.clone(),
            label_column: dataset.spec.label_column.clone(),
            member: dataset.spec.member.clone(),
            replica_of: if is_source { None } else { replica_of() },
            replicas: if is_source { replicas } else { Vec::new() },
        })),
        ..identity::content::<Dataset>(shared_metadata(dataset, key), &spec)
    }
}

/// The objects that its nodes retain while the dataset is invalid.
pub fn retained(dataset: &Dataset, key: &ObjectKey) -> Retained {
    let names = place::names(dataset).iter().chain([&dataset.spec.node_name]);
    let nodes = names.filter_map(|name| name.parse::<NodeName>().ok());
    let keys = Arc::new([key.clone()].into());
    nodes.map(|node| (node, Arc::clone(&keys))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dataset::fixtures;

    #[test]
    fn node_gets_the_object_as_it_is_in_the_api() {
        let key: ObjectKey = "default/datasets/dataset-examp".parse().unwrap();
        let node: NodeName = "edge0".parse().unwrap();
        let content = content(&fixtures::dataset(), &key, &node);
        assert_eq!(
            serde_json::to_value(&content).unwrap(),
            serde_json::json!({
                "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
                "metadata": {"namespace": "default", "name": "dataset-examp", "uid": "uid-of-the-dataset"},
                "spec": {"dataUrl": "/code/data", "format": "txt", "nodeName": "edge0"},
                "dataset": {"url": "/code/data", "format": "txt"},
            })
        );
        let retained = retained(&fixtures::dataset(), &key);
        assert_eq!(retained, [(node, Arc::new([key].into()))].into());
    }

    #[test]
    fn replica_gets_the_source_in_place_of_the_address() {
        let key: ObjectKey = "default/datasets/dataset-examp".parse().unwrap();
        let nodes = ["edge0", "edge1", "edge2"].map(|node| node.parse::<NodeName>().unwrap());
        let dataset = fixtures::replicated(&["edge2", "edge1"]);
        let placed = PlacedDataset {
            source: nodes[0].clone(),
            replicas: nodes[1..].to_vec(),
            unusable: Vec::new(),
        };
        let plan = plan(&dataset, &placed);
        assert_eq!(plan.requirements.keys().collect::<Vec<_>>(), nodes.iter().collect::<Vec<_>>());
        let sent = |node: &NodeName| {
            let content = plan.requirements[node][&key].content();
            serde_json::to_value(content.dataset).unwrap()
        };
        assert_eq!(
            sent(&nodes[0]),
            serde_json::json!({"url": "/code/data", "format": "txt", "replicas": ["edge1", "edge2"]})
        );
        let copy = serde_json::json!({
            "url": "", "format": "txt", "replicaOf": {"node": "edge0", "deletions": "Follow"},
        });
        assert_eq!((sent(&nodes[1]), sent(&nodes[2])), (copy.clone(), copy));
        // Another replica does not concern this one.
        let fewer = fixtures::replicated(&["edge1"]);
        assert_eq!(
            content(&fewer, &key, &nodes[1]).hash(),
            *plan.requirements[&nodes[1]][&key].hash()
        );
        assert_eq!(retained(&dataset, &key).len(), 3);
    }
}
