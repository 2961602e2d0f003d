//! Computes the part of a service's status that its gateways report.

use std::collections::HashMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    AgentCounters, CaptureStatus, GatewayClientStatus, GatewayProblemStatus, GatewayStatus,
    JointInferenceServiceStatus, KeyValue, NodeGatewayStatus,
};
use neptune_wire::{Figure, GatewayReport};

use crate::{
    fleet::Counted,
    joint_inference_service::{
        resolved::GatewayAddress,
        status::observed::{EdgeObservation, ObservedWorker, ServiceObservation},
    },
};

/// Upload ratios that a status keeps.
const HISTORY: usize = 20;

/// Minimum time between two of them, in seconds.
const HISTORY_SECONDS: i64 = 60;

/// Problems that a status lists.
const MAX_PROBLEMS: usize = 16;

/// Clients that a status lists.
const MAX_CLIENTS: usize = 32;

/// Problems if the rows of the service are in slices, and the length of their messages in characters.
const MAX_OF_MANY: (usize, usize) = (4, 96);

/// The status of the gateways. But for a known address it stays while their nodes have not reported
/// to this controller yet, and while all of them are offline.
pub fn next_gateway(
    previous: &JointInferenceServiceStatus,
    observed: &ServiceObservation,
    reports: &[AgentCounters],
    now: Timestamp,
) -> Option<Box<GatewayStatus>> {
    let before = previous.gateway.as_ref();
    let is_unknown = |edge: &EdgeObservation| matches!(edge.worker, ObservedWorker::Unknown(_));
    let is_away = |edge: &EdgeObservation| {
        matches!(edge.worker, ObservedWorker::Offline(_)) && edge.gateway.is_none()
    };
    let edges = &observed.edges;
    let is_unreported =
        edges.iter().any(is_unknown) || !edges.is_empty() && edges.iter().all(is_away);
    if let Some(before) = before.filter(|_| is_unreported) {
        let address = observed.gateway_address.as_ref();
        let url = address.and_then(|address| address.url.clone()).or_else(|| before.url.clone());
        let service_url = address.map_or(&before.service_url, |it| &it.service_url).clone();
        return Some(Box::new(GatewayStatus { url, service_url, ..(**before).clone() }));
    }
    let shadows = shadows(&observed.counted, reports);
    let gateways: Vec<Gateway<'_>> =
        observed.edges.iter().filter_map(|edge| Gateway::new(edge, &shadows)).collect();
    let GatewayAddress { url, grpc_url, service_url, protocol } = match &observed.gateway_address {
        Some(address) => address.clone(),
        None if gateways.is_empty() => return None,
        // While the spec is invalid the gateways run as before.
        None => before.map(|it| address_of(it)).unwrap_or_default(),
    };
    let agreement = weighted(&gateways, |report| report.agreement);
    let low = weighted(&gateways, |report| report.agreement_low);
    let high = weighted(&gateways, |report| report.agreement_high);
    let upload_ratio = mean(&gateways, |report| report.upload_ratio);
    let mut status = GatewayStatus {
        url,
        grpc_url,
        service_url,
        protocol,
        signal: common(&gateways, |report| Some(report.signal)).map(|signal| signal.to_string()),
        threshold: common(&gateways, |report| report.threshold).map(|figure| figure.to_string()),
        agreement: interval(agreement, low, high),
        upload_ratio: upload_ratio.map(|ratio| ratio.to_string()),
        cloud: gateways.iter().map(|gateway| gateway.report.cloud).max().map(|it| it.to_string()),
        capture: capture(&gateways),
        clients: clients(&gateways),
        problems: problems(&gateways, observed.counted.slices.is_some()),
        history: before.map(|before| before.history.clone()).unwrap_or_default(),
        history_time: before.and_then(|before| before.history_time.clone()),
    };
    if let Some(ratio) = upload_ratio {
        remember(&mut status, ratio, now);
    }
    Some(Box::new(status))
}

