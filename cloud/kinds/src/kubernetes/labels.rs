//! The labels and annotations that this controller reads and writes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::Kind;

/// The labels of an object, or of a selector.
pub type Labels = BTreeMap<String, String>;

/// Whether labels contain all those of a selector.
pub fn contains(labels: &Labels, selector: &Labels) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Whether an object has all labels of a selector.
pub fn has_labels(metadata: &ObjectMeta, selector: &Labels) -> bool {
    contains(metadata.labels.as_ref().unwrap_or(&Labels::new()), selector)
}

/// The label by which `KubeEdge` marks an edge node.
pub const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";

/// The labels of a control-plane node, today and before Kubernetes 1.24.
pub const CONTROL_PLANE_LABELS: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The label of a node whose agent runs all workers, including cloud workers.
pub const RUNTIME_LABEL: (&str, &str) = ("neptune.io/runtime", "agent");

/// The label of the site of a node.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The label that names the program that manages an object, and its value on objects of this
/// controller.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "neptune-cloud");

/// The label by which a Deployment and a Service select their Pods.
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";

/// The annotation of a Pod that names its owner of a kind, such as `neptune.io/inferencemodel`.
pub fn owner_annotation<K: Kind>() -> String {
    format!("neptune.io/{}", K::kind(&()).to_lowercase())
}
