//! Computes the next status of an `InferenceModel` from its previous status, findings and
//! observation.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{InferenceModelStatus, JisConditionType, RolloutStatus, TransitionStatus};

use crate::{
    finding::Finding,
    fleet::observed::Observed,
    inference_model::{
        observed::ObservedServer,
        servers::{self, ListedServers, Servers},
        target::named,
    },
    kubernetes::conditions::condition,
    reason::Reason,
    rollout::observe::RolloutObservation,
    steps::StatusInputs,
};

/// Condition type: the server answers requests.
pub const READY: &str = "Ready";
/// Condition type: a switch of the version is in progress.
pub const PROGRESSING: &str = "Progressing";
/// Condition type: a problem needs attention.
pub const DEGRADED: &str = "Degraded";

/// The observation of a model.
#[derive(Debug, Clone)]
pub struct ServerObservation {
    /// The version to serve; `None` while the spec is invalid.
    pub target: Option<String>,
    /// Where the model server runs; `None` while the spec is invalid.
    pub placed: Option<Placed>,
    /// The state of the server, or of the servers on several nodes.
    pub servers: Servers,
    /// The rollout; `None` without one, and while the spec is invalid.
    pub rollout: Option<RolloutObservation>,
}

/// The place of a model server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placed {
    /// The node whose agent runs the server.
    pub node: Option<String>,
    /// The URL of the server, if it is known.
    pub url: Option<String>,
    /// A remark on a part of the spec that has no effect.
    pub remark: Option<String>,
    /// Number of servers that the spec asks for.
    pub replicas: i32,
    /// The label selector of the Pods, if there are any.
    pub selector: Option<String>,
}

/// Returns the status to write; the previous one if nothing new is known.
#[must_use]
pub fn next(
    previous: &InferenceModelStatus,
    inputs: &StatusInputs<ServerObservation>,
) -> InferenceModelStatus {
    let (server, listed) = match &inputs.observed.servers {
        Servers::One(server) => (server.clone(), ListedServers::default()),
        Servers::Each(each) => {
            let is_known_spec = previous.observed_generation == inputs.generation;
            let rows = servers::rows(&previous.servers, each, is_known_spec);
            let sum = servers::sum(&rows, inputs.observed.target.as_deref());
            (sum, servers::to_list(rows, &previous.servers))
        }
    };
    let server = &server;
    if keeps_previous(previous, inputs) {
        let rollout = rollout(previous, inputs);
        return InferenceModelStatus { rollout, ..previous.clone() };
    }
    let mut next = InferenceModelStatus {
        target_version: inputs.observed.target.clone(),
        observed_generation: inputs.generation,
        servers: listed.servers,
        node_counts: listed.counts,
        rollout: rollout(previous, inputs),
        ..previous.clone()
    };
    if let Some(placed) = &inputs.observed.placed {
        let moved = placed.node != previous.node;
        next.node.clone_from(&placed.node);
        next.url.clone_from(&placed.url);
        next.replicas = Some(placed.replicas);
        next.selector.clone_from(&placed.selector);
        if moved {
            // The values of the previous node do not apply.
            next.serving_version = None;
            next.ready_replicas = None;
            next.last_failure = None;
            next.progress = None;
        }
    }
    match server {
        Observed::Reported(report) => {
            next.serving_version.clone_from(&report.serving_version);
            next.ready_replicas = Some(report.ready_replicas);
            next.progress.clone_from(&report.progress);
            next.last_failure.clone_from(&report.failure);
        }
        Observed::Pending(_) => {
            next.serving_version = None;
            next.ready_replicas = Some(0);
            next.progress = None;
        }
        Observed::Unreachable(_) | Observed::Unknown(_) => next.progress = None,
    }
    let decided = decide(previous, server, inputs);
    next.transition_status = Some(decided.transition);
    next.conditions = conditions(&previous.conditions, decided, server, inputs);
    next
}

/// The rollout as it is observed, or as it was while the spec is invalid.
fn rollout(
    previous: &InferenceModelStatus,
    inputs: &StatusInputs<ServerObservation>,
) -> Option<Box<RolloutStatus>> {
    match (&inputs.observed.rollout, inputs.findings) {
        (None, [_, ..]) => previous.rollout.clone(),
        (rollout, _) => rollout.as_ref().map(|rollout| Box::new(rollout.status.clone())),
    }
}

