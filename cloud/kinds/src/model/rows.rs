//! The nodes that need a model, and what each reported: kept up to date by the change of one
//! service or one report, so that a status costs the same for any number of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_wire::NodeName;

/// The state of the model on a node, as far as it decides the place of the node in the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// The node has the file in the spec.
    Present,
    /// The node reports that it cannot get the file.
    Failed,
    /// The node has no file, has another one, or does not report.
    Missing,
}

/// The nodes that need a model. Equal inputs in any order result in equal rows.
#[derive(Debug, Default)]
pub struct NodeRows {
    rows: BTreeMap<NodeName, Row>,
    /// The nodes on which each service needs the model, by the name of the service.
    services: BTreeMap<String, BTreeSet<NodeName>>,
    /// The nodes of the placement, sorted.
    placed: Arc<[NodeName]>,
    /// The nodes that do not report the file.
    missing: BTreeSet<NodeName>,
    /// The nodes of `missing` that are not offline.
    lacking: BTreeSet<NodeName>,
    /// The nodes of `lacking` that report a failure.
    failed: BTreeSet<NodeName>,
    /// Number of nodes that are offline.
    offline: usize,
    /// Nodes of the placement that report the file.
    placed_present: usize,
}

#[derive(Debug, Default)]
struct Row {
    /// Number of services that need the model on the node.
    services: usize,
    is_placed: bool,
    /// What the node reports; `None` before its first report.
    reported: Option<RowState>,
    is_offline: bool,
}

/// The numbers of a status, and the nodes that it lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSummary {
    /// Nodes that need the model.
    pub wanted: usize,
    /// Number of nodes that need the model and have it.
    pub present: usize,
    /// Number of nodes that need the model and belong to the placement.
    pub placed: usize,
    /// Nodes of the placement that have it.
    pub placed_present: usize,
    /// The first nodes that do not have the model, by name.
    pub missing: Vec<NodeName>,
    /// The first nodes that have it, by name.
    pub has: Vec<NodeName>,
    /// Nodes that are offline.
    pub offline: usize,
    /// Number of nodes that do not have it and are offline.
    pub missing_offline: usize,
    /// The first other node that cannot get it, or else that does not have it.
    pub first: Option<NodeName>,
}

impl Row {
    fn is_needed(&self) -> bool {
        self.is_placed || self.services > 0
    }

    /// What the row adds to the nodes of the placement that have the file, and to those that are
    /// offline.
    fn numbers(&self) -> (usize, usize) {
        let is_present = self.is_placed && self.reported == Some(RowState::Present);
        (usize::from(is_present), usize::from(self.is_needed() && self.is_offline))
    }
}

impl NodeRows {
    /// Sets the nodes on which a service needs the model. Returns those that are new.
    pub fn set_service(&mut self, service: &str, nodes: BTreeSet<NodeName>) -> Vec<NodeName> {
        let before = self.services.remove(service).unwrap_or_default();
        for node in before.difference(&nodes) {
            self.change(node, |row| row.services -= 1);
        }
        let new: Vec<_> = nodes.difference(&before).cloned().collect();
        for node in &new {
            self.change(node, |row| row.services += 1);
        }
        if !nodes.is_empty() {
            self.services.insert(service.to_owned(), nodes);
        }
        new
    }

    /// Sets the nodes of the placement, sorted. Returns those that are new.
    pub fn set_placed(&mut self, placed: &Arc<[NodeName]>) -> Vec<NodeName> {
        if Arc::ptr_eq(&self.placed, placed) {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.placed, Arc::clone(placed));
        for node in before.iter().filter(|node| placed.binary_search(node).is_err()) {
            self.change(node, |row| row.is_placed = false);
        }
        let is_new = |node: &&NodeName| before.binary_search(node).is_err();
        let new: Vec<_> = placed.iter().filter(is_new).cloned().collect();
        for node in &new {
            self.change(node, |row| row.is_placed = true);
        }
        new
    }

    /// Sets what a node reports, `None` without a report, and whether it is offline. Nodes that do not
    /// need the model are ignored. Returns whether it was something else before.
    pub fn set_report(
        &mut self,
        node: &NodeName,
        reported: Option<RowState>,
        is_offline: bool,
    ) -> bool {
        let is_new = |row: &&Row| (row.reported, row.is_offline) != (reported, is_offline);
        let Some(row) = self.rows.get(node).filter(is_new) else { return false };
        debug_assert!(row.is_placed || row.services > 0, "an unused row is removed");
        self.change(node, |row| (row.reported, row.is_offline) = (reported, is_offline));
        true
    }

