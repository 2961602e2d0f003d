//! Writes the `ConfigMap` with the trusted keys of the nodes.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use neptune_cloud_kinds::kubernetes::node_keys::{KeyRecords, NODE_KEYS};
use serde_json::json;

use crate::error::Error;

/// Writes these entries, if the `ConfigMap` still has this resource version; creates it without
/// one. Entries of other nodes stay.
///
/// # Errors
/// The API server rejects the request, with [`neptune_cloud_kinds::error_class::Class::Conflict`] if the `ConfigMap`
/// changed meanwhile.
pub async fn save(
    client: &Client,
    namespace: &str,
    version: Option<&str>,
    entries: &KeyRecords,
) -> Result<(), Error> {
    let data: BTreeMap<String, String> =
        entries.iter().map(|(node, record)| (node.to_string(), record.to_string())).collect();
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let result = if let Some(version) = version {
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "data": data}));
        api.patch(NODE_KEYS, &PatchParams::default(), &patch).await
    } else {
        let metadata = ObjectMeta { name: Some(NODE_KEYS.to_owned()), ..ObjectMeta::default() };
        let config_map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        api.create(&PostParams::default(), &config_map).await
    };
    result.map(drop).map_err(Error::api(format!("write ConfigMap {namespace}/{NODE_KEYS}")))
}
