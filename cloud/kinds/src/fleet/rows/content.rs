//! The content of a slice, from the rows of its nodes.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use neptune_api::{NodeReportSlice, SliceRow};
use neptune_wire::Counters;

use super::{
    members::{MemberState, Members},
    row::Row,
    totals::totals_in,
};

/// What is written to a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) rows: Vec<SliceRow>,
    pub(super) folded: Counters,
    /// Whether a later write has to add what there is no room for now.
    pub(super) is_partial: bool,
}

impl Content {
    /// The object without its metadata.
    pub(super) fn object(&self) -> NodeReportSlice {
        let folded = (!self.folded.are_zero()).then(|| totals_in(self.folded));
        NodeReportSlice { folded, rows: self.rows.clone(), ..NodeReportSlice::default() }
    }

    /// The hash of the content without the numbers of messages, which alone are not written.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut object = self.object();
        for row in &mut object.rows {
            (row.epoch, row.seq) = (0, 0);
        }
        serde_json::to_string(&object).expect("a slice is JSON").hash(&mut hasher);
        hasher.finish()
    }
}

/// The rows of a node that the slice gets.
struct Entries<'a> {
    node: &'a str,
    rows: Vec<&'a Row>,
    state: Option<&'a MemberState>,
    /// Whether this is a copy of a node of another slice.
    is_copy: bool,
}

impl Entries<'_> {
    fn replaced(&self) -> usize {
        if self.is_copy { 0 } else { self.rows.len().saturating_sub(1) }
    }
}

/// The content of a slice. Of more than `max_replaced` rows of agents whose node has a newer one, the
/// oldest of the nodes with the most are folded, unless something else has them, too.
pub(super) fn content(
    index: u32,
    members: &Members,
    rows: &HashMap<String, Vec<Row>>,
    max_replaced: usize,
) -> Content {
    let slice = members.slices.get(&index);
    let nodes = slice.into_iter().flat_map(|slice| &slice.nodes);
    let mut entries: Vec<_> =
        nodes.filter_map(|node| entries_of(index, node, members, rows)).collect();
    let mut folded = slice.map(|slice| slice.folded).unwrap_or_default();
    let mut excess = entries.iter().map(Entries::replaced).sum::<usize>();
    excess = excess.saturating_sub(max_replaced);
    let is_only_here = |row: &Row| {
        row.reported.is_none()
            && row.stored.is_none()
            && matches!(&row.sliced[..], [(at, _)] if *at == index)
    };
    while excess > 0 {
        // Not the newest row of a node.
        let oldest = |it: &Entries<'_>| {
            let replaced = it.rows.iter().take(it.replaced());
            replaced.into_iter().position(|row| is_only_here(row))
        };
        let most = entries.iter_mut().filter(|it| oldest(it).is_some());
        let Some(most) = most.max_by_key(|it| it.replaced()) else { break };
        let Some(at) = oldest(most) else { break };
        folded = folded.plus(most.rows.remove(at).numbers().counters);
        excess -= 1;
    }
    let is_partial = excess > 0;
    while excess > 0 {
        // A status of few nodes waits until the slices have its rows, which are few.
        let is_new = |row: &&Row| row.in_slice(index).is_none() && row.stored.is_none();
        let most = entries.iter_mut().filter(|it| it.replaced() > 0 && it.rows.iter().any(is_new));
        let Some(most) = most.max_by_key(|it| it.replaced()) else { break };
        let Some(at) = most.rows.iter().rposition(is_new) else { break };
        most.rows.remove(at);
        excess -= 1;
    }
    let rows = entries.iter().flat_map(|entry| slice_rows(index, entry)).collect();
    Content { rows, folded, is_partial }
}

/// The rows of a node in a slice; `None` if the slice has a copy that its own slice covers.
fn entries_of<'a>(
    index: u32,
    node: &'a str,
    members: &'a Members,
    rows: &'a HashMap<String, Vec<Row>>,
) -> Option<Entries<'a>> {
    let member = members.get(node)?;
    let of_node = rows.get(node).map(Vec::as_slice).unwrap_or_default();
    if member.home == index {
        let mut rows: Vec<_> = of_node.iter().collect();
        // Those that are stored are older.
        rows.sort_by_key(|row| row.sliced.is_empty().then(|| row.position()));
        return Some(Entries { node, rows, state: member.state.as_ref(), is_copy: false });
    }
    let copied: Vec<_> = of_node.iter().filter(|row| row.in_slice(index).is_some()).collect();
    let is_covered = |row: &&Row| {
        let here = row.in_slice(index).unwrap_or_default();
        row.in_slice(member.home).is_some_and(|there| there.cover(here))
    };
    let is_settled = members.is_stored(node) && copied.iter().all(is_covered);
    (!is_settled).then_some(Entries { node, rows: copied, state: None, is_copy: true })
}

fn slice_rows(index: u32, entries: &Entries<'_>) -> Vec<SliceRow> {
    let node = entries.node.to_owned();
    let last = entries.rows.len().saturating_sub(1);
    let state = |at: usize| entries.state.filter(|_| at == last);
    let named = |at: usize| SliceRow {
        node: node.clone(),
        state: state(at).map(|it| it.state.clone()),
        reason: state(at).and_then(|it| it.reason.clone()),
        ..SliceRow::default()
    };
    if entries.rows.is_empty() {
        return vec![named(0)];
    }
    let row = |(at, row): (usize, &&Row)| {
        let numbers =
            if entries.is_copy { row.in_slice(index).unwrap_or_default() } else { row.numbers() };
        SliceRow {
            instance: Some(row.instance.clone()),
            epoch: numbers.order.0,
            seq: numbers.order.1,
            counters: Some(totals_in(numbers.counters)),
            ..named(at)
        }
    };
    entries.rows.iter().enumerate().map(row).collect()
}
