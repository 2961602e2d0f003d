//! What the agents counted for one object: a row per node and agent instance. A row has the numbers
//! that the object's status or one of its slices has, and those that its agent reported since.

mod content;
#[cfg(test)]
mod from_scratch;
mod listed;
mod members;
mod object;
mod row;
mod samples;
mod slices;
#[cfg(test)]
mod slices_tests;
#[cfg(test)]
mod tests;
mod totals;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use neptune_api::{
    AgentCounters, CounterTotals, JointInferenceService, JointInferenceServiceStatus,
    NodeReportSlice, NodeSlices,
};
use neptune_wire::{AgentInstance, Counters, NodeName};

use self::{
    listed::Listed,
    members::Members,
    row::{Numbers, Reported, Row, row_of, sum},
    samples::SampleWatch,
};
pub use self::{
    object::{owner_label, slice_index, slice_object},
    slices::{PendingSlice, SliceWrite},
    totals::{counters_in, totals_in},
};

/// Agent instances per node whose counters are not in the status yet. Only invented ones are more.
const MAX_INSTANCES: usize = 16;

/// Agents that a status lists although their node has a newer one. Of more, the oldest is folded.
pub const MAX_REPLACED: usize = 16;

/// Nodes that a status lists. Counters of a node that is no longer listed are folded, and its later
/// reports do not count. All nodes that a selector places the edge worker on are listed, by controllers
/// without slices also. Those support no more.
pub const MAX_NODES: usize = 64;

/// Nodes whose rows are in the status. An object that has or had more has its rows in slices.
pub const MAX_IN_STATUS: usize = 32;

/// Agents that a slice lists although their node has a newer one.
const MAX_REPLACED_IN_SLICE: usize = NodeReportSlice::MAX_ROWS - NodeReportSlice::MAX_NODES;

/// What one agent instance counted for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterReport {
    /// The node that reports.
    pub node: NodeName,
    /// The agent instance that counted.
    pub instance: AgentInstance,
    /// The epoch of the newest message.
    pub epoch: u64,
    /// The number of the newest message in the epoch.
    pub seq: u64,
    /// The counters since the instance began to count.
    pub counters: Counters,
}

/// The rows of one object.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The version of the object whose status was loaded; `None` before.
    version: Option<String>,
    nodes: HashMap<String, Vec<Row>>,
    /// The nodes that the status lists, the newest last.
    listed: Vec<String>,
    /// The counters of former rows.
    folded: Counters,
    /// The sum of `folded` and of all rows.
    totals: Counters,
    /// The number of reports so far, as a time.
    clock: u64,
    /// What the cached object states of nodes.
    cached: Listed,
    /// The nodes that the status lists which this controller wrote last. The cache has it later.
    written: HashSet<String>,
    /// The namespace and the name of the object; `None` until they are needed.
    owner: Option<(String, String)>,
    /// Nodes above which the rows are in slices.
    threshold: usize,
    /// Rows of replaced agents that a slice keeps.
    max_replaced: usize,
    /// Whether the rows are in slices. An object that has slices keeps them.
    is_sliced: bool,
    /// Whether the stored slices were read.
    is_loaded: bool,
    /// The nodes that have or had the object, and their slices.
    members: Members,
    /// The totals of the last status.
    printed: Counters,
    /// The nodes that may have the object, until one is added.
    names: Option<Arc<HashSet<NodeName>>>,
    /// Since when nodes count no samples.
    samples: SampleWatch,
    #[cfg(test)]
    visits: tests::Visits,
}

/// The counters of a status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// The nodes that have or had the edge worker, new ones last. If the rows are in slices, those that
    /// have it, unless they are many.
    pub nodes: Vec<String>,
    /// The counters of each agent.
    pub reports: Vec<AgentCounters>,
    /// The sum of the counters of former rows.
    pub folded: Option<CounterTotals>,
    /// The sum of all.
    pub totals: Counters,
    /// The slices that are stored, if the rows are in slices. Then the status has no reports, once the
    /// slices have them.
    pub slices: Option<NodeSlices>,
    /// The compared samples of each node, if the rows are in slices.
    pub shadows: HashMap<String, u64>,
    /// What was reported until then is included. [`Rows::acknowledge`] expects it.
    pub clock: u64,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            version: None,
            nodes: HashMap::new(),
            listed: Vec::new(),
            folded: Counters::default(),
            totals: Counters::default(),
            clock: 0,
            cached: Listed::default(),
            written: HashSet::new(),
            owner: None,
            threshold: MAX_IN_STATUS,
            max_replaced: MAX_REPLACED_IN_SLICE,
            is_sliced: false,
            is_loaded: true,
            members: Members::default(),
            printed: Counters::default(),
            names: None,
            samples: SampleWatch::default(),
            #[cfg(test)]
            visits: tests::Visits::default(),
        }
    }
}