    /// The nodes on which a service needs the model.
    pub fn nodes_of(&self, service: &str) -> impl Iterator<Item = &NodeName> {
        self.services.get(service).into_iter().flatten()
    }

    /// The numbers and the first `limit` nodes. `previous` are the states of the previous status:
    /// they stay for nodes without a report.
    pub fn summary(
        &self,
        previous: impl IntoIterator<Item = (NodeName, RowState)>,
        limit: usize,
    ) -> RowSummary {
        let mut kept = BTreeMap::new();
        for (node, state) in previous {
            if self.rows.get(&node).is_some_and(|row| row.reported.is_none()) {
                kept.entry(node).or_insert(state);
            }
        }
        let has = |node: &NodeName| {
            kept.get(node) == Some(&RowState::Present) || !self.missing.contains(node)
        };
        let kept_present = || kept.iter().filter(|(_, state)| **state == RowState::Present);
        let is_placed = |node: &NodeName| self.rows.get(node).is_some_and(|row| row.is_placed);
        let kept_placed = kept_present().filter(|(node, _)| is_placed(node)).count();
        let missing: Vec<_> =
            self.missing.iter().filter(|node| !has(node)).take(limit).cloned().collect();
        let room = limit - missing.len();
        let is_offline = |node: &NodeName| self.rows.get(node).is_some_and(|row| row.is_offline);
        let failed = kept.iter().filter(|(_, state)| **state == RowState::Failed);
        let failed = failed.map(|(node, _)| node).filter(|node| !is_offline(node));
        let failed = failed.chain(self.failed.first()).min();
        let lacking = || self.lacking.iter().find(|node| !has(node));
        let kept_offline = kept_present().filter(|(node, _)| is_offline(node)).count();
        RowSummary {
            offline: self.offline,
            missing_offline: self.missing.len() - self.lacking.len() - kept_offline,
            first: failed.or_else(lacking).cloned(),
            wanted: self.rows.len(),
            present: self.rows.len() - self.missing.len() + kept_present().count(),
            placed: self.placed.len(),
            placed_present: self.placed_present + kept_placed,
            has: self.rows.keys().filter(|node| has(node)).take(room).cloned().collect(),
            missing,
        }
    }

