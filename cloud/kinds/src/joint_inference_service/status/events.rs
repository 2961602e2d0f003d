//! The Kubernetes Events of a status change. A reconcile without a change has none.

use std::collections::HashSet;

use neptune_api::{
    AgentCounters, JisConditionType, JointInferenceServiceStatus, NodeCounts, SelectionCause,
};

use crate::{reason::Reason, rollout::summary::announcement, steps::ObjectEvent};

/// The Events when `previous` becomes `next`.
pub fn events(
    previous: &JointInferenceServiceStatus,
    next: &JointInferenceServiceStatus,
) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    let (before, after) = (current(previous), current(next));
    let Some((type_, reason, message)) = after else { return events };
    let was = before.map(|(type_, reason, _)| (type_, reason));
    let is_new_spec = previous.observed_generation != next.observed_generation;
    let was_obstacle = was.is_some_and(|(_, reason)| is_obstacle(reason));
    if !is_obstacle(reason) && (is_new_spec || was_obstacle) {
        events.push(ObjectEvent::normal(
            "EdgeTaskPublished",
            "published the task to the edge worker's node",
        ));
    }
    if was.is_some_and(|(_, reason)| reason == OFFLINE) && reason != OFFLINE {
        events.push(ObjectEvent::normal("NodeOnline", "the node is connected again"));
    }
    for replaced in replaced(previous, next) {
        events.push(ObjectEvent::warning(
            "NodeReplaced",
            format!("node {replaced} restarted its counters: its agent has a new data directory; earlier counts stay in the metrics"),
        ));
    }
    events.extend(model_selected(previous, next));
    events.extend(new_problems(previous, next));
    let rollout = announcement(previous.rollout.as_deref(), next.rollout.as_deref());
    events.extend(rollout.map(ObjectEvent::of_rollout));
    let is_problem = reason.parse().is_ok_and(Reason::is_of_gateway);
    if was != Some((type_, reason)) && !is_problem {
        events.push(
            if type_ == JisConditionType::Running
                && ![OFFLINE, NOT_READY, NO_SAMPLES].contains(&reason)
            {
                ObjectEvent::normal("Running", message)
            } else if reason.parse().is_ok_and(Reason::is_progress)
                && matches!(type_, JisConditionType::Pending | JisConditionType::Completed)
            {
                ObjectEvent::normal(reason, message)
            } else {
                ObjectEvent::warning(reason, message)
            },
        );
    }
    events
}

/// The reason while the last state stays because a node is offline.
const OFFLINE: &str = "NodeOffline";
/// The reason while most nodes run and some do not.
const NOT_READY: &str = "SomeNodesNotReady";

/// The reason while edge workers count no samples.
const NO_SAMPLES: &str = "NoSamples";

/// The number of nodes that need attention, as an Event. While the service starts, its condition has
/// it.
pub fn summary_event(status: &JointInferenceServiceStatus) -> Option<ObjectEvent> {
    let counts = status.node_counts.as_ref()?;
    if current(status)?.0 == JisConditionType::Pending {
        return None;
    }
    let NodeCounts { desired, pending, failed, offline, silent, .. } = *counts;
    let groups = [
        (failed, "failed"),
        (pending, "not running yet"),
        (offline, "offline"),
        (silent, "without samples"),
    ];
    let total: i32 = groups.iter().map(|(count, _)| count).sum();
    let parts = groups.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, state)| format!("{count} {state}")).collect();
    (total > 0).then(|| {
        let parts = parts.join(", ");
        let note = format!(
            "{total} of {desired} nodes need attention: {parts}; see status.edgeWorkers, or run kubectl neptune status"
        );
        ObjectEvent::warning("NodesNotReady", note)
    })
}

/// The choice of another model.
fn model_selected(
    previous: &JointInferenceServiceStatus,
    next: &JointInferenceServiceStatus,
) -> Option<ObjectEvent> {
    let chosen = next.model.as_deref()?;
    let was = previous.model.as_deref().map(|was| was.name.as_str());
    (was != Some(chosen.name.as_str())).then(|| {
        let note = format!("Model {}: {}", chosen.name, chosen.reason);
        match chosen.cause {
            SelectionCause::First | SelectionCause::Better => {
                ObjectEvent::normal("ModelSelected", note)
            }
            SelectionCause::Missing | SelectionCause::Failed => {
                ObjectEvent::warning("ModelSelected", note)
            }
        }
    })
}