fn address_of(gateway: &GatewayStatus) -> GatewayAddress {
    let GatewayStatus { url, grpc_url, service_url, protocol, .. } = gateway.clone();
    GatewayAddress { url, grpc_url, service_url, protocol }
}

/// Removes the history of a status, which alone is not written.
pub fn without_history(status: &mut JointInferenceServiceStatus) {
    if let Some(gateway) = &mut status.gateway {
        gateway.history.clear();
        gateway.history_time = None;
    }
}

/// The gateway of one node, for its row.
pub fn gateway_of_node(report: &GatewayReport) -> NodeGatewayStatus {
    let text = |figure: Option<Figure>| figure.map(|figure| figure.to_string());
    NodeGatewayStatus {
        signal: report.signal.to_string(),
        cloud: report.cloud.to_string(),
        threshold: text(report.threshold),
        agreement: interval(report.agreement, report.agreement_low, report.agreement_high),
        upload_ratio: text(report.upload_ratio),
        psi: text(report.psi),
    }
}

/// The figures of a gateway that are metrics.
pub fn gateway_metrics(gateway: &GatewayStatus) -> impl Iterator<Item = KeyValue> {
    let agreement = gateway.agreement.as_deref().and_then(|text| text.split(' ').next());
    [("agreement", agreement), ("threshold", gateway.threshold.as_deref())]
        .into_iter()
        .filter_map(|(key, value)| Some(KeyValue::new(key, value?)))
}

/// The newest report of the gateway on one node.
struct Gateway<'a> {
    node: &'a str,
    report: &'a GatewayReport,
    /// Compared samples, of all agents of the node.
    shadows: u64,
}

impl<'a> Gateway<'a> {
    fn new(edge: &'a EdgeObservation, shadows: &HashMap<&str, u64>) -> Option<Self> {
        let report = edge.gateway.as_deref()?;
        let shadows = shadows.get(edge.node.as_str()).copied().unwrap_or_default();
        Some(Self { node: &edge.node, report, shadows })
    }
}

/// The compared samples of each node, of all its agents.
fn shadows<'a>(counted: &'a Counted, reports: &'a [AgentCounters]) -> HashMap<&'a str, u64> {
    if counted.slices.is_some() {
        return counted.shadows.iter().map(|(node, count)| (node.as_str(), *count)).collect();
    }
    let mut shadows = HashMap::new();
    for report in reports {
        let of_node: &mut u64 = shadows.entry(report.node.as_str()).or_default();
        *of_node = of_node.saturating_add(report.counters.shadow_number);
    }
    shadows
}

/// The value of all gateways, if it is the same.
fn common<T: PartialEq>(
    gateways: &[Gateway<'_>],
    field: impl Fn(&GatewayReport) -> Option<T>,
) -> Option<T> {
    let mut values = gateways.iter().map(|gateway| field(gateway.report));
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)?
}

