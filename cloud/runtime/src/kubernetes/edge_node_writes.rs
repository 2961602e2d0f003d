//! Creates `EdgeNodes` and writes to them.

use std::collections::BTreeMap;

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use neptune_api::{EdgeNode, EdgeNodeSpec};
use neptune_wire::NodeName;
use serde_json::{Value, json};

use super::FIELD_MANAGER;
use crate::error::Error;

/// Reads the `EdgeNode` of a node from the API server, if it exists.
///
/// # Errors
/// The API server rejects the request.
pub async fn get(client: &Client, node: &NodeName) -> Result<Option<EdgeNode>, Error> {
    let api: Api<EdgeNode> = Api::all(client.clone());
    api.get_opt(node.as_str()).await.map_err(Error::api(format!("get EdgeNode {node}")))
}

/// Creates the `EdgeNode` of a node.
///
/// # Errors
/// The API server rejects the request, with the class `Conflict` if the `EdgeNode` exists.
pub async fn create(
    client: &Client,
    node: &NodeName,
    spec: EdgeNodeSpec,
) -> Result<EdgeNode, Error> {
    let api: Api<EdgeNode> = Api::all(client.clone());
    let object = EdgeNode::new(node.as_str(), spec);
    let created = api.create(&PostParams::default(), &object).await;
    created.map_err(Error::api(format!("create EdgeNode {node}")))
}

/// Changes these fields of the spec, if the `EdgeNode` still has this resource version.
///
/// # Errors
/// The API server rejects the request, with the class `Conflict` if the `EdgeNode` changed meanwhile.
pub async fn patch_spec(
    client: &Client,
    node: &NodeName,
    version: Option<String>,
    spec: Value,
) -> Result<(), Error> {
    let api: Api<EdgeNode> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": spec}));
    let patched = api.patch(node.as_str(), &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(Error::api(format!("patch EdgeNode {node}")))
}

/// Adds labels to the `EdgeNode` of a node, or changes their values.
///
/// # Errors
/// The API server rejects the request.
pub async fn patch_labels(
    client: &Client,
    node: &NodeName,
    labels: &[(String, String)],
) -> Result<(), Error> {
    let api: Api<EdgeNode> = Api::all(client.clone());
    let labels: BTreeMap<_, _> = labels.iter().cloned().collect();
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    let patched = api.patch(node.as_str(), &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(Error::api(format!("label EdgeNode {node}")))
}

/// Changes these fields of the status, if the `EdgeNode` still has this resource version. `None`
/// stands for any.
///
/// # Errors
/// The API server rejects the request, with the class `Conflict` if the `EdgeNode` changed meanwhile.
pub async fn patch_status(
    client: &Client,
    node: &NodeName,
    version: Option<String>,
    status: Value,
) -> Result<(), Error> {
    let api: Api<EdgeNode> = Api::all(client.clone());
    let mut patch = json!({"status": status});
    if let Some(version) = version {
        patch["metadata"] = json!({"resourceVersion": version});
    }
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patched = api.patch_status(node.as_str(), &params, &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(Error::api(format!("write the status of EdgeNode {node}")))
}