/// Whether the status stays: the controller started recently and the agent has not reported yet, or
/// one of more agents than the status lists.
fn keeps_previous(
    previous: &InferenceModelStatus,
    inputs: &StatusInputs<ServerObservation>,
) -> bool {
    let is_unknown = match &inputs.observed.servers {
        Servers::One(server) => matches!(server, Observed::Unknown(_)),
        Servers::Each(each) => {
            let mut each = each.iter();
            previous.node_counts.is_some()
                && each.any(|server| matches!(server.server, Observed::Unknown(_)))
        }
    };
    let node = inputs.observed.placed.as_ref().map(|placed| &placed.node);
    let reason = previous.conditions.iter().find(|condition| condition.type_ == DEGRADED);
    let was_obstacle = reason
        .and_then(|condition| condition.reason.parse().ok())
        .is_none_or(|reason: Reason| reason.is_obstacle());
    inputs.findings.is_empty()
        && is_unknown
        && previous.observed_generation == inputs.generation
        && node == Some(&previous.node)
        && !was_obstacle
}

/// The inputs of the conditions.
struct NextConditions {
    transition: TransitionStatus,
    ready: Option<bool>,
    /// Reason and message of Ready.
    answer: Finding,
    /// Reason and message of Progressing and Degraded.
    state: Finding,
    degraded: bool,
}

fn decide(
    previous: &InferenceModelStatus,
    server: &ObservedServer,
    inputs: &StatusInputs<ServerObservation>,
) -> NextConditions {
    let (ready, observed) = match server {
        Observed::Reported(report) => (report.answers, report.finding.clone()),
        Observed::Pending(finding) => (Some(false), finding.clone()),
        Observed::Unreachable(finding) | Observed::Unknown(finding) => (None, finding.clone()),
    };
    if let Some(state) = Finding::join(inputs.findings) {
        let needs_change = state.reason.condition() == JisConditionType::Failed;
        let transition =
            if needs_change { TransitionStatus::InvalidSpec } else { TransitionStatus::Pending };
        let answer = if ready == Some(true) { answering(server) } else { state.clone() };
        return NextConditions { transition, ready, answer, state, degraded: true };
    }
    let transition = match server {
        Observed::Reported(report) => report.transition,
        Observed::Unreachable(_) => previous
            .transition_status
            .filter(|was| *was != TransitionStatus::InvalidSpec)
            .unwrap_or(TransitionStatus::Pending),
        Observed::Pending(_) | Observed::Unknown(_) => TransitionStatus::Pending,
    };
    let degraded = match server {
        // A switch in progress can be degraded too.
        Observed::Reported(report) => is_degraded(report.finding.reason),
        Observed::Pending(finding) => finding.reason == Reason::AgentNotSeen,
        Observed::Unreachable(_) => true,
        Observed::Unknown(_) => false,
    };
    let answer = if ready == Some(true) { answering(server) } else { observed.clone() };
    NextConditions { transition, ready, answer, state: observed, degraded }
}

/// Whether what is reported needs attention. Of several servers, one may not be reported.
fn is_degraded(reason: Reason) -> bool {
    reason.condition() == JisConditionType::Failed
        || matches!(reason, Reason::NodeOffline | Reason::AgentNotSeen)
}

/// Reason and message of Ready while the server answers. They depend only on the version.
fn answering(server: &ObservedServer) -> Finding {
    let version = match server {
        Observed::Reported(report) => report.serving_version.as_deref(),
        _ => None,
    };
    let message = version.map_or_else(
        || "serving requests".to_owned(),
        |version| {
            if version.contains(',') {
                format!("versions {version} are serving requests")
            } else {
                format!("{} is serving requests", named(Some(version)))
            }
        },
    );
    Finding::new(Reason::Serving, message)
}

