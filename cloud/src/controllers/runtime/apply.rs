//! Applies an object's Deployment and Service, and deletes other ones of it. Server-side apply with one field manager;
//! objects of another owner are never changed.

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
    error::Error,
    kubernetes::{identity::is_owned, workloads::KubernetesObjects},
};

/// After a refusal that nothing tells us the end of: a name that is free again, a quota raised.
pub const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Who we are to the API server, on every write.
pub const FIELD_MANAGER: &str = "neptune-cloud";

/// What was applied last, so that a reconcile without a change costs no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    desired: ContentHash,
    deployment: Option<String>,
    service: Option<String>,
}

/// How it went.
#[derive(Debug)]
pub enum Outcome {
    /// The API server has what it should have. `created` is the new Deployment's name, if it is new.
    Done {
        /// To be remembered.
        applied: Option<Applied>,
        /// The Deployment that was made.
        created: Option<String>,
    },
    /// An object of that name is somebody else's.
    NameTaken {
        /// Its kind and name.
        object: String,
    },
}

/// Applies `objects`, or removes what was applied before when an agent runs what they would.
///
/// # Errors
/// The API server's answer.
pub async fn apply<O: Controller>(
    owner: &O,
    objects: Option<&KubernetesObjects>,
    before: Option<&Applied>,
    context: &Context,
) -> Result<Outcome, Error> {
    let (client, caches) = (context.client(), context.caches());
    let keep = objects.map(|objects| objects.deployment.name_any());
    delete_stale(client, owner, &caches.deployments, keep.as_deref()).await?;
    delete_stale(client, owner, &caches.services, keep.as_deref()).await?;
    let Some(KubernetesObjects { deployment, service: address }) = objects else {
        return Ok(Outcome::Done { applied: None, created: None });
    };
    let desired = ContentHash::of(&(deployment, address));
    let unchanged = |cached: Option<String>, known: Option<&String>| {
        // An object that is not cached yet was applied a moment ago: a deletion resets `before`.
        cached.is_none() || cached.as_ref() == known
    };
    let cached_deployment =
        cached(&caches.deployments, deployment).map(|cached| version(&cached.metadata));
    let cached_service = cached(&caches.services, address).map(|cached| version(&cached.metadata));
    if let Some(before) = before.filter(|before| before.desired == desired)
        && unchanged(cached_deployment, before.deployment.as_ref())
        && unchanged(cached_service, before.service.as_ref())
    {
        return Ok(Outcome::Done { applied: Some(before.clone()), created: None });
    }
    let deployed = match apply_one(client, owner, &caches.deployments, deployment).await? {
        ApplyOutcome::NameTaken(object) => return Ok(Outcome::NameTaken { object }),
        ApplyOutcome::Done(applied) => applied,
    };
    let address = match apply_one(client, owner, &caches.services, address).await? {
        ApplyOutcome::NameTaken(object) => return Ok(Outcome::NameTaken { object }),
        ApplyOutcome::Done(applied) => applied,
    };
    let applied = Applied {
        desired,
        deployment: Some(version(&deployed.object.metadata)),
        service: Some(version(&address.object.metadata)),
    };
    let created = deployed.is_new.then(|| deployed.object.name_any());
    Ok(Outcome::Done { applied: Some(applied), created })
}

/// What changes when somebody changes what we applied: the generation where there is one, so that
/// a Deployment's progress is no change.
fn version(metadata: &ObjectMeta) -> String {
    let generation = metadata.generation.filter(|generation| *generation > 0);
    generation.map_or_else(
        || metadata.resource_version.clone().unwrap_or_default(),
        |generation| format!("{}/{generation}", metadata.uid.as_deref().unwrap_or_default()),
    )
}

enum ApplyOutcome<K> {
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
) -> Result<ApplyOutcome<K>, Error>
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
        // The copy has only what carries our label.
        None => api
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("get {object}")))?
            .map(|found| found.meta().clone()),
    };
    let params = PatchParams::apply(FIELD_MANAGER);
    let mut desired = desired.clone();
    let params = match &existing {
        Some(metadata) if !is_owned(metadata, owner) => return Ok(ApplyOutcome::NameTaken(object)),
        Some(metadata) => {
            // Not another one of that name which somebody made meanwhile.
            desired.meta_mut().uid.clone_from(&metadata.uid);
            params.force()
        }
        // Without force: one that somebody makes in this moment is a conflict, and then taken.
        None => params,
    };
    let applied = api
        .patch(&name, &params, &Patch::Apply(&desired))
        .await
        .map_err(Error::api(format!("apply {object}")))?;
    tracing::info!(object, "applied");
    Ok(ApplyOutcome::Done(AppliedObject { object: applied, is_new: existing.is_none() }))
}

fn cached<K>(store: &Store<K>, desired: &K) -> Option<std::sync::Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::from_obj(desired))
}

/// Removes what was made for this owner under another name or for another runtime.
async fn delete_stale<O, K>(
    client: &Client,
    owner: &O,
    store: &Store<K>,
    keep: Option<&str>,
) -> Result<(), Error>
where
    O: Controller,
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + 'static,
{
    let namespace = owner.namespace().unwrap_or_default();
    let stale = store.state_filter(|cached| {
        is_owned(cached.meta(), owner)
            && cached.meta().deletion_timestamp.is_none()
            && Some(cached.name_any().as_str()) != keep
    });
    for object in stale {
        let name = object.name_any();
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let only_this = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
        let params = DeleteParams::background().preconditions(only_this);
        match api.delete(&name, &params).await {
            Ok(_) => tracing::info!(kind = %K::kind(&()), name, "removed"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                let step = format!("delete {} {namespace}/{name}", K::kind(&()));
                return Err(Error::api(step)(error));
            }
        }
    }
    Ok(())
}
