//! Keeps the specs of the last complete rollouts of an object as `ControllerRevisions`.

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use neptune_cloud_kinds::kubernetes::labels::MANAGED_BY;
use serde_json::Value;

use crate::error::Error;

/// The label with the uid of the object whose spec it is.
const OWNER_LABEL: &str = "neptune.io/rollout-of";

/// The number of specs that are kept, with the present one.
const KEPT: usize = 2;

/// Records the spec of a complete rollout as the newest one, and deletes older ones.
///
/// # Errors
/// The API server rejects a request.
pub async fn record<K>(
    client: &Client,
    object: &K,
    (revision, spec): (&str, Value),
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()>,
{
    let (Some(namespace), Some(uid)) = (object.namespace(), object.uid()) else { return Ok(()) };
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &namespace);
    let what = format!("ControllerRevisions of {} {namespace}/{}", K::kind(&()), object.name_any());
    let error = |verb: &str| Error::api(format!("{verb} {what}"));
    let selector = ListParams::default().labels(&format!("{OWNER_LABEL}={uid}"));
    let mut known = api.list(&selector).await.map_err(error("list"))?.items;
    known.sort_by_key(|known| known.revision);
    let name = format!("rollout-{uid}-{revision}");
    // A restart is a rollout of the same spec, which would push out the one to return to.
    let is_recorded = |newest: &ControllerRevision| {
        newest.name_any() == name || newest.data.as_ref().is_some_and(|data| data.0 == spec)
    };
    if known.last().is_some_and(is_recorded) {
        return Ok(());
    }
    let number = known.last().map_or(1, |newest| newest.revision + 1);
    // A revision that is current again is the newest. Its number cannot be changed.
    let (again, others): (Vec<_>, Vec<_>) = known.into_iter().partition(|it| it.name_any() == name);
    let surplus = (others.len() + 1).saturating_sub(KEPT);
    for old in again.iter().chain(others.iter().take(surplus)) {
        let deleted = api.delete(&old.name_any(), &DeleteParams::default()).await;
        deleted.map(drop).map_err(error("delete"))?;
    }
    let labels = [MANAGED_BY, (OWNER_LABEL, uid.as_str())];
    let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
    let new = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.clone()),
            labels: Some(labels.into()),
            owner_references: object.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(spec)),
        revision: number,
    };
    api.create(&PostParams::default(), &new).await.map(drop).map_err(error("create"))
}
