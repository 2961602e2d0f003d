//! The state of a worker from the report of an agent.

use neptune_api::RejectedReports;
use neptune_wire::{
    ContentHash, GatewayProblem, GatewayProblemReason, GatewayReport, NodeName, Role, StatusReport,
    WorkerName, WorkerReason, WorkerReport, WorkerState,
};

use crate::{
    exceptions::shortened,
    finding::Finding,
    fleet::{
        RefusedCounters,
        observed::{AgentMessages, AgentState, Observed, observe},
    },
    joint_inference_service::status::observed::ObservedWorker,
    reason::Reason,
};

/// The rejected messages in a node's report on a service, and the reports that this controller
/// refused.
pub fn rejected_reports(
    node: &NodeName,
    report: Option<&StatusReport>,
    refused: Option<&RefusedCounters>,
) -> Vec<RejectedReports> {
    let workers = report.into_iter().flat_map(|report| &report.workers);
    let of_workers = workers.filter_map(|worker| {
        let rejected = worker.rejected.as_ref()?;
        let (worker, reason) = (Some(worker.name.to_string()), short(&rejected.reason));
        Some(RejectedReports { node: node.to_string(), worker, count: rejected.count, reason })
    });
    let of_node = refused.map(|refused| RejectedReports {
        node: node.to_string(),
        worker: None,
        count: refused.count,
        reason: refused.reason.clone(),
    });
    of_workers.chain(of_node).collect()
}

/// A reason of an agent, limited for the status.
fn short(reason: &str) -> String {
    const MAX_CHARS: usize = 256;
    shortened(reason, MAX_CHARS)
}

/// The inputs of [`of_agent`].
#[derive(Debug, Clone, Copy)]
pub struct AgentWorker<'a> {
    /// Whether it is the edge worker or the cloud worker.
    pub role: Role,
    /// The container name of the worker.
    pub worker: &'a WorkerName,
    /// The node that runs the worker.
    pub node: &'a NodeName,
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// The newest report of the node on the service.
    pub report: Option<&'a StatusReport>,
    /// The hash of what the node should have of the service; `None` if it is not published.
    pub published: Option<&'a ContentHash>,
    /// Whether this controller is connected to the broker.
    pub connected: bool,
    /// The seconds by which the node's messages are late, at least.
    pub delay: Option<u32>,
}

/// The state of a worker that an agent runs.
pub fn of_agent(worker: AgentWorker) -> ObservedWorker {
    let prefix = format!("{}: ", role_label(worker.role));
    let disconnected =
        if worker.connected { "" } else { "; this controller is not connected to the broker" };
    let messages = AgentMessages::new(
        &prefix,
        worker.node,
        "report worker status",
        format!("workers keep running; counters are reported on reconnect{disconnected}"),
    );
    let report = worker.report.and_then(|report| reported(worker, report));
    match observe(worker.agent, report, &messages) {
        Observed::Reported(observed) => observed,
        Observed::Pending(finding) => ObservedWorker::Waiting(finding),
        Observed::Unreachable(finding) => ObservedWorker::Offline(finding),
        Observed::Unknown(finding) => ObservedWorker::Unknown(finding),
    }
}

