//! Reads and writes the `ConfigMap` of the join tokens. It exists from the manifests.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use neptune_cloud_kinds::join::token_entry::{TokenEntry, value};
use neptune_join::TokenId;

use crate::{error::Error, kubernetes::FIELD_MANAGER};

/// The name of the `ConfigMap`.
pub const TOKENS: &str = "neptune-join-tokens";

/// The key with the certificate of the authority, from which `enroll` takes the pin.
pub const AUTHORITY: &str = "ca.crt";

/// Returns the `ConfigMaps` of a namespace.
pub fn api(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

/// Reads the `ConfigMap`.
///
/// # Errors
/// The API server rejects the request, or the `ConfigMap` does not exist.
pub async fn get(maps: &Api<ConfigMap>) -> Result<ConfigMap, Error> {
    maps.get(TOKENS).await.map_err(Error::api(format!("get ConfigMap {TOKENS}")))
}

/// Replaces the version of the `ConfigMap` that was read.
///
/// # Errors
/// The API server rejects the request, with the class `Conflict` if the `ConfigMap` changed meanwhile.
pub async fn replace(maps: &Api<ConfigMap>, map: &ConfigMap) -> Result<ConfigMap, Error> {
    let params =
        PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let written = maps.replace(TOKENS, &params, map).await;
    written.map_err(Error::api(format!("update ConfigMap {TOKENS}")))
}

/// Returns the data of a `ConfigMap`.
pub fn data(map: &ConfigMap) -> BTreeMap<String, String> {
    map.data.clone().unwrap_or_default()
}

/// Adds a token, or changes it.
pub fn insert(map: &mut ConfigMap, id: &TokenId, entry: &TokenEntry) {
    map.data.get_or_insert_default().insert(id.as_str().to_owned(), value(entry));
}
