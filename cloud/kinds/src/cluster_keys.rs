//! The index keys of Kubernetes' own objects.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Pod, Service},
};
use kube_core::ResourceExt as _;
use neptune_api::EdgeNode;

use crate::{
    index_key::{IndexKey, Indexed, by_owner},
    kind::Kind as _,
    kubernetes::{labels::owner_annotation, node_view::NodeView},
};

impl Indexed for Deployment {
    fn index_keys(&self) -> Vec<IndexKey> {
        by_owner(&self.metadata)
    }
}

impl Indexed for Service {
    fn index_keys(&self) -> Vec<IndexKey> {
        by_owner(&self.metadata)
    }
}

impl Indexed for Pod {
    fn index_keys(&self) -> Vec<IndexKey> {
        let mut keys = Vec::new();
        each_kind!(K => {
            if let Some(name) = self.annotations().get(&owner_annotation::<K>()) {
                let namespace = self.namespace().unwrap_or_default();
                keys.push(IndexKey::OwnerName(K::RESOURCE, namespace, name.clone()));
            }
        });
        keys
    }
}

impl Indexed for Node {
    fn index_keys(&self) -> Vec<IndexKey> {
        // The views of the nodes have keys.
        Vec::new()
    }
}

impl Indexed for EdgeNode {
    fn index_keys(&self) -> Vec<IndexKey> {
        Vec::new()
    }
}

impl Indexed for NodeView {
    fn index_keys(&self) -> Vec<IndexKey> {
        let address = self.is_cloud_address().then_some(IndexKey::CloudAddress);
        let label = |(name, value): (&String, &String)| {
            IndexKey::Label(String::new(), name.clone(), value.clone())
        };
        self.labels.iter().map(label).chain(address).collect()
    }
}

impl Indexed for ConfigMap {
    fn index_keys(&self) -> Vec<IndexKey> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use neptune_api::InferenceModel;

    use super::*;

    #[test]
    fn pod_is_indexed_by_the_object_that_its_annotation_names() {
        let annotations = [(owner_annotation::<InferenceModel>(), "digits".to_owned())];
        let metadata = ObjectMeta {
            namespace: Some("d".to_owned()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let owner = IndexKey::OwnerName(InferenceModel::RESOURCE, "d".into(), "digits".into());
        assert_eq!(pod.index_keys(), [owner]);
        assert_eq!(Pod::default().index_keys(), []);
    }
}
