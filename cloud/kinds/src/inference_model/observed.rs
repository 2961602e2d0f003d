//! The state of a model server, from the report of its node's agent. Servers of a Deployment:
//! `rollout`.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{ServingFailure, ServingProgress, TransitionStatus};
use neptune_wire::{
    DownloadProgress, LoadFailure, ModelServerReport, NodeName, StatusReport, TRANSFORMER_FAILED,
    Transition,
};

use super::target::named;
use crate::{
    finding::Finding,
    fleet::observed::{AgentMessages, AgentState, Observed, observe},
    reason::Reason,
};

/// The observation of a model server.
pub type ObservedServer = Observed<Box<ReportedServer>>;

/// The reported state of a model server.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedServer {
    /// Whether the server answers requests; `None` if that is not known of all of several servers.
    pub answers: Option<bool>,
    /// The version, or the image that contains its model, that answers requests.
    pub serving_version: Option<String>,
    /// The number of ready servers.
    pub ready_replicas: i32,
    /// The state of the switch to the target version.
    pub transition: TransitionStatus,
    /// Reason and message of the state.
    pub finding: Finding,
    /// The progress of the download; `None` while nothing is downloaded.
    pub progress: Option<ServingProgress>,
    /// The last version that could not be served.
    pub failure: Option<ServingFailure>,
}

/// The inputs of [`of_agent`].
#[derive(Debug, Clone, Copy)]
pub struct AgentServer<'a> {
    /// The node that runs the server.
    pub node: &'a NodeName,
    /// The version to serve; `None` while the spec is invalid.
    pub target: Option<&'a str>,
    /// Whether the annotation keeps the running version.
    pub hold: bool,
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// The newest report of the node on the model.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller is connected to the broker.
    pub connected: bool,
}

/// The state of a server that the spec stops.
pub fn stopped() -> ObservedServer {
    let message = "spec.replicas is 0; no server runs";
    Observed::Reported(Box::new(ReportedServer {
        answers: Some(false),
        serving_version: None,
        ready_replicas: 0,
        transition: TransitionStatus::UpToDate,
        finding: Finding::new(Reason::ScaledToZero, message),
        progress: None,
        failure: None,
    }))
}

/// The state of a server that an agent runs.
pub fn of_agent(server: AgentServer) -> ObservedServer {
    let disconnected =
        if server.connected { "" } else { "; this controller is not connected to the broker" };
    let messages = AgentMessages::new(
        "",
        server.node,
        "report model server status",
        format!("the model server keeps running{disconnected}"),
    );
    let serving = server.report.and_then(|report| report.serving.as_ref());
    let AgentServer { node, target, hold, .. } = server;
    let reported = |serving| Box::new(reported((node, target, hold), serving));
    observe(server.agent, serving, &messages).map(reported)
}

/// What a node reports of its server. `hold`: whether the annotation keeps the running version.
pub fn reported(
    (node, target, hold): (&NodeName, Option<&str>, bool),
    serving: &ModelServerReport,
) -> ReportedServer {
    // A report on an earlier spec: the server runs, and the agent has not started the switch.
    let is_earlier = serving.target_version.as_deref() != target;
    let transition = match serving.transition {
        _ if is_earlier => TransitionStatus::InProgress,
        Transition::UpToDate => TransitionStatus::UpToDate,
        Transition::InProgress => TransitionStatus::InProgress,
        Transition::BlockedByFailedLoad => TransitionStatus::BlockedByFailedLoad,
        Transition::InvalidSpec => TransitionStatus::InvalidSpec,
    };
    let answers = serving.serving_version.is_some();
    let is_held = hold && answers && serving.serving_version.as_deref() != target;
    let progress = serving.progress.filter(|_| !is_earlier).as_ref().map(progress);
    let failure_reason = serving.last_failure.as_ref().map(|failure| failure.reason.as_str());
    let of_transformer = failure_reason == Some(TRANSFORMER_FAILED);
    let problem = serving.trouble.filter(|_| !is_earlier).map(Reason::from);
    let reason = match transition {
        TransitionStatus::UpToDate => Reason::Serving,
        TransitionStatus::Pending => Reason::AwaitingAgent,
        TransitionStatus::InProgress if is_earlier => Reason::AwaitingAgent,
        TransitionStatus::InProgress if let Some(problem) = problem => problem,
        TransitionStatus::InProgress if progress.is_some() => Reason::ModelDownloading,
        TransitionStatus::InProgress if is_held => Reason::UpgradeHeld,
        TransitionStatus::InProgress => Reason::ServerStarting,
        TransitionStatus::BlockedByFailedLoad if of_transformer => Reason::TransformerFailed,
        TransitionStatus::BlockedByFailedLoad => Reason::LoadFailed,
        TransitionStatus::InvalidSpec => Reason::ServingRefused,
    };
    let message = if is_earlier {
        format!("waiting for node {node} to start serving {}", named(target))
    } else if serving.message.is_empty() {
        default_message(serving, transition)
    } else {
        serving.message.clone()
    };
    ReportedServer {
        answers: Some(answers),
        serving_version: serving.serving_version.clone(),
        ready_replicas: i32::from(answers),
        transition,
        finding: Finding::new(reason, message),
        progress,
        failure: serving.last_failure.as_ref().map(failure),
    }
}

