//! The last step of every Pod that this controller plans: rights, escaped texts, and the annotation
//! of its owner.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PodSpec, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_core::ResourceExt as _;
use neptune_api::SecurityContext;

use crate::{
    kind::Kind,
    kubernetes::{expansion::escape, labels::owner_annotation, pod_security::restrict},
};

/// The template of an owner's Pods, with the rights of `context`. Every Pod passes through here: its
/// texts are escaped.
pub fn pod_template<K: Kind>(
    owner: &K,
    labels: Option<BTreeMap<String, String>>,
    mut pod: PodSpec,
    context: Option<&SecurityContext>,
) -> PodTemplateSpec {
    restrict(&mut pod, context);
    escape(&mut pod);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels,
            annotations: Some([(owner_annotation::<K>(), owner.name_any())].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    }
}
