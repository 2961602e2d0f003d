//! An aggregator that a node runs. The agent starts the program as a container, and is its controller
//! there: it has the aggregator's key, sends it the run of the message, and reports its state.

use serde::{Deserialize, Serialize};

use crate::{
    KeyPin, WorkerName,
    aggregator::{AggregatorProblem, RunRequest, RunStatus},
    unknown,
};

/// The port of an aggregator for which nothing else is configured.
pub const AGGREGATOR_PORT: u16 = 8418;

/// An aggregator that a node runs. Sent only to agents that report
/// [`runs_aggregators`](crate::NodeReport::runs_aggregators).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregatorContent {
    /// Name of the container, unique on the node.
    pub container: WorkerName,
    /// Image reference, as for `docker run`. It contains `neptune-aggregator`.
    pub image: String,
    /// The TCP port at which the aggregator listens on the node.
    pub port: u16,
    /// Whether the aggregator may begin the run. False once it had it: an aggregator that lost its
    /// files must not begin it again.
    #[serde(default)]
    pub may_start: bool,
    /// The run. Absent: nothing is sent, and the aggregator keeps its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RunRequest>,
}

/// The status of an aggregator on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregatorReport {
    /// The public key of the aggregator. Absent while it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<KeyPin>,
    /// The newest state of the aggregator. Absent before its first answer since the agent started.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown::optional"
    )]
    pub state: Option<RunStatus>,
    /// Why it does not run or does not answer, or what it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<AggregatorProblem>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::{NodeReport, decode};

    #[test]
    fn report_with_a_state_of_a_newer_version_keeps_the_rest() {
        let report = json!({
            "pin": "sha256:00",
            "state": {"revision": 1, "phase": "a newer phase"},
            "problem": {"reason": "AggregatorUnreachable", "detail": "no answer"},
        });
        let report: AggregatorReport = decode(report.to_string().as_bytes()).unwrap();
        assert_eq!((report.pin.unwrap().0.as_str(), report.state), ("sha256:00", None));
        assert_eq!(report.problem.unwrap().detail, "no answer");
    }

    #[test]
    fn content_and_report_survive_a_round_trip() {
        let content = AggregatorContent {
            container: "digits-aggregator".parse().unwrap(),
            image: "i".to_owned(),
            port: 8418,
            may_start: true,
            request: None,
        };
        let text = serde_json::to_vec(&content).unwrap();
        assert_eq!(decode::<AggregatorContent>(&text).unwrap(), content);
        assert!(!String::from_utf8(text).unwrap().contains("request"));
        let report = AggregatorReport::default();
        assert_eq!(serde_json::to_value(&report).unwrap(), json!({}));
    }

    #[test]
    fn earlier_agent_runs_no_aggregators() {
        let report = json!({"instance": "a", "epoch": 1, "online": true});
        let report: NodeReport = decode(report.to_string().as_bytes()).unwrap();
        assert!(!report.runs_aggregators);
        assert!(!serde_json::to_string(&report).unwrap().contains("runsAggregators"));
    }
}
