//! Rows in slices against a store with versions, two controllers and any faults.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use neptune_api::{JointInferenceServiceStatus, NodeReportSlice};
use neptune_wire::{AgentInstance, Counters};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::reason::Reason;

/// Nodes of the fleet.
const NODES: usize = 9;

/// What happens to an object, its nodes and its two controllers.
#[derive(Debug, Clone)]
enum Step {
    /// The worker of a node counts samples, if it has one, and its agent reports to the controllers.
    Count { node: usize, samples: u64, is_lost: bool },
    /// The selector matches these nodes.
    Place(BTreeSet<usize>),
    /// A controller writes a slice. The write may succeed without a response.
    WriteSlice { controller: usize, is_answered: bool },
    /// A controller writes the status.
    WriteStatus { controller: usize },
    /// A controller is killed, and another one reads what is stored.
    Kill { controller: usize },
    /// A node gets a new data directory, after what it counted is stored.
    Wipe { node: usize },
    /// A person deletes a slice while the controllers run.
    Delete { slice: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let controller = || 0..2usize;
    let node = || 0..NODES;
    prop_oneof![
        12 => (node(), 1..20u64, prop::bool::weighted(0.2))
            .prop_map(|(node, samples, is_lost)| Step::Count { node, samples, is_lost }),
        4 => prop::collection::btree_set(node(), 0..NODES).prop_map(Step::Place),
        12 => (controller(), prop::bool::weighted(0.8)).prop_map(|(controller, is_answered)| {
            Step::WriteSlice { controller, is_answered }
        }),
        6 => controller().prop_map(|controller| Step::WriteStatus { controller }),
        2 => controller().prop_map(|controller| Step::Kill { controller }),
        4 => node().prop_map(|node| Step::Wipe { node }),
        1 => (0..4usize).prop_map(|slice| Step::Delete { slice }),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    threshold: usize,
    nodes: usize,
    replaced: usize,
}

/// The API server, the nodes and the controllers.
struct World {
    limits: Limits,
    /// Nodes that an earlier version had in the status.
    earlier: usize,
    version: u64,
    status: (u64, JointInferenceServiceStatus),
    slices: BTreeMap<u32, (u64, NodeReportSlice)>,
    placed: BTreeSet<usize>,
    /// The number of the data directory of each node, and what was counted on it.
    agents: Vec<(usize, u64)>,
    /// What all data directories counted.
    counted_by_agents: u64,
    controllers: [Rows; 2],
}

fn name(node: usize) -> String {
    format!("n{node}")
}

impl World {
    fn new(limits: Limits, earlier: usize) -> Self {
        // An earlier version had the rows of these nodes in the status.
        let report = |node: usize| AgentCounters {
            node: name(node),
            instance: "0".to_owned(),
            epoch: 1,
            seq: 1,
            counters: totals_in(Counters { inference: 7, ..Counters::default() }),
        };
        let status = JointInferenceServiceStatus {
            nodes: (0..earlier).map(name).collect(),
            reports: (0..earlier).map(report).collect(),
            ..JointInferenceServiceStatus::default()
        };
        let agents = (0..NODES).map(|node| (0, if node < earlier { 7 } else { 0 })).collect();
        let mut world = Self {
            limits,
            earlier,
            version: 1,
            status: (1, status),
            slices: BTreeMap::new(),
            placed: (0..earlier).collect(),
            agents,
            counted_by_agents: 7 * earlier as u64,
            controllers: [Rows::default(), Rows::default()],
        };
        world.controllers = [world.started(), world.started()];
        world
    }

    /// A controller that has read what is stored.
    fn started(&self) -> Rows {
        let mut rows = Rows { max_replaced: self.limits.replaced, ..Rows::before_loading() };
        rows.members.max_nodes = self.limits.nodes;
        rows.set_threshold(self.limits.threshold);
        self.load_all(&mut rows);
        rows.finish_loading();
        rows.load(Some(&self.status.0.to_string()), Some(&self.status.1));
        rows
    }

    fn load_all(&self, rows: &mut Rows) {
        for (index, (version, slice)) in &self.slices {
            rows.load_slice(*index, Some(version.to_string()), slice);
        }
    }

    /// Whether a stored object names the node, so that it may have the worker.
    fn is_member(&self, node: usize) -> bool {
        let node = name(node);
        let mut slices = self.slices.values();
        slices.any(|(_, slice)| slice.rows.iter().any(|row| row.node == node))
            || self.status.1.nodes.contains(&node)
    }

    fn report(&mut self, node: usize) {
        let (instance, inference) = self.agents[node];
        let report = CounterReport {
            node: name(node).parse().unwrap(),
            instance: AgentInstance(instance.to_string()),
            epoch: 1,
            seq: inference,
            counters: Counters { inference, ..Counters::default() },
        };
        if inference == 0 || !self.is_member(node) {
            return;
        }
        for rows in &mut self.controllers {
            if rows.members.is_stored(&name(node)) || rows.listed.contains(&name(node)) {
                rows.on_counters(&report, Timestamp::UNIX_EPOCH);
            }
        }
    }

    fn place(&mut self, controller: usize) {
        let nodes: Vec<_> = self.placed.iter().map(|node| name(*node)).collect();
        let status = &self.status;
        let rows = &mut self.controllers[controller];
        rows.load(Some(&status.0.to_string()), Some(&status.1));
        rows.place(nodes.iter().map(String::as_str));
        rows.set_states(nodes.iter().map(|node| (node.as_str(), "Running", None)));
    }

    /// Writes a slice. Returns whether something was to be written.
    fn write_slice(&mut self, controller: usize, is_answered: bool) -> bool {
        self.place(controller);
        let rows = &mut self.controllers[controller];
        let pending = rows.pending().next();
        let Some(pending) = pending else { return false };
        let Some(write) = rows.next_write(pending.index) else { return true };
        let stored = self.slices.get(&write.index).map(|(version, _)| version.to_string());
        if stored == write.version {
            self.version += 1;
            self.slices.insert(write.index, (self.version, write.content.object()));
            if is_answered {
                rows.written(&write, Some(self.version.to_string()));
            }
        } else if self.slices.contains_key(&write.index) {
            // A conflict: another controller writes, too.
            self.load_again(controller);
        } else {
            rows.deleted(write.index);
        }
        true
    }

    fn load_again(&mut self, controller: usize) {
        let mut rows = std::mem::take(&mut self.controllers[controller]);
        self.load_all(&mut rows);
        self.controllers[controller] = rows;
    }

    fn write_all(&mut self, controller: usize) {
        for _ in 0..100 {
            if !self.write_slice(controller, true) {
                return;
            }
        }
        unreachable!("the writes end");
    }

    fn write_status(&mut self, controller: usize) {
        self.place(controller);
        let rows = &mut self.controllers[controller];
        let placed: Vec<_> = self.placed.iter().map(|node| name(*node)).collect();
        let counted = rows.counted(placed.iter().map(String::as_str));
        let next = JointInferenceServiceStatus {
            nodes: counted.nodes,
            reports: counted.reports,
            folded: counted.folded,
            totals: counted.slices.map(|_| totals_in(counted.totals)),
            slices: counted.slices,
            ..JointInferenceServiceStatus::default()
        };
        self.version += 1;
        self.status = (self.version, next);
        rows.acknowledge(counted.clock);
    }

    /// The printed total, and the one of what is stored.
    fn totals(&self) -> [u64; 2] {
        let printed = self.status.1.totals.as_ref().map_or(0, |totals| totals.inference_number);
        [printed, self.started().totals.inference]
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Count { node, samples, is_lost } => {
                if self.is_member(node) {
                    self.agents[node].1 += samples;
                    self.counted_by_agents += samples;
                    if !is_lost {
                        self.report(node);
                    }
                }
            }
            Step::Place(nodes) => self.placed = nodes,
            Step::WriteSlice { controller, is_answered } => {
                self.write_slice(controller, is_answered);
            }
            Step::WriteStatus { controller } => self.write_status(controller),
            Step::Kill { controller } => {
                self.controllers[controller] = self.started();
                // The broker has the newest message of each node.
                (0..NODES).for_each(|node| self.report(node));
            }
            Step::Wipe { node } => {
                self.report(node);
                self.store_everything(0);
                self.agents[node] = (self.agents[node].0 + 1, 0);
            }
            Step::Delete { slice } => {
                let Some(index) = self.slices.keys().nth(slice).copied() else { return };
                self.store_everything(0);
                self.slices.remove(&index);
                self.controllers.iter_mut().for_each(|rows| rows.deleted(index));
                self.write_all(0);
            }
        }
    }

    /// A controller stores what the nodes report. They repeat it, because a conflict drops what the
    /// other controller may have folded.
    fn store_everything(&mut self, controller: usize) {
        self.load_again(controller);
        self.write_all(controller);
        for _ in 0..2 {
            (0..NODES).for_each(|node| self.report(node));
            self.write_all(controller);
        }
        self.write_status(controller);
        // Without its rows, what a full slice had no room for is dropped and repeated, too.
        self.place(controller);
        (0..NODES).for_each(|node| self.report(node));
        self.write_all(controller);
        self.write_status(controller);
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (_, slice) in self.slices.values() {
            let nodes: BTreeSet<_> = slice.rows.iter().map(|row| &row.node).collect();
            prop_assert!(nodes.len() <= self.limits.nodes, "{:?}", nodes);
            let is_upgraded = self.status.1.reports.is_empty() && self.earlier == 0;
            let most = self.limits.nodes + self.limits.replaced;
            prop_assert!(!is_upgraded || slice.rows.len() <= most, "{:?}", slice.rows);
        }
        Ok(())
    }
}

fn run(limits: Limits, earlier: usize, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new(limits, earlier);
    let mut printed = 0;
    for step in steps {
        world.run(step.clone());
        let [now, stored] = world.totals();
        prop_assert!(
            stored <= world.counted_by_agents,
            "{} of {}: {:?}",
            stored,
            world.counted_by_agents,
            step
        );
        prop_assert!(
            now <= world.counted_by_agents,
            "{} of {}: {:?}",
            now,
            world.counted_by_agents,
            step
        );
        prop_assert!(now >= printed, "{} after {}: {:?}", now, printed, step);
        printed = now;
        world.check()?;
    }
    world.store_everything(1);
    let is_sliced = world.status.1.slices.is_some();
    if is_sliced {
        prop_assert_eq!(world.totals(), [world.counted_by_agents; 2]);
        prop_assert!(world.status.1.reports.is_empty());
        let placed: BTreeSet<_> = world.placed.iter().map(|node| name(*node)).collect();
        prop_assert_eq!(world.status.1.nodes.iter().cloned().collect::<BTreeSet<_>>(), placed);
    } else {
        prop_assert_eq!(world.totals()[1], world.counted_by_agents);
    }
    let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
    for row in world.slices.iter().flat_map(|(index, (_, slice))| {
        slice.rows.iter().map(move |row| (row.node.clone(), *index))
    }) {
        prop_assert_eq!(*nodes.entry(row.0).or_insert(row.1), row.1, "a node in two slices");
    }
    Ok(())
}

#[test]
fn agent_that_a_full_slice_had_no_room_for_counts_once_the_status_has_no_rows() {
    let count = |node| Step::Count { node, samples: 1, is_lost: false };
    let steps = vec![Step::Wipe { node: 0 }, Step::Place([1, 2, 3].into()), count(0)];
    run(Limits { threshold: 3, nodes: 2, replaced: 0 }, 1, steps).unwrap();
    let steps = vec![Step::Wipe { node: 1 }, Step::Place([2].into()), count(1), count(0)];
    run(Limits { threshold: 2, nodes: 2, replaced: 0 }, 2, steps).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn stored_total_never_exceeds_what_was_counted_and_reaches_it(
        threshold in 1..4usize,
        nodes in 2..5usize,
        replaced in 0..4usize,
        earlier in 0..6usize,
        steps in vec(step(), 0..120),
    ) {
        run(Limits { threshold, nodes, replaced }, earlier, steps)?;
    }
}

/// The standby received what a node counted while its row was in the status, and the leader folded
/// the row when it moved to the slices.
#[test]
fn row_that_moved_from_the_status_and_was_folded_counts_once() {
    let count = Step::Count { node: 0, samples: 1, is_lost: false };
    let wipe = || Step::Wipe { node: 0 };
    let steps = vec![wipe(), Step::Place([1, 3].into()), wipe(), count, wipe()];
    run(Limits { threshold: 2, nodes: 2, replaced: 0 }, 1, steps).unwrap();
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("shop-{at:05}")).collect()
}

