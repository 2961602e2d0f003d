//! Computes the next status of a service from its previous status, findings, observation and
//! counters.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{JointInferenceServiceStatus, KeyValue, NodeCounts, TotalUploadStatus};
use neptune_wire::Counters;

use crate::{
    finding::Finding,
    fleet::{Counted, rows::totals_in},
    joint_inference_service::{
        chain::{tiers::tier_statuses, total_upload::Held},
        status::{
            availability::node_counts,
            conditions::{has_run, next_condition, next_conditions, was_about_workers},
            edge_workers::{edge_workers, rejected},
            gateway::{gateway_metrics, next_gateway, without_history},
            observed::{ObservedWorker, ServiceObservation},
        },
    },
    reason::Reason,
    steps::StatusInputs,
};

/// The next status. The counters are those of the previous status with new counts added.
#[must_use]
pub fn next_status(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> JointInferenceServiceStatus {
    let Counted { nodes, reports, folded, totals, slices, .. } = &inputs.observed.counted;
    let awaits_address = awaits_address(previous, inputs);
    let condition = next_condition(previous, inputs);
    let keeps_counts = has_unknown(inputs) && !previous.conditions.is_empty();
    let (active, failed) = if awaits_address || keeps_counts || condition.is_last_result() {
        (previous.active, previous.failed)
    } else {
        counts(previous, &inputs.observed)
    };
    let node_counts = next_node_counts(previous, &inputs.observed, awaits_address || keeps_counts);
    let conditions = if awaits_address || awaits_workers(previous, inputs) {
        previous.conditions.clone()
    } else {
        next_conditions(&previous.conditions, condition, inputs.now)
    };
    let gateway = next_gateway(previous, &inputs.observed, reports, inputs.now);
    let mut metrics = metrics(*totals, gateway.is_some());
    metrics.extend(gateway.as_deref().into_iter().flat_map(gateway_metrics));
    let is_counted = metrics == previous.metrics;
    let metrics_time = previous.metrics_time.clone().filter(|_| is_counted);
    JointInferenceServiceStatus {
        conditions,
        start_time: previous.start_time.clone().or(Some(Time(inputs.now))),
        active,
        failed,
        metrics,
        metrics_time: metrics_time.or(Some(Time(inputs.now))),
        observed_generation: if awaits_address {
            previous.observed_generation
        } else {
            inputs.generation
        },
        node_counts,
        totals: slices.map(|_| totals_in(*totals)),
        slices: *slices,
        reports: reports.clone(),
        folded: folded.clone(),
        nodes: nodes.clone(),
        edge_workers: edge_workers(previous, inputs),
        total_upload: match (inputs.observed.total, inputs.findings) {
            (None, [_, ..]) => previous.total_upload.clone(),
            (held, _) => held.map(total_upload).map(Box::new),
        },
        tiers: tier_statuses(&inputs.observed.tier_names, totals),
        gateway,
        model: match (&inputs.observed.model, inputs.findings) {
            (None, [_, ..]) => previous.model.clone(),
            (model, _) => model.clone(),
        },
        rejected: rejected(&inputs.observed),
        rollout: match (&inputs.observed.rollout, inputs.findings) {
            (None, [_, ..]) => previous.rollout.clone(),
            (rollout, _) => rollout.as_ref().map(|rollout| Box::new(rollout.status.clone())),
        },
    }
}

/// The numbers of workers that run and that failed. A worker on an offline node counts as
/// running if it ran before.
fn counts(
    previous: &JointInferenceServiceStatus,
    observed: &ServiceObservation,
) -> (Option<i32>, Option<i32>) {
    let has_run = has_run(&previous.conditions);
    let (mut active, mut failed) = (0, 0);
    for worker in observed.workers() {
        let is_offline = matches!(worker, ObservedWorker::Offline(_));
        active += i32::from(worker.is_active() || is_offline && has_run);
        failed += i32::from(matches!(worker, ObservedWorker::Failed(_)));
    }
    (Some(active), Some(failed))
}

/// The numbers of nodes, if labels select several. They stay while nodes have not reported yet.
fn next_node_counts(
    previous: &JointInferenceServiceStatus,
    observed: &ServiceObservation,
    is_unknown: bool,
) -> Option<NodeCounts> {
    let is_sliced = observed.counted.slices.is_some();
    let has_many = observed.is_selected && (is_sliced || observed.edges.len() > 1);
    let before = previous.node_counts.as_ref().filter(|_| is_unknown);
    has_many.then(|| before.cloned().unwrap_or_else(|| node_counts(&observed.edges)))
}

fn total_upload(held: Held) -> TotalUploadStatus {
    let Held { total, ratio, since } = held;
    TotalUploadStatus {
        goal: total.to_string(),
        upload_ratio: ratio.to_string(),
        since: Time(Timestamp::from_second(since.as_second()).unwrap_or(since)),
    }
}

/// The metrics of the totals. Those of gateways are absent without a gateway that counted.
pub(super) fn metrics(totals: Counters, has_gateway: bool) -> Vec<KeyValue> {
    // At most four decimals, without trailing zeros.
    let ratio = format!("{:.4}", totals.upload_cloud_ratio());
    let ratio = ratio.trim_end_matches('0').trim_end_matches('.');
    let [inference, hard_example, fallback, of_gateway @ .., deadline] = totals.numbers();
    let has_counted = |(_, number): &(&str, u64)| *number > 0;
    let has_gateway = has_gateway || of_gateway.iter().any(has_counted);
    let optional = std::iter::once(fallback)
        .filter(has_counted)
        .chain(of_gateway.into_iter().filter(|_| has_gateway))
        .chain(Some(deadline).filter(has_counted));
    let metric = |(name, number): (&str, u64)| KeyValue::new(name, number.to_string());
    let ratio = KeyValue::new("uploadCloudRatio", ratio);
    let always = [metric(inference), metric(hard_example), ratio];
    always.into_iter().chain(optional.map(metric)).collect()
}

/// Whether two statuses are equal except for heartbeat times, message numbers and the history of a
/// gateway, which alone are not written.
pub fn is_same_status(a: &JointInferenceServiceStatus, b: &JointInferenceServiceStatus) -> bool {
    let plain = |status: &JointInferenceServiceStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.last_heartbeat_time = None;
        }
        for report in &mut status.reports {
            (report.epoch, report.seq) = (0, 0);
        }
        without_history(&mut status);
        status
    };
    plain(a) == plain(b)
}