impl Rows {
    /// Adds the counters that an agent reports, which arrive at this time. Returns whether they are
    /// higher than known. Counters of too many instances of a node are ignored: the node reports them
    /// again.
    pub fn on_counters(&mut self, new: &CounterReport, now: Timestamp) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let numbers = Numbers { order: (new.epoch, new.seq), counters: new.counters };
        let node = self.nodes.entry(new.node.to_string()).or_default();
        #[cfg(test)]
        self.visits.add(node.len());
        let is_reported = |row: &&Row| row.reported.is_some();
        let is_held = node.iter().filter(is_reported).any(|row| row.instance == new.instance.0);
        if !is_held && node.iter().filter(is_reported).count() >= MAX_INSTANCES {
            return false;
        }
        let row = row_of(node, &new.instance.0);
        let is_new = row.is_empty();
        let before = row.numbers();
        row.reported = Some(match row.reported {
            None => Reported { numbers, since: clock, changed: clock },
            Some(held) => {
                let highest = held.numbers.max(numbers);
                let changed = if highest == held.numbers { held.changed } else { clock };
                Reported { numbers: highest, changed, ..held }
            }
        });
        // A slice that has the numbers has them for good.
        row.reported =
            row.reported.filter(|it| !row.sliced.iter().any(|(_, has)| has.cover(it.numbers)));
        let after = row.numbers().counters;
        self.totals = self.totals.plus(after.minus(before.counters));
        if after.inference > before.counters.inference {
            self.samples.on_sample(new.node.as_str(), now);
        }
        let is_higher = is_new || after != before.counters;
        if is_higher {
            self.members.touch(new.node.as_str(), clock);
        }
        is_higher
    }

    /// Since when nodes count no samples.
    pub fn samples(&mut self) -> &mut SampleWatch {
        &mut self.samples
    }

    /// Takes over the counters of a status, if it belongs to another version of the object than the
    /// last one. What was reported and is not in a status yet stays.
    pub fn load(&mut self, version: Option<&str>, status: Option<&JointInferenceServiceStatus>) {
        if version.is_some() && self.version.as_deref() == version {
            return;
        }
        self.version = version.map(str::to_owned);
        let before = self.take_stored();
        self.listed = status.map(|status| status.nodes.clone()).unwrap_or_default();
        let mut listed: HashSet<String> = self.listed.iter().cloned().collect();
        for (position, report) in status.iter().flat_map(|status| &status.reports).enumerate() {
            // Statuses of an earlier version list only nodes that reported.
            if listed.insert(report.node.clone()) {
                self.listed.push(report.node.clone());
            }
            let counters = counters_in(&report.counters);
            let numbers = Numbers { order: (report.epoch, report.seq), counters };
            let node = self.nodes.entry(report.node.clone()).or_default();
            row_of(node, &report.instance).stored = Some((position, numbers));
        }
        let folded = status.and_then(|status| status.folded.as_ref());
        self.folded = folded.map(counters_in).unwrap_or_default();
        let printed = status.and_then(|status| status.totals.as_ref());
        self.printed = printed.map(counters_in).unwrap_or_default();
        self.is_sliced |= status.is_some_and(|status| status.slices.is_some());
        self.names = None;
        if !before.is_empty() && status.is_none_or(|status| status.reports.is_empty()) {
            // The slices may fold what only they have now.
            self.clock += 1;
            self.members.touch_all(self.clock);
        }
        self.drop_folded(&before);
        self.drop_empty();
    }

    /// The counters of the next status, with the edge worker on these nodes.
    pub fn counted<'a>(&self, current: impl IntoIterator<Item = &'a str>) -> Counted {
        if self.is_sliced {
            return self.counted_in_slices();
        }
        let nodes = self.next_nodes(current.into_iter().collect());
        let listed: HashSet<&str> = nodes.iter().map(String::as_str).collect();
        // The counters of a node that had to leave the list are folded, and it reports in vain: it
        // would count twice.
        let is_full = nodes.len() >= MAX_NODES;
        let (mut folded, mut totals) = (self.folded, self.totals);
        let (mut rows, mut replaced) = (Vec::new(), Vec::new());
        for (node, of_node) in &self.nodes {
            #[cfg(test)]
            self.visits.add(of_node.len());
            if is_full && !listed.contains(node.as_str()) {
                for row in of_node {
                    let stored = row.stored.map_or_else(Counters::default, |it| it.1.counters);
                    folded = folded.plus(stored);
                    totals = totals.minus(row.numbers().counters.minus(stored));
                }
                continue;
            }
            let newest = of_node.iter().map(Row::position).max();
            let positions = of_node.iter().map(Row::position);
            replaced.extend(positions.filter(|position| Some(*position) < newest));
            rows.extend(of_node.iter().map(|row| (row.position(), node, row)));
        }
        replaced.sort_unstable();
        let excess = (replaced.len() + 1).saturating_sub(MAX_REPLACED);
        rows.sort_unstable_by_key(|(position, ..)| *position);
        let mut reports = Vec::new();
        for (position, node, row) in rows {
            let Numbers { order: (epoch, seq), counters } = row.numbers();
            if replaced[..excess].binary_search(&position).is_ok() {
                folded = folded.plus(counters);
                continue;
            }
            let (node, instance) = (node.clone(), row.instance.clone());
            let counters = totals_in(counters);
            reports.push(AgentCounters { node, instance, epoch, seq, counters });
        }
        let folded = (!folded.are_zero()).then(|| totals_in(folded));
        Counted { nodes, reports, folded, totals, clock: self.clock, ..Counted::default() }
    }

    /// The status has what was counted until `clock`. What was reported since is kept.
    pub fn acknowledge(&mut self, clock: u64) {
        if self.is_sliced {
            return;
        }
        for row in self.nodes.values_mut().flatten() {
            row.reported = row.reported.filter(|reported| reported.changed > clock);
        }
        self.drop_empty();
    }

    /// The API server has a status with these nodes: they may get the edge worker, and count.
    pub fn on_status_written(&mut self, nodes: &[String]) {
        self.written = nodes.iter().cloned().collect();
    }

    /// The nodes that have or had the edge worker, new ones last. Of too many, the oldest without the
    /// worker leave.
    fn next_nodes(&self, current: Vec<&str>) -> Vec<String> {
        let is_current: HashSet<&str> = current.iter().copied().collect();
        let mut listed: HashSet<&str> = self.listed.iter().map(String::as_str).collect();
        let new = current.into_iter().filter(|node| listed.insert(node)).map(str::to_owned);
        let mut nodes: Vec<String> = self.listed.iter().cloned().chain(new).collect();
        let mut excess = nodes.len().saturating_sub(MAX_NODES);
        nodes.retain(|node| {
            let leaves = excess > 0 && !is_current.contains(node.as_str());
            excess -= usize::from(leaves);
            !leaves
        });
        nodes.drain(..excess);
        nodes
    }

    /// Whether a node's counters count for the service: it has or had the edge worker.
    /// Until the slices are read, any node may: then those that are in none are dropped.
    pub fn may_count(&mut self, service: &JointInferenceService, node: &NodeName) -> bool {
        let cached = self.cached.read(service);
        let has_slices = self.is_sliced || cached.has_slices();
        cached.may_count(node.as_str())
            || self.written.contains(node.as_str())
            || has_slices && (!self.is_loaded || self.members.is_stored(node.as_str()))
    }

    /// The newest start of an agent that the status or a slice of the service has.
    pub fn newest_epoch(
        &mut self,
        service: &JointInferenceService,
        node: &NodeName,
        instance: &AgentInstance,
    ) -> Option<u64> {
        let rows = self.nodes.get(node.as_str()).into_iter().flatten();
        let rows = rows.filter(|row| row.instance == instance.0);
        let sliced = rows.flat_map(|row| &row.sliced).map(|(_, numbers)| numbers.order.0);
        self.cached.read(service).newest_epoch(node, instance).max(sliced.max())
    }

    /// Drops rows without numbers, and adds up the others.
    fn drop_empty(&mut self) {
        let sliced = self.members.slices.values().map(|slice| slice.folded);
        self.totals = sliced.fold(self.folded, Counters::plus);
        self.nodes.retain(|_, rows| {
            #[cfg(test)]
            self.visits.add(rows.len());
            rows.retain(|row| !row.is_empty());
            self.totals = self.totals.plus(sum(rows));
            !rows.is_empty()
        });
    }
}