/// The mean of a figure, weighted by the number of compared samples.
fn weighted(
    gateways: &[Gateway<'_>],
    figure: impl Fn(&GatewayReport) -> Option<Figure>,
) -> Option<Figure> {
    average(gateways.iter().filter_map(|gateway| {
        #[expect(clippy::cast_precision_loss, reason = "a weight")]
        let weight = gateway.shadows.max(1) as f64;
        Some((figure(gateway.report)?.get(), weight))
    }))
}

/// The mean of a figure.
fn mean(
    gateways: &[Gateway<'_>],
    figure: impl Fn(&GatewayReport) -> Option<Figure>,
) -> Option<Figure> {
    average(gateways.iter().filter_map(|gateway| Some((figure(gateway.report)?.get(), 1.0))))
}

fn average(values: impl Iterator<Item = (f64, f64)>) -> Option<Figure> {
    let (sum, weights) = values.fold((0.0, 0.0), |(sum, weights), (value, weight)| {
        (sum + value * weight, weights + weight)
    });
    // Without values the quotient is not a number.
    Figure::new(sum / weights)
}

/// Formats a value with its confidence interval, such as `0.962 (0.941-0.976)`.
fn interval(value: Option<Figure>, low: Option<Figure>, high: Option<Figure>) -> Option<String> {
    let value = value?;
    Some(match (low, high) {
        (Some(low), Some(high)) => format!("{value} ({low}-{high})"),
        _ => value.to_string(),
    })
}

/// The sums over all gateways that capture.
fn capture(gateways: &[Gateway<'_>]) -> Option<CaptureStatus> {
    let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
    let captures = gateways.iter().filter_map(|gateway| gateway.report.capture);
    captures.fold(None, |sum: Option<CaptureStatus>, capture| {
        let sum = sum.unwrap_or_default();
        Some(CaptureStatus {
            captured: sum.captured.saturating_add(number(capture.captured)),
            dropped: sum.dropped.saturating_add(number(capture.dropped)),
            bytes: sum.bytes.saturating_add(number(capture.bytes)),
        })
    })
}

/// The sums over all gateways that report. Each of them lists the clients in the order of the spec.
fn clients(gateways: &[Gateway<'_>]) -> Vec<GatewayClientStatus> {
    let mut clients: Vec<GatewayClientStatus> = Vec::new();
    let mut places = HashMap::new();
    let sum = |sum: &mut i64, number: u64| {
        *sum = sum.saturating_add(i64::try_from(number).unwrap_or(i64::MAX));
    };
    for report in gateways.iter().flat_map(|gateway| &gateway.report.clients) {
        let place = *places.entry(report.name.as_str()).or_insert(clients.len());
        if place == MAX_CLIENTS {
            continue;
        }
        if place == clients.len() {
            let name = report.name.clone();
            clients.push(GatewayClientStatus { name, ..GatewayClientStatus::default() });
        }
        let client = &mut clients[place];
        let since = Some(&report.since).filter(|since| !since.is_empty());
        // Times of one form are in the order of their texts.
        let first = client.since.iter().chain(since).min().cloned();
        client.since = first;
        sum(&mut client.requests, report.requests);
        sum(&mut client.refused, report.refused);
        sum(&mut client.samples, report.samples);
        sum(&mut client.uploads, report.cloud);
    }
    clients
}

fn problems(gateways: &[Gateway<'_>], is_sliced: bool) -> Vec<GatewayProblemStatus> {
    let (count, chars) = if is_sliced { MAX_OF_MANY } else { (MAX_PROBLEMS, usize::MAX) };
    let rows = |gateway: &Gateway<'_>| {
        let node = gateway.node.to_owned();
        let row = move |problem: &neptune_wire::GatewayProblem| GatewayProblemStatus {
            node: node.clone(),
            reason: crate::reason::Reason::from(problem.reason).to_string(),
            message: problem.message.chars().take(chars).collect(),
        };
        gateway.report.problems.iter().map(row).collect::<Vec<_>>()
    };
    gateways.iter().flat_map(rows).take(count).collect()
}

/// Appends the ratio, if the last one is old enough.
fn remember(status: &mut GatewayStatus, ratio: Figure, now: Timestamp) {
    let is_due = status
        .history_time
        .as_ref()
        .is_none_or(|Time(last)| now.as_second() - last.as_second() >= HISTORY_SECONDS);
    if is_due {
        status.history.push(ratio.to_string());
        let excess = status.history.len().saturating_sub(HISTORY);
        status.history.drain(..excess);
        status.history_time = Some(Time(now));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::CounterTotals;
    use neptune_wire::{
        CaptureReport, ClientReport, GatewayCloud, GatewayProblem, GatewayProblemReason,
        GatewaySignal,
    };

    use super::*;
    use crate::{finding::Finding, fleet::Counted, reason::Reason};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(threshold: f64, agreement: Option<f64>) -> GatewayReport {
        GatewayReport {
            signal: GatewaySignal::Top2,
            cloud: GatewayCloud::Reachable,
            threshold: Figure::new(threshold),
            agreement: agreement.and_then(Figure::new),
            agreement_low: agreement.and_then(|it| Figure::new(it - 0.02)),
            agreement_high: agreement.and_then(|it| Figure::new(it + 0.01)),
            upload_ratio: Figure::new(threshold / 2.0),
            ..GatewayReport::default()
        }
    }

    fn observed(edges: Vec<(&str, Option<GatewayReport>)>) -> ServiceObservation {
        let edge = |(node, report): (&str, Option<GatewayReport>)| EdgeObservation {
            node: node.to_owned(),
            worker: ObservedWorker::Running,
            gateway: report.map(Box::new),
        };
        ServiceObservation {
            tier_names: Vec::new(),
            rollout: None,
            silence_due_at: None,
            total: None,
            counted: Counted::default(),
            edges: edges.into_iter().map(edge).collect(),
            is_selected: true,
            cloud: ObservedWorker::Running,
            rejected: Vec::new(),
            gateway_address: None,
            model: None,
        }
    }

    fn shadows(node: &str, number: u64) -> AgentCounters {
        let counters = CounterTotals { shadow_number: number, ..CounterTotals::default() };
        AgentCounters { node: node.to_owned(), counters, ..AgentCounters::default() }
    }

    #[test]
    fn clients_are_summed_over_nodes_in_the_order_of_the_spec() {
        let client = |name: &str, since: &str, requests| ClientReport {
            name: name.to_owned(),
            since: since.to_owned(),
            requests,
            refused: 1,
            samples: requests - 1,
            cloud: 2,
            ..ClientReport::default()
        };
        let many = (0..40).map(|number| client(&format!("c{number}"), "", 5));
        let reports = [
            vec![client("hall", "2026-01-02T00:00:00Z", 10), client("line", "", u64::MAX)],
            [client("hall", "2026-01-01T00:00:00Z", 5)].into_iter().chain(many).collect(),
        ]
        .map(|clients| GatewayReport { clients, ..GatewayReport::default() });
        let gateways =
            reports.each_ref().map(|report| Gateway { node: "edge0", report, shadows: 0 });
        let clients = clients(&gateways);
        assert_eq!(clients.len(), MAX_CLIENTS);
        let hall = GatewayClientStatus {
            name: "hall".to_owned(),
            since: Some("2026-01-01T00:00:00Z".to_owned()),
            requests: 15,
            refused: 2,
            samples: 13,
            uploads: 4,
        };
        assert_eq!(clients[0], hall);
        assert_eq!((&*clients[1].name, clients[1].requests), ("line", i64::MAX));
    }

    #[test]
    fn one_gateway_is_the_service() {
        let observed = observed(vec![("edge0", Some(report(0.713, Some(0.962))))]);
        let previous = JointInferenceServiceStatus::default();
        let status = next_gateway(&previous, &observed, &[], at(0)).unwrap();
        assert_eq!(status.threshold.as_deref(), Some("0.713"));
        assert_eq!(status.agreement.as_deref(), Some("0.962 (0.942-0.972)"));
        assert_eq!(
            (status.cloud.as_deref(), status.signal.as_deref()),
            (Some("Reachable"), Some("Top2"))
        );
        let metrics: Vec<_> = gateway_metrics(&status)
            .map(|metric| format!("{}={}", metric.key, metric.value))
            .collect();
        assert_eq!(metrics, ["agreement=0.962", "threshold=0.713"]);
    }

    #[test]
    fn several_gateways_are_weighted_by_compared_samples() {
        let mut left_alone = report(0.5, Some(0.8));
        left_alone.cloud = GatewayCloud::LeftAlone;
        let edges = vec![
            ("edge0", Some(report(0.7, Some(0.9)))),
            ("edge1", Some(left_alone)),
            ("edge2", None),
        ];
        let counted = [shadows("edge0", 200), shadows("edge0", 100), shadows("edge1", 100)];
        let previous = JointInferenceServiceStatus::default();
        let status = next_gateway(&previous, &observed(edges), &counted, at(0)).unwrap();
        assert_eq!(status.agreement.as_deref(), Some("0.875 (0.855-0.885)"));
        assert_eq!(status.threshold, None, "each node has its own");
        assert_eq!(status.cloud.as_deref(), Some("LeftAlone"), "the worst");
    }

    #[test]
    fn captured_samples_of_all_gateways_are_added() {
        let captured = |captured| {
            let capture = CaptureReport { captured, dropped: 1, bytes: 100 };
            GatewayReport { capture: Some(capture), ..report(0.5, None) }
        };
        let observed = observed(vec![
            ("edge0", Some(captured(7))),
            ("edge1", Some(report(0.5, None))),
            ("edge2", Some(captured(u64::MAX))),
        ]);
        let next =
            next_gateway(&JointInferenceServiceStatus::default(), &observed, &[], at(0)).unwrap();
        let sum = CaptureStatus { captured: i64::MAX, dropped: 2, bytes: 200 };
        assert_eq!(next.capture, Some(sum));
    }

    #[test]
    fn service_without_a_gateway_has_none() {
        let previous = JointInferenceServiceStatus::default();
        assert_eq!(next_gateway(&previous, &observed(vec![("edge0", None)]), &[], at(0)), None);
    }

    #[test]
    fn status_stays_until_the_nodes_have_reported() {
        let one = observed(vec![("edge0", Some(report(0.7, None)))]);
        let gateway = next_gateway(&JointInferenceServiceStatus::default(), &one, &[], at(0));
        let previous = JointInferenceServiceStatus { gateway, ..Default::default() };
        let mut starting = observed(vec![("edge0", None)]);
        assert_eq!(next_gateway(&previous, &starting, &[], at(1)), None, "its container is gone");
        let finding = Finding::new(Reason::AwaitingAgent, "u");
        starting.edges[0].worker = ObservedWorker::Unknown(finding);
        assert_eq!(next_gateway(&previous, &starting, &[], at(1)), previous.gateway);
        let finding = Finding::new(Reason::NodeOffline, "o");
        starting.edges[0].worker = ObservedWorker::Offline(finding);
        assert_eq!(next_gateway(&previous, &starting, &[], at(1)), previous.gateway);
    }

    #[test]
    fn history_has_one_ratio_per_minute_and_is_bounded() {
        let mut status = JointInferenceServiceStatus::default();
        for second in 0..3600 {
            let ratio = f64::from(u32::try_from(second).unwrap()) / 3600.0;
            let observed = observed(vec![("edge0", Some(report(ratio, None)))]);
            status.gateway = next_gateway(&status, &observed, &[], at(second));
        }
        let history = &status.gateway.as_ref().unwrap().history;
        assert_eq!(history.len(), HISTORY);
        assert_eq!(history[HISTORY - 1], "0.492", "of second 3540");
        let mut plain = status.clone();
        without_history(&mut plain);
        assert!(plain.gateway.unwrap().history.is_empty());
    }

    #[test]
    fn problems_name_their_node_and_are_bounded() {
        let mut troubled = report(0.7, None);
        let problem = |reason| GatewayProblem { reason, message: "m".to_owned() };
        troubled.problems = vec![
            problem(GatewayProblemReason::CloudLeftAlone),
            problem(GatewayProblemReason::Unknown),
        ];
        let nodes: Vec<String> = (0..20).map(|node| format!("edge{node}")).collect();
        let edges = nodes.iter().map(|node| (node.as_str(), Some(troubled.clone()))).collect();
        let previous = JointInferenceServiceStatus::default();
        let status = next_gateway(&previous, &observed(edges), &[], at(0)).unwrap();
        assert_eq!(status.problems.len(), MAX_PROBLEMS);
        let listed: Vec<_> =
            status.problems[..2].iter().map(|it| (it.node.as_str(), it.reason.as_str())).collect();
        assert_eq!(listed, [("edge0", "CloudLeftAlone"), ("edge0", "WorkerDegraded")]);
    }
}
