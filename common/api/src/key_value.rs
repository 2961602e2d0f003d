//! The pair that parameters and metrics are lists of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key and its value, both text.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value, always as text: write "0.6", not 0.6.
    pub value: String,
}

impl KeyValue {
    /// A pair.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}
