//! On how many of the selected nodes something runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement is on how many of the nodes that a nodeSelector matches something runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// On one of them, which is chosen and kept.
    #[default]
    One,
    /// On each of them.
    All,
}
