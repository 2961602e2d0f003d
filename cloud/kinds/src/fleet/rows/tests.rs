//! Rows and the counters from scratch, over random histories.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;

use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::{
    from_scratch::{UnreportedCounters, add_counts, may_count, nodes},
    *,
};
use crate::joint_inference_service::fixtures::service;

/// Counts the rows that are read.
#[derive(Debug, Clone, Default)]
pub struct Visits(Cell<usize>);

impl Visits {
    pub fn add(&self, count: usize) {
        self.0.set(self.0.get() + count);
    }

    fn take(&self) -> usize {
        self.0.take()
    }
}

/// What happens to an object and its controller.
#[derive(Debug, Clone)]
enum Step {
    /// An agent reports what it counted.
    Report(CounterReport),
    /// The edge worker moves to these nodes.
    Place(Vec<String>),
    /// The controller writes the status, while agents report. The write may fail.
    Write { meanwhile: Vec<CounterReport>, fails: bool },
    /// Another controller writes the status, with these reports.
    WriteElsewhere(Vec<CounterReport>),
    /// A person deletes the status.
    Wipe,
    /// The controller restarts and has only the status.
    Restart,
}

fn name(node: usize) -> String {
    format!("edge{node}")
}

fn report() -> impl Strategy<Value = CounterReport> {
    let node = prop_oneof![4 => 0..2usize, 1 => 0..75usize];
    let instance = prop_oneof![2 => 0..3usize, 1 => 0..40usize];
    let order = (1..4u64, 0..9u64);
    let numbers = (0..50u64, 0..20u64, 0..9u64, 0..9u64);
    (node, instance, order, numbers).prop_map(|(node, instance, (epoch, seq), numbers)| {
        let (inference, hard, shadow, tier) = numbers;
        let tiers = [tier].into_iter().collect();
        let counters = Counters { inference, hard, shadow, tiers, ..Counters::default() };
        let (node, instance) = (name(node).parse().unwrap(), AgentInstance(instance.to_string()));
        CounterReport { node, instance, epoch, seq, counters }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let window = |(start, len): (usize, usize)| {
        (start..start + len).map(|n| name(n % 75)).collect::<Vec<_>>()
    };
    let reports = || vec(report(), 0..4);
    prop_oneof![
        20 => report().prop_map(Step::Report),
        2 => (0..75usize, 0..=MAX_NODES).prop_map(window).prop_map(Step::Place),
        6 => (reports(), any::<bool>())
            .prop_map(|(meanwhile, fails)| Step::Write { meanwhile, fails }),
        1 => reports().prop_map(Step::WriteElsewhere),
        1 => Just(Step::Wipe),
        1 => Just(Step::Restart),
    ]
}

/// A service and its controller, with the rows and without them.
struct World {
    service: JointInferenceService,
    /// The nodes of the edge worker.
    placed: Vec<String>,
    unreported: UnreportedCounters,
    rows: Rows,
}

impl World {
    fn new() -> Self {
        let mut service = service();
        service.spec.edge_worker.node_name = None;
        service.status = Some(JointInferenceServiceStatus::default());
        service.metadata.resource_version = Some("0".to_owned());
        let (unreported, rows) = (UnreportedCounters::default(), Rows::default());
        Self { service, placed: Vec::new(), unreported, rows }
    }

    fn status(&self) -> &JointInferenceServiceStatus {
        self.service.status.as_ref().unwrap()
    }

    /// The counters of the next status from scratch.
    fn expected(&self, unreported: &[CounterReport]) -> Counted {
        let nodes = nodes(self.status(), &self.placed);
        let (reports, folded, totals) = add_counts(self.status(), &nodes, unreported);
        Counted { nodes, reports, folded, totals, ..Counted::default() }
    }

    fn counted(&mut self) -> Counted {
        let version = self.service.metadata.resource_version.as_deref();
        self.rows.load(version, self.service.status.as_ref());
        self.rows.counted(self.placed.iter().map(String::as_str))
    }

    fn store(&mut self, counted: Counted) {
        let status = self.service.status.as_mut().unwrap();
        (status.nodes, status.reports, status.folded) =
            (counted.nodes, counted.reports, counted.folded);
        let version = self.service.metadata.resource_version.as_mut().unwrap();
        *version = (version.parse::<u64>().unwrap() + 1).to_string();
    }

    fn report(&mut self, report: &CounterReport) {
        let may = may_count(&self.service, &report.node);
        assert_eq!(self.rows.may_count(&self.service, &report.node), may, "{}", report.node);
        if !may {
            return;
        }
        let before = self.rows.totals;
        let was_new = self.unreported.add(report.clone());
        let is_higher = self.rows.on_counters(report, Timestamp::UNIX_EPOCH);
        assert!(was_new || !is_higher);
        assert!(is_higher || self.rows.totals == before);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Report(report) => self.report(&report),
            Step::Place(nodes) => self.placed = nodes,
            Step::Write { meanwhile, fails } => {
                let reported = self.unreported.get().to_vec();
                let (next, counted) = (self.expected(&reported), self.counted());
                for report in &meanwhile {
                    self.report(report);
                }
                if fails {
                    return;
                }
                let without_order = |mut reports: Vec<AgentCounters>| {
                    for report in &mut reports {
                        (report.epoch, report.seq) = (0, 0);
                    }
                    reports
                };
                let is_same = without_order(next.reports.clone())
                    == without_order(self.status().reports.clone())
                    && (&next.folded, &next.nodes) == (&self.status().folded, &self.status().nodes);
                if !is_same {
                    self.store(next);
                }
                self.unreported.mark_reported(&reported);
                self.rows.acknowledge(counted.clock);
            }
            Step::WriteElsewhere(mut reports) => {
                reports.retain(|report| may_count(&self.service, &report.node));
                let mut elsewhere = UnreportedCounters::default();
                for report in reports {
                    elsewhere.add(report);
                }
                let next = self.expected(elsewhere.get());
                self.store(next);
            }
            Step::Wipe => self.store(Counted::default()),
            Step::Restart => {
                (self.unreported, self.rows) = (UnreportedCounters::default(), Rows::default());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn rows_equal_the_counters_from_scratch_over_any_history(steps in vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.run(step.clone());
            let expected = world.expected(world.unreported.get());
            let counted = Counted { clock: 0, ..world.counted() };
            prop_assert_eq!(counted, expected, "{:?}", step);
        }
    }
}

fn report_of(node: &str, instance: usize, inference: u64) -> CounterReport {
    let (node, instance) = (node.parse().unwrap(), AgentInstance(instance.to_string()));
    let counters = Counters { inference, ..Counters::default() };
    CounterReport { node, instance, epoch: 1, seq: inference, counters }
}

#[test]
fn report_visits_its_node_and_a_status_visits_each_row_once() {
    // What a report and a status cost with this many nodes.
    let costs = |count: usize| {
        let names: Vec<_> = (0..count).map(name).collect();
        let current = || names.iter().map(String::as_str);
        let mut rows = Rows::default();
        for node in &names {
            rows.on_counters(&report_of(node, 1, 10), Timestamp::UNIX_EPOCH);
        }
        let Counted { nodes, reports, folded, .. } = rows.counted(current());
        let status = JointInferenceServiceStatus { nodes, reports, folded, ..Default::default() };
        rows.acknowledge(u64::MAX);
        rows.load(Some("1"), Some(&status));
        rows.visits.take();
        rows.on_counters(&report_of(&names[count / 2], 1, 20), Timestamp::UNIX_EPOCH);
        let report = rows.visits.take();
        rows.load(Some("1"), Some(&status));
        let counted = rows.counted(current());
        rows.acknowledge(counted.clock);
        (report, rows.visits.take())
    };
    let ((report, status), (report_of_many, status_of_many)) = (costs(8), costs(MAX_NODES));
    assert_eq!((report, report_of_many), (1, 1));
    assert_eq!(status_of_many, status * MAX_NODES / 8);
}

#[test]
fn only_nodes_that_have_or_had_the_edge_worker_count() {
    let mut service = service();
    service.spec.edge_worker.node_name = Some("now".to_owned());
    service.spec.cloud_worker.node_name = Some("cloud".to_owned());
    let status = json!({"nodes": ["earlier", "now"], "reports": [{
        "node": "reported", "instance": "a", "epoch": 7, "seq": 1, "inferenceNumber": 1,
        "hardExampleNumber": 0,
    }]});
    service.status = Some(serde_json::from_value(status).unwrap());
    service.metadata.resource_version = Some("1".to_owned());
    let mut rows = Rows::default();
    let nodes = ["now", "earlier", "reported", "cloud", "x"];
    let mut may_count = |service: &JointInferenceService| {
        nodes.map(|node| rows.may_count(service, &node.parse().unwrap()))
    };
    assert_eq!(may_count(&service), [true, true, true, false, false]);
    service.spec.edge_worker.node_name = Some("x".to_owned());
    service.metadata.resource_version = Some("2".to_owned());
    assert_eq!(may_count(&service), [true, true, true, false, true]);
    let instance = AgentInstance("a".to_owned());
    let epoch = |rows: &mut Rows, node: &str| {
        rows.newest_epoch(&service, &node.parse().unwrap(), &instance)
    };
    assert_eq!(["reported", "now"].map(|node| epoch(&mut rows, node)), [Some(7), None]);
}

#[test]
fn invented_instances_use_bounded_memory() {
    let mut rows = Rows::default();
    let added = (0..1000)
        .filter(|n| rows.on_counters(&report_of("edge0", *n, 0), Timestamp::UNIX_EPOCH))
        .count();
    assert_eq!(added, MAX_INSTANCES);
    assert!(
        rows.on_counters(&report_of("edge1", 0, 0), Timestamp::UNIX_EPOCH),
        "other nodes still count"
    );
}

#[test]
fn report_is_new_only_with_higher_numbers_than_the_status_has() {
    let mut rows = Rows::default();
    assert!(rows.on_counters(&report_of("edge0", 1, 10), Timestamp::UNIX_EPOCH));
    let Counted { reports, clock, .. } = rows.counted(["edge0"]);
    let status = JointInferenceServiceStatus { reports, ..Default::default() };
    rows.acknowledge(clock);
    rows.load(Some("1"), Some(&status));
    for (inference, expected) in [(10, false), (9, false), (11, true), (11, false)] {
        assert_eq!(
            rows.on_counters(&report_of("edge0", 1, inference), Timestamp::UNIX_EPOCH),
            expected,
            "{inference}"
        );
    }
}

#[test]
fn node_may_count_once_the_status_that_lists_it_is_written() {
    let service = service();
    let node: NodeName = "new".parse().unwrap();
    let mut rows = Rows::default();
    assert!(!rows.may_count(&service, &node), "the cached version does not list it");
    rows.on_status_written(&["new".to_owned()]);
    assert!(rows.may_count(&service, &node), "the cache has the next version later");
    rows.on_status_written(&[]);
    assert!(!rows.may_count(&service, &node));
}
