//! The model servers of several nodes: their rows in the status, and their sum as if they were one
//! server.

use std::collections::{BTreeSet, HashMap, HashSet};

use neptune_api::{NodeServer, ServerCounts, ServingProgress, TransitionStatus};
use neptune_wire::DownloadProgress;

use super::{
    observed::{ObservedServer, ReportedServer, progress},
    target::named,
};
use crate::{
    availability::{problems, tolerated},
    exceptions::{
        Concern, MAX_LISTED, MAX_MESSAGE_CHARS, MAX_SHORT_MESSAGE_CHARS, listed, shortened,
    },
    finding::Finding,
    fleet::observed::Observed,
    reason::Reason,
};

/// What is observed of a model's servers.
#[derive(Debug, Clone)]
pub enum Servers {
    /// The one server of a node, or all servers of a Deployment.
    One(ObservedServer),
    /// The servers of several nodes, one on each.
    Each(Vec<ServerOnNode>),
}

/// The server of a node.
#[derive(Debug, Clone)]
pub struct ServerOnNode {
    /// Name of the node.
    pub node: String,
    /// The URL of the server, if it is known.
    pub url: Option<String>,
    /// The state of the server.
    pub server: ObservedServer,
    /// What the node reported last, if it is offline.
    pub last: Option<Box<ReportedServer>>,
}

/// The part of the rows that a status has.
#[derive(Debug, Clone, Default)]
pub struct ListedServers {
    /// All rows of a few nodes; of more, those that need attention.
    pub servers: Vec<NodeServer>,
    /// The numbers of the nodes, if not all are listed.
    pub counts: Option<Box<ServerCounts>>,
}

/// The rows of the status. `is_known_spec`: the previous rows are about the present spec.
pub fn rows(
    previous: &[NodeServer],
    servers: &[ServerOnNode],
    is_known_spec: bool,
) -> Vec<NodeServer> {
    let before: HashMap<_, _> = previous.iter().map(|row| (row.node.as_str(), row)).collect();
    let row = |server: &ServerOnNode| {
        let before = before.get(server.node.as_str()).copied();
        match (&server.server, before) {
            // The controller started recently: a missing report means nothing.
            (Observed::Unknown(_), Some(before)) if is_known_spec => before.clone(),
            _ => row(server, before),
        }
    };
    servers.iter().map(row).collect()
}

