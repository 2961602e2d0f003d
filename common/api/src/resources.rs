//! The resource limits of a container: the fields that several kinds share, in the form of a Pod.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::rules;

/// Maximum number of devices of one resource that a container may request.
pub const MAX_DEVICES: u32 = 64;

/// ResourceRequirements are the resource limits of a container, as in a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct ResourceRequirements {
    /// limits are the resource limits. cpu and memory are Kubernetes quantities, such as "500m" or
    /// "256Mi". Other names, such as nvidia.com/gpu, are devices of the node: how many of them the
    /// container gets, 1 to 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(
        validation = rules::limits_known(),
        validation = rules::limits_without_pod_resources(),
        validation = rules::devices_counted(MAX_DEVICES),
        validation = rules::limit_above_zero("cpu"),
        validation = rules::limit_above_zero("memory")
    )]
    pub limits: Option<Limits>,
}

/// Limits are the limits of a container, by resource.
pub type Limits = BTreeMap<String, Quantity>;

/// Quantity is a Kubernetes quantity: a whole number or a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// A whole number, such as `1`.
    Number(i64),
    /// A text, such as `500m`.
    Text(String),
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 64})
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_is_shown_as_it_is_written() {
        assert_eq!(Quantity::Number(2).to_string(), "2");
        assert_eq!(Quantity::from("500m").to_string(), "500m");
    }
}
