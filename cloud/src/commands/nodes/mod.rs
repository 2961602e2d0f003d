//! The `nodes` command: the nodes with an agent, and what runs on one of them, as far as the caller
//! may read it. What is printed is decided by `page.rs`.

mod page;

use std::{collections::HashMap, fmt::Debug, io::Write as _};

use k8s_openapi::{NamespaceResourceScope, jiff::Timestamp};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams};
use neptune_api::{
    EdgeNode, InferenceModel, JointInferenceService, NodeReportSlice, TrainingModel,
};
use serde::de::DeserializeOwned;

use self::page::{NodeWorker, of_model, of_service, of_training};
use super::status::is_forbidden;
use crate::{cli::Nodes, commands::connect::connect, error::Error};

/// The number of objects of a page.
const PAGE: u32 = 500;

/// Prints the nodes, or one of them.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, or no such node.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn nodes(flags: Nodes) -> Result<(), Error> {
    let (client, namespace) = connect(&flags.cluster).await?;
    let api = Api::<EdgeNode>::all(client.clone());
    let text = match &flags.node {
        None => {
            let nodes = list(&api).await.map_err(Error::api("list EdgeNodes"))?;
            let workers = workers(&client, &namespace).await?;
            page::table(&nodes, &workers)
        }
        Some(name) => {
            let step = format!("get EdgeNode {name}");
            let node = api.get_opt(name.as_str()).await.map_err(Error::api(step))?;
            let node = node.ok_or_else(|| {
                Error::Nodes(format!("no agent of node {name} has connected; kubectl neptune nodes lists those that have"))
            })?;
            let workers = workers(&client, &namespace).await?;
            page::details(&node, &workers, Timestamp::now())
        }
    };
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// What runs on all nodes, of the objects that the caller may read.
async fn workers(client: &Client, namespace: &str) -> Result<Vec<NodeWorker>, Error> {
    let services = readable::<JointInferenceService>(client, namespace).await?;
    let models = readable::<InferenceModel>(client, namespace).await?;
    let trainings = readable::<TrainingModel>(client, namespace).await?;
    let has_slices = |service: &JointInferenceService| {
        service.status.as_ref().is_some_and(|status| status.slices.is_some())
    };
    let slices = if services.iter().any(has_slices) {
        readable::<NodeReportSlice>(client, namespace).await?
    } else {
        Vec::new()
    };
    let mut slices_by_owner: HashMap<&str, Vec<&NodeReportSlice>> = HashMap::new();
    for slice in &slices {
        for owner in slice.metadata.owner_references.iter().flatten() {
            slices_by_owner.entry(&owner.uid).or_default().push(slice);
        }
    }
    let of_services = services.iter().flat_map(|service| {
        let uid = service.uid().unwrap_or_default();
        of_service(service, slices_by_owner.get(&*uid).map(Vec::as_slice).unwrap_or_default())
    });
    let of_models = models.iter().flat_map(of_model);
    let of_trainings = trainings.iter().flat_map(of_training);
    Ok(of_services.chain(of_models).chain(of_trainings).collect())
}

/// The objects of all namespaces, or of the one of the kubeconfig, as far as the caller may read them.
async fn readable<K>(client: &Client, namespace: &str) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let (kind, step) = (K::plural(&()), format!("list {}", K::plural(&())));
    match list(&Api::<K>::all(client.clone())).await {
        Err(error) if is_forbidden(&error) => {}
        // Its CRD is not installed.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        result => return result.map_err(Error::api(step)),
    }
    let (what, result) = match list(&Api::<K>::namespaced(client.clone(), namespace)).await {
        Err(error) if is_forbidden(&error) => ("none".to_owned(), Ok(Vec::new())),
        result => (format!("only those of namespace {namespace}"), result),
    };
    let _ = writeln!(std::io::stderr(), "{kind}: {what} can be read");
    result.map_err(Error::api(step))
}

async fn list<K>(api: &Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
