//! The rows of a status: the edge worker on each node that labels select, or on those of many nodes
//! that need attention most.

use std::collections::{HashMap, HashSet};

use neptune_api::{EdgeWorkerStatus, JointInferenceServiceStatus, RejectedReports};

use crate::{
    exceptions::{
        Concern, MAX_LISTED, MAX_MESSAGE_CHARS, MAX_SHORT_MESSAGE_CHARS, listed, shortened,
    },
    finding::Finding,
    fleet::rows::MAX_NODES,
    joint_inference_service::status::{
        gateway::gateway_of_node,
        observed::{EdgeObservation, ObservedWorker, ServiceObservation},
    },
    steps::StatusInputs,
};

/// Rows with a reason and a message, if the status has a row for each of more nodes than it lists.
const MAX_EXPLAINED: usize = 16;

/// The maximum length of these messages, in characters.
const MAX_EXPLANATION_CHARS: usize = 80;

/// Entries of `rejected`, if the rows of the service are in slices.
const MAX_REJECTED: usize = 4;

impl ObservedWorker {
    /// The state in a row, and what is remarkable about it.
    pub fn row_state(&self) -> (&'static str, Option<&Finding>) {
        match self {
            Self::Running => ("Running", None),
            Self::Updating(finding) | Self::Degraded(finding) => ("Running", Some(finding)),
            Self::Waiting(finding) => ("Pending", Some(finding)),
            Self::Completed(finding) => ("Completed", Some(finding)),
            Self::Failed(finding) => ("Failed", Some(finding)),
            Self::Offline(finding) | Self::Unknown(finding) => ("Unknown", Some(finding)),
        }
    }

    fn concern(&self) -> Concern {
        match self {
            Self::Failed(_) => Concern::Failed,
            Self::Waiting(_) => Concern::Pending,
            Self::Updating(_) | Self::Degraded(_) => Concern::Degraded,
            Self::Offline(_) | Self::Unknown(_) => Concern::Unknown,
            Self::Running | Self::Completed(_) => Concern::Nothing,
        }
    }
}

