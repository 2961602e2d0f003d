//! What agents counted for a `JointInferenceService`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// AgentCounters are the counters of a service for one data directory of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounters {
    /// node is the name of the node.
    pub node: String,
    /// instance identifies the data directory of the agent. A wiped or replaced node has another
    /// one, whose counters start at zero.
    pub instance: String,
    /// epoch is the number of agent starts on the data directory at the time of the report.
    #[schemars(schema_with = "total")]
    pub epoch: u64,
    /// seq is the sequence number of the report within the epoch.
    #[schemars(schema_with = "total")]
    pub seq: u64,
    /// counters are the highest ones that the agent reported.
    #[serde(flatten)]
    pub counters: CounterTotals,
}

/// CounterTotals are the totals of one or several agents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CounterTotals {
    /// inferenceNumber is the number of samples inferred.
    #[schemars(schema_with = "total")]
    pub inference_number: u64,
    /// hardExampleNumber is the number of those samples that the cloud worker answered.
    #[schemars(schema_with = "total")]
    pub hard_example_number: u64,
    /// fallbackNumber is the number of hard samples that the cloud worker did not answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub fallback_number: u64,
    /// hardNumber is the number of samples that a gateway decided to be hard. Like the following,
    /// it is absent for other workers.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub hard_number: u64,
    /// overBudgetNumber is the number of hard samples that stayed at the edge because the cap of
    /// uploads was reached.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub over_budget_number: u64,
    /// unjudgedNumber is the number of samples without a confidence.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub unjudged_number: u64,
    /// shadowNumber is the number of easy samples that the cloud answered as well, for a
    /// comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub shadow_number: u64,
    /// deadlineNumber is the number of hard samples that stayed at the edge because the time of the
    /// client was too short for an answer of the cloud.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub deadline_number: u64,
    /// tierNumbers are the numbers of samples that each tier above the gateway answered, the next
    /// tier first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "totals")]
    pub tier_numbers: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

// API servers warn about the format that schemars uses for u64.
pub(crate) fn total(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

fn totals(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "array", "items": total(generator) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_of_gateways_are_stored_unless_they_are_zero() {
        let text = serde_json::to_value(CounterTotals::default()).unwrap();
        assert_eq!(text.get("deadlineNumber"), None);
        let totals = CounterTotals { deadline_number: 1, ..CounterTotals::default() };
        assert_eq!(serde_json::to_value(totals).unwrap()["deadlineNumber"], 1);
    }
}
