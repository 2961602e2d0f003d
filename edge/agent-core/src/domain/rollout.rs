//! The stored state of a model server's rollout: the running, the last good and the failed version.

use std::collections::BTreeMap;

use neptune_wire::LoadFailure;
use serde::{Deserialize, Serialize};

use crate::domain::served_version::ServedVersion;

/// The rollout of an object's model server. Survives restarts of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutState {
    /// The version that must run now.
    pub current: Option<ServedVersion>,
    /// The version to return to if the current one fails.
    #[serde(rename = "good")]
    pub last_good: Option<ServedVersion>,
    /// The target version that failed, with its values: the ID of its trial.
    pub blocked: Option<String>,
    pub last_failure: Option<LoadFailure>,
    /// The version that was removed from the server's directory and serves until it is unloaded.
    #[serde(default, rename = "leaving", skip_serializing_if = "Option::is_none")]
    pub draining: Option<ServedVersion>,
    /// The number of the newest version directory. It grows with each new directory.
    #[serde(rename = "lineage")]
    pub directory_generation: u64,
    /// The ID of the version that each name in the newest directory was used for.
    #[serde(rename = "used")]
    pub used_names: BTreeMap<String, String>,
}
