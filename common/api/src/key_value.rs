//! The key-value pair of parameters and metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