fn conditions(
    previous: &[Condition],
    next: NextConditions,
    server: &ObservedServer,
    inputs: &StatusInputs<ServerObservation>,
) -> Vec<Condition> {
    let NextConditions { transition, ready, answer, mut state, degraded } = next;
    if let Some(remark) = inputs.observed.placed.as_ref().and_then(|placed| placed.remark.as_ref())
    {
        state.message = format!("{} ({remark})", state.message);
    }
    let is_progressing =
        matches!(transition, TransitionStatus::Pending | TransitionStatus::InProgress) && !degraded;
    let condition_status = |is: Option<bool>| match is {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let unreachable = matches!(server, Observed::Unreachable(_)) && inputs.findings.is_empty();
    let healthy = Finding::new(Reason::Serving, "no problem found");
    [
        (READY, condition_status(ready), answer),
        (PROGRESSING, condition_status((!unreachable).then_some(is_progressing)), state.clone()),
        (DEGRADED, condition_status(Some(degraded)), if degraded { state } else { healthy }),
    ]
    .map(|(type_, status, finding)| {
        condition(previous, type_, status, finding, inputs.generation, inputs.now)
    })
    .into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::inference_model::fixtures::reported;

    fn placed(node: &str) -> Placed {
        Placed {
            node: Some(node.to_owned()),
            url: Some(format!("http://{node}:8501")),
            replicas: 1,
            ..Placed::default()
        }
    }

    fn inputs(server: ObservedServer, second: i64) -> StatusInputs<'static, ServerObservation> {
        let (target, placed) = (Some("4".to_owned()), Some(placed("edge0")));
        StatusInputs {
            generation: Some(1),
            findings: &[],
            observed: ServerObservation {
                target,
                placed,
                servers: Servers::One(server),
                rollout: None,
            },
            is_settled: true,
            now: Timestamp::from_second(second).unwrap(),
        }
    }

    fn serving() -> ObservedServer {
        reported(Some("4"), TransitionStatus::UpToDate, Reason::Serving)
    }

    fn up_to_date() -> InferenceModelStatus {
        next(&InferenceModelStatus::default(), &inputs(serving(), 10))
    }

    /// Ready, Progressing and Degraded, with the reason of the first and the last.
    fn brief(status: &InferenceModelStatus) -> String {
        let [ready, progressing, degraded] = &status.conditions[..] else { unreachable!() };
        let types = [ready, progressing, degraded].map(|condition| &*condition.type_);
        assert_eq!(types, [READY, PROGRESSING, DEGRADED]);
        format!(
            "{} {}, {}, {} {}",
            ready.status, ready.reason, progressing.status, degraded.status, degraded.reason
        )
    }

    #[test]
    fn every_observation_has_its_conditions() {
        use TransitionStatus::{BlockedByFailedLoad, InProgress, InvalidSpec, Pending, UpToDate};
        let unreachable = Observed::Unreachable(Finding::new(Reason::NodeOffline, "offline"));
        let pending = |reason| Observed::Pending(Finding::new(reason, "a"));
        for (server, transition, expected) in [
            (serving(), UpToDate, "True Serving, False, False Serving"),
            (
                reported(None, InProgress, Reason::ModelDownloading),
                InProgress,
                "False ModelDownloading, True, False Serving",
            ),
            (
                reported(Some("3"), InProgress, Reason::ServerStarting),
                InProgress,
                "True Serving, True, False Serving",
            ),
            (
                reported(Some("3"), BlockedByFailedLoad, Reason::LoadFailed),
                BlockedByFailedLoad,
                "True Serving, False, True LoadFailed",
            ),
            (
                reported(None, BlockedByFailedLoad, Reason::LoadFailed),
                BlockedByFailedLoad,
                "False LoadFailed, False, True LoadFailed",
            ),
            (
                reported(None, InvalidSpec, Reason::ServingRefused),
                InvalidSpec,
                "False ServingRefused, False, True ServingRefused",
            ),
            (
                reported(None, InProgress, Reason::DiskFull),
                InProgress,
                "False DiskFull, False, True DiskFull",
            ),
            (
                reported(Some("3"), InProgress, Reason::DownloadWindow),
                InProgress,
                "True Serving, True, False Serving",
            ),
            (pending(Reason::AwaitingAgent), Pending, "False AwaitingAgent, True, False Serving"),
            (
                pending(Reason::AgentNotSeen),
                Pending,
                "False AgentNotSeen, False, True AgentNotSeen",
            ),
            (
                Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u")),
                Pending,
                "Unknown AwaitingAgent, True, False Serving",
            ),
            (unreachable, Pending, "Unknown NodeOffline, Unknown, True NodeOffline"),
        ] {
            let status = next(&InferenceModelStatus::default(), &inputs(server.clone(), 1));
            assert_eq!(
                (status.transition_status, &*brief(&status)),
                (Some(transition), expected),
                "{server:?}"
            );
        }
    }

    #[test]
    fn server_keeps_running_while_the_spec_is_invalid() {
        let findings = [
            Finding::new(Reason::NodeNotFound, "which?"),
            Finding::new(Reason::ServingPortInvalid, "which port?"),
        ];
        let wrong = |findings, server| StatusInputs {
            generation: Some(2),
            findings,
            observed: ServerObservation {
                target: Some("5".to_owned()),
                placed: None,
                servers: Servers::One(server),
                rollout: None,
            },
            ..inputs(serving(), 20)
        };
        let before = up_to_date();
        let status = next(&before, &wrong(&findings, serving()));
        assert_eq!(brief(&status), "True Serving, False, True ServingPortInvalid");
        assert_eq!(status.conditions[2].message, "which port?; which?");
        assert_eq!(status.transition_status, Some(TransitionStatus::InvalidSpec));
        assert_eq!(
            (status.serving_version.as_deref(), status.target_version.as_deref()),
            (Some("4"), Some("5"))
        );
        assert_eq!((&status.node, &status.url), (&before.node, &before.url));
        let pending = Observed::Pending(Finding::new(Reason::ServerStarting, "nothing"));
        let status = next(&InferenceModelStatus::default(), &wrong(&findings[..1], pending));
        assert_eq!(brief(&status), "False NodeNotFound, False, True NodeNotFound");
        assert_eq!(
            status.transition_status,
            Some(TransitionStatus::Pending),
            "resolved without a change of the spec"
        );
    }

    #[test]
    fn reconcile_without_a_change_keeps_the_status_and_its_times() {
        let status = up_to_date();
        assert_eq!(next(&status, &inputs(serving(), 99)), status);
        let blocked =
            reported(Some("4"), TransitionStatus::BlockedByFailedLoad, Reason::LoadFailed);
        let later = next(&status, &inputs(blocked, 99));
        let since = |status: &InferenceModelStatus| -> Vec<_> {
            status.conditions.iter().map(|c| c.last_transition_time.0.as_second()).collect()
        };
        assert_eq!((since(&status), since(&later)), (vec![10, 10, 10], vec![10, 10, 99]));
    }

    #[test]
    fn offline_node_and_restarted_controller_keep_the_status() {
        let status = up_to_date();
        let unreachable = Observed::Unreachable(Finding::new(Reason::NodeOffline, "offline"));
        let offline = next(&status, &inputs(unreachable, 20));
        assert_eq!(offline.serving_version.as_deref(), Some("4"));
        assert_eq!(offline.transition_status, Some(TransitionStatus::UpToDate));
        let unknown = || Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        assert_eq!(next(&status, &inputs(unknown(), 20)), status);
        assert_eq!(next(&offline, &inputs(unknown(), 20)), offline);
        let refused = reported(None, TransitionStatus::InvalidSpec, Reason::ServingRefused);
        let refused = next(&status, &inputs(refused, 20));
        assert_eq!(next(&refused, &inputs(unknown(), 30)), refused);
        let findings = [Finding::new(Reason::FrameworksInvalid, "table")];
        let mut wrong = StatusInputs { findings: &findings, ..inputs(serving(), 20) };
        wrong.observed.placed = None;
        let healed = next(&next(&status, &wrong), &inputs(unknown(), 30));
        assert_eq!(brief(&healed), "Unknown AwaitingAgent, True, False Serving");
        let new_spec =
            next(&status, &StatusInputs { generation: Some(2), ..inputs(unknown(), 20) });
        assert_eq!(new_spec.observed_generation, Some(2));
        assert_eq!(new_spec.transition_status, Some(TransitionStatus::Pending));
    }

    #[test]
    fn another_node_starts_with_an_empty_status() {
        let unknown = Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let mut moved = inputs(unknown, 20);
        moved.observed.placed = Some(placed("edge1"));
        let status = next(&up_to_date(), &moved);
        assert_eq!((status.node.as_deref(), &status.serving_version), (Some("edge1"), &None));
        assert_eq!(status.url.as_deref(), Some("http://edge1:8501"));
    }

    #[test]
    fn number_of_servers_and_selector_are_those_of_the_scale() {
        let mut scaled = inputs(serving(), 1);
        let selector = Some("a=b".to_owned());
        scaled.observed.placed = Some(Placed { replicas: 3, selector, ..Placed::default() });
        let status = next(&InferenceModelStatus::default(), &scaled);
        assert_eq!((status.replicas, status.selector.as_deref()), (Some(3), Some("a=b")));
        scaled.observed.placed = None;
        assert_eq!(next(&status, &scaled).replicas, Some(3), "while the spec is invalid");
    }

    #[test]
    fn remark_is_part_of_the_message() {
        let remark = Some("nodeName wins".to_owned());
        let mut remarked = inputs(serving(), 1);
        remarked.observed.placed = Some(Placed { remark, ..placed("edge0") });
        let status = next(&InferenceModelStatus::default(), &remarked);
        assert_eq!(status.conditions[1].message, "why (nodeName wins)");
    }
}
