//! The stored state of a model server's rollout: the current version, the last good one and the
//! failed one.

use std::collections::BTreeMap;

use neptune_wire::LoadFailure;
use serde::{Deserialize, Serialize};

use crate::domain::served_version::ServedVersion;

/// What is remembered of an object's server, also over restarts of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutState {
    /// What is to run now.
    pub current: Option<ServedVersion>,
    /// What is returned to.
    #[serde(rename = "good")]
    pub last_good: Option<ServedVersion>,
    /// The target that failed.
    pub blocked: Option<String>,
    pub last_failure: Option<LoadFailure>,
    /// What was taken out of the server's directory and answers until it is unloaded.
    #[serde(default, rename = "leaving", skip_serializing_if = "Option::is_none")]
    pub draining: Option<ServedVersion>,
    /// The newest directory of versions, and which edition each version in it was.
    #[serde(rename = "lineage")]
    pub directory_generation: u64,
    #[serde(rename = "used")]
    pub used_names: BTreeMap<String, String>,
}