fn default_message(serving: &ModelServerReport, transition: TransitionStatus) -> String {
    let target = named(serving.target_version.as_deref());
    match (transition, &serving.last_failure) {
        (TransitionStatus::UpToDate, _) => format!("{target} is served"),
        (TransitionStatus::InProgress, _) => format!("switching to {target}"),
        (_, Some(failure)) => format!("{target}: {}: {}", failure.reason, failure.message),
        (_, None) => format!("{target} cannot be served"),
    }
}

/// The progress of a download as in a status.
pub fn progress(progress: &DownloadProgress) -> ServingProgress {
    let DownloadProgress { received_bytes, total_bytes, bytes_per_second } = *progress;
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let percent = total_bytes.filter(|total| *total > 0).map(|total| {
        let percent = u128::from(received_bytes) * 100 / u128::from(total);
        i32::try_from(percent.min(100)).unwrap_or(100)
    });
    ServingProgress {
        received_bytes: number(received_bytes),
        total_bytes: total_bytes.map(number),
        bytes_per_second: number(bytes_per_second),
        percent,
        summary: summary(progress, percent),
    }
}

fn summary(progress: &DownloadProgress, percent: Option<i32>) -> String {
    let rate = amount(progress.bytes_per_second);
    match (progress.total_bytes, percent) {
        (Some(total), Some(percent)) => format!("{percent}% of {}, {rate}/s", amount(total)),
        _ => format!("{}, {rate}/s", amount(progress.received_bytes)),
    }
}

