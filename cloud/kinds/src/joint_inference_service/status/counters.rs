//! Adds the counts of agents to the totals of a service. Pure.

use neptune_api::{AgentCounters, CounterTotals, JointInferenceServiceStatus, KeyValue};
use neptune_wire::Counters;

use crate::{
    fleet::CounterReport, joint_inference_service::status::observed::ServiceObservation,
    kubernetes::node_selector,
};

/// Agents that a status lists although their node has a newer one. Of more, the oldest is folded.
const MAX_REPLACED: usize = 16;

/// Nodes that a status lists. Counters of a node that is no longer listed are folded, and its later
/// reports do not count. All nodes that a selector places the edge worker on are listed.
const MAX_NODES: usize = node_selector::MAX_NODES;

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
        let highest = counters_of(report).max(*counters);
        report.inference_number = highest.inference;
        report.hard_example_number = highest.hard;
        report.fallback_number = highest.fallback;
        report.hard_number = highest.decided_hard;
        report.over_budget_number = highest.over_budget;
        report.unjudged_number = highest.unjudged;
        report.shadow_number = highest.shadow;
        report.deadline_number = highest.deadline;
        report.tier_numbers = highest.tiers.counts().to_vec();
    }
    let mut folded = previous.folded.as_ref().map_or_else(Counters::default, |folded| Counters {
        inference: folded.inference_number,
        hard: folded.hard_example_number,
        fallback: folded.fallback_number,
        decided_hard: folded.hard_number,
        over_budget: folded.over_budget_number,
        unjudged: folded.unjudged_number,
        shadow: folded.shadow_number,
        deadline: folded.deadline_number,
        tiers: folded.tier_numbers.iter().copied().collect(),
    });
    while let Some(position) = position_to_fold(&reports, is_dropped) {
        folded = folded.plus(counters_of(&reports.remove(position)));
    }
    let totals = reports.iter().fold(folded, |sum, report| sum.plus(counters_of(report)));
    let folded = (!folded.are_zero()).then_some(CounterTotals {
        inference_number: folded.inference,
        hard_example_number: folded.hard,
        fallback_number: folded.fallback,
        hard_number: folded.decided_hard,
        over_budget_number: folded.over_budget,
        unjudged_number: folded.unjudged,
        shadow_number: folded.shadow,
        deadline_number: folded.deadline,
        tier_numbers: folded.tiers.counts().to_vec(),
    });
    (reports, folded, totals)
}

