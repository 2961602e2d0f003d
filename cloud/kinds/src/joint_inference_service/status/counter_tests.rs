//! Tests of the counters in the status: each number is exact over moves, replaced agents and many nodes.

#![allow(clippy::unwrap_used)]

use neptune_api::{JisConditionType, JointInferenceServiceStatus};
use neptune_wire::Counters;
use proptest::prelude::*;
use serde_json::json;

use super::next::metrics;
use crate::{
    finding::Finding,
    fleet::{
        CounterReport,
        rows::{MAX_NODES, MAX_REPLACED, Rows, totals_in},
    },
    joint_inference_service::status::{
        fixtures::{brief, counting, fresh, inputs, metric, next_status, on, selected, unreported},
        observed::ObservedWorker,
    },
    reason::Reason,
};

/// The totals of a status.
fn totals(status: &JointInferenceServiceStatus) -> Counters {
    let mut rows = Rows::default();
    rows.load(None, Some(status));
    rows.counted([]).totals
}

/// Counters of different primes: those of `small` in this order.
fn primes(inference: u64, decided_hard: u64, small: &[u64]) -> Counters {
    let &[hard, fallback, over_budget, unjudged, shadow, deadline, ref tiers @ ..] = small else {
        unreachable!("there are eight")
    };
    let tiers = tiers.iter().copied().collect();
    let of_gateway = Counters { decided_hard, over_budget, unjudged, ..Counters::default() };
    Counters { inference, hard, fallback, shadow, deadline, tiers, ..of_gateway }
}

#[test]
fn each_number_has_its_own_total_and_metric() {
    let counters = |node: &str, counters| CounterReport { counters, ..unreported(node, "a", 0, 0) };
    let unreported = [
        counters("edge0", primes(53, 29, &[2, 3, 5, 7, 11, 13, 17, 19])),
        counters("edge1", primes(59, 31, &[19, 17, 13, 11, 7, 5, 3, 2])),
        counters("edge0", primes(61, 37, &[3, 5, 7, 11, 13, 17, 19, 23])),
    ];
    let mut inputs = inputs([ObservedWorker::Running, ObservedWorker::Running], 0);
    inputs.observed.edges.push(on("edge1", ObservedWorker::Running));
    let status = fresh(&counting(&unreported, inputs));
    let metrics: Vec<_> =
        status.metrics.iter().map(|it| format!("{}={}", it.key, it.value)).collect();
    let expected = [
        "inferenceNumber=120",
        "hardExampleNumber=22",
        "uploadCloudRatio=0.1833",
        "fallbackNumber=22",
        "hardNumber=68",
        "overBudgetNumber=20",
        "unjudgedNumber=22",
        "shadowNumber=20",
        "deadlineNumber=22",
    ];
    assert_eq!(metrics, expected, "no threshold: no gateway reports now");
    let stored = serde_json::to_value(&status.reports[1]).unwrap();
    let expected = json!({
        "node": "edge1", "instance": "a", "epoch": 1, "seq": 0, "inferenceNumber": 59,
        "hardExampleNumber": 19, "fallbackNumber": 17, "hardNumber": 31,
        "overBudgetNumber": 13, "unjudgedNumber": 11, "shadowNumber": 7, "deadlineNumber": 5,
        "tierNumbers": [3, 2],
    });
    assert_eq!(stored, expected);
}