fn row(server: &ServerOnNode, before: Option<&NodeServer>) -> NodeServer {
    let (ready, transition, finding) = match &server.server {
        Observed::Reported(report) => (report.answers, report.transition, &report.finding),
        Observed::Pending(finding) => (Some(false), TransitionStatus::Pending, finding),
        Observed::Unreachable(finding) => {
            let before = before.map(|row| row.transition_status);
            let last = server.last.as_ref().map(|last| last.transition);
            (None, before.or(last).unwrap_or(TransitionStatus::Pending), finding)
        }
        Observed::Unknown(finding) => (None, TransitionStatus::Pending, finding),
    };
    let (serving_version, progress, last_failure) = match &server.server {
        Observed::Reported(report) => {
            (report.serving_version.clone(), report.progress.clone(), report.failure.clone())
        }
        Observed::Pending(_) => (None, None, before.and_then(|row| row.last_failure.clone())),
        Observed::Unreachable(_) | Observed::Unknown(_) => {
            let last = || server.last.as_ref().and_then(|last| last.serving_version.clone());
            let version = before.map_or_else(last, |row| row.serving_version.clone());
            (version, None, before.and_then(|row| row.last_failure.clone()))
        }
    };
    NodeServer {
        node: server.node.clone(),
        url: server.url.clone(),
        serving_version,
        transition_status: transition,
        ready: match ready {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
        .to_owned(),
        reason: finding.reason.to_string(),
        message: shortened(&finding.message, MAX_MESSAGE_CHARS),
        progress,
        last_failure,
    }
}

/// The rows that the status has. `previous` are those of the previous one.
pub fn to_list(rows: Vec<NodeServer>, previous: &[NodeServer]) -> ListedServers {
    if rows.len() <= MAX_LISTED {
        return ListedServers { servers: rows, counts: None };
    }
    let counts = Some(Box::new(counts(&rows)));
    let before: HashSet<_> = previous.iter().map(|row| row.node.as_str()).collect();
    let was_listed = |node: &str| before.contains(node);
    let chosen = listed(&rows, |row| (concern(row), row.node.as_str()), was_listed);
    let short = |row: &NodeServer| NodeServer {
        message: shortened(&row.message, MAX_SHORT_MESSAGE_CHARS),
        ..row.clone()
    };
    ListedServers { servers: chosen.into_iter().map(short).collect(), counts }
}

fn concern(row: &NodeServer) -> Concern {
    match (row.transition_status, row.ready.as_str()) {
        _ if row.reason == Reason::NodeOffline.to_string() => Concern::Unknown,
        (TransitionStatus::BlockedByFailedLoad | TransitionStatus::InvalidSpec, _) => {
            Concern::Failed
        }
        (_, "False") => Concern::Pending,
        (_, "Unknown") => Concern::Unknown,
        (TransitionStatus::UpToDate, _) => Concern::Nothing,
        _ => Concern::Degraded,
    }
}

fn counts(rows: &[NodeServer]) -> ServerCounts {
    let offline = Reason::NodeOffline.to_string();
    let number = |matches: &dyn Fn(&NodeServer) -> bool| {
        i32::try_from(rows.iter().filter(|row| matches(row)).count()).unwrap_or(i32::MAX)
    };
    let needing = |which: Concern| number(&|row| concern(row) == which);
    let offline = number(&|row| row.reason == offline);
    ServerCounts {
        desired: number(&|_| true),
        updated: number(&|row| row.transition_status == TransitionStatus::UpToDate),
        ready: number(&|row| row.ready == "True"),
        pending: needing(Concern::Pending),
        failed: needing(Concern::Failed),
        offline,
        unknown: needing(Concern::Unknown) - offline,
    }
}

/// The sum of the servers. Those on nodes that are offline do not decide: it is ready if one of the
/// others is and at most a tenth of them is not, and in the state of the one of them that is furthest
/// from the target. While it is ready, those that are not do not decide either.
pub fn sum(rows: &[NodeServer], target: Option<&str>) -> ObservedServer {
    let offline = Reason::NodeOffline.to_string();
    let (away, reachable): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.reason == offline);
    let (unready, others): (Vec<_>, Vec<_>) =
        reachable.iter().copied().partition(|row| row.ready == "False");
    let ready = others.iter().filter(|row| row.ready == "True").count();
    // As a single server, one on an offline node counts as it was reported last.
    let ready_replicas = ready + away.iter().filter(|row| row.serving_version.is_some()).count();
    let is_ready = ready > 0 && unready.len() <= tolerated(reachable.len());
    let answers = match (is_ready, &unready[..]) {
        (true, _) if ready == others.len() => Some(true),
        (false, [_, ..]) => Some(false),
        _ => None,
    };
    let versions: BTreeSet<_> =
        rows.iter().filter_map(|row| row.serving_version.as_deref()).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    let deciding = match reachable[..] {
        [] => &away,
        _ if is_ready => &others,
        _ => &reachable,
    };
    let Some(worst) = deciding.iter().max_by_key(|row| distance(row)) else {
        let message = "waiting for a node to match spec.nodeSelector";
        return Observed::Pending(Finding::new(Reason::ServerStarting, message));
    };
    let reason = worst.reason.parse().unwrap_or(Reason::AwaitingAgent);
    let total = rows.len();
    let unready = unready
        .iter()
        .max_by_key(|row| distance(row))
        .map(|first| format!("{} not ready ({}: {})", unready.len(), first.node, first.reason));
    let problems = problems(away.len(), [unready]);
    let finding = match reason {
        Reason::Serving if problems.is_empty() => {
            let message = format!("{} is served on {ready} of {total} nodes", named(target));
            Finding::new(reason, message)
        }
        Reason::Serving => {
            let message = format!("{ready} of {total} servers are ready; {problems}");
            Finding::new(Reason::SomeNodesNotReady, message)
        }
        _ => {
            let (node, why) = (&worst.node, &worst.message);
            let message = format!("{ready} of {total} servers are ready; node {node}: {why}");
            Finding::new(reason, message)
        }
    };
    Observed::Reported(Box::new(ReportedServer {
        answers,
        serving_version: (!versions.is_empty()).then(|| versions.join(",")),
        ready_replicas: i32::try_from(ready_replicas).unwrap_or(i32::MAX),
        transition: worst.transition_status,
        finding,
        progress: sum_of_downloads(rows),
        failure: rows.iter().find_map(|row| row.last_failure.clone()),
    }))
}

