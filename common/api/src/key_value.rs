//! Names with values: parameters, metrics and environment variables.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// KeyValue is a key and its value, both strings.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct KeyValue {
    /// key is the name of the parameter or metric.
    pub key: String,
    /// value is the value as a string: write "0.6", not 0.6.
    pub value: String,
}

impl KeyValue {
    /// Returns a pair of `key` and `value`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

/// EnvironmentVariable is an environment variable of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentVariable {
    /// name is the name of the variable: letters, digits and '_', not starting with a digit.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// value is the value of the variable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}