/// Stores all slices that have changes. Returns their numbers of nodes.
fn store_all(rows: &mut Rows) -> Vec<usize> {
    let pending: Vec<_> = rows.pending().collect();
    let mut nodes = Vec::new();
    for slice in pending {
        let Some(write) = rows.next_write(slice.index) else { continue };
        nodes.push(write.content.rows.len());
        rows.written(&write, Some("1".to_owned()));
    }
    nodes
}

fn place(rows: &mut Rows, nodes: &[String]) {
    rows.place(nodes.iter().map(String::as_str));
}

#[test]
fn object_with_all_its_slices_gets_no_new_node() {
    let mut rows = Rows::default();
    place(&mut rows, &names(20_001));
    let stored = store_all(&mut rows);
    assert_eq!((stored.len(), stored[0], stored[199]), (200, 100, 100));
    let members = rows.members().unwrap();
    assert_eq!(members.len(), 20_000);
    assert!(!members.contains(&"shop-20000".parse().unwrap()));
}

#[test]
fn thirty_two_nodes_have_their_rows_in_the_status_and_one_more_moves_them() {
    let mut rows = Rows::default();
    place(&mut rows, &names(32));
    assert!(!rows.is_sliced() && rows.members().is_none() && rows.pending().next().is_none());
    place(&mut rows, &names(33));
    assert!(rows.is_sliced());
    let pending: Vec<_> = rows.pending().collect();
    assert_eq!(pending, [PendingSlice { index: 0, is_urgent: true }]);
    assert!(rows.members().unwrap().is_empty(), "nothing is stored");
    assert_eq!(store_all(&mut rows), [33]);
    assert_eq!(rows.members().unwrap().len(), 33);
    place(&mut rows, &names(1));
    assert_eq!((rows.is_sliced(), rows.members().unwrap().len()), (true, 33), "it keeps them");
}