fn has_unknown(inputs: &StatusInputs<ServiceObservation>) -> bool {
    inputs.observed.workers().any(|worker| matches!(worker, ObservedWorker::Unknown(_)))
}

/// Whether the conditions stay: the controller started recently and the agents have not reported
/// yet.
fn awaits_workers(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> bool {
    inputs.findings.is_empty()
        && has_unknown(inputs)
        && was_about_workers(previous)
        && previous.observed_generation == inputs.generation
}

/// Whether the state, as opposed to the counters, stays because an agent's address is all that is
/// missing to plan the spec, and the agent may not have had the time to report it.
fn awaits_address(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> bool {
    let is_address = |finding: &Finding| finding.reason == Reason::CloudAddressUnknown;
    !inputs.is_settled
        && !inputs.findings.is_empty()
        && inputs.findings.iter().all(is_address)
        && was_about_workers(previous)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{EdgeWorkerStatus, JisConditionType};
    use neptune_wire::{Figure, GatewayReport};

    use super::*;
    use crate::{
        fleet::CounterReport,
        joint_inference_service::status::fixtures::{
            at, brief, counting, failed, fresh, inputs, metric, next_status, offline, selected,
            unknown, unreported,
        },
    };

    #[test]
    fn figures_of_a_gateway_are_written_and_its_history_alone_is_not() {
        let at_threshold = |threshold, now| {
            let mut inputs = inputs([ObservedWorker::Running, ObservedWorker::Running], now);
            let report = GatewayReport {
                threshold: Figure::new(threshold),
                upload_ratio: Figure::new(0.2),
                ..GatewayReport::default()
            };
            inputs.observed.edges[0].gateway = Some(Box::new(report));
            inputs
        };
        let first = fresh(&at_threshold(0.7, 0));
        let idle = next_status(&first, &at_threshold(0.7, 3600));
        assert_eq!(idle.gateway.as_ref().unwrap().history.len(), 2);
        assert!(is_same_status(&first, &idle), "an idle service writes nothing");
        let moved = next_status(&first, &at_threshold(0.71, 3600));
        assert!(!is_same_status(&first, &moved));
        assert_eq!(brief(&first), brief(&moved));
    }

    #[test]
    fn unknown_address_after_a_restart_leaves_the_state_and_counts_on() {
        let running = [ObservedWorker::Running, ObservedWorker::Running];
        let before = fresh(&inputs(running, 1));
        let unknown_address = [Finding::new(Reason::CloudAddressUnknown, "no address")];
        let counters = [unreported("edge0", "a", 9, 4)];
        let restarted = StatusInputs {
            generation: Some(2),
            findings: &unknown_address,
            is_settled: false,
            ..counting(&counters, inputs([unknown(), unknown()], 2))
        };
        let after = next_status(&before, &restarted);
        assert_eq!(after.conditions, before.conditions);
        assert_eq!((after.active, after.observed_generation), (Some(2), Some(1)));
        assert_eq!(metric(&after), ["9", "4", "0.4444"]);

        let pending = (JisConditionType::Pending, Reason::CloudAddressUnknown.to_string());
        let settled = StatusInputs { is_settled: true, ..restarted.clone() };
        assert_eq!(brief(&next_status(&before, &settled)), pending);
        assert_eq!(brief(&fresh(&restarted)), pending, "nothing is known of a new service");
        let other = [&unknown_address[..], &[Finding::new(Reason::ModelNotFound, "no model")]];
        let other = StatusInputs { findings: &other.concat(), ..restarted };
        assert_ne!(next_status(&before, &other).conditions, before.conditions);
    }

    #[test]
    fn reconcile_without_a_change_writes_no_status() {
        let run = |now| inputs([ObservedWorker::Running, ObservedWorker::Running], now);
        let status = next_status(&fresh(&run(1)), &run(2));
        let later = next_status(&status, &run(300));
        assert!(is_same_status(&status, &later), "only the heartbeat differs");
        assert_ne!(status, later);
        let counters = [unreported("edge0", "a", 5, 1)];
        let more = next_status(&status, &counting(&counters, run(300)));
        assert!(!is_same_status(&status, &more));
        let again = [CounterReport { seq: 99, ..unreported("edge0", "a", 5, 1) }];
        let again = next_status(&more, &counting(&again, run(301)));
        assert!(is_same_status(&more, &again), "newer message with the same counts");
    }

    #[test]
    fn selected_nodes_have_rows_and_the_state_is_that_of_the_reachable_ones() {
        let mut run = selected(&["e1".to_owned(), "e2".to_owned(), "e3".to_owned()]);
        let status = fresh(&run);
        assert_eq!(brief(&status), (JisConditionType::Running, "WorkersRunning".to_owned()));
        assert_eq!(status.active, Some(4));
        let message = |status: &JointInferenceServiceStatus| {
            status.conditions.last().unwrap().message.clone().unwrap()
        };
        assert_eq!(message(&status), "3 of 3 edge workers and the cloud worker are running");
        run.observed.edges[0].worker = unknown();
        run.observed.edges[1].worker = offline();
        run.observed.edges[2].worker = failed(Reason::OutOfMemory);
        let rows = |status: &JointInferenceServiceStatus| -> Vec<String> {
            let row = |row: &EdgeWorkerStatus| {
                format!("{} {} {}", row.node, row.state, row.reason.clone().unwrap_or_default())
            };
            status.edge_workers.iter().map(row).collect()
        };
        let after = next_status(&status, &run);
        assert_eq!(
            rows(&after),
            ["e1 Running ", "e2 Unknown NodeOffline", "e3 Failed OutOfMemory"]
        );
        let first = fresh(&run);
        assert_eq!(rows(&first)[0], "e1 Unknown AwaitingAgent");
        assert_eq!(brief(&first), (JisConditionType::Failed, "OutOfMemory".to_owned()));
        assert_eq!(message(&first), "0 of 3 edge workers are running; f");
        run.observed.is_selected = false;
        assert_eq!(next_status(&after, &run).edge_workers, []);
    }

    #[test]
    fn time_of_the_metrics_is_that_of_their_last_change() {
        let run = |second| inputs([ObservedWorker::Running, ObservedWorker::Running], second);
        let time = |status: &JointInferenceServiceStatus| status.metrics_time.as_ref().unwrap().0;
        let status = fresh(&run(1));
        let counters = [unreported("edge0", "a", 10, 1)];
        let counted = next_status(&status, &counting(&counters, run(5)));
        let idle = next_status(&counted, &run(9));
        assert_eq!([time(&status), time(&counted), time(&idle)], [at(1), at(5), at(5)]);
    }

    #[test]
    fn rejected_reports_are_in_the_status() {
        let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        let before = fresh(&run);
        run.observed.rejected = vec![neptune_api::RejectedReports {
            node: "edge0".to_owned(),
            worker: Some("w".to_owned()),
            count: 3,
            reason: "wrong".to_owned(),
        }];
        let after = next_status(&before, &run);
        assert_eq!(after.rejected, run.observed.rejected);
        assert!(!is_same_status(&before, &after));
    }

    #[test]
    fn restarted_controller_keeps_the_status_until_agents_report() {
        let running = fresh(&inputs([ObservedWorker::Running, ObservedWorker::Running], 1));
        let unchanged = next_status(&running, &inputs([unknown(), ObservedWorker::Running], 2));
        assert!(is_same_status(&running, &unchanged));
        let changed =
            StatusInputs { generation: Some(2), ..inputs([unknown(), ObservedWorker::Running], 3) };
        let changed = next_status(&running, &changed);
        assert_eq!(brief(&changed), (JisConditionType::Pending, "AwaitingAgent".to_owned()));

        let missed = [Finding::new(Reason::ModelNotFound, "m")];
        let pending =
            fresh(&StatusInputs { findings: &missed, ..inputs([unknown(), unknown()], 1) });
        let healed = next_status(&pending, &inputs([unknown(), ObservedWorker::Running], 2));
        assert_eq!(brief(&healed).1, "AwaitingAgent", "a resolved obstacle is not kept");
    }
}