#[derive(Debug, Clone)]
enum Op {
    /// The agent of a node reports that its workers counted these samples.
    Report(usize, Counters),
    /// An earlier report of the agent arrives late.
    Late(usize),
    /// The agent of a node gets a new data directory, and reports these samples.
    Replace(usize, Counters),
    /// The service moves to another node.
    Move(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..3usize;
    let small = Just(vec![2, 3, 5, 7, 11, 13, 17, 19]).prop_shuffle();
    let large = (prop::sample::select(vec![53, 59, 61]), prop::sample::select(vec![29, 31, 37]));
    let samples = (large, small).prop_map(|((all, hard), small)| primes(all, hard, &small));
    prop_oneof![
        3 => (node(), samples.clone()).prop_map(|(node, samples)| Op::Report(node, samples)),
        1 => node().prop_map(Op::Late),
        3 => (node(), samples).prop_map(|(node, samples)| Op::Replace(node, samples)),
        1 => node().prop_map(Op::Move),
    ]
}

proptest! {
    #[test]
    fn each_number_is_exact_over_moves_and_replaced_agents(ops in prop::collection::vec(op(), 1..80)) {
        let mut status = JointInferenceServiceStatus::default();
        let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        // The number of each node's agent, and what the agent counted and reported before.
        let mut agents = [(0, Counters::default(), Counters::default()); 3];
        let mut expected = Counters::default();
        for op in ops {
            let (node, samples, is_late) = match op {
                Op::Report(node, samples) => (node, samples, false),
                Op::Late(node) => (node, Counters::default(), true),
                Op::Replace(node, samples) => {
                    agents[node] = (agents[node].0 + 1, Counters::default(), Counters::default());
                    (node, samples, false)
                }
                Op::Move(node) => {
                    run.observed.edges[0].node = format!("edge{node}");
                    (node, Counters::default(), false)
                }
            };
            let (agent, counted, before) = &mut agents[node];
            if !is_late {
                (*counted, *before) = (counted.plus(samples), *counted);
            }
            expected = expected.plus(samples);
            let report = CounterReport {
                counters: if is_late { *before } else { *counted },
                ..unreported(&format!("edge{node}"), &agent.to_string(), 0, 0)
            };
            status = next_status(&status, &counting(&[report], run.clone()));
            // A new controller reads the status.
            status = serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap();
            prop_assert_eq!(totals(&status), expected);
            prop_assert!(status.reports.len() < 3 + MAX_REPLACED);
        }
    }
}

#[test]
fn totals_only_grow_and_each_instance_counts_once() {
    let run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
    let mut status = JointInferenceServiceStatus::default();
    let mut step = |counters: &[CounterReport]| {
        status = next_status(&status, &counting(counters, run.clone()));
        metric(&status).join(" ")
    };
    assert_eq!(step(&[]), "0 0 0");
    assert_eq!(step(&[unreported("edge0", "a", 100, 10)]), "100 10 0.1");
    assert_eq!(step(&[unreported("edge0", "a", 90, 9)]), "100 10 0.1", "late report");
    assert_eq!(step(&[unreported("edge0", "b", 3, 2)]), "103 12 0.1165", "replaced node");
    assert_eq!(
        step(&[unreported("edge0", "a", 101, 10)]),
        "104 12 0.1154",
        "last report of the replaced node"
    );
    assert_eq!(step(&[unreported("edge1", "a", 96, 88)]), "200 100 0.5", "another node");
    assert_eq!(step(&[]), "200 100 0.5", "after a restart the status is sufficient");
    assert_eq!(status.reports.len(), 3);
}

#[test]
fn wiped_status_of_an_idle_service_stays_at_0_until_its_agent_counts_again() {
    let run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
    let empty = JointInferenceServiceStatus::default();
    // What a status has is not reported to the controller again: only new counts are.
    let step = |status: &JointInferenceServiceStatus, new: &[CounterReport]| {
        next_status(status, &counting(new, run.clone()))
    };
    let counted = step(&empty, &[unreported("edge0", "a", 100, 10)]);
    assert_eq!(metric(&counted), ["100", "10", "0.1"]);
    let wiped = step(&empty, &[]);
    assert_eq!(metric(&wiped), ["0", "0", "0"]);
    let again = step(&wiped, &[unreported("edge0", "a", 101, 10)]);
    assert_eq!(metric(&again), ["101", "10", "0.099"], "a report has all counts of its agent");
}

#[test]
fn fallbacks_and_an_unreachable_cloud_worker_are_visible() {
    let finding = Finding::new(Reason::CloudUnreachable, "no answers");
    let run = inputs([ObservedWorker::Degraded(finding), ObservedWorker::Running], 1);
    let step = |previous: &JointInferenceServiceStatus, node: &str, fallback| {
        let mut report = unreported(node, "a", 100, 10);
        report.counters.fallback = fallback;
        next_status(previous, &counting(&[report], run.clone()))
    };
    let status = step(&JointInferenceServiceStatus::default(), "edge0", 5);
    assert_eq!(brief(&status), (JisConditionType::Running, "CloudUnreachable".to_owned()));
    assert_eq!(status.active, Some(2), "both workers run");
    assert_eq!(metric(&status), ["100", "10", "0.1", "5"]);
    let late = step(&status, "edge0", 4);
    assert_eq!(metric(&late)[3], "5", "late report");
    assert_eq!(metric(&step(&late, "edge1", 2))[3], "7", "the sum over the agents");
}

#[test]
fn totals_are_exact_when_a_service_returns_after_many_nodes() {
    let (mut status, mut expected) = (JointInferenceServiceStatus::default(), 0);
    for round in 1..=3 {
        for n in 0..40 {
            let node = format!("edge{n}");
            let counters = [unreported(&node, "a", 10 * round, 1)];
            let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
            run.observed.edges[0].node = node;
            status = next_status(&status, &counting(&counters, run));
            expected += 10;
            assert_eq!(metric(&status)[0], expected.to_string(), "{n} {round}");
        }
    }
    assert_eq!((status.reports.len(), status.nodes.len()), (40, 40));
}

#[test]
fn nodes_of_a_status_are_bounded_and_include_the_current_one() {
    let mut status = JointInferenceServiceStatus::default();
    for n in 0..2 * MAX_NODES {
        let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        run.observed.edges[0].node = format!("edge{n}");
        status = next_status(&status, &run);
        assert_eq!(status.nodes.last(), Some(&format!("edge{n}")));
    }
    assert_eq!(status.nodes.len(), MAX_NODES);
}

#[test]
fn totals_are_exact_when_nodes_join_and_leave() {
    let node = |n: usize| format!("edge{n}");
    let mut status = JointInferenceServiceStatus::default();
    let mut tallies = [0; 40];
    for round in 0..60 {
        // A window of nodes that moves on, so that each node leaves and joins again. One that
        // left reports once more.
        let placed: Vec<_> = (0..30).map(|n| (round * 7 + n) % 40).collect();
        let names: Vec<_> = placed.iter().map(|n| node(*n)).collect();
        status = next_status(&status, &selected(&names));
        for n in placed {
            tallies[n] += 3;
        }
        let late = (round * 7 + 35) % 40;
        tallies[late] += u64::from(status.nodes.contains(&node(late)));
        let reports: Vec<_> = (0..40)
            .filter(|n| status.nodes.contains(&node(*n)))
            .map(|n| unreported(&node(n), "a", tallies[n], 1))
            .collect();
        status = next_status(&status, &counting(&reports, selected(&names)));
        assert_eq!(metric(&status)[0], tallies.iter().sum::<u64>().to_string(), "{round}");
    }
    assert_eq!(status.reports.len(), 40);
}

#[test]
fn node_of_a_full_list_never_counts_twice() {
    let names: Vec<_> = (0..MAX_NODES).map(|n| format!("edge{n}")).collect();
    let count = |n: usize, numbers| unreported(&format!("edge{n}"), "a", numbers, 0);
    let mut status = next_status(&JointInferenceServiceStatus::default(), &selected(&names));
    // The last node reports first.
    for n in (0..MAX_NODES).rev() {
        let reports = [count(n, 10)];
        status = next_status(&status, &counting(&reports, selected(&names)));
    }
    // A new node takes the place of the first one, whose last report comes late.
    let mut moved = names[1..].to_vec();
    moved.push("new".to_owned());
    let reports = [count(0, 15), count(1, 20), unreported("new", "a", 1, 0)];
    status = next_status(&status, &counting(&reports, selected(&moved)));
    assert_eq!(metric(&status)[0], (10 * MAX_NODES + 10 + 1).to_string());
    assert!(moved.iter().all(|node| status.nodes.contains(node)));
    assert_eq!(status.nodes.len(), MAX_NODES);
}

#[test]
fn replaced_agents_of_many_nodes_are_not_folded_at_once() {
    let names: Vec<_> = (0..20).map(|n| format!("edge{n}")).collect();
    let reports: Vec<_> = names.iter().map(|node| unreported(node, "a", 100, 0)).collect();
    let mut status = fresh(&counting(&reports, selected(&names)));
    for (instance, numbers) in [("b", 5), ("a", 101)] {
        let reports = [unreported("edge7", instance, numbers, 0)];
        status = next_status(&status, &counting(&reports, selected(&names)));
    }
    assert_eq!(metric(&status)[0], "2006");
}

#[test]
fn status_is_bounded_and_total_exact_after_100_replacements() {
    let mut status = JointInferenceServiceStatus::default();
    let counters = primes(53, 29, &[2, 3, 5, 7, 11, 13, 17, 19]);
    for n in 0..100 {
        let report = CounterReport { counters, ..unreported("edge0", &n.to_string(), 0, 0) };
        let run = inputs([ObservedWorker::Running, ObservedWorker::Running], n);
        status = next_status(&status, &counting(&[report], run));
    }
    let listed = status.reports.len();
    assert!(listed <= 16, "{listed}");
    let sum = |number: usize| (0..number).fold(Counters::default(), |sum, _| sum.plus(counters));
    assert!(status.reports.iter().all(|report| report.counters == totals_in(counters)));
    assert_eq!(status.folded.as_ref(), Some(&totals_in(sum(100 - listed))));
    assert_eq!(totals(&status), sum(100));
    assert_eq!(status.reports.last().unwrap().instance, "99");
}

#[test]
fn ratio_has_at_most_four_decimals() {
    for (inference, hard, ratio) in [
        (0, 0, "0"),
        (3, 1, "0.3333"),
        (3, 2, "0.6667"),
        (4, 4, "1"),
        (8, 2, "0.25"),
        (100_000, 1, "0"),
    ] {
        assert_eq!(
            metrics(Counters { inference, hard, ..Counters::default() }, false)[2].value,
            ratio
        );
    }
}