#[test]
fn node_stays_in_its_slice_and_new_ones_fill_the_last() {
    let mut rows = Rows::default();
    place(&mut rows, &names(150));
    store_all(&mut rows);
    place(&mut rows, &names(10));
    assert_eq!(store_all(&mut rows), Vec::<usize>::new(), "nobody moves");
    place(&mut rows, &names(260));
    let pending: Vec<_> = rows.pending().map(|slice| slice.index).collect();
    assert_eq!(pending, [1, 2]);
    assert_eq!(store_all(&mut rows), [100, 60]);
}

#[test]
fn states_are_stored_for_the_nodes_that_have_the_object() {
    let mut rows = Rows::default();
    let nodes = names(40);
    place(&mut rows, &nodes);
    let states = |rows: &mut Rows, nodes: &[String], state| {
        rows.set_states(nodes.iter().map(|node| (node.as_str(), state, Some(Reason::Starting))))
    };
    assert!(states(&mut rows, &nodes, "Pending"));
    assert!(!states(&mut rows, &nodes, "Running"), "the same nodes");
    assert!(!states(&mut rows, &nodes, "Unknown"));
    let write = rows.next_write(0).unwrap();
    let row = &write.content.rows[0];
    assert_eq!(row.state.as_deref(), Some("Running"), "an unknown state changes nothing");
    assert_eq!(row.reason.as_deref(), Some("Starting"));
    rows.written(&write, Some("1".to_owned()));
    assert_eq!(rows.pending().count(), 0);
    assert!(states(&mut rows, &nodes[..39], "Running"));
    assert_eq!(rows.placed().len(), 39);
    let write = rows.next_write(0).unwrap();
    assert_eq!((write.content.rows.len(), &write.content.rows[39].state), (40, &None));
    let mut started = Rows::before_loading();
    started.load_slice(0, Some("1".to_owned()), &write.content.object());
    started.finish_loading();
    assert_eq!(started.placed(), rows.placed());
}

