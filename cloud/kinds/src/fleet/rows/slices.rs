//! The rows of an object with many nodes: which slice has them, and what is written to it.
//!
//! | Case | Why no counter counts twice |
//! |---|---|
//! | a row in the status and a slice, in two slices, or in an old version | a row counts once, with the maximum |
//! | a row is folded | in one write, with the sum; only a row that nothing else has |
//! | a node in two slices | the later slice drops it once the earlier one has its numbers |
//! | another controller folded what this one received | a row whose node is stored without it is dropped |

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use neptune_api::{AgentCounters, NodeReportSlice, NodeSlices, SliceRow};
use neptune_wire::{Counters, NodeName};

use super::{
    Counted, MAX_NODES, Numbers, Rows,
    content::{Content, content},
    members::MemberState,
    row::{Row, row_of, sum},
    totals::{counters_in, totals_in},
};
use crate::reason::Reason;

/// A slice that has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingSlice {
    /// The index of the slice.
    pub index: u32,
    /// Whether nodes wait for the write, or the slice was deleted. Others only have new counters.
    pub is_urgent: bool,
}

/// A write of a slice. What was reported since is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceWrite {
    /// The index of the slice.
    pub index: u32,
    /// The version that the write replaces; `None` if it creates the slice.
    pub version: Option<String>,
    pub(super) content: Content,
    /// What changed until then is included.
    clock: u64,
}

impl Rows {
    /// The rows of an object whose slices are not read yet.
    pub fn before_loading() -> Self {
        Self { is_loaded: false, ..Self::default() }
    }

    /// Sets the number of nodes above which the rows are in slices.
    pub fn set_threshold(&mut self, threshold: usize) {
        self.threshold = threshold;
    }

    /// Sets the namespace and the name of the object.
    pub fn set_owner(&mut self, namespace: &str, name: &str) {
        if self.owner.is_none() {
            self.owner = Some((namespace.to_owned(), name.to_owned()));
        }
    }

    /// The namespace and the name of the object, once they are known.
    pub fn owner(&self) -> Option<&(String, String)> {
        self.owner.as_ref()
    }

    /// The indexes of the slices that are stored.
    pub fn stored_slices(&self) -> Vec<u32> {
        let stored = self.members.slices.iter().filter(|(_, slice)| slice.version.is_some());
        stored.map(|(index, _)| *index).collect()
    }

    /// Whether the rows are in slices.
    pub fn is_sliced(&self) -> bool {
        self.is_sliced
    }

