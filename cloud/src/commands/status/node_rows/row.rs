//! The row of one node: what its object does there, and what it counted. Pure.

use std::collections::BTreeMap;

use neptune_api::{AgentCounters, CounterTotals, EdgeWorkerStatus, NodeGatewayStatus};
use neptune_cloud_kinds::fleet::rows::{counters_in, totals_in};
use neptune_wire::Counters;
use serde::Serialize;

use crate::cli::NodeFilter;

/// The row of a node; its JSON form is an element of the output of `--output json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    pub node: String,
    /// Absent on a node that no longer has the object. What it counted stays in the totals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The sum of the agents of the node, if one has counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<CounterTotals>,
    /// What each agent of the node counted, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentCounters>,
    /// The name of the `NodeReportSlice` with the counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The other values that are known, by their names.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, String>,
}

impl NodeRow {
    /// The row of a node in this state.
    pub fn new(node: &str, state: &str) -> Self {
        Self { node: node.to_owned(), state: Some(state.to_owned()), ..Self::default() }
    }

    /// Whether the node has the object, in this state.
    pub fn is_in(&self, filter: NodeFilter) -> bool {
        match (&self.state, filter) {
            (None, _) => false,
            (Some(_), NodeFilter::All) => true,
            (Some(state), filter) => *state == format!("{filter:?}"),
        }
    }

    /// The state with its reason.
    pub fn state_text(&self) -> String {
        let state = self.state.as_deref().unwrap_or("-");
        match &self.reason {
            Some(reason) => format!("{state} ({reason})"),
            None => state.to_owned(),
        }
    }

    /// Adds what an agent counted.
    pub fn count(&mut self, agent: AgentCounters) {
        let before = self.counters.as_ref().map_or_else(Counters::default, counters_in);
        self.counters = Some(totals_in(before.plus(counters_in(&agent.counters))));
        self.agents.push(agent);
    }

    /// Adds a value, if it is known.
    pub fn set(&mut self, name: &'static str, value: Option<String>) {
        self.values.extend(value.map(|value| (name, value)));
    }

    /// Adds what the status has of the edge worker. It is newer than a slice, and has no reason for
    /// some of many nodes.
    pub fn explain(&mut self, worker: &EdgeWorkerStatus) {
        let is_same = self.state.as_ref() == Some(&worker.state);
        let reason = self.reason.take().filter(|_| is_same);
        self.reason = worker.reason.clone().or(reason);
        self.state = Some(worker.state.clone());
        self.message.clone_from(&worker.message);
        let Some(gateway) = worker.gateway.as_deref() else { return };
        let NodeGatewayStatus { signal, cloud, threshold, agreement, upload_ratio, psi } = gateway;
        self.set("signal", Some(signal.clone()));
        self.set("cloud", Some(cloud.clone()));
        self.set("threshold", threshold.clone());
        self.set("agreement", agreement.clone());
        self.set("uploadRatio", upload_ratio.clone());
        self.set("psi", psi.clone());
    }
}