#[test]
fn replica_that_reads_no_slices_keeps_reports_until_it_leads() {
    let mut service = crate::joint_inference_service::fixtures::service();
    service.spec.edge_worker.node_name = None;
    let status = JointInferenceServiceStatus {
        slices: Some(NodeSlices { count: 1, nodes: 40 }),
        ..JointInferenceServiceStatus::default()
    };
    service.status = Some(status);
    service.metadata.resource_version = Some("1".to_owned());
    let mut leader = Rows::default();
    place(&mut leader, &names(40));
    let write = leader.next_write(0).unwrap();
    let mut rows = Rows::before_loading();
    let report = |node: &str| CounterReport {
        node: node.parse().unwrap(),
        instance: AgentInstance("a".to_owned()),
        epoch: 1,
        seq: 1,
        counters: Counters { inference: 5, ..Counters::default() },
    };
    for node in ["shop-00003", "elsewhere"] {
        assert!(rows.may_count(&service, &node.parse().unwrap()), "{node}");
        rows.on_counters(&report(node), Timestamp::UNIX_EPOCH);
    }
    assert_eq!(rows.totals.inference, 10);
    rows.load_slice(0, Some("1".to_owned()), &write.content.object());
    rows.finish_loading();
    assert_eq!(rows.totals.inference, 5, "the other node is in no slice");
    assert!(!rows.may_count(&service, &"elsewhere".parse().unwrap()));
    assert!(rows.may_count(&service, &"shop-00003".parse().unwrap()));
}

