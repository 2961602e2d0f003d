//! Parameters and environment variables of a worker, whose values may differ per node.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeySelector, joint_inference_service::rules, schema};

/// WorkerParameter is a parameter of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::parameter_has_one_value())]
pub struct WorkerParameter {
    /// key is the name of the parameter.
    pub key: String,
    /// value is the value as a string: write "0.6", not 0.6. On a node with an agent, $(NODE_NAME)
    /// is replaced by the name of the node; write $$(NODE_NAME) for the text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// valueFrom is where the value of each node comes from, instead of value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
}

impl WorkerParameter {
    /// Returns a parameter with a value.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: Some(value.into()), value_from: None }
    }
}

/// WorkerVariable is an environment variable of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::variable_has_one_value())]
pub struct WorkerVariable {
    /// name is the name of the variable: letters, digits and '_', not starting with a digit.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// value is the value of the variable. On a node with an agent, $(NODE_NAME) is replaced by the
    /// name of the node; write $$(NODE_NAME) for the text itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// valueFrom is where the value comes from, instead of value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<VariableSource>,
}

/// VariableSource is where the value of a variable comes from. Exactly one of nodeLabel, secretKeyRef
/// and configMapKeyRef is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::variable_has_one_source(),
    validation = rules::optional_of_label()
)]
pub struct VariableSource {
    /// nodeLabel is the key of a label of the node. When its value changes, the worker of that node
    /// is replaced. A node without the label keeps what it runs, and starts nothing. Workers on
    /// nodes with an agent only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 317),
        regex(
            pattern = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub node_label: Option<String>,
    /// optional is whether nodes without the label run the worker without this variable. Defaults to
    /// false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// secretKeyRef is a key of a Secret in the namespace of the service. An agent gets it only if
    /// the Secret has the label neptune.io/edge: allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeySelector>,
    /// configMapKeyRef is a key of a ConfigMap in the namespace of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeySelector>,
}

impl VariableSource {
    /// Returns the source of a label of the node.
    pub fn node_label(key: impl Into<String>, optional: bool) -> Self {
        Self { node_label: Some(key.into()), optional, ..Self::default() }
    }
}

/// ValueSource is where the value of each node comes from. Workers on nodes with an agent only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueSource {
    /// nodeLabel is the key of a label of the node. When its value changes, the worker of that node
    /// is replaced. A node without the label keeps what it runs, and starts nothing.
    #[schemars(
        length(max = 317),
        regex(
            pattern = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub node_label: String,
    /// optional is whether nodes without the label run the worker without this parameter or
    /// variable. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn source_of_a_label_has_its_key() {
        let source = |optional| serde_json::to_value(VariableSource::node_label("a/b", optional));
        assert_eq!(source(true).unwrap(), json!({"nodeLabel": "a/b", "optional": true}));
        assert_eq!(source(false).unwrap()["nodeLabel"], "a/b");
    }
}