/// The rows of the nodes that labels select.
pub fn edge_workers(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> Vec<EdgeWorkerStatus> {
    let observed = &inputs.observed;
    if !observed.is_selected {
        return Vec::new();
    }
    let is_known_spec = previous.observed_generation == inputs.generation;
    let before = previous.edge_workers.iter().map(|row| (row.node.as_str(), row));
    let before: HashMap<&str, &EdgeWorkerStatus> = before.collect();
    let is_sliced = observed.counted.slices.is_some();
    let has_all = (MAX_LISTED + 1..=MAX_NODES).contains(&observed.edges.len());
    let max_chars = match (has_all, is_sliced) {
        (true, _) => MAX_EXPLANATION_CHARS,
        (false, true) => MAX_SHORT_MESSAGE_CHARS,
        (false, false) => MAX_MESSAGE_CHARS,
    };
    let row = |edge: &EdgeObservation| {
        let before = before.get(edge.node.as_str());
        if let (ObservedWorker::Unknown(_), Some(before), true) =
            (&edge.worker, before, is_known_spec)
        {
            return (*before).clone();
        }
        let (state, finding) = edge.worker.row_state();
        // The figures of many gateways are on the metrics pages of their nodes.
        let gateway = edge.gateway.as_deref().filter(|_| observed.edges.len() <= MAX_LISTED);
        EdgeWorkerStatus {
            node: edge.node.clone(),
            state: state.to_owned(),
            reason: finding.map(|finding| finding.reason.to_string()),
            message: finding.map(|it| shortened(&it.message, max_chars)),
            gateway: gateway.map(gateway_of_node).map(Box::new),
        }
    };
    let describe = |edge: &'_ EdgeObservation| edge.worker.concern();
    let chosen = listed(
        &observed.edges,
        |edge| (describe(edge), edge.node.as_str()),
        |node| before.contains_key(node),
    );
    if !has_all {
        return chosen.into_iter().map(row).collect();
    }
    // While the spec is invalid, a controller without slices leaves the worker on the nodes that have a
    // row. It supports no more nodes.
    let nodes: HashSet<&str> = chosen.iter().map(|edge| edge.node.as_str()).collect();
    let others = observed.edges.iter().filter(|edge| !nodes.contains(edge.node.as_str()));
    let rows = chosen.iter().copied().chain(others).map(row).enumerate();
    rows.map(|(at, row)| if at < MAX_EXPLAINED { row } else { without_reason(row) }).collect()
}

fn without_reason(row: EdgeWorkerStatus) -> EdgeWorkerStatus {
    EdgeWorkerStatus { reason: None, message: None, gateway: None, ..row }
}

/// The rejected messages; of many nodes only some.
pub fn rejected(observed: &ServiceObservation) -> Vec<RejectedReports> {
    if observed.counted.slices.is_none() {
        return observed.rejected.clone();
    }
    let short = |rejected: &RejectedReports| RejectedReports {
        reason: shortened(&rejected.reason, MAX_SHORT_MESSAGE_CHARS),
        ..rejected.clone()
    };
    observed.rejected.iter().take(MAX_REJECTED).map(short).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::NodeSlices;
    use neptune_wire::{Counters, Figure, GatewayProblem, GatewayProblemReason, GatewayReport};

    use super::*;
    use crate::{
        joint_inference_service::status::{
            fixtures::{at, failed, selected},
            next::next_status,
        },
        reason::Reason,
    };

    /// Many nodes with gateways, each of which reports a problem; every tenth failed.
    fn many(count: usize) -> StatusInputs<'static, ServiceObservation> {
        let nodes: Vec<_> = (0..count).map(|at| format!("shop-{at:04}")).collect();
        let mut run = selected(&nodes);
        let report = GatewayReport {
            threshold: Figure::new(0.7),
            agreement: Figure::new(0.96),
            upload_ratio: Figure::new(0.2),
            problems: vec![GatewayProblem {
                reason: GatewayProblemReason::Drifting,
                message: "the confidences drift ".repeat(20),
            }],
            ..GatewayReport::default()
        };
        for (at, edge) in run.observed.edges.iter_mut().enumerate() {
            edge.gateway = Some(Box::new(report.clone()));
            if at % 10 == 0 {
                let message =
                    format!("edge worker on node {}: {}", edge.node, "it ends ".repeat(50));
                edge.worker = failed(Reason::CrashLoopBackOff);
                if let ObservedWorker::Failed(finding) = &mut edge.worker {
                    finding.message = message;
                }
            }
        }
        let reject = |node: &String| RejectedReports {
            node: node.clone(),
            worker: None,
            count: 1,
            reason: "impossible ".repeat(40),
        };
        run.observed.rejected = nodes.iter().map(reject).collect();
        run.observed.counted.slices = Some(NodeSlices { count: 30, nodes: 3000 });
        run.observed.counted.nodes = if count > MAX_NODES { Vec::new() } else { nodes.clone() };
        let large = 1_000_000_000;
        run.observed.counted.totals = Counters {
            inference: large,
            hard: large / 5,
            shadow: large / 9,
            ..Counters::default()
        };
        run.observed.counted.shadows = nodes.iter().map(|node| (node.clone(), 100)).collect();
        run
    }

    /// The status after many changes, and its size in bytes.
    fn full(
        run: &StatusInputs<'static, ServiceObservation>,
    ) -> (JointInferenceServiceStatus, usize) {
        let mut status = JointInferenceServiceStatus::default();
        for minute in 0..25 {
            let inputs = StatusInputs { now: at(60 * minute), ..run.clone() };
            status = next_status(&status, &inputs);
        }
        let bytes = serde_json::to_vec(&status).unwrap().len();
        (status, bytes)
    }

    #[test]
    fn status_of_64_nodes_has_all_rows_in_at_most_eight_kibibytes() {
        let mut run = many(64);
        for edge in &mut run.observed.edges {
            edge.worker = failed(Reason::CrashLoopBackOff);
            if let ObservedWorker::Failed(finding) = &mut edge.worker {
                finding.message = "it ends ".repeat(50);
            }
        }
        let (status, bytes) = full(&run);
        assert_eq!((status.edge_workers.len(), status.nodes.len()), (64, 64));
        let explained = status.edge_workers.iter().filter(|row| row.message.is_some()).count();
        assert_eq!(explained, MAX_EXPLAINED);
        assert!(bytes <= 8 * 1024, "{bytes} bytes");
    }

    #[test]
    fn rows_of_64_nodes_begin_with_those_that_need_attention() {
        let (status, _) = full(&many(64));
        let rows = &status.edge_workers;
        assert!(rows[..7].iter().all(|row| row.state == "Failed" && row.message.is_some()));
        assert!(rows[7..].iter().all(|row| row.state == "Running" && row.message.is_none()));
        assert_eq!(rows.len(), 64);
    }

    #[test]
    fn status_of_three_thousand_nodes_has_at_most_eight_kibibytes() {
        let (status, bytes) = full(&many(3000));
        assert_eq!(status.edge_workers.len(), 32);
        assert_eq!(status.gateway.as_ref().unwrap().history.len(), 20);
        let counts = status.node_counts.as_ref().unwrap();
        assert_eq!((&*counts.summary, counts.failed), ("2700/3000", 300));
        assert_eq!(status.gateway.as_ref().unwrap().agreement.as_deref(), Some("0.960"));
        assert!(bytes <= 8 * 1024, "{bytes} bytes");
        assert!(status.reports.is_empty() && status.nodes.is_empty());
        let totals = status.totals.unwrap();
        assert_eq!(totals.inference_number.to_string(), status.metrics[0].value);
    }

    #[test]
    fn rows_of_many_nodes_stay_and_have_no_figures_of_gateways() {
        let first = next_status(&JointInferenceServiceStatus::default(), &many(100));
        let names = |status: &JointInferenceServiceStatus| {
            status.edge_workers.iter().map(|row| row.node.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&first).len(), 10);
        assert!(
            first.edge_workers.iter().all(|row| row.state == "Failed" && row.gateway.is_none())
        );
        let mut more = many(1000);
        for edge in &mut more.observed.edges {
            edge.worker = failed(Reason::OutOfMemory);
        }
        let second = next_status(&first, &more);
        assert_eq!(names(&second)[..10], names(&first), "they are first");
    }
}
