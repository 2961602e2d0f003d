//! The `status` command: reads an object and the objects it refers to from the API server, and
//! prints a page. `build.rs` and the `*_page.rs` decide the content, `section.rs` is what a layout
//! gets, and `text.rs` is the layout of a terminal. `node_rows` prints rows of nodes instead.

mod build;
mod cascade;
mod dataset_page;
mod fleet;
pub(super) mod format;
mod model_page;
pub(super) mod node_rows;
mod page;
mod ready_page;
pub(super) mod section;
mod service_page;
#[cfg(test)]
mod tests;
pub(super) mod text;
mod training;
mod training_page;
pub(super) mod worker_rows;

use std::{fmt::Debug, io::Write as _};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Event, Node},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ListParams, ObjectList},
};
use neptune_api::{Dataset, EdgeNode, InferenceModel, JointInferenceService, Model, TrainingModel};
use serde::de::DeserializeOwned;

use crate::{
    cli::{ObjectArgument, Output, Status},
    commands::{
        connect::connect,
        status::{build::RelatedObjects, node_rows::Wanted, page::Page},
    },
    error::Error,
};

/// Prints the page of one object, or rows of its nodes.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, or no such object or node.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn status(flags: Status) -> Result<(), Error> {
    let (client, default) = connect(&flags.cluster).await?;
    let namespace = flags.namespace.unwrap_or(default);
    if let Some(wanted) = Wanted::new(flags.nodes, flags.node) {
        return node_rows::print(&client, (&namespace, &flags.object), wanted, flags.output).await;
    }
    let page = match flags.object {
        ObjectArgument::Service(name) => service(&client, &namespace, &name).await?,
        ObjectArgument::InferenceModel(name) => inference_model(&client, &namespace, &name).await?,
        ObjectArgument::TrainingModel(name) => training_model(&client, &namespace, &name).await?,
        ObjectArgument::Model(name) => model(&client, &namespace, &name).await?,
        ObjectArgument::Dataset(name) => dataset(&client, &namespace, &name).await?,
    };
    let output = match flags.output {
        Output::Text => text::text(&page, Timestamp::now()),
        Output::Json => {
            serde_json::to_string_pretty(&page).expect("a page has only strings and numbers") + "\n"
        }
    };
    // A closed pipe (`| head`) is not an error.
    let _ = std::io::stdout().write_all(output.as_bytes());
    Ok(())
}

async fn service(client: &Client, namespace: &str, name: &str) -> Result<Page, Error> {
    let service: JointInferenceService = get(client, namespace, name).await?;
    let mut nodes: Vec<&str> =
        worker_rows::listed(&service).map(|worker| worker.node.as_str()).collect();
    nodes.extend(service.spec.edge_worker.node_name.as_deref());
    nodes.extend(service.spec.cloud_worker.node_name.as_deref());
    let mut related = related_objects(client, &service, &nodes).await?;
    related.inference_models = list(client, namespace, &ListParams::default()).await?;
    if let Some(other) = &service.spec.cloud_worker.service {
        related.cloud_service =
            find(&Api::namespaced(client.clone(), namespace), &other.name).await?;
    }
    Ok(service_page::of_service(&service, &related))
}

async fn inference_model(client: &Client, namespace: &str, name: &str) -> Result<Page, Error> {
    let model: InferenceModel = get(client, namespace, name).await?;
    let status = model.status.iter();
    let mut nodes: Vec<&str> = status
        .flat_map(|status| {
            status.node.iter().chain(status.servers.iter().map(|server| &server.node))
        })
        .map(String::as_str)
        .collect();
    if nodes.is_empty() {
        nodes.extend(model.spec.node_name.as_deref());
    }
    let related = related_objects(client, &model, &nodes).await?;
    Ok(build::of_inference_model(&model, &related))
}

async fn training_model(client: &Client, namespace: &str, name: &str) -> Result<Page, Error> {
    let model: TrainingModel = get(client, namespace, name).await?;
    let rows = model.status.iter().flat_map(|status| &status.workers);
    let mut nodes: Vec<&str> = rows.map(|row| row.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let related = related_objects(client, &model, &nodes).await?;
    Ok(training_page::of_training(&model, &related))
}

async fn model(client: &Client, namespace: &str, name: &str) -> Result<Page, Error> {
    let model: Model = get(client, namespace, name).await?;
    let nodes: Vec<_> = model_page::nodes(&model).collect();
    let related = related_objects(client, &model, &nodes).await?;
    Ok(model_page::of_model(&model, &related))
}

async fn dataset(client: &Client, namespace: &str, name: &str) -> Result<Page, Error> {
    let dataset: Dataset = get(client, namespace, name).await?;
    let nodes: Vec<_> = dataset_page::nodes(&dataset).collect();
    let related = related_objects(client, &dataset, &nodes).await?;
    Ok(dataset_page::of_dataset(&dataset, &related))
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let step = format!("get {} {namespace}/{name}", K::kind(&()));
    Api::<K>::namespaced(client.clone(), namespace).get(name).await.map_err(Error::api(step))
}

/// Objects that the user may not read are left out.
async fn related_objects<K>(
    client: &Client,
    object: &K,
    nodes: &[&str],
) -> Result<RelatedObjects, Error>
where
    K: Resource<DynamicType = ()>,
{
    let namespace = object.namespace().unwrap_or_default();
    let uid = object.uid().unwrap_or_default();
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    let all = ListParams::default();
    let (models, deployments, events) = futures::try_join!(
        list::<Model>(client, &namespace, &all),
        list::<Deployment>(client, &namespace, &all),
        list::<Event>(client, &namespace, &about),
    )?;
    let (mut node_objects, mut edge_nodes) = (Vec::new(), Vec::new());
    for name in nodes {
        if let Some(node) = find(&Api::<Node>::all(client.clone()), name).await? {
            node_objects.push(node);
        } else {
            edge_nodes.extend(find(&Api::<EdgeNode>::all(client.clone()), name).await?);
        }
    }
    let is_own = |deployment: &Deployment| {
        deployment.owner_references().iter().any(|owner| owner.uid == uid)
    };
    Ok(RelatedObjects {
        models,
        nodes: node_objects,
        edge_nodes,
        deployments: deployments.into_iter().filter(is_own).collect(),
        events,
        ..RelatedObjects::default()
    })
}

/// An object, if it exists and the user may read it.
async fn find<K>(api: &Api<K>, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match api.get_opt(name).await {
        Err(error) if is_forbidden(&error) => Ok(None),
        result => result.map_err(Error::api(format!("get {} {name}", K::kind(&())))),
    }
}

async fn list<K>(client: &Client, namespace: &str, which: &ListParams) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let result: Result<ObjectList<K>, _> =
        Api::namespaced(client.clone(), namespace).list(which).await;
    match result {
        Ok(list) => Ok(list.items),
        Err(error) if is_forbidden(&error) => Ok(Vec::new()),
        Err(error) => Err(Error::api(format!("list {}", K::plural(&())))(error)),
    }
}

pub(super) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}