    /// The nodes that have the object now. Those of them that are new, and those of the status, get a
    /// slice if there are many; they may have the object once it is stored.
    pub fn place<'a>(&mut self, current: impl Iterator<Item = &'a str> + Clone) {
        let listed: HashSet<&str> = self.listed.iter().map(String::as_str).collect();
        if !self.is_sliced {
            let new =
                current.clone().filter(|node| !listed.contains(node)).take(self.threshold + 1);
            self.is_sliced = listed.len() + new.count() > self.threshold;
        }
        if !self.is_sliced || !self.is_loaded {
            return;
        }
        self.clock += 1;
        for node in &self.listed {
            self.members.join(node, self.clock);
        }
        for node in current {
            self.members.join(node, self.clock);
        }
    }

    /// Sets the states of the object on all nodes that have it, with their reasons. Returns whether
    /// they are other nodes than before.
    pub fn set_states<'a>(
        &mut self,
        states: impl Iterator<Item = (&'a str, &'a str, Option<Reason>)>,
    ) -> bool {
        if !self.is_sliced || !self.is_loaded {
            return false;
        }
        let before = self.members.with_state().count();
        self.clock += 1;
        let mut current = HashSet::new();
        let mut has_new = false;
        for (node, state, reason) in states {
            current.insert(node);
            let is_known = self.members.get(node).is_some_and(|member| member.state.is_some());
            has_new |= !is_known;
            if state != UNKNOWN || !is_known {
                let reason = reason.map(|reason| reason.to_string());
                self.members.set_state(node, Some((state, reason.as_deref())), self.clock);
            }
        }
        self.members.clear_others(&current, self.clock);
        has_new || before != self.members.with_state().count()
    }

    /// The nodes that may have the object: stored slices, or the status, name them. `None` if the rows
    /// are in the status.
    pub fn members(&mut self) -> Option<Arc<HashSet<NodeName>>> {
        if !self.is_sliced {
            return None;
        }
        if self.names.is_none() {
            let names = self.members.stored().chain(&self.listed);
            self.names = Some(Arc::new(names.filter_map(|node| node.parse().ok()).collect()));
        }
        self.names.clone()
    }

    /// The nodes that have the object by the slices, sorted.
    pub fn placed(&self) -> Vec<String> {
        let mut placed: Vec<_> = self.members.with_state().cloned().collect();
        placed.sort_unstable();
        placed
    }

    /// Takes the rows out of the status. Returns the names of their nodes.
    pub(super) fn take_stored(&mut self) -> HashSet<String> {
        let mut names = HashSet::new();
        for (node, rows) in &mut self.nodes {
            let stored = rows.iter_mut().filter_map(|row| row.stored.take());
            if stored.count() > 0 {
                names.insert(node.clone());
            }
        }
        names
    }

    /// Drops what agents of these nodes reported if neither the status nor a slice has it, and a slice
    /// has other agents of the node: another controller may have folded it, and agents that live
    /// report again.
    pub(super) fn drop_folded(&mut self, nodes: &HashSet<String>) {
        for node in nodes {
            if let Some(rows) = self.nodes.get_mut(node)
                && rows.iter().any(|row| !row.sliced.is_empty())
            {
                rows.retain(Row::is_stored);
            }
        }
    }

    /// Takes over a stored slice. What was reported and is not stored yet stays, but for agents of nodes
    /// whose other agents are stored: another controller may have folded them, and those that live
    /// report again.
    pub fn load_slice(&mut self, index: u32, version: Option<String>, slice: &NodeReportSlice) {
        self.is_sliced = true;
        let folded = slice.folded.as_ref().map(counters_in).unwrap_or_default();
        self.store(index, &slice.rows, folded);
        for row in &slice.rows {
            let state = row.state.clone();
            let state = state.map(|state| MemberState { state, reason: row.reason.clone() });
            self.members.adopt(&row.node, index, state);
            if row.instance.is_some() {
                self.change(&row.node, |rows| rows.retain(Row::is_stored));
            }
        }
        self.members.settle(index);
        self.clock += 1;
        self.members.make_room(index, self.clock);
        let content = Content { rows: slice.rows.clone(), folded, is_partial: false };
        if let Some(slice) = self.members.slices.get_mut(&index) {
            (slice.version, slice.changed) = (version, self.clock);
            slice.content = Some(content.hash());
        }
        self.names = None;
    }

    /// All stored slices were read. Counters of nodes that are in none are dropped.
    pub fn finish_loading(&mut self) {
        if std::mem::replace(&mut self.is_loaded, true)
            || !(self.is_sliced || self.cached.has_slices())
        {
            return;
        }
        let (members, listed, cached) = (&self.members, &self.listed, &self.cached);
        self.nodes.retain(|node, _| {
            members.get(node).is_some() || listed.contains(node) || cached.may_count(node)
        });
        self.drop_empty();
    }

    /// The number of stored slices.
    pub fn slice_count(&self) -> usize {
        self.stored_slices().len()
    }

    /// The slices that have to be written.
    pub fn pending(&self) -> impl Iterator<Item = PendingSlice> {
        let is_active = self.is_sliced && self.is_loaded;
        let slices = self.members.slices.iter().filter(move |(_, it)| is_active && it.is_dirty());
        slices.map(|(index, slice)| PendingSlice { index: *index, is_urgent: slice.is_urgent() })
    }

    /// What to write to a slice; `None` if it has everything.
    pub fn next_write(&mut self, index: u32) -> Option<SliceWrite> {
        let content = content(index, &self.members, &self.nodes, self.max_replaced);
        let clock = self.clock;
        let slice = self.members.slices.get_mut(&index)?;
        let is_stored = slice.version.is_some() && slice.content == Some(content.hash());
        if is_stored && !slice.is_urgent() {
            slice.written = clock;
            return None;
        }
        let version = slice.version.clone();
        Some(SliceWrite { index, version, content, clock })
    }

    /// The API server has what was written, as this version.
    pub fn written(&mut self, write: &SliceWrite, version: Option<String>) {
        let SliceWrite { index, content, clock, .. } = write;
        self.store(*index, &content.rows, content.folded);
        if let Some(slice) = self.members.slices.get_mut(index) {
            slice.version = version;
            slice.content = Some(content.hash());
            slice.written = if content.is_partial { 0 } else { *clock };
        }
        self.members.settle(*index);
        self.names = None;
    }

    /// A person deleted a slice. It is created again from what is known.
    pub fn deleted(&mut self, index: u32) {
        self.clock += 1;
        if let Some(slice) = self.members.slices.get_mut(&index) {
            (slice.version, slice.changed) = (None, self.clock);
        }
    }

    /// The nodes that the status names once the slices have its rows, if they are few: a controller
    /// without slices leaves the object on these, and supports no more.
    fn named(&self) -> Vec<String> {
        let mut named: Vec<_> = self.members.placed().take(MAX_NODES + 1).cloned().collect();
        if named.len() > MAX_NODES {
            return Vec::new();
        }
        named.sort_unstable();
        named
    }

    /// The counters of the next status, if the rows are in slices. The status keeps its own rows
    /// until the slices have them.
    pub(super) fn counted_in_slices(&self) -> Counted {
        let rows =
            || self.nodes.iter().flat_map(|(node, rows)| rows.iter().map(move |row| (node, row)));
        let is_covered = |row: &Row| {
            row.stored.is_none_or(|(_, stored)| row.sliced.iter().any(|(_, it)| it.cover(stored)))
        };
        let is_moved = self.listed.iter().all(|node| self.members.is_stored(node))
            && (self.listed.is_empty() || rows().all(|(_, row)| is_covered(row)));
        let (mut nodes, mut reports) = (self.named(), Vec::new());
        if !is_moved {
            nodes.clone_from(&self.listed);
            let mut stored: Vec<_> =
                rows().filter_map(|(node, row)| Some((row.stored?, node, row))).collect();
            stored.sort_unstable_by_key(|((position, _), ..)| *position);
            reports = stored
                .into_iter()
                .map(|((_, numbers), node, row)| AgentCounters {
                    node: node.clone(),
                    instance: row.instance.clone(),
                    epoch: numbers.order.0,
                    seq: numbers.order.1,
                    counters: totals_in(numbers.counters),
                })
                .collect();
        }
        let mut shadows: HashMap<String, u64> = HashMap::new();
        for (node, row) in rows() {
            let shadow = row.numbers().counters.shadow;
            if shadow > 0 {
                let of_node = shadows.entry(node.clone()).or_default();
                *of_node = of_node.saturating_add(shadow);
            }
        }
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let stored = self.members.stored().count();
        Counted {
            nodes,
            reports,
            folded: (!self.folded.are_zero()).then(|| totals_in(self.folded)),
            totals: self.totals.max(self.printed),
            slices: Some(NodeSlices { count: number(self.slice_count()), nodes: number(stored) }),
            shadows,
            clock: self.clock,
        }
    }

    /// The slice has these rows, and nothing else.
    fn store(&mut self, index: u32, rows: &[SliceRow], folded: Counters) {
        let slice = self.members.slices.entry(index).or_default();
        let before = std::mem::take(&mut slice.stored);
        let folded_before = std::mem::replace(&mut slice.folded, folded);
        for row in rows {
            if slice.stored.insert(row.node.clone()) {
                slice.nodes.push(row.node.clone());
            }
        }
        self.totals = self.totals.minus(folded_before).plus(folded);
        let mut of_node: HashMap<&str, Vec<&SliceRow>> = HashMap::new();
        for row in rows {
            of_node.entry(&row.node).or_default().push(row);
        }
        for node in before.iter().filter(|node| !of_node.contains_key(node.as_str())) {
            self.change(node, |rows| set_sliced(rows, index, &[]));
        }
        for (node, stored) in of_node {
            self.change(node, |rows| set_sliced(rows, index, &stored));
        }
    }

    /// Changes the rows of a node, and the totals with them.
    fn change(&mut self, node: &str, change: impl FnOnce(&mut Vec<Row>)) {
        let rows = self.nodes.entry(node.to_owned()).or_default();
        let before = sum(rows);
        change(rows);
        rows.retain(|row| !row.is_empty());
        self.totals = self.totals.minus(before).plus(sum(rows));
        if rows.is_empty() {
            self.nodes.remove(node);
        }
    }
}

/// The state of a node that has not reported since the start of the controller.
const UNKNOWN: &str = "Unknown";

/// Sets what a slice has of the rows of a node. What the slice had before and no longer has was
/// folded there.
fn set_sliced(rows: &mut Vec<Row>, index: u32, stored: &[&SliceRow]) {
    let place = |row: &Row| {
        let mut stored = stored.iter();
        stored.position(|it| it.instance.as_deref() == Some(row.instance.as_str()))
    };
    rows.retain(|row| {
        let is_gone = row.in_slice(index).is_some() && place(row).is_none();
        !is_gone || row.sliced.len() > 1 || row.stored.is_some()
    });
    for row in rows.iter_mut() {
        row.sliced.retain(|(slice, _)| *slice != index);
    }
    for it in stored {
        let Some(instance) = &it.instance else { continue };
        let counters = it.counters.as_ref().map(counters_in).unwrap_or_default();
        let numbers = Numbers { order: (it.epoch, it.seq), counters };
        let row = row_of(rows, instance);
        row.sliced.push((index, numbers));
        row.reported = row.reported.filter(|reported| !numbers.cover(reported.numbers));
    }
    rows.sort_by_key(|row| place(row).unwrap_or(usize::MAX));
}