/// Formats bytes with a binary unit and one decimal.
fn amount(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = usize::try_from(bytes.checked_ilog2().unwrap_or_default() / 10).unwrap_or_default();
    if unit == 0 {
        return format!("{bytes} B");
    }
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

fn failure(failure: &LoadFailure) -> ServingFailure {
    ServingFailure {
        version: failure.version.clone(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
        // An invalid time is omitted; the rest of the failure is kept.
        time: failure.time.parse::<Timestamp>().ok().map(Time),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::Presence;

    fn report(serving: Value) -> StatusReport {
        let mut report = json!({
            "instance": "a", "epoch": 1, "seq": 1, "uid": "u", "revision": 1, "phase": "Running",
            "status": "", "output": {},
        });
        report["serving"] = serving;
        neptune_wire::decode(report.to_string().as_bytes()).unwrap()
    }

    fn by_agent(
        presence: Presence,
        settled: bool,
        report: Option<&StatusReport>,
    ) -> ObservedServer {
        of_agent(AgentServer {
            node: &"edge0".parse().unwrap(),
            target: Some("4"),
            hold: false,
            agent: AgentState { presence, settled },
            report,
            connected: true,
        })
    }

    fn brief(server: &ObservedServer) -> (&'static str, Reason, &str) {
        let (kind, finding) = match server {
            Observed::Reported(report) => ("reported", &report.finding),
            Observed::Pending(finding) => ("pending", finding),
            Observed::Unreachable(finding) => ("unreachable", finding),
            Observed::Unknown(finding) => ("unknown", finding),
        };
        (kind, finding.reason, &finding.message)
    }

    fn reported(server: ObservedServer) -> ReportedServer {
        let Observed::Reported(report) = server else { unreachable!("{server:?}") };
        *report
    }

    #[test]
    fn missing_report_is_unknown_until_settled() {
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let served =
            report(json!({"servingVersion": "4", "targetVersion": "4", "transition": "UpToDate"}));
        for (presence, settled, report, expected, reason) in [
            (Presence::NeverSeen, false, None, "unknown", Reason::AwaitingAgent),
            (Presence::NeverSeen, true, None, "pending", Reason::AgentNotSeen),
            (Presence::Online, false, None, "unknown", Reason::AwaitingAgent),
            (Presence::Online, true, None, "pending", Reason::AwaitingAgent),
            (Presence::Online, false, Some(&served), "reported", Reason::Serving),
            (offline, true, Some(&served), "unreachable", Reason::NodeOffline),
            (offline, false, None, "unreachable", Reason::NodeOffline),
        ] {
            let observed = by_agent(presence, settled, report);
            let (kind, why, _) = brief(&observed);
            assert_eq!((kind, why), (expected, reason), "{presence:?} {settled}");
        }
    }

    #[test]
    fn report_of_the_agent_becomes_the_status() {
        use TransitionStatus::{BlockedByFailedLoad, InProgress, InvalidSpec, UpToDate};
        let failure = json!({"version": "4", "reason": "HealthCheckFailed", "message": "404", "time": "2026-01-02T03:04:05Z"});
        let mut of_transformer = failure.clone();
        of_transformer["reason"] = "TransformerFailed".into();
        for (serving, transition, reason, answers, text) in [
            (
                json!({"servingVersion": "4", "targetVersion": "4", "transition": "UpToDate"}),
                UpToDate,
                Reason::Serving,
                true,
                "version 4 is served",
            ),
            (
                json!({"servingVersion": "3", "targetVersion": "3", "transition": "UpToDate"}),
                InProgress,
                Reason::AwaitingAgent,
                true,
                "waiting for node edge0 to start serving version 4",
            ),
            (
                json!({"servingVersion": "3", "targetVersion": "4", "transition": "InProgress", "progress": {"receivedBytes": 5, "totalBytes": 20, "bytesPerSecond": 1}}),
                InProgress,
                Reason::ModelDownloading,
                true,
                "switching to version 4",
            ),
            (
                json!({"targetVersion": "4", "transition": "InProgress", "message": "being started"}),
                InProgress,
                Reason::ServerStarting,
                false,
                "being started",
            ),
            (
                json!({"servingVersion": "3", "targetVersion": "4", "transition": "BlockedByFailedLoad", "lastFailure": failure}),
                BlockedByFailedLoad,
                Reason::LoadFailed,
                true,
                "HealthCheckFailed: 404",
            ),
            (
                json!({"servingVersion": "4", "targetVersion": "4", "transition": "BlockedByFailedLoad", "lastFailure": of_transformer}),
                BlockedByFailedLoad,
                Reason::TransformerFailed,
                true,
                "TransformerFailed: 404",
            ),
            (
                json!({"targetVersion": "4", "transition": "InvalidSpec", "message": "the port is taken"}),
                InvalidSpec,
                Reason::ServingRefused,
                false,
                "the port is taken",
            ),
        ] {
            let report = report(serving.clone());
            let reported = reported(by_agent(Presence::Online, true, Some(&report)));
            assert_eq!(
                (reported.transition, reported.finding.reason, reported.answers),
                (transition, reason, Some(answers)),
                "{serving}"
            );
            assert!(reported.finding.message.contains(text), "{}", reported.finding.message);
            assert_eq!(reported.ready_replicas, i32::from(answers));
        }
    }

    #[test]
    fn progress_is_a_percentage_and_a_failure_has_its_time() {
        let report = report(json!({
            "targetVersion": "4", "transition": "InProgress",
            "progress": {"receivedBytes": 399, "totalBytes": 400, "bytesPerSecond": 7},
            "lastFailure": {"version": "5", "reason": "R", "message": "m", "time": "2026-01-02T03:04:05.006Z"},
        }));
        let reported = reported(by_agent(Presence::Online, true, Some(&report)));
        let progress = reported.progress.unwrap();
        assert_eq!(
            (progress.received_bytes, progress.percent),
            (399, Some(99)),
            "100 percent only when complete"
        );
        assert_eq!(progress.summary, "99% of 400 B, 7 B/s");
        let failure = reported.failure.unwrap();
        assert_eq!(
            (&*failure.version, failure.time.unwrap().0.as_millisecond()),
            ("5", 1_767_323_045_006)
        );
        let unknown =
            DownloadProgress { received_bytes: u64::MAX, total_bytes: None, bytes_per_second: 0 };
        assert_eq!(
            (super::progress(&unknown).percent, super::progress(&unknown).received_bytes),
            (None, i64::MAX)
        );
        let excessive =
            DownloadProgress { received_bytes: 9, total_bytes: Some(3), bytes_per_second: 0 };
        assert_eq!(super::progress(&excessive).percent, Some(100));
        let unsized_ = DownloadProgress { received_bytes: 5 << 20, ..excessive };
        let unsized_ = DownloadProgress { total_bytes: None, bytes_per_second: 1536, ..unsized_ };
        assert_eq!(super::progress(&unsized_).summary, "5.0 MiB, 1.5 KiB/s");
        assert_eq!([amount(0), amount(1023), amount(u64::MAX)], ["0 B", "1023 B", "15.9 EiB"]);
    }

    #[test]
    fn full_disk_has_its_own_reason_and_message() {
        let message = "downloading 4: 7 bytes of disk space are missing";
        let report = report(json!({
            "targetVersion": "4", "transition": "InProgress", "message": message, "trouble": "DiskFull",
            "progress": {"receivedBytes": 0, "totalBytes": 400, "bytesPerSecond": 0},
        }));
        let server = by_agent(Presence::Online, true, Some(&report));
        assert_eq!(brief(&server), ("reported", Reason::DiskFull, message));
    }

    #[test]
    fn held_switch_has_its_own_reason() {
        let report = report(
            json!({"servingVersion": "3", "targetVersion": "4", "transition": "InProgress"}),
        );
        let server = of_agent(AgentServer {
            node: &"edge0".parse().unwrap(),
            target: Some("4"),
            hold: true,
            agent: AgentState { presence: Presence::Online, settled: true },
            report: Some(&report),
            connected: true,
        });
        assert_eq!(brief(&server).1, Reason::UpgradeHeld);
    }
}
