//! Applies the objects that an object owns with server-side apply, and deletes stale ones. Never
//! changes objects of another owner.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{
    NamespaceResourceScope, api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::reflector::{ObjectRef, Store},
};
use neptune_api::InferenceModel;
use neptune_cloud_kinds::{
    index_key::Indexed,
    kind::Kind,
    kubernetes::{
        identity::is_owned,
        workloads::{ExposedService, KubernetesObjects, OwnedObjects},
    },
    worker::restart::keep_restart,
};
use neptune_wire::ContentHash;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{context::Context, state::Applied};
use crate::{
    cache::{Cached as _, IndexedStore, owned},
    error::Error,
    kubernetes::FIELD_MANAGER,
};

/// The pause after a rejection that no watch event resolves: a name in use, an exceeded quota.
pub const REJECTED_RETRY: Duration = Duration::from_secs(30);

/// The outcome of applying a workload with [`apply`].
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

/// Applies only the Service of a workload, whose address nodes wait for. `None` if its name is
/// taken.
///
/// # Errors
/// The error of the API server.
pub async fn apply_service<O: Kind>(
    owner: &O,
    service: &Service,
    context: &Context,
) -> Result<Option<Applied>, Error> {
    let store = context.caches().services.store();
    Ok(match apply_one(context.client(), owner, Some(store), service).await? {
        ObjectOutcome::Done(applied) => Some(Applied {
            desired: ContentHash::compute(service),
            versions: vec![version(applied.object.meta())],
        }),
        ObjectOutcome::NameTaken(_) => None,
    })
}

/// Applies `objects` and `others`, and deletes other objects of the owner. `before` is the result of
/// the last call, and `service_before` that of [`apply_service`].
///
/// # Errors
/// The error of the API server.
pub async fn apply<O: Kind>(
    owner: &O,
    (objects, others): (Option<&KubernetesObjects>, &OwnedObjects),
    (before, service_before): (Option<&Applied>, Option<&Applied>),
    context: &Context,
) -> Result<WorkloadOutcome, Error> {
    let (client, caches) = (context.client(), context.caches());
    let workload = objects.map(|objects| objects.deployment.name_any());
    let exposed = others.exposed.as_ref().map(|exposed| exposed.service.name_any());
    let models: Vec<_> = others.models.iter().map(ResourceExt::name_any).collect();
    delete_stale(client, owner, &caches.deployments, workload.as_slice()).await?;
    let services: Vec<_> = workload.iter().chain(&exposed).cloned().collect();
    delete_stale(client, owner, &caches.services, &services).await?;
    delete_stale(client, owner, InferenceModel::cache(caches), &models).await?;
    if objects.is_none() && *others == OwnedObjects::default() {
        return Ok(WorkloadOutcome::Done { applied: None, created: None });
    }
    let desired = ContentHash::compute(&(
        objects.map(|objects| (&objects.deployment, &objects.service)),
        others.exposed.as_ref().map(|exposed| (&exposed.service, &exposed.endpoints)),
        &others.models,
    ));
    let cached_versions = cached_versions((objects, others), context);
    if let Some(before) = before.filter(|before| before.desired == desired)
        && is_unchanged(&cached_versions, &before.versions)
    {
        return Ok(WorkloadOutcome::Done { applied: Some(before.clone()), created: None });
    }
    let mut versions = Vec::new();
    let mut created = None;
    macro_rules! apply_each {
        ($store:expr, $object:expr) => {
            match apply_one(client, owner, $store, $object).await? {
                ObjectOutcome::NameTaken(object) => {
                    return Ok(WorkloadOutcome::NameTaken { object });
                }
                ObjectOutcome::Done(applied) => {
                    versions.push(version(applied.object.meta()));
                    applied
                }
            }
        };
    }
    if let Some(KubernetesObjects { deployment, service }) = objects {
        let mut deployment = deployment.clone();
        if let Some(present) = cached(&caches.deployments, &deployment) {
            keep_restart(&mut deployment, &present);
        }
        let deployed = apply_each!(Some(caches.deployments.store()), &deployment);
        created = deployed.is_new.then(|| deployed.object.name_any());
        let present = cached(&caches.services, service).map(|it| version(&it.metadata));
        match service_before.filter(|before| is_still(before, service, present)) {
            Some(before) => versions.extend(before.versions.iter().cloned()),
            None => drop(apply_each!(Some(caches.services.store()), service)),
        }
    }
    if let Some(ExposedService { service, .. }) = &others.exposed {
        apply_each!(Some(caches.services.store()), service);
    }
    for model in &others.models {
        apply_each!(Some(InferenceModel::cache(caches).store()), model);
    }
    if let Some(ExposedService { endpoints, .. }) = &others.exposed {
        // Not watched: a change by another is not detected before the next one of the service.
        apply_each!(None, endpoints);
    }
    Ok(WorkloadOutcome::Done { applied: Some(Applied { desired, versions }), created })
}

/// The versions in the caches, in the order in which [`apply`] applies the objects.
fn cached_versions(
    (objects, others): (Option<&KubernetesObjects>, &OwnedObjects),
    context: &Context,
) -> Vec<Option<String>> {
    let caches = context.caches();
    let mut versions = Vec::new();
    if let Some(KubernetesObjects { deployment, service }) = objects {
        versions.push(cached(&caches.deployments, deployment).map(|it| version(&it.metadata)));
        versions.push(cached(&caches.services, service).map(|it| version(&it.metadata)));
    }
    if let Some(ExposedService { service, .. }) = &others.exposed {
        versions.push(cached(&caches.services, service).map(|it| version(&it.metadata)));
    }
    let models = InferenceModel::cache(caches);
    versions.extend(
        others.models.iter().map(|model| cached(models, model).map(|it| version(&it.metadata))),
    );
    versions
}

/// Whether `object` is what was applied, and its cached version, if any, the applied one.
fn is_still<K: Serialize>(before: &Applied, object: &K, cached: Option<String>) -> bool {
    before.desired == ContentHash::compute(object) && is_unchanged(&[cached], &before.versions)
}

/// Whether no cached object is another one than that which was applied. An object that is not
/// cached was applied just now: a deletion resets what was applied.
fn is_unchanged(cached: &[Option<String>], applied: &[String]) -> bool {
    cached
        .iter()
        .zip(applied)
        .all(|(cached, applied)| cached.is_none() || cached.as_ref() == Some(applied))
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
    store: Option<&Store<K>>,
    desired: &K,
) -> Result<ObjectOutcome<K>, Error>
where
    O: Kind,
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
    let existing = match store.and_then(|store| cached(store, desired)) {
        Some(cached) => Some(cached.meta().clone()),
        // The cache may have only objects with the label of Neptune.
        None => api
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("get {object}")))?
            .map(|it| it.meta().clone()),
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
        .patch(&name, &params, &Patch::Apply(&without_status(&desired)))
        .await
        .map_err(Error::api(format!("apply {object}")))?;
    tracing::info!(object, "object applied");
    Ok(ObjectOutcome::Done(AppliedObject { object: applied, is_new: existing.is_none() }))
}

/// A status has its own subresource, and no type writes `null` into it.
fn without_status(desired: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(desired).expect("an object is JSON");
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    value
}

fn cached<K>(store: &Store<K>, desired: &K) -> Option<std::sync::Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::from_obj(desired))
}

/// Deletes the objects of this owner with another name than those in `keep`.
async fn delete_stale<O, K>(
    client: &Client,
    owner: &O,
    store: &IndexedStore<K>,
    keep: &[String],
) -> Result<(), Error>
where
    O: Kind,
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
            && !keep.contains(&cached.name_any())
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
