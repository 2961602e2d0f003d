//! On how many of the selected nodes a workload runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement is on how many of the nodes that a nodeSelector matches a workload runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// The workload runs on one of the nodes, which is chosen and kept.
    #[default]
    One,
    /// The workload runs on each of the nodes.
    All,
}
