//! The counters of a status from the previous one and what was reported since, computed from scratch:
//! the definition of what rows keep up to date.

use neptune_api::{
    AgentCounters, CounterTotals, JointInferenceService, JointInferenceServiceStatus,
};
use neptune_wire::{Counters, NodeName};

use super::{
    CounterReport, MAX_INSTANCES, MAX_NODES, MAX_REPLACED,
    totals::{counters_in, totals_in},
};

/// The counters of an object that are not in its status yet.
#[derive(Debug, Clone, Default)]
pub struct UnreportedCounters(Vec<CounterReport>);

impl UnreportedCounters {
    /// Adds the counters that a node reports of an object. Returns whether they are higher than
    /// known. Counters of too many instances of a node are ignored: the node reports them again.
    pub fn add(&mut self, new: CounterReport) -> bool {
        let unreported = &mut self.0;
        let is_same =
            |held: &&mut CounterReport| held.node == new.node && held.instance == new.instance;
        let Some(held) = unreported.iter_mut().find(is_same) else {
            let of_node = unreported.iter().filter(|held| held.node == new.node);
            let has_room = of_node.count() < MAX_INSTANCES;
            if has_room {
                unreported.push(new);
            }
            return has_room;
        };
        let highest = held.counters.max(new.counters);
        let changed = highest != held.counters;
        held.counters = highest;
        (held.epoch, held.seq) = (held.epoch, held.seq).max((new.epoch, new.seq));
        changed
    }

    /// The counters that are not in the status.
    pub fn get(&self) -> &[CounterReport] {
        &self.0
    }

    /// These counters are in the status. Counters that changed since stay unreported.
    pub fn mark_reported(&mut self, reported: &[CounterReport]) {
        self.0.retain(|counters| !reported.contains(counters));
    }
}

/// Adds new counts to the totals: the sum, over the agents, of the highest numbers that each agent
/// reported. Returns counts per agent, counts of earlier agents, and totals.
pub fn add_counts(
    previous: &JointInferenceServiceStatus,
    nodes: &[String],
    unreported: &[CounterReport],
) -> (Vec<AgentCounters>, Option<CounterTotals>, Counters) {
    let mut reports = previous.reports.clone();
    // Earlier counters of a node that had to leave the list are folded: it would count twice.
    let is_dropped =
        |node: &str| nodes.len() >= MAX_NODES && !nodes.iter().any(|listed| listed == node);
    let unreported = unreported.iter().filter(|report| !is_dropped(report.node.as_str()));
    for CounterReport { node, instance, epoch, seq, counters } in unreported {
        let is_same =
            |report: &AgentCounters| report.node == node.as_str() && report.instance == instance.0;
        let position = reports.iter().position(is_same).unwrap_or_else(|| {
            let (node, instance) = (node.to_string(), instance.0.clone());
            reports.push(AgentCounters { node, instance, ..AgentCounters::default() });
            reports.len() - 1
        });
        let report = &mut reports[position];
        (report.epoch, report.seq) = (report.epoch, report.seq).max((*epoch, *seq));
        report.counters = totals_in(counters_in(&report.counters).max(*counters));
    }
    let mut folded = previous.folded.as_ref().map(counters_in).unwrap_or_default();
    while let Some(position) = position_to_fold(&reports, is_dropped) {
        folded = folded.plus(counters_in(&reports.remove(position).counters));
    }
    let totals = reports.iter().fold(folded, |sum, report| sum.plus(counters_in(&report.counters)));
    let folded = (!folded.are_zero()).then(|| totals_in(folded));
    (reports, folded, totals)
}

/// The agent whose counters are folded next: of a node that is no longer listed, or, of too many,
/// one whose node has a newer one. Others are kept: the service may return to the node, which then
/// continues its totals.
fn position_to_fold(reports: &[AgentCounters], is_dropped: impl Fn(&str) -> bool) -> Option<usize> {
    let has_newer = |position: usize| {
        let node = &reports[position].node;
        reports[position + 1..].iter().any(|newer| newer.node == *node)
    };
    let dropped = reports.iter().position(|report| is_dropped(&report.node));
    let replaced: Vec<usize> = (0..reports.len()).filter(|at| has_newer(*at)).collect();
    dropped.or_else(|| replaced.first().copied().filter(|_| replaced.len() >= MAX_REPLACED))
}

/// The nodes that have or had the edge worker, new ones last. Of too many, the oldest without the
/// worker leave.
pub fn nodes(previous: &JointInferenceServiceStatus, current: &[String]) -> Vec<String> {
    let is_current = |node: &str| current.iter().any(|it| it == node);
    let mut nodes = previous.nodes.clone();
    let reported = previous.reports.iter().map(|report| &report.node);
    for node in reported.chain(current) {
        if !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    while nodes.len() > MAX_NODES {
        let oldest = nodes.iter().position(|node| !is_current(node)).unwrap_or_default();
        nodes.remove(oldest);
    }
    nodes
}

/// Whether a node's counters count for a service: it has or had the edge worker.
pub fn may_count(service: &JointInferenceService, node: &NodeName) -> bool {
    let status = service.status.iter();
    let nodes = status.flat_map(|status| {
        // Statuses of an earlier version list only nodes that reported.
        status.nodes.iter().chain(status.reports.iter().map(|report| &report.node))
    });
    nodes.chain(&service.spec.edge_worker.node_name).any(|known| known == node.as_str())
}
