//! The resource limits of a container: the fields that several kinds share, in the form of a Pod.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// ResourceRequirements are the resource limits of a container, as in a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// limits are the resource limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Limits are the resource limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Limits {
    /// cpu is the CPU limit: a Kubernetes quantity in quotes, such as "1" or "500m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub cpu: Option<String>,
    /// memory is the memory limit: a Kubernetes quantity in quotes, such as "256Mi".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub memory: Option<String>,
}
