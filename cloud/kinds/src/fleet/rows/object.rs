//! The name and the metadata of the slices of a service.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource as _;
use neptune_api::{JointInferenceService, NodeReportSlice};

use super::SliceWrite;
use crate::kubernetes::labels::MANAGED_BY;

/// The longest name of an owner that is in the name of its slices. Others differ by their uid.
const MAX_OWNER_CHARS: usize = 200;

/// Characters of the uid of the owner in the name.
const UID_CHARS: usize = 8;

fn prefix(owner: &str, uid: &str) -> String {
    let owner: String = owner.chars().take(MAX_OWNER_CHARS).collect();
    let uid: String = uid.chars().filter(char::is_ascii_alphanumeric).take(UID_CHARS).collect();
    format!("{owner}-{uid}-")
}

/// The index of a slice by its name; `None` if no controller has given it.
pub fn slice_index(owner: &str, uid: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(&prefix(owner, uid))?;
    let index: u32 = digits.parse().ok()?;
    (format!("{index:03}") == digits).then_some(index)
}

/// The label of the slices of a service with this name. Long names may have the same one.
pub fn owner_label(name: &str) -> String {
    let label: String = name.chars().take(63).collect();
    label.trim_end_matches(['-', '.']).to_owned()
}

/// The slice of a service with this content.
pub fn slice_object(service: &JointInferenceService, write: &SliceWrite) -> NodeReportSlice {
    let name = service.metadata.name.clone().unwrap_or_default();
    let uid = service.metadata.uid.clone().unwrap_or_default();
    let mut object = write.content.object();
    object.metadata = ObjectMeta {
        name: Some(format!("{}{:03}", prefix(&name, &uid), write.index)),
        namespace: service.metadata.namespace.clone(),
        resource_version: write.version.clone(),
        labels: Some(
            [
                (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
                (NodeReportSlice::OWNER_LABEL.to_owned(), owner_label(&name)),
            ]
            .into(),
        ),
        owner_references: service.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    object
}