/// The problems that gateways did not report before. Other numbers in their texts are no Event.
fn new_problems<'a>(
    previous: &'a JointInferenceServiceStatus,
    next: &'a JointInferenceServiceStatus,
) -> impl Iterator<Item = ObjectEvent> + 'a {
    let known = previous.gateway.iter().flat_map(|gateway| &gateway.problems);
    let known: Vec<_> = known.map(|problem| (&problem.node, &problem.reason)).collect();
    let reported = next.gateway.iter().flat_map(|gateway| &gateway.problems);
    let new = reported.filter(move |problem| !known.contains(&(&problem.node, &problem.reason)));
    new.map(|problem| {
        let message = format!("edge worker on node {}: {}", problem.node, problem.message);
        ObjectEvent::warning(&problem.reason, message)
    })
}

fn current(status: &JointInferenceServiceStatus) -> Option<(JisConditionType, &str, &str)> {
    let condition = status.conditions.last()?;
    let reason = condition.reason.as_deref().unwrap_or_default();
    Some((condition.type_, reason, condition.message.as_deref().unwrap_or_default()))
}

fn is_obstacle(reason: &str) -> bool {
    reason.parse().is_ok_and(Reason::is_obstacle)
}

/// The nodes that reported counters before and now report them with another data directory.
fn replaced<'a>(
    previous: &'a JointInferenceServiceStatus,
    next: &'a JointInferenceServiceStatus,
) -> impl Iterator<Item = &'a str> {
    let agent = |report: &'a AgentCounters| (report.node.as_str(), report.instance.as_str());
    let agents: HashSet<_> = previous.reports.iter().map(agent).collect();
    let nodes: HashSet<_> = previous.reports.iter().map(|report| report.node.as_str()).collect();
    let new = next.reports.iter().filter(move |report| {
        nodes.contains(report.node.as_str()) && !agents.contains(&agent(report))
    });
    new.map(|report| report.node.as_str())
}

#[cfg(test)]
mod tests {
    use neptune_api::{GatewayProblemStatus, GatewayStatus, JisCondition};

    use super::*;

    fn status(
        reason: Option<Reason>,
        generation: i64,
        instances: &[&str],
    ) -> JointInferenceServiceStatus {
        let condition = |reason: Reason| JisCondition {
            type_: reason.condition(),
            status: "True".to_owned(),
            last_heartbeat_time: None,
            last_transition_time: None,
            reason: Some(reason.to_string()),
            message: Some("why".to_owned()),
        };
        let report = |instance: &&str| AgentCounters {
            node: "edge0".to_owned(),
            instance: (*instance).to_owned(),
            ..AgentCounters::default()
        };
        JointInferenceServiceStatus {
            conditions: reason.map(condition).into_iter().collect(),
            observed_generation: reason.map(|_| generation),
            reports: instances.iter().map(report).collect(),
            ..JointInferenceServiceStatus::default()
        }
    }

