//! The plan of a dataset: its node gets the object as it is in the API. Pure.

use kube::Resource as _;
use neptune_api::Dataset;
use neptune_wire::{
    DatasetContent, NodeName, ObjectContent, ObjectKey, ObjectMetadata, ObjectName, Resource,
};

use crate::{controllers::runtime::ObjectPlan, fleet::Retained, kubernetes::identity::key};

/// The key of a Dataset in the namespace of another object.
pub fn object_key(referrer: &ObjectKey, name: ObjectName) -> ObjectKey {
    ObjectKey { namespace: referrer.namespace.clone(), resource: Resource::Datasets, name }
}

/// The plan of a dataset on its node.
pub fn plan(dataset: &Dataset, node: &NodeName) -> ObjectPlan {
    let Some(key) = key(dataset) else { return ObjectPlan::default() };
    let contents = [(key.clone(), content(dataset, &key))].into();
    ObjectPlan { requirements: [(node.clone(), contents)].into(), ..ObjectPlan::default() }
}

/// The content for the node. A service that uses the dataset plans the same content.
pub fn content(dataset: &Dataset, key: &ObjectKey) -> ObjectContent {
    ObjectContent {
        api_version: Dataset::api_version(&()).into_owned(),
        kind: Dataset::kind(&()).into_owned(),
        metadata: ObjectMetadata {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: dataset.metadata.uid.clone().unwrap_or_default(),
        },
        spec: serde_json::to_value(&dataset.spec).expect("a spec came from JSON"),
        model: None,
        dataset: Some(Box::new(DatasetContent {
            url: dataset.spec.data_url.clone(),
            format: dataset.spec.format.clone(),
            header: dataset.spec.header,
            delimiter: dataset.spec.delimiter.clone(),
            label_column: dataset.spec.label_column.clone(),
            member: dataset.spec.member.clone(),
        })),
        workers: Vec::new(),
        serving: None,
        training: None,
    }
}

/// The objects that its node retains while the dataset is invalid.
pub fn retained(dataset: &Dataset, key: &ObjectKey) -> Retained {
    let node = dataset.spec.node_name.parse::<NodeName>();
    node.into_iter().map(|node| (node, [key.clone()].into())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::controllers::dataset::fixtures;

    #[test]
    fn node_gets_the_object_as_it_is_in_the_api() {
        let key: ObjectKey = "default/datasets/dataset-examp".parse().unwrap();
        let content = content(&fixtures::dataset(), &key);
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
        assert_eq!(retained, [("edge0".parse().unwrap(), [key].into())].into());
    }
}
