//! The nodes that need a model, and what each reported: kept up to date by the change of one
//! service or one report, so that a status costs the same for any number of nodes. Pure.

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
    /// The nodes of `missing` that report a failure.
    failed: BTreeSet<NodeName>,
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
    /// The first node that cannot get it.
    pub failed: Option<NodeName>,
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

    /// Sets what a node reports; `None` without a report. Nodes that do not need the model are
    /// ignored. Returns whether it was something else before.
    pub fn set_report(&mut self, node: &NodeName, reported: Option<RowState>) -> bool {
        let Some(row) = self.rows.get(node).filter(|row| row.reported != reported) else {
            return false;
        };
        debug_assert!(row.is_placed || row.services > 0, "an unused row is removed");
        self.change(node, |row| row.reported = reported);
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
        let failed = kept.iter().filter(|(_, state)| **state == RowState::Failed);
        let failed = failed.map(|(node, _)| node).chain(self.failed.first());
        RowSummary {
            wanted: self.rows.len(),
            present: self.rows.len() - self.missing.len() + kept_present().count(),
            placed: self.placed.len(),
            placed_present: self.placed_present + kept_placed,
            has: self.rows.keys().filter(|node| has(node)).take(room).cloned().collect(),
            failed: failed.min().cloned(),
            missing,
        }
    }

    /// Changes a row, which is created, and removed when nothing needs it.
    fn change(&mut self, node: &NodeName, change: impl FnOnce(&mut Row)) {
        let counts = |row: &Row| row.is_placed && row.reported == Some(RowState::Present);
        let row = self.rows.entry(node.clone()).or_default();
        let before = counts(row);
        change(row);
        self.placed_present = self.placed_present + usize::from(counts(row)) - usize::from(before);
        let is_needed = row.is_placed || row.services > 0;
        let reported = row.reported;
        let mut set = |set: fn(&mut Self) -> &mut BTreeSet<NodeName>, is_member: bool| {
            if is_member && is_needed {
                set(self).insert(node.clone());
            } else {
                set(self).remove(node);
            }
        };
        set(|rows| &mut rows.missing, reported != Some(RowState::Present));
        set(|rows| &mut rows.failed, reported == Some(RowState::Failed));
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
            let missing: Vec<_> = with(false).take(LIMIT).cloned().collect();
            RowSummary {
                wanted: states.len(),
                present: with(true).count(),
                placed: self.placed.len(),
                placed_present: placed.count(),
                has: with(true).take(LIMIT - missing.len()).cloned().collect(),
                failed: states
                    .iter()
                    .find(|(_, state)| *state == RowState::Failed)
                    .map(|(node, _)| node.clone()),
                missing,
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Service(u8, BTreeSet<NodeName>),
        Placed(BTreeSet<NodeName>),
        Report(NodeName, Option<RowState>),
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
            (node(), state).prop_map(|(node, state)| Step::Report(node, state)),
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
                    Step::Report(node, state) => {
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
                        let failed = summary.failed.iter().map(|node| (node, RowState::Failed));
                        let all = missing.chain(has).chain(failed);
                        previous = all.map(|(node, state)| (node.clone(), state)).collect();
                        Vec::new()
                    }
                };
                for node in new {
                    rows.set_report(&node, world.reports.get(&node).copied());
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
        rows.set_report(&node, Some(RowState::Failed));
        rows.set_service("a", BTreeSet::new());
        assert_eq!(rows.summary([], LIMIT).failed, Some(node.clone()));
        rows.set_service("b", BTreeSet::new());
        assert_eq!(rows.summary([], LIMIT), RowSummary::default());
        assert!(rows.rows.is_empty() && rows.services.is_empty());
        assert!(!rows.set_report(&node, Some(RowState::Present)), "it is not needed");
    }
}
