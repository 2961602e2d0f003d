//! How a change reaches the nodes of a workload: in waves, and with a stop at failures.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema;

/// Rollout is how a change reaches the nodes. It begins with one node, or with those of
/// canarySelector, and doubles their number as long as they are ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// maxUnavailable is how many nodes the change may take down at the same time: a number, or a
    /// percentage of all nodes, rounded down. At least one. Nodes that are down for other reasons do
    /// not count. Defaults to 10%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive_amount")]
    pub max_unavailable: Option<IntOrString>,
    /// pauseOnFailure is how many nodes may fail with the change before it stops: a number, or a
    /// percentage of the nodes that got it, rounded down. Defaults to 5%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "amount")]
    pub pause_on_failure: Option<IntOrString>,
    /// minReadySeconds is how long a node has to be ready with the change before it counts, in
    /// seconds. Defaults to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub min_ready_seconds: Option<i32>,
    /// progressDeadlineSeconds is the time after which a node that got the change and is not ready
    /// with it has failed, in seconds. Hours in which the node may not download do not count.
    /// Defaults to 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub progress_deadline_seconds: Option<i32>,
    /// canarySelector selects the nodes that get a change first, by their labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub canary_selector: BTreeMap<String, String>,
    /// paused stops the change: nodes that did not get it keep what they have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// RolloutStatus is how far the last change reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// revision is the hash of what the nodes run, without what differs per node.
    pub revision: String,
    /// state is Progressing, Paused or Complete.
    pub state: RolloutState,
    /// reason is a machine-readable CamelCase reason of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message is a human-readable explanation of the state and, if it is paused, the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// summary is the number of ready nodes of all nodes, such as 1190/3000, or Paused.
    pub summary: String,
    /// frontier is the rank of the last node that may get the change. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub frontier: Option<String>,
    /// total is the number of nodes.
    pub total: i32,
    /// updated is the number of nodes that have the change.
    pub updated: i32,
    /// ready is the number of nodes that are ready with the change for minReadySeconds.
    pub ready: i32,
    /// failed is the number of nodes that failed with the change.
    pub failed: i32,
    /// forgiven is the number of failed nodes at the time of the last resume.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forgiven: i32,
    /// startTime is when the controller saw the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// pausedTime is when the rollout stopped because of failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_time: Option<Time>,
}

/// RolloutState is the state of the last change.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum RolloutState {
    /// The change reaches more nodes.
    #[default]
    Progressing,
    /// No further node gets the change.
    Paused,
    /// Each reachable node has the change.
    Complete,
}

impl fmt::Display for RolloutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Progressing => "Progressing",
            Self::Paused => "Paused",
            Self::Complete => "Complete",
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// A number, or a percentage.
fn amount(_: &mut SchemaGenerator) -> Schema {
    number_or_percentage(0, "^(100|[1-9]?[0-9])%$")
}

/// The same, above zero.
fn positive_amount(_: &mut SchemaGenerator) -> Schema {
    number_or_percentage(1, "^(100|[1-9][0-9]?)%$")
}

fn number_or_percentage(minimum: i32, pattern: &str) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "nullable": false,
        "minimum": minimum,
        "maxLength": 4,
        "pattern": pattern,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_numbers_or_percentages() {
        let spec = json!({"maxUnavailable": "10%", "pauseOnFailure": 3});
        let rollout: Rollout = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(rollout.max_unavailable, Some(IntOrString::String("10%".to_owned())));
        assert_eq!(rollout.pause_on_failure, Some(IntOrString::Int(3)));
        assert_eq!(serde_json::to_value(&rollout).unwrap(), spec);
    }

    #[test]
    fn status_without_optional_fields_is_read() {
        let status = json!({"revision": "a", "state": "Paused", "total": 1, "updated": 1, "ready": 0,
            "failed": 1, "summary": "Paused"});
        let status: RolloutStatus = serde_json::from_value(status).unwrap();
        assert_eq!((status.state, status.failed, status.forgiven), (RolloutState::Paused, 1, 0));
        assert_eq!(serde_json::to_value(&status).unwrap().get("forgiven"), None);
        let forgiven = RolloutStatus { forgiven: 2, ..status };
        assert_eq!(serde_json::to_value(&forgiven).unwrap()["forgiven"], 2);
    }

    #[test]
    fn states_are_shown_as_they_are_stored() {
        for state in [RolloutState::Progressing, RolloutState::Paused, RolloutState::Complete] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
    }
}