fn reported(agent: AgentWorker, report: &StatusReport) -> Option<ObservedWorker> {
    let is_outdated = |applied: &ContentHash| agent.published.is_some_and(|hash| hash != applied);
    if report.hash.as_ref().is_some_and(is_outdated) {
        return Some(waiting_for_node(agent));
    }
    let worker = report
        .workers
        .iter()
        .find(|worker| worker.name == *agent.worker && worker.role == agent.role)?;
    let finding = |default: Reason| {
        let reason = worker.reason.map_or(default, Reason::from);
        let why =
            if worker.message.is_empty() { reason.to_string() } else { worker.message.clone() };
        Finding::new(reason, format!("{} on node {}: {why}", role_label(agent.role), agent.node))
    };
    // Agents of earlier versions forward what the edge worker reports, and nothing more.
    let reported = |status: &str| agent.role == Role::Edge && report.status == status;
    let by_report = |reason: Reason, status: &str| {
        let role = role_label(agent.role);
        Finding::new(reason, format!("{role} on node {}: reports status {status}", agent.node))
    };
    Some(match worker.state {
        _ if worker.reason == Some(WorkerReason::Completed) => {
            ObservedWorker::Completed(finding(Reason::Completed))
        }
        WorkerState::Running if reported("failed") => {
            ObservedWorker::Failed(by_report(Reason::WorkerFailed, "failed"))
        }
        WorkerState::Running if reported("completed") => {
            ObservedWorker::Completed(by_report(Reason::Completed, "completed"))
        }
        WorkerState::Running if let Some(finding) = cascade_problem(agent, worker) => {
            ObservedWorker::Degraded(finding)
        }
        WorkerState::Running if worker.reason == Some(WorkerReason::WorkerDegraded) => {
            ObservedWorker::Degraded(finding(Reason::WorkerDegraded))
        }
        WorkerState::Running => {
            delayed(agent).map_or(ObservedWorker::Running, ObservedWorker::Degraded)
        }
        WorkerState::Pending => ObservedWorker::Waiting(finding(Reason::WorkerNotRunning)),
        WorkerState::Failed => ObservedWorker::Failed(finding(Reason::CrashLoopBackOff)),
    })
}

/// What is wrong between the edge worker and the cloud. A gateway knows more than the fallbacks
/// show, but fallbacks precede problems that do not explain them.
fn cascade_problem(agent: AgentWorker, worker: &WorkerReport) -> Option<Finding> {
    let problem = worker.gateway.as_ref().and_then(|gateway| gateway.problems.first());
    let explains_fallbacks =
        |problem: &GatewayProblem| problem.reason <= GatewayProblemReason::CloudLeftAlone;
    let (role, node) = (role_label(agent.role), agent.node);
    match problem {
        Some(problem) if explains_fallbacks(problem) || !worker.cloud_unreachable => {
            let message = format!("{role} on node {node}: {}", problem.message);
            Some(Finding::new(problem.reason.into(), message))
        }
        _ if worker.cloud_unreachable => {
            let message = format!(
                "{role} on node {node}: the cloud worker did not answer the last hard samples, and the edge worker uses its own results; run neptune-edge doctor on the node"
            );
            Some(Finding::new(Reason::CloudUnreachable, message))
        }
        _ => None,
    }
}

/// What a gateway reports in the report of its node.
pub fn gateway_report(worker: &WorkerName, report: &StatusReport) -> Option<Box<GatewayReport>> {
    report.workers.iter().find(|it| it.name == *worker)?.gateway.clone()
}

/// What the node reports is older than it seems.
fn delayed(agent: AgentWorker) -> Option<Finding> {
    let (seconds, role, node) = (agent.delay?, role_label(agent.role), agent.node);
    let message = format!(
        "{role}: messages of node {node} arrive more than {seconds} s late; look for other programs that publish on +/user/# of its broker, which share EventBus's 30 messages per second"
    );
    Some(Finding::new(Reason::ReportsDelayed, message))
}

/// What the node reports refers to an earlier spec.
fn waiting_for_node(agent: AgentWorker) -> ObservedWorker {
    let (role, node) = (role_label(agent.role), agent.node);
    ObservedWorker::Waiting(Finding::new(
        Reason::AwaitingAgent,
        format!(
            "{role}: node {node} has an earlier version of the spec; waiting for it to apply this one"
        ),
    ))
}