#[test]
fn deleted_slice_is_written_again_with_all_it_had() {
    let mut rows = Rows::default();
    place(&mut rows, &names(40));
    let first = rows.next_write(0).unwrap();
    rows.written(&first, Some("1".to_owned()));
    rows.deleted(0);
    let again = rows.next_write(0).unwrap();
    assert_eq!((again.version.as_deref(), &again.content), (None, &first.content));
    assert_eq!(rows.members().unwrap().len(), 40, "the nodes keep what they have");
    assert_eq!(rows.slice_count(), 0);
}

#[test]
fn names_of_slices_have_their_owner_and_index() {
    let mut service = crate::joint_inference_service::fixtures::service();
    service.metadata.uid = Some("7d1c3f6a-9b1e-4c55".to_owned());
    service.metadata.name = Some("assistant".to_owned());
    let mut rows = Rows::default();
    place(&mut rows, &names(140));
    let object = slice_object(&service, &rows.next_write(1).unwrap());
    let name = object.metadata.name.clone().unwrap();
    assert_eq!(name, "assistant-7d1c3f6a-001");
    assert_eq!(slice_index("assistant", "7d1c3f6a-9b1e-4c55", &name), Some(1));
    for other in ["assistant-7d1c3f6a-1", "assistant-7d1c3f6b-001", "assistant-7d1c3f6a-x", "a"] {
        assert_eq!(slice_index("assistant", "7d1c3f6a-9b1e-4c55", other), None, "{other}");
    }
    assert_eq!(object.metadata.labels.unwrap()["neptune.io/owner"], "assistant");
    assert_eq!(object.metadata.owner_references.unwrap()[0].controller, Some(true));
}