fn counters_of(report: &AgentCounters) -> Counters {
    Counters {
        inference: report.inference_number,
        hard: report.hard_example_number,
        fallback: report.fallback_number,
        decided_hard: report.hard_number,
        over_budget: report.over_budget_number,
        unjudged: report.unjudged_number,
        shadow: report.shadow_number,
        deadline: report.deadline_number,
        tiers: report.tier_numbers.iter().copied().collect(),
    }
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
pub fn nodes(previous: &JointInferenceServiceStatus, observed: &ServiceObservation) -> Vec<String> {
    let is_current = |node: &str| observed.edges.iter().any(|edge| edge.node == node);
    let mut nodes = previous.nodes.clone();
    let reported = previous.reports.iter().map(|report| &report.node);
    for node in reported.chain(observed.edges.iter().map(|edge| &edge.node)) {
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

/// The metrics that every service has.
pub fn metrics(totals: Counters) -> Vec<KeyValue> {
    // At most four decimals, without trailing zeros.
    let ratio = format!("{:.4}", totals.upload_cloud_ratio());
    let ratio = ratio.trim_end_matches('0').trim_end_matches('.');
    let mut metrics = vec![
        KeyValue::new("inferenceNumber", totals.inference.to_string()),
        KeyValue::new("hardExampleNumber", totals.hard.to_string()),
        KeyValue::new("uploadCloudRatio", ratio),
    ];
    if totals.fallback > 0 {
        metrics.push(KeyValue::new("fallbackNumber", totals.fallback.to_string()));
    }
    metrics
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::JisConditionType;

    use super::*;
    use crate::{
        finding::Finding,
        joint_inference_service::status::{
            fixtures::{brief, fresh, inputs, metric, on, selected, unreported},
            next::next_status,
            observed::ObservedWorker,
        },
        reason::Reason,
        steps::StatusInputs,
    };

    #[test]
    fn numbers_of_gateways_are_summed_over_nodes_exactly() {
        let counters = |node: &str, decided_hard| {
            let mut report = unreported(node, "a", 100, 5);
            report.counters = Counters {
                decided_hard,
                over_budget: decided_hard / 2,
                unjudged: 7,
                shadow: 3,
                ..report.counters
            };
            report
        };
        let unreported = [counters("edge0", 10), counters("edge1", 20), counters("edge0", 12)];
        let mut inputs = inputs([ObservedWorker::Running, ObservedWorker::Running], 0);
        inputs.observed.edges.push(on("edge1", ObservedWorker::Running));
        let inputs = StatusInputs { unreported: &unreported, ..inputs };
        let status = fresh(&inputs);
        let metric = |key: &str| {
            status.metrics.iter().find(|metric| metric.key == key).map(|it| it.value.as_str())
        };
        assert_eq!(metric("hardNumber"), Some("32"));
        assert_eq!(metric("overBudgetNumber"), Some("16"));
        assert_eq!((metric("unjudgedNumber"), metric("shadowNumber")), (Some("14"), Some("6")));
        assert_eq!(metric("threshold"), None, "no gateway reports now");
    }

    #[test]
    fn totals_only_grow_and_each_instance_counts_once() {
        let run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        let mut status = JointInferenceServiceStatus::default();
        let mut step = |counters: &[CounterReport]| {
            status = next_status(&status, &StatusInputs { unreported: counters, ..run.clone() });
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
    fn fallbacks_and_an_unreachable_cloud_worker_are_visible() {
        let finding = Finding::new(Reason::CloudUnreachable, "no answers");
        let run = inputs([ObservedWorker::Degraded(finding), ObservedWorker::Running], 1);
        let step = |previous: &JointInferenceServiceStatus, node: &str, fallback| {
            let mut report = unreported(node, "a", 100, 10);
            report.counters.fallback = fallback;
            next_status(previous, &StatusInputs { unreported: &[report], ..run.clone() })
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
                status = next_status(&status, &StatusInputs { unreported: &counters, ..run });
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
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
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
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
        }
        // A new node takes the place of the first one, whose last report comes late.
        let mut moved = names[1..].to_vec();
        moved.push("new".to_owned());
        let reports = [count(0, 15), count(1, 20), unreported("new", "a", 1, 0)];
        status = next_status(&status, &StatusInputs { unreported: &reports, ..selected(&moved) });
        assert_eq!(metric(&status)[0], (10 * MAX_NODES + 10 + 1).to_string());
        assert!(moved.iter().all(|node| status.nodes.contains(node)));
        assert_eq!(status.nodes.len(), MAX_NODES);
    }

    #[test]
    fn replaced_agents_of_many_nodes_are_not_folded_at_once() {
        let names: Vec<_> = (0..20).map(|n| format!("edge{n}")).collect();
        let reports: Vec<_> = names.iter().map(|node| unreported(node, "a", 100, 0)).collect();
        let mut status = fresh(&StatusInputs { unreported: &reports, ..selected(&names) });
        for (instance, numbers) in [("b", 5), ("a", 101)] {
            let reports = [unreported("edge7", instance, numbers, 0)];
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
        }
        assert_eq!(metric(&status)[0], "2006");
    }

    #[test]
    fn status_is_bounded_and_total_exact_after_100_replacements() {
        let mut status = JointInferenceServiceStatus::default();
        for n in 0..100 {
            let counters = [unreported("edge0", &n.to_string(), 10, 1)];
            let run = inputs([ObservedWorker::Running, ObservedWorker::Running], n);
            status = next_status(&status, &StatusInputs { unreported: &counters, ..run });
        }
        assert_eq!(metric(&status), ["1000", "100", "0.1"]);
        assert!(status.reports.len() <= 16, "{}", status.reports.len());
        let listed: u64 = status.reports.iter().map(|report| report.inference_number).sum();
        assert_eq!(listed + status.folded.unwrap().inference_number, 1000);
        assert!(status.reports.iter().all(|report| report.inference_number == 10));
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
                metrics(Counters { inference, hard, ..Counters::default() })[2].value,
                ratio
            );
        }
    }
}