fn role_label(role: Role) -> &'static str {
    match role {
        Role::Edge => "edge worker",
        Role::Cloud => "cloud worker",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{fleet::Presence, joint_inference_service::status::fixtures::brief_worker};

    fn by_agent(
        presence: Presence,
        settled: bool,
        report: Option<&StatusReport>,
    ) -> ObservedWorker {
        by_delayed_agent(presence, settled, report, None)
    }

    fn by_delayed_agent(
        presence: Presence,
        settled: bool,
        report: Option<&StatusReport>,
        delay: Option<u32>,
    ) -> ObservedWorker {
        of_agent(AgentWorker {
            role: Role::Edge,
            worker: &"w".parse().unwrap(),
            node: &"edge0".parse().unwrap(),
            agent: AgentState { presence, settled },
            report,
            published: Some(&ContentHash::compute(&"this spec")),
            connected: true,
            delay,
        })
    }

    #[test]
    fn running_worker_of_a_node_with_late_messages_is_degraded() {
        let running = report("w", "Running", "");
        let observed = |delay| by_delayed_agent(Presence::Online, true, Some(&running), delay);
        assert_eq!(observed(None), ObservedWorker::Running);
        let ObservedWorker::Degraded(finding) = observed(Some(30)) else {
            unreachable!("it is late")
        };
        assert_eq!(finding.reason, Reason::ReportsDelayed);
        assert!(finding.message.contains("node edge0") && finding.message.contains("30 s late"));
    }

    fn report(worker: &str, state: &str, more: &str) -> StatusReport {
        neptune_wire::decode(
    format!(
        r#"{{"instance": "a", "epoch": 1, "seq": 1, "uid": "u", "revision": 1, "phase": "Failed",
            "status": "", "output": {{}},
            "workers": [{{"name": "{worker}", "role": "edge", "state": "{state}"{more}}}]}}"#
    )
    .as_bytes(),
)
.unwrap()
    }

    #[test]
    fn running_worker_without_answers_of_the_cloud_is_degraded() {
        let online = |more| by_agent(Presence::Online, true, Some(&report("w", "Running", more)));
        assert_eq!(online(""), ObservedWorker::Running);
        let ObservedWorker::Degraded(finding) = online(r#", "cloudUnreachable": true"#) else {
            unreachable!("not degraded")
        };
        assert_eq!(finding.reason, Reason::CloudUnreachable);
        assert!(finding.message.contains("neptune-edge doctor on the node"), "{finding:?}");
    }

    #[test]
    fn problem_of_a_gateway_precedes_what_it_explains() {
        let reason = |problems: &str, more: &str| {
            let gateway = format!(r#", "gateway": {{"problems": [{problems}]}}{more}"#);
            let report = report("w", "Running", &gateway);
            match by_agent(Presence::Online, true, Some(&report)) {
                ObservedWorker::Degraded(finding) => Some((finding.reason, finding.message)),
                _ => None,
            }
        };
        let reason_of = |problems, more| reason(problems, more).map(|(reason, _)| reason);
        let unreachable = r#", "cloudUnreachable": true"#;
        let left_alone = r#"{"reason": "CloudLeftAlone", "message": "5 failures"}"#;
        let drifting = r#"{"reason": "Drifting", "message": "moved"}"#;
        let later = r#"{"reason": "Later", "message": "m"}"#;
        assert_eq!(reason("", ""), None);
        let message = "edge worker on node edge0: 5 failures".to_owned();
        assert_eq!(reason(left_alone, unreachable), Some((Reason::CloudLeftAlone, message)));
        let refuses = r#"{"reason": "CloudRefusesRequests", "message": "404: no model m"}"#;
        let message = "edge worker on node edge0: 404: no model m".to_owned();
        assert_eq!(reason(refuses, unreachable), Some((Reason::CloudRefusesRequests, message)));
        assert_eq!(reason_of(drifting, unreachable), Some(Reason::CloudUnreachable));
        assert_eq!(reason_of(drifting, ""), Some(Reason::Drifting));
        assert_eq!(reason_of(later, ""), Some(Reason::WorkerDegraded));
        assert_eq!(reason_of("", unreachable), Some(Reason::CloudUnreachable));
        assert_eq!(
            reason_of(&format!("{left_alone}, {drifting}"), ""),
            Some(Reason::CloudLeftAlone)
        );
    }

    #[test]
    fn running_worker_with_a_remark_or_a_problem_of_its_node_is_degraded() {
        for remark in ["publishes without credentials", "NodeNameInUse: stop the other agent"] {
            let more = format!(r#", "reason": "WorkerDegraded", "message": "{remark}""#);
            let report = report("w", "Running", &more);
            let ObservedWorker::Degraded(finding) = by_agent(Presence::Online, true, Some(&report))
            else {
                unreachable!("not degraded")
            };
            assert_eq!(finding.reason, Reason::WorkerDegraded);
            assert!(finding.message.ends_with(remark), "{finding:?}");
        }
    }

    #[test]
    fn missing_report_is_unknown_until_settled() {
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        for (presence, settled, expected, text) in [
            (
                Presence::NeverSeen,
                false,
                "unknown",
                "waiting for node edge0 to report worker status",
            ),
            (Presence::NeverSeen, true, "waiting", "start neptune-edge"),
            (Presence::Online, false, "unknown", "waiting for node edge0 to report worker status"),
            (Presence::Online, true, "waiting", "waiting for node edge0 to report worker status"),
            (offline, false, "offline", "1970-01-01T00:00:00Z"),
        ] {
            let (brief, message) = brief_worker(&by_agent(presence, settled, None));
            assert_eq!(brief, expected, "{presence:?} {settled}");
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn report_on_an_earlier_spec_is_not_the_state_of_this_one() {
        let brief_for = |spec: Option<&str>, state: &str| {
            let hash = spec.map(|spec| ContentHash::compute(&spec));
            let report = StatusReport { hash, ..report("w", state, "") };
            brief_worker(&by_agent(Presence::Online, true, Some(&report)))
        };
        assert_eq!(brief_for(Some("this spec"), "Running").0, "running");
        assert_eq!(brief_for(None, "Running").0, "running", "an agent of an earlier version");
        for state in ["Running", "Failed"] {
            let (brief, message) = brief_for(Some("an earlier spec"), state);
            assert_eq!(brief, "waiting", "{state}");
            assert!(message.contains("node edge0 has an earlier version of the spec"), "{message}");
        }
    }

    #[test]
    fn rejected_messages_name_their_node_and_worker() {
        let rejected = r#", "rejected": {"count": 12, "reason": "not JSON"}"#;
        let report = report("w", "Running", rejected);
        let refused = RefusedCounters { count: 2, reason: "impossible".to_owned() };
        let listed = rejected_reports(&"edge0".parse().unwrap(), Some(&report), Some(&refused));
        let brief = |it: &RejectedReports| {
            format!("{} {:?} {} {}", it.node, it.worker.as_deref(), it.count, it.reason)
        };
        assert_eq!(
            listed.iter().map(brief).collect::<Vec<_>>(),
            [r#"edge0 Some("w") 12 not JSON"#, "edge0 None 2 impossible"]
        );
    }

    #[test]
    fn report_is_used_only_while_the_agent_is_online() {
        let with_status =
            |status: &str| StatusReport { status: status.to_owned(), ..report("w", "Running", "") };
        let missing = r#", "reason": "ImageMissing", "message": "build it""#;
        for (report, expected, text) in [
            (report("w", "Running", ""), "running", ""),
            (
                report("w", "Pending", r#", "reason": "ModelDownloading""#),
                "waiting",
                "ModelDownloading",
            ),
            (report("w", "Failed", missing), "failed", "edge worker on node edge0: build it"),
            (report("w", "Failed", r#", "reason": "FromTheFuture""#), "failed", "WorkerNotRunning"),
            (
                report("w", "Pending", r#", "reason": "Completed", "message": "exit code 0""#),
                "completed",
                "edge worker on node edge0: exit code 0",
            ),
            (with_status("failed"), "failed", "edge worker on node edge0: reports status failed"),
            (with_status("completed"), "completed", "reports status completed"),
            (with_status("running"), "running", ""),
            (
                report("another", "Running", ""),
                "waiting",
                "waiting for node edge0 to report worker status",
            ),
        ] {
            let (brief, message) = brief_worker(&by_agent(Presence::Online, true, Some(&report)));
            assert_eq!(brief, expected, "{report:?}");
            assert!(message.contains(text), "{message}");
        }
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let running = report("w", "Running", "");
        assert_eq!(brief_worker(&by_agent(offline, true, Some(&running))).0, "offline");
    }
}
