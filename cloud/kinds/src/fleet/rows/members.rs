//! The slice of each node of an object with many nodes. A node stays in its slice.

use std::collections::{BTreeMap, HashMap, HashSet};

use neptune_api::NodeReportSlice;
use neptune_wire::Counters;

/// Slices of one object. Nodes for which there is no room in them do not get the object.
const MAX_SLICES: u32 = 200;

/// The nodes of an object, and its slices.
#[derive(Debug, Clone)]
pub(super) struct Members {
    /// Nodes of a slice.
    pub(super) max_nodes: usize,
    nodes: HashMap<String, Member>,
    pub(super) slices: BTreeMap<u32, Slice>,
}

/// A node that has or had the object.
#[derive(Debug, Clone, Default)]
pub(super) struct Member {
    /// The slice of the node; of several that have it, the first.
    pub(super) home: u32,
    /// What the node reported; `None` if it no longer has the object.
    pub(super) state: Option<MemberState>,
}

/// The state of an object on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberState {
    /// The state as a status names it.
    pub state: String,
    /// The reason of the state.
    pub reason: Option<String>,
}

/// A slice, as far as it is not in the rows of its nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Slice {
    /// The version of the stored object; `None` if it has to be created.
    pub(super) version: Option<String>,
    /// The nodes that belong to the slice, or of which it has a copy, in the order in which they
    /// joined.
    pub(super) nodes: Vec<String>,
    /// The nodes that the stored object names.
    pub(super) stored: HashSet<String>,
    /// The counters of former rows.
    pub(super) folded: Counters,
    /// When something of it changed last, by the clock of the rows.
    pub(super) changed: u64,
    /// What changed until then is stored.
    pub(super) written: u64,
    /// The hash of the stored content, without the numbers of messages.
    pub(super) content: Option<u64>,
}

impl Slice {
    /// Whether the stored object lacks a node, or is missing.
    pub(super) fn is_urgent(&self) -> bool {
        self.version.is_none() || self.nodes.iter().any(|node| !self.stored.contains(node))
    }

    /// Whether something has to be written.
    pub(super) fn is_dirty(&self) -> bool {
        self.changed > self.written || self.is_urgent()
    }
}

impl Default for Members {
    fn default() -> Self {
        let (nodes, slices) = (HashMap::new(), BTreeMap::new());
        Self { max_nodes: NodeReportSlice::MAX_NODES, nodes, slices }
    }
}

impl Members {
    pub(super) fn get(&self, node: &str) -> Option<&Member> {
        self.nodes.get(node)
    }

    /// Whether the stored slice of the node names it.
    pub(super) fn is_stored(&self, node: &str) -> bool {
        let slice = self.nodes.get(node).and_then(|member| self.slices.get(&member.home));
        slice.is_some_and(|slice| slice.stored.contains(node))
    }

    /// The nodes that stored slices name.
    pub(super) fn stored(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys().filter(|node| self.is_stored(node))
    }

    /// The nodes that have the object.
    pub(super) fn with_state(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().filter(|(_, member)| member.state.is_some()).map(|(node, _)| node)
    }

    /// The nodes that have the object, and whose stored slices name them.
    pub(super) fn placed(&self) -> impl Iterator<Item = &String> {
        self.with_state().filter(|node| self.is_stored(node))
    }

    /// Gives a new node its slice: the last one, or a new one if that is full.
    pub(super) fn join(&mut self, node: &str, clock: u64) {
        if self.nodes.contains_key(node) {
            return;
        }
        let last = self.slices.last_key_value();
        let home = match last {
            Some((index, slice)) if slice.nodes.len() < self.max_nodes => *index,
            Some((index, _)) => index + 1,
            None => 0,
        };
        if home >= MAX_SLICES {
            return;
        }
        self.nodes.insert(node.to_owned(), Member { home, state: None });
        let slice = self.slices.entry(home).or_default();
        slice.nodes.push(node.to_owned());
        slice.changed = clock;
    }

    /// The stored slice has this node, in this state.
    pub(super) fn adopt(&mut self, node: &str, index: u32, state: Option<MemberState>) {
        let is_stored = self.is_stored(node);
        let member = self.nodes.entry(node.to_owned()).or_insert(Member { home: index, state });
        let before = member.home;
        member.home = if is_stored { before.min(index) } else { index };
        if before != member.home {
            self.settle(before);
        }
    }

    /// Gives the new nodes for which a slice has no room, because another controller filled it,
    /// another slice.
    pub(super) fn make_room(&mut self, index: u32, clock: u64) {
        while let Some(slice) =
            self.slices.get_mut(&index).filter(|it| it.nodes.len() > self.max_nodes)
        {
            let new = slice.nodes.iter().rposition(|node| !slice.stored.contains(node));
            let Some(new) = new else { return };
            let node = slice.nodes.remove(new);
            let state = self.nodes.remove(&node).and_then(|member| member.state);
            self.join(&node, clock);
            if let Some(member) = self.nodes.get_mut(&node) {
                member.state = state;
            }
        }
    }

    /// The slice keeps these nodes: those that it stores, and its own.
    pub(super) fn settle(&mut self, index: u32) {
        let Self { nodes, slices, .. } = self;
        let Some(slice) = slices.get_mut(&index) else { return };
        let mut known: HashSet<String> = HashSet::new();
        let Slice { stored, nodes: listed, .. } = slice;
        listed.retain(|node| {
            let is_home = nodes.get(node).is_some_and(|member| member.home == index);
            (is_home || stored.contains(node)) && known.insert(node.clone())
        });
    }

    /// Sets the state of the object on a node, if a slice has the node.
    pub(super) fn set_state(
        &mut self,
        node: &str,
        state: Option<(&str, Option<&str>)>,
        clock: u64,
    ) {
        let Some(member) = self.nodes.get_mut(node) else { return };
        let before = member.state.as_ref().map(|it| (it.state.as_str(), it.reason.as_deref()));
        if before == state {
            return;
        }
        member.state = state.map(|(state, reason)| MemberState {
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
        });
        if let Some(slice) = self.slices.get_mut(&member.home) {
            slice.changed = clock;
        }
    }

    /// The nodes that are not among these no longer have the object.
    pub(super) fn clear_others(&mut self, current: &HashSet<&str>, clock: u64) {
        let others = self.with_state().filter(|node| !current.contains(node.as_str())).cloned();
        for node in others.collect::<Vec<_>>() {
            self.set_state(&node, None, clock);
        }
    }

    /// Something of every slice may have changed.
    pub(super) fn touch_all(&mut self, clock: u64) {
        self.slices.values_mut().for_each(|slice| slice.changed = clock);
    }

    /// Something of the node changed.
    pub(super) fn touch(&mut self, node: &str, clock: u64) {
        let home = self.nodes.get(node).map(|member| member.home);
        if let Some(slice) = home.and_then(|home| self.slices.get_mut(&home)) {
            slice.changed = clock;
        }
    }
}
