//! Applies an object's Deployment and Service with server-side apply, and deletes stale ones. Never
//! changes objects of another owner.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::reflector::{ObjectRef, Store},
};
use neptune_wire::ContentHash;
use serde::{Serialize, de::DeserializeOwned};

use super::{context::Context, controller::Controller};
use crate::{
    cache::{Indexed, IndexedStore, owned},
    error::Error,
    kubernetes::{identity::is_owned, workloads::KubernetesObjects},
};

/// The pause after a rejection that no watch event resolves: a name in use, an exceeded quota.
pub const REJECTED_RETRY: Duration = Duration::from_secs(30);

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "neptune-cloud";

/// The last applied workload, so that a reconcile without a change sends no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    desired: ContentHash,
    deployment: Option<String>,
    service: Option<String>,
}

/// The result of [`apply`].
#[derive(Debug)]
pub enum WorkloadOutcome {
    /// The API server has the desired workload.
    Done {
        /// The state for the next call; `None` without a workload.
        applied: Option<Applied>,
        /// The name of a created Deployment.
        created: Option<String>,
    },
    /// An object with the desired name has another owner.
    NameTaken {
        /// Kind, namespace and name of that object.
        object: String,
    },
}

/// Applies `objects`, or deletes the applied workload if `objects` is `None`.
///
/// # Errors
/// The error of the API server.
pub async fn apply<O: Controller>(
    owner: &O,
    objects: Option<&KubernetesObjects>,
    before: Option<&Applied>,
    context: &Context,
) -> Result<WorkloadOutcome, Error> {
    let (client, caches) = (context.client(), context.caches());
    let keep = objects.map(|objects| objects.deployment.name_any());
    delete_stale(client, owner, &caches.deployments, keep.as_deref()).await?;
    delete_stale(client, owner, &caches.services, keep.as_deref()).await?;
    let Some(KubernetesObjects { deployment, service: address }) = objects else {
        return Ok(WorkloadOutcome::Done { applied: None, created: None });
    };
    let desired = ContentHash::of(&(deployment, address));
    let unchanged = |cached: Option<String>, known: Option<&String>| {
        // An object that is not cached was applied just now: a deletion resets `before`.
        cached.is_none() || cached.as_ref() == known
    };
    let cached_deployment =
        cached(&caches.deployments, deployment).map(|cached| version(&cached.metadata));
    let cached_service = cached(&caches.services, address).map(|cached| version(&cached.metadata));
    if let Some(before) = before.filter(|before| before.desired == desired)
        && unchanged(cached_deployment, before.deployment.as_ref())
        && unchanged(cached_service, before.service.as_ref())
    {
        return Ok(WorkloadOutcome::Done { applied: Some(before.clone()), created: None });
    }
    let deployed = match apply_one(client, owner, &caches.deployments, deployment).await? {
        ObjectOutcome::NameTaken(object) => return Ok(WorkloadOutcome::NameTaken { object }),
        ObjectOutcome::Done(applied) => applied,
    };
    let address = match apply_one(client, owner, &caches.services, address).await? {
        ObjectOutcome::NameTaken(object) => return Ok(WorkloadOutcome::NameTaken { object }),
        ObjectOutcome::Done(applied) => applied,
    };
    let applied = Applied {
        desired,
        deployment: Some(version(&deployed.object.metadata)),
        service: Some(version(&address.object.metadata)),
    };
    let created = deployed.is_new.then(|| deployed.object.name_any());
    Ok(WorkloadOutcome::Done { applied: Some(applied), created })
}

/// The version that changes with the spec: the generation if the kind has one, so that status
/// updates of a Deployment do not change it.
fn version(metadata: &ObjectMeta) -> String {
    let generation = metadata.generation.filter(|generation| *generation > 0);
    generation.map_or_else(
        || metadata.resource_version.clone().unwrap_or_default(),
        |generation| format!("{}/{generation}", metadata.uid.as_deref().unwrap_or_default()),
    )
}

enum ObjectOutcome<K> {
    Done(AppliedObject<K>),
    NameTaken(String),
}

struct AppliedObject<K> {
    object: K,
    is_new: bool,
}

async fn apply_one<O, K>(
    client: &Client,
    owner: &O,
    store: &Store<K>,
    desired: &K,
) -> Result<ObjectOutcome<K>, Error>
where
    O: Controller,
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + 'static,
{
    let name = desired.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &desired.namespace().unwrap_or_default());
    let object = format!("{} {}/{name}", K::kind(&()), desired.namespace().unwrap_or_default());
    let existing = match cached(store, desired) {
        Some(cached) => Some(cached.meta().clone()),
        // The cache has only objects with the label of Neptune.
        None => api
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("get {object}")))?
            .map(|found| found.meta().clone()),
    };
    let params = PatchParams::apply(FIELD_MANAGER);
    let mut desired = desired.clone();
    let params = match &existing {
        Some(metadata) if !is_owned(metadata, owner) => {
            return Ok(ObjectOutcome::NameTaken(object));
        }
        Some(metadata) => {
            // The uid prevents a change of an object that was recreated meanwhile.
            desired.meta_mut().uid.clone_from(&metadata.uid);
            params.force()
        }
        // Without force an object that is created concurrently is a conflict, and then has another
        // owner.
        None => params,
    };
    let applied = api
        .patch(&name, &params, &Patch::Apply(&desired))
        .await
        .map_err(Error::api(format!("apply {object}")))?;
    tracing::info!(object, "object applied");
    Ok(ObjectOutcome::Done(AppliedObject { object: applied, is_new: existing.is_none() }))
}

fn cached<K>(store: &Store<K>, desired: &K) -> Option<std::sync::Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::from_obj(desired))
}

/// Deletes the objects of this owner with another name than `keep`.
async fn delete_stale<O, K>(
    client: &Client,
    owner: &O,
    store: &IndexedStore<K>,
    keep: Option<&str>,
) -> Result<(), Error>
where
    O: Controller,
    K: Indexed
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + 'static,
{
    let namespace = owner.namespace().unwrap_or_default();
    let is_stale = |cached: &std::sync::Arc<K>| {
        is_owned(cached.meta(), owner)
            && cached.meta().deletion_timestamp.is_none()
            && Some(cached.name_any().as_str()) != keep
    };
    for object in owned(store, owner).into_iter().filter(is_stale) {
        let name = object.name_any();
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let only_this = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
        let params = DeleteParams::background().preconditions(only_this);
        match api.delete(&name, &params).await {
            Ok(_) => tracing::info!(kind = %K::kind(&()), name, "object deleted"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                let step = format!("delete {} {namespace}/{name}", K::kind(&()));
                return Err(Error::api(step)(error));
            }
        }
    }
    Ok(())
}