    /// Changes a row, which is created, and removed when nothing needs it.
    fn change(&mut self, node: &NodeName, change: impl FnOnce(&mut Row)) {
        let row = self.rows.entry(node.clone()).or_default();
        let before = row.numbers();
        change(row);
        let after = row.numbers();
        self.placed_present = self.placed_present + after.0 - before.0;
        self.offline = self.offline + after.1 - before.1;
        let (is_needed, reported, is_offline) = (row.is_needed(), row.reported, row.is_offline);
        let mut set = |set: fn(&mut Self) -> &mut BTreeSet<NodeName>, is_member: bool| {
            if is_member && is_needed {
                set(self).insert(node.clone());
            } else {
                set(self).remove(node);
            }
        };
        let is_missing = reported != Some(RowState::Present);
        set(|rows| &mut rows.missing, is_missing);
        set(|rows| &mut rows.lacking, is_missing && !is_offline);
        set(|rows| &mut rows.failed, reported == Some(RowState::Failed) && !is_offline);
        if !is_needed {
            self.rows.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::{
        collection::vec,
        prelude::{Just, Strategy, any, prop_assert_eq},
        prop_oneof,
        test_runner::{Config, TestRunner},
    };

    use super::*;

    const LIMIT: usize = 4;

    /// The services, placement and reports from which a table is made.
    #[derive(Debug, Default)]
    struct World {
        services: BTreeMap<String, BTreeSet<NodeName>>,
        placed: BTreeSet<NodeName>,
        reports: BTreeMap<NodeName, RowState>,
        offline: BTreeSet<NodeName>,
    }

    impl World {
        /// The summary from scratch: all rows, sorted, counted and cut.
        fn summary(&self, previous: &BTreeMap<NodeName, RowState>) -> RowSummary {
            let nodes = self.services.values().flatten().chain(&self.placed);
            let nodes: BTreeSet<_> = nodes.cloned().collect();
            let states: Vec<_> = nodes
                .into_iter()
                .map(|node| {
                    let known = self.reports.get(&node).or_else(|| previous.get(&node));
                    let state = known.copied().unwrap_or(RowState::Missing);
                    (node, state)
                })
                .collect();
            let with = |has: bool| {
                let matches =
                    move |(_, state): &&(NodeName, RowState)| (*state == RowState::Present) == has;
                states.iter().filter(matches).map(|(node, _)| node)
            };
            let placed = with(true).filter(|node| self.placed.contains(node));
            let is_away = |node: &&NodeName| self.offline.contains(*node);
            let first = |state: RowState| {
                let mut reachable = states.iter().filter(|(node, _)| !self.offline.contains(node));
                reachable.find(|(_, it)| *it == state).map(|(node, _)| node.clone())
            };
            let lacking = with(false).find(|node| !is_away(node)).cloned();
            let missing: Vec<_> = with(false).take(LIMIT).cloned().collect();
            RowSummary {
                wanted: states.len(),
                present: with(true).count(),
                placed: self.placed.len(),
                placed_present: placed.count(),
                has: with(true).take(LIMIT - missing.len()).cloned().collect(),
                offline: states.iter().filter(|(node, _)| self.offline.contains(node)).count(),
                missing_offline: with(false).filter(is_away).count(),
                first: first(RowState::Failed).or(lacking),
                missing,
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Service(u8, BTreeSet<NodeName>),
        Placed(BTreeSet<NodeName>),
        Report(NodeName, Option<RowState>, bool),
        /// The summary becomes the previous status.
        Write,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let node = || (0..9_u8).prop_map(|n| format!("n{n}").parse::<NodeName>().unwrap());
        let nodes = move || vec(node(), 0..4).prop_map(BTreeSet::from_iter);
        let state = prop_oneof![
            Just(None),
            Just(Some(RowState::Present)),
            Just(Some(RowState::Failed)),
            Just(Some(RowState::Missing)),
        ];
        let step = prop_oneof![
            (0..4_u8, nodes()).prop_map(|(service, nodes)| Step::Service(service, nodes)),
            nodes().prop_map(Step::Placed),
            (node(), state, any::<bool>())
                .prop_map(|(node, state, is_offline)| Step::Report(node, state, is_offline)),
            any::<bool>().prop_map(|_| Step::Write),
        ];
        vec(step, 0..40)
    }

    #[test]
    fn rows_kept_up_to_date_equal_those_from_scratch_after_any_changes() {
        let mut runner = TestRunner::new(Config { cases: 512, ..Config::default() });
        let result = runner.run(&steps(), |steps| {
            let (mut world, mut rows) = (World::default(), NodeRows::default());
            let mut previous = BTreeMap::new();
            for step in steps {
                let new = match step {
                    Step::Service(service, nodes) => {
                        let name = service.to_string();
                        world.services.insert(name.clone(), nodes.clone());
                        rows.set_service(&name, nodes)
                    }
                    Step::Placed(nodes) => {
                        let placed: Arc<[_]> = nodes.iter().cloned().collect();
                        world.placed = nodes;
                        rows.set_placed(&placed)
                    }
                    Step::Report(node, state, is_offline) => {
                        world.offline.remove(&node);
                        world.offline.extend(Some(node.clone()).filter(|_| is_offline));
                        match state {
                            Some(state) => drop(world.reports.insert(node.clone(), state)),
                            None => drop(world.reports.remove(&node)),
                        }
                        vec![node]
                    }
                    Step::Write => {
                        let summary = world.summary(&previous);
                        let missing = summary.missing.iter().map(|node| (node, RowState::Missing));
                        let has = summary.has.iter().map(|node| (node, RowState::Present));
                        let failed = summary.first.iter().map(|node| (node, RowState::Failed));
                        let all = missing.chain(has).chain(failed);
                        previous = all.map(|(node, state)| (node.clone(), state)).collect();
                        Vec::new()
                    }
                };
                for node in new {
                    let is_offline = world.offline.contains(&node);
                    rows.set_report(&node, world.reports.get(&node).copied(), is_offline);
                }
                prop_assert_eq!(rows.summary(previous.clone(), LIMIT), world.summary(&previous));
            }
            Ok(())
        });
        result.unwrap();
    }

    #[test]
    fn node_that_nothing_needs_leaves_no_row() {
        let mut rows = NodeRows::default();
        let node: NodeName = "n".parse().unwrap();
        rows.set_service("a", [node.clone()].into());
        rows.set_service("b", [node.clone()].into());
        rows.set_report(&node, Some(RowState::Failed), true);
        rows.set_service("a", BTreeSet::new());
        assert_eq!(rows.summary([], LIMIT).missing_offline, 1);
        rows.set_service("b", BTreeSet::new());
        assert_eq!(rows.summary([], LIMIT), RowSummary::default());
        assert!(rows.rows.is_empty() && rows.services.is_empty());
        assert!(!rows.set_report(&node, Some(RowState::Present), false), "it is not needed");
    }
}
