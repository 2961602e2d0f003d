//! The index keys of Kubernetes' own objects. Pure.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Node, Pod, Service},
};
use kube_core::ResourceExt as _;

use crate::{
    index_key::{IndexKey, Indexed, by_label, by_owner},
    kind::Kind as _,
    kubernetes::{
        labels::owner_annotation,
        nodes::{internal_address, is_edge_node},
    },
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
        let has_address = !is_edge_node(self) && internal_address(self).is_some();
        let address = has_address.then_some(IndexKey::CloudAddress);
        by_label(&self.metadata).chain(address).collect()
    }
}

impl Indexed for ConfigMap {
    fn index_keys(&self) -> Vec<IndexKey> {
        Vec::new()
    }
}
