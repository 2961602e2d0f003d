//! Reads slices from the API server, and finds the rows to which they belong.

use kube::{Api, Resource as _, ResourceExt as _, api::ListParams, core::ObjectMeta};
use neptune_api::{JointInferenceService, NodeReportSlice};
use neptune_cloud_kinds::{fleet::rows::slice_index, kubernetes::labels::MANAGED_BY};

use crate::{controllers::runtime::Context, error::Error};

/// Slices of a page. One has at most 64 KiB.
const PAGE: u32 = 50;

/// The selector of the slices that a controller wrote.
pub fn managed() -> String {
    format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)
}

/// The slice of an object with these metadata.
pub struct SliceId {
    /// Namespace of the slice and its owner.
    pub namespace: String,
    /// The name of the owner.
    pub owner: String,
    /// The uid of the owner.
    pub uid: String,
    /// The index of the slice.
    pub index: u32,
}

impl SliceId {
    /// The owner and the index of a slice; `None` if no controller has made it.
    pub fn new(metadata: &ObjectMeta) -> Option<Self> {
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        let index = slice_index(&owner.name, &owner.uid, metadata.name.as_deref()?)?;
        let namespace = metadata.namespace.clone()?;
        Some(Self { namespace, owner: owner.name.clone(), uid: owner.uid.clone(), index })
    }
}

/// Reads the slices that match a selector, page by page, into the rows of their objects.
///
/// # Errors
/// The API server rejects the request.
pub async fn read(
    api: &Api<NodeReportSlice>,
    selector: &str,
    context: &Context,
) -> Result<(), Error> {
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    loop {
        let page = api.list(&params).await;
        let page = page.map_err(Error::api(format!("list {}", NodeReportSlice::plural(&()))))?;
        let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
        for slice in &page.items {
            let Some(id) = SliceId::new(&slice.metadata) else { continue };
            let owner = context.caches().get::<JointInferenceService>(&id.namespace, &id.owner);
            // The cluster deletes the slices of a deleted service.
            if owner.is_none_or(|owner| owner.metadata.uid.as_ref() != Some(&id.uid)) {
                continue;
            }
            let mut fleet = context.fleet();
            let rows = fleet.rows(&id.uid);
            rows.set_owner(&id.namespace, &id.owner);
            rows.load_slice(id.index, slice.resource_version(), slice);
        }
        let Some(next) = next else { return Ok(()) };
        params = params.continue_token(&next);
    }
}