    fn brief(previous: &JointInferenceServiceStatus, next: &JointInferenceServiceStatus) -> String {
        let brief_event = |event: ObjectEvent| {
            format!("{}{}", if event.warning { "!" } else { "" }, event.reason)
        };
        events(previous, next).into_iter().map(brief_event).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_change_is_one_event() {
        use Reason::{
            AwaitingAgent, CrashLoopBackOff, ModelNotFound, NoSamples, NodeOffline,
            SomeNodesNotReady, WorkersRunning,
        };
        let new = status(None, 0, &[]);
        let at = |reason, generation| status(Some(reason), generation, &["a"]);
        let mut running_offline = at(NodeOffline, 1);
        running_offline.conditions[0].type_ = JisConditionType::Running;
        for (previous, next, expected) in [
            (&new, &at(ModelNotFound, 1), "!ModelNotFound"),
            (&at(ModelNotFound, 1), &at(ModelNotFound, 1), ""),
            (&at(ModelNotFound, 1), &at(AwaitingAgent, 1), "EdgeTaskPublished AwaitingAgent"),
            (&new, &at(AwaitingAgent, 1), "EdgeTaskPublished AwaitingAgent"),
            (&at(AwaitingAgent, 1), &at(WorkersRunning, 1), "Running"),
            (&at(WorkersRunning, 1), &at(WorkersRunning, 1), ""),
            (&at(WorkersRunning, 1), &at(WorkersRunning, 2), "EdgeTaskPublished"),
            (&at(WorkersRunning, 1), &at(NodeOffline, 1), "!NodeOffline"),
            (&at(NodeOffline, 1), &at(WorkersRunning, 1), "NodeOnline Running"),
            (&at(NodeOffline, 1), &at(CrashLoopBackOff, 1), "NodeOnline !CrashLoopBackOff"),
            (&at(WorkersRunning, 1), &running_offline, "!NodeOffline"),
            (&running_offline, &at(WorkersRunning, 1), "NodeOnline Running"),
            (&at(WorkersRunning, 1), &at(SomeNodesNotReady, 1), "!SomeNodesNotReady"),
            (&at(SomeNodesNotReady, 1), &at(WorkersRunning, 1), "Running"),
            (&at(WorkersRunning, 1), &at(NoSamples, 1), "!NoSamples"),
            (&at(NoSamples, 1), &at(WorkersRunning, 1), "Running"),
        ] {
            assert_eq!(brief(previous, next), expected, "{:?}", next.conditions);
        }
    }

    #[test]
    fn summary_has_the_number_of_nodes_that_need_attention() {
        let note = |reason, counts: NodeCounts| {
            let status = JointInferenceServiceStatus {
                node_counts: Some(counts),
                ..status(Some(reason), 1, &[])
            };
            summary_event(&status).map(|event| (event.warning, event.reason, event.note))
        };
        let counts = NodeCounts {
            desired: 3000,
            ready: 2985,
            failed: 3,
            pending: 2,
            offline: 10,
            silent: 1,
            ..NodeCounts::default()
        };
        let expected = "16 of 3000 nodes need attention: 3 failed, 2 not running yet, 10 offline, 1 without samples; see status.edgeWorkers, or run kubectl neptune status";
        let event = Some((true, "NodesNotReady".to_owned(), expected.to_owned()));
        assert_eq!(note(Reason::SomeNodesNotReady, counts.clone()), event);
        assert_eq!(note(Reason::CrashLoopBackOff, counts.clone()), event);
        assert_eq!(note(Reason::AwaitingAgent, counts), None, "it starts");
        let ready = NodeCounts { desired: 3000, ready: 3000, ..NodeCounts::default() };
        assert_eq!(note(Reason::WorkersRunning, ready), None);
        assert_eq!(summary_event(&status(Some(Reason::NodeOffline), 1, &[])), None, "one node");
    }

    #[test]
    fn each_new_problem_of_a_gateway_is_one_event() {
        use Reason::{CloudLeftAlone, WorkersRunning};
        let with = |reason, problems: &[(&str, &str)]| {
            let problem = |(reason, message): &(&str, &str)| GatewayProblemStatus {
                node: "edge0".to_owned(),
                reason: (*reason).to_owned(),
                message: (*message).to_owned(),
            };
            let problems = problems.iter().map(problem).collect();
            let gateway = Some(Box::new(GatewayStatus { problems, ..GatewayStatus::default() }));
            JointInferenceServiceStatus { gateway, ..status(Some(reason), 1, &["a"]) }
        };
        let healthy = with(WorkersRunning, &[]);
        let left_alone = with(CloudLeftAlone, &[("CloudLeftAlone", "3 failures")]);
        let still = with(CloudLeftAlone, &[("CloudLeftAlone", "9 failures")]);
        let both = with(CloudLeftAlone, &[("CloudLeftAlone", "9 failures"), ("Drifting", "d")]);
        assert_eq!(brief(&healthy, &left_alone), "!CloudLeftAlone");
        assert_eq!(brief(&left_alone, &still), "", "only its text changed");
        assert_eq!(brief(&still, &both), "!Drifting");
        assert_eq!(brief(&both, &healthy), "Running");
    }

    #[test]
    fn node_with_a_new_instance_is_one_event() {
        let run = |instances: &[&str]| status(Some(Reason::WorkersRunning), 1, instances);
        assert_eq!(brief(&run(&["a"]), &run(&["a", "b"])), "!NodeReplaced");
        assert_eq!(brief(&run(&[]), &run(&["a"])), "", "first report of the node");
        assert_eq!(brief(&run(&["a", "b"]), &run(&["a", "b"])), "");
    }

    #[test]
    fn another_model_is_one_event_and_a_new_count_of_candidates_none() {
        let with = |name: &str, cause, candidates| {
            let model = neptune_api::SelectedModel {
                name: name.to_owned(),
                cause,
                reason: "why".to_owned(),
                since: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
                ),
                candidates,
                failed: Vec::new(),
                not_compared: Vec::new(),
            };
            JointInferenceServiceStatus { model: Some(Box::new(model)), ..Default::default() }
        };
        let seen = |previous: &JointInferenceServiceStatus, next: &JointInferenceServiceStatus| {
            let event = model_selected(previous, next);
            event.map(|event| (event.reason, event.note, event.warning))
        };
        let first = with("v6", SelectionCause::First, 1);
        let event = |name: &str, warning| {
            Some(("ModelSelected".to_owned(), format!("Model {name}: why"), warning))
        };
        assert_eq!(seen(&JointInferenceServiceStatus::default(), &first), event("v6", false));
        assert_eq!(seen(&first, &with("v6", SelectionCause::First, 2)), None);
        assert_eq!(seen(&first, &with("v7", SelectionCause::Failed, 2)), event("v7", true));
        assert_eq!(seen(&first, &JointInferenceServiceStatus::default()), None);
    }
}