/// How far a server is from serving the target: by its switch, then by whether it answers.
fn distance(row: &NodeServer) -> (u8, bool, bool) {
    let switch = match row.transition_status {
        TransitionStatus::UpToDate => 0,
        TransitionStatus::Pending => 1,
        TransitionStatus::InProgress => 2,
        TransitionStatus::BlockedByFailedLoad => 3,
        TransitionStatus::InvalidSpec => 4,
    };
    (switch, row.ready == "False", row.ready != "True")
}

fn sum_of_downloads(rows: &[NodeServer]) -> Option<ServingProgress> {
    let running: Vec<&ServingProgress> =
        rows.iter().filter_map(|row| row.progress.as_ref()).collect();
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let sum = |value: fn(&ServingProgress) -> i64| {
        running.iter().map(|it| number(value(it))).fold(0, u64::saturating_add)
    };
    let totals: Option<Vec<u64>> = running.iter().map(|it| it.total_bytes.map(number)).collect();
    (!running.is_empty()).then(|| {
        progress(&DownloadProgress {
            received_bytes: sum(|it| it.received_bytes),
            total_bytes: totals.map(|all| all.into_iter().fold(0, u64::saturating_add)),
            bytes_per_second: sum(|it| it.bytes_per_second),
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;
    use neptune_api::InferenceModelStatus;

    use super::*;
    use crate::{
        inference_model::{
            fixtures,
            status::{Placed, ServerObservation, next},
        },
        steps::StatusInputs,
    };

    fn reported(serving: Option<&str>, reason: Reason) -> ObservedServer {
        let transition = match reason {
            Reason::Serving => TransitionStatus::UpToDate,
            Reason::LoadFailed => TransitionStatus::BlockedByFailedLoad,
            _ => TransitionStatus::InProgress,
        };
        fixtures::reported(serving, transition, reason)
    }

    fn offline() -> ObservedServer {
        Observed::Unreachable(Finding::new(Reason::NodeOffline, "offline"))
    }

    fn unknown() -> ObservedServer {
        Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u"))
    }

    fn after(
        previous: &InferenceModelStatus,
        servers: &[(&str, ObservedServer)],
        generation: i64,
    ) -> InferenceModelStatus {
        let server = |(node, server): &(&str, ObservedServer)| ServerOnNode {
            node: (*node).to_owned(),
            url: Some(format!("http://{node}:8501")),
            server: server.clone(),
            last: None,
        };
        let inputs = StatusInputs {
            generation: Some(generation),
            findings: &[],
            observed: ServerObservation {
                target: Some("4".to_owned()),
                placed: Some(Placed::default()),
                servers: Servers::Each(servers.iter().map(server).collect()),
                rollout: None,
            },
            is_settled: true,
            now: Timestamp::UNIX_EPOCH,
        };
        next(previous, &inputs)
    }

    fn brief(status: &InferenceModelStatus) -> String {
        let condition = |at: usize| {
            let condition = &status.conditions[at];
            format!("{} {}", condition.status, condition.reason)
        };
        let transition = status.transition_status.unwrap();
        let ready = status.ready_replicas.unwrap();
        format!("{transition}, {ready} ready, {}, {}", condition(0), condition(2))
    }

    #[test]
    fn sum_is_ready_if_the_reachable_servers_are() {
        let serving = || reported(Some("4"), Reason::Serving);
        let none = InferenceModelStatus::default();
        for (second, expected) in [
            (serving(), "UpToDate, 2 ready, True Serving, False Serving"),
            (
                reported(Some("3"), Reason::ServerStarting),
                "InProgress, 2 ready, True Serving, False Serving",
            ),
            (
                reported(None, Reason::ModelDownloading),
                "InProgress, 1 ready, False ModelDownloading, False Serving",
            ),
            (
                reported(Some("3"), Reason::LoadFailed),
                "BlockedByFailedLoad, 2 ready, True Serving, True LoadFailed",
            ),
            (offline(), "UpToDate, 1 ready, True Serving, False Serving"),
            (unknown(), "Pending, 1 ready, Unknown AwaitingAgent, False Serving"),
        ] {
            let status = after(&none, &[("e1", serving()), ("e2", second.clone())], 1);
            assert_eq!(brief(&status), expected, "{second:?}");
            assert_eq!(status.servers.len(), 2);
            assert_eq!(status.servers[1].url.as_deref(), Some("http://e2:8501"));
            assert_eq!((&status.node, &status.url), (&None, &None));
        }
    }

    #[test]
    fn tenth_of_the_reachable_servers_may_be_not_ready() {
        let names: Vec<_> = (0..12).map(|at| format!("e{at}")).collect();
        let state = |down: &[ObservedServer], away: usize| {
            let down = down.iter().cloned().chain(std::iter::repeat_n(offline(), away));
            let up = std::iter::repeat_with(|| reported(Some("4"), Reason::Serving));
            let servers: Vec<_> = names.iter().map(String::as_str).zip(down.chain(up)).collect();
            let status = after(&InferenceModelStatus::default(), &servers, 1);
            (brief(&status), status.conditions[1].message.clone())
        };
        let failed = || reported(None, Reason::LoadFailed);
        let (brief, message) = state(&[failed()], 1);
        assert_eq!(brief, "UpToDate, 10 ready, True Serving, False Serving");
        assert_eq!(
            message,
            "10 of 12 servers are ready; 1 node is offline, 1 not ready (e0: LoadFailed)"
        );
        let (brief, _) = state(&[failed()], 3);
        assert_eq!(brief, "BlockedByFailedLoad, 8 ready, False LoadFailed, True LoadFailed");
        let (brief, _) = state(&[failed(), failed()], 0);
        assert_eq!(brief, "BlockedByFailedLoad, 10 ready, False LoadFailed, True LoadFailed");
    }

    /// The status of this number of serving nodes, and of these others.
    fn many(
        previous: &InferenceModelStatus,
        serving: usize,
        others: &[(&str, ObservedServer)],
    ) -> InferenceModelStatus {
        let names: Vec<_> = (0..serving).map(|at| format!("e{at:03}")).collect();
        let serving =
            names.iter().map(|name| (name.as_str(), reported(Some("4"), Reason::Serving)));
        after(previous, &serving.chain(others.iter().cloned()).collect::<Vec<_>>(), 1)
    }

    #[test]
    fn of_many_nodes_the_status_has_numbers_and_those_that_need_attention() {
        let others = [
            ("x1", reported(Some("3"), Reason::LoadFailed)),
            ("x2", reported(None, Reason::ModelDownloading)),
            ("x3", offline()),
            ("x4", reported(Some("3"), Reason::ServerStarting)),
        ];
        let status = many(&InferenceModelStatus::default(), 40, &others);
        let listed: Vec<_> = status.servers.iter().map(|row| row.node.as_str()).collect();
        assert_eq!(listed, ["x1", "x2", "x4", "x3"]);
        let counts = ServerCounts {
            desired: 44,
            updated: 40,
            ready: 42,
            pending: 1,
            failed: 1,
            offline: 1,
            unknown: 0,
        };
        assert_eq!(status.node_counts.as_deref(), Some(&counts));
        assert_eq!(status.ready_replicas, Some(42));
        let few = many(&status, 28, &others);
        assert_eq!((few.servers.len(), few.node_counts), (32, None));
    }

    #[test]
    fn last_report_of_an_offline_node_counts_without_its_row() {
        let last = match reported(Some("4"), Reason::Serving) {
            Observed::Reported(last) => last,
            other => unreachable!("{other:?}"),
        };
        let away =
            |last| ServerOnNode { node: "e1".to_owned(), url: None, server: offline(), last };
        let version = |last, previous: &[NodeServer]| {
            let rows = rows(previous, &[away(last)], true);
            (rows[0].serving_version.clone(), rows[0].transition_status)
        };
        let serving = (Some("4".to_owned()), TransitionStatus::UpToDate);
        assert_eq!(version(Some(last.clone()), &[]), serving);
        assert_eq!(version(None, &[]), (None, TransitionStatus::Pending));
        let mut before = rows(&[], &[away(Some(last.clone()))], true);
        before[0].serving_version = Some("3".to_owned());
        assert_eq!(version(Some(last), &before).0.as_deref(), Some("3"), "the status precedes");
    }

    #[test]
    fn status_of_many_nodes_stays_until_each_had_time_to_report() {
        let failed = [("x1", reported(None, Reason::LoadFailed)), ("x2", offline())];
        let status = many(&InferenceModelStatus::default(), 40, &failed);
        let restarted = [("x1", unknown()), ("x2", unknown())];
        assert_eq!(many(&status, 40, &restarted), status);
        let settled = many(&status, 40, &[("x1", offline()), ("x2", offline())]);
        assert_eq!(settled.node_counts.unwrap().offline, 2);
    }

    #[test]
    fn message_names_the_node_and_downloads_and_versions_are_summed() {
        let downloading = || reported(None, Reason::ModelDownloading);
        let servers = [
            ("e1", reported(Some("4"), Reason::Serving)),
            ("e2", downloading()),
            ("e3", downloading()),
            ("e4", reported(Some("3"), Reason::ServerStarting)),
        ];
        let status = after(&InferenceModelStatus::default(), &servers, 1);
        assert_eq!(status.conditions[0].message, "2 of 4 servers are ready; node e3: why");
        assert_eq!(status.serving_version.as_deref(), Some("3,4"));
        assert_eq!(status.progress.unwrap().summary, "25% of 8 B, 4 B/s");
        let all = [("e1", reported(Some("4"), Reason::Serving))];
        let status = after(&InferenceModelStatus::default(), &all, 1);
        assert_eq!(status.conditions[1].message, "version 4 is served on 1 of 1 nodes");
    }

    #[test]
    fn offline_node_and_restarted_controller_keep_the_row() {
        let serving = || reported(Some("4"), Reason::Serving);
        let status =
            after(&InferenceModelStatus::default(), &[("e1", serving()), ("e2", serving())], 1);
        let away = after(&status, &[("e1", serving()), ("e2", offline())], 1);
        assert_eq!(away.servers[1].serving_version.as_deref(), Some("4"));
        assert_eq!(brief(&away), "UpToDate, 2 ready, True Serving, False Serving");
        assert_eq!(away.conditions[1].reason, "SomeNodesNotReady");
        assert_eq!(away.conditions[1].message, "1 of 2 servers are ready; 1 node is offline");
        let all_away = after(&status, &[("e1", offline()), ("e2", offline())], 1);
        assert_eq!(brief(&all_away), "UpToDate, 2 ready, Unknown NodeOffline, True NodeOffline");
        assert_eq!(after(&away, &[("e1", unknown()), ("e2", unknown())], 1), away);
        let changed = after(&status, &[("e1", unknown()), ("e2", unknown())], 2);
        assert_eq!(brief(&changed), "Pending, 0 ready, Unknown AwaitingAgent, False Serving");
    }

    #[test]
    fn node_that_joins_or_leaves_changes_only_its_row() {
        let serving = || reported(Some("4"), Reason::Serving);
        let status = after(&InferenceModelStatus::default(), &[("e1", serving())], 1);
        let awaiting = Observed::Pending(Finding::new(Reason::AwaitingAgent, "a"));
        let joined = after(&status, &[("e1", serving()), ("e2", awaiting)], 1);
        assert_eq!(joined.servers[0], status.servers[0]);
        assert_eq!(brief(&joined), "Pending, 1 ready, False AwaitingAgent, False Serving");
        let left = after(&joined, &[("e2", serving())], 1);
        assert_eq!(left.servers.len(), 1);
        assert_eq!(brief(&left), "UpToDate, 1 ready, True Serving, False Serving");
    }
}
