//! An aggregator on a node: where it is, what its node reports, and the content of its message.

use neptune_api::TrainingModel;
use neptune_wire::{AGGREGATOR_PORT, AggregatorContent, AggregatorReport, NodeName};

use super::{frozen::CurrentRun, resolved::ValidTrainingModel};
use crate::{
    finding::Finding,
    fleet::{
        Presence,
        observed::{AgentMessages, AgentState, missing_report},
    },
    kubernetes::nodes::in_url,
    reason::Reason,
};

/// What is known of the node of an aggregator.
#[derive(Debug, Clone)]
pub struct AggregatorNode {
    /// Name of the node.
    pub name: NodeName,
    /// Whether the node exists.
    pub exists: bool,
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// Whether its agent runs aggregators.
    pub is_capable: bool,
    /// What its agent reports of the aggregator.
    pub report: Option<AggregatorReport>,
}

/// The node of the aggregator: that of the current or last run, whose weights are there, or else
/// that of the spec. `None` for a Deployment.
pub fn placement(model: &TrainingModel) -> Option<NodeName> {
    match model.status.as_ref().and_then(CurrentRun::from_status) {
        Some(current) => current.frozen.aggregator_node,
        None => spec_node(model)?.parse().ok(),
    }
}

/// Returns `spec.aggregation.nodeName`; `None` if it is empty.
pub fn spec_node(model: &TrainingModel) -> Option<&str> {
    model.spec.aggregation.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns the address of an aggregator on a node with this address, as `host:port`.
pub fn address(model: &TrainingModel, node: Option<&str>) -> Option<String> {
    let given = given_address(model).map(str::to_owned);
    given.or_else(|| Some(format!("{}:{AGGREGATOR_PORT}", in_url(node?))))
}

fn given_address(model: &TrainingModel) -> Option<&str> {
    model.spec.aggregation.as_ref()?.service.as_ref()?.address.as_deref()
}

/// The content of the message to the node. The aggregator listens at the port of its address.
pub fn content(model: &TrainingModel, valid: &ValidTrainingModel) -> AggregatorContent {
    let port = given_address(model).and_then(|address| address.rsplit(':').next()?.parse().ok());
    AggregatorContent {
        container: valid.name.clone(),
        image: valid.aggregator.image.clone(),
        port: port.unwrap_or(AGGREGATOR_PORT),
        may_start: valid.current.as_ref().is_some_and(|it| !it.was_accepted && !it.is_over),
        request: valid.aggregator.request.clone(),
    }
}

/// Why the aggregator cannot be used; `None` if it can.
pub fn problem(node: &AggregatorNode, address: Option<&str>) -> Option<Finding> {
    let name = &node.name;
    if !node.exists {
        let message = format!(
            "node {name} of the aggregator does not exist, and its weights are there; create the node again, or set spec.aggregation.nodeName to another node to begin another run when this one has ended"
        );
        return Some(Finding::new(Reason::NodeNotFound, message));
    }
    let meanwhile = "the run waits for its aggregator".to_owned();
    let messages = AgentMessages::new("aggregator: ", name, "report on it", meanwhile);
    if node.agent.presence != Presence::Online {
        return Some(missing_report(node.agent, &messages));
    }
    if !node.is_capable {
        let message = format!(
            "the agent of node {name} is too old to run an aggregator; upgrade neptune-edge on it, or remove spec.aggregation.nodeName"
        );
        return Some(Finding::new(Reason::AgentTooOld, message));
    }
    if address.is_none() {
        let message = format!(
            "node {name} reports no address for its aggregator; set spec.aggregation.service.address"
        );
        return Some(Finding::new(Reason::WaitingForAggregator, message));
    }
    let Some(report) = &node.report else { return Some(missing_report(node.agent, &messages)) };
    let problem = report.problem.as_ref()?;
    let reason = problem.reason.parse().unwrap_or(Reason::AggregatorUnreachable);
    Some(Finding::new(reason, format!("aggregator on node {name}: {}", problem.detail)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use neptune_api::{AggregatorService, AggregatorStatus, TrainingModelStatus};
    use neptune_wire::aggregator::AggregatorProblem;

    use super::*;
    use crate::training_model::{fixtures, plan::plan, validate::validate};

    fn node() -> AggregatorNode {
        AggregatorNode {
            name: "edge0".parse().unwrap(),
            exists: true,
            agent: AgentState { presence: Presence::Online, settled: true },
            is_capable: true,
            report: Some(AggregatorReport::default()),
        }
    }

    /// The sample with its aggregator on edge3, which has none of its workers.
    fn valid(status: Option<TrainingModelStatus>) -> (TrainingModel, ValidTrainingModel) {
        let mut model = fixtures::model();
        model.spec.aggregation.get_or_insert_default().node_name = Some("edge3".to_owned());
        model.status = status;
        let mut facts = fixtures::facts();
        facts.aggregator.node = placement(&model);
        (facts.aggregator.controller_pin, facts.aggregator.pin) = (None, None);
        let valid = validate(&model, &facts).unwrap();
        (model, valid)
    }

    fn started(accepted: Option<i64>) -> TrainingModelStatus {
        let (_, valid) = valid(None);
        TrainingModelStatus {
            run: Some(1),
            run_settings: Some(valid.next.unwrap().to_text()),
            start_time: Some(Time(Timestamp::UNIX_EPOCH)),
            aggregator: Some(AggregatorStatus { run: accepted, ..AggregatorStatus::default() }),
            ..TrainingModelStatus::default()
        }
    }

    #[test]
    fn node_gets_the_aggregator_and_the_cluster_no_objects() {
        let (model, valid) = valid(Some(started(None)));
        let plan = plan(&model, &valid, "");
        assert!(plan.objects.is_none() && plan.retained.is_none());
        let nodes: Vec<_> = plan.requirements.keys().map(NodeName::as_str).collect();
        assert_eq!(nodes, ["edge3"], "no task is open");
        let content = plan.requirements.values().flat_map(|all| all.values()).next().unwrap();
        let content = content.content();
        let aggregator = content.aggregator.as_deref().unwrap();
        assert!(aggregator.may_start && content.training.is_none());
    }

    #[test]
    fn accepted_run_is_retained_until_its_state_is_known() {
        let (model, valid) = valid(Some(started(Some(1))));
        let retained = plan(&model, &valid, "").retained.unwrap();
        let node: NodeName = "edge3".parse().unwrap();
        assert_eq!(*retained[&node], [valid.key.clone()].into());
        assert!(!content(&model, &valid).may_start);
    }

    #[test]
    fn another_node_takes_effect_in_the_next_run() {
        let (mut model, _) = valid(Some(started(Some(1))));
        model.spec.aggregation.get_or_insert_default().node_name = Some("edge0".to_owned());
        assert_eq!(placement(&model).unwrap().as_str(), "edge3");
        model.status = None;
        assert_eq!(placement(&model).unwrap().as_str(), "edge0");
        model.spec.aggregation.get_or_insert_default().node_name = None;
        assert_eq!(placement(&model), None);
    }

    #[test]
    fn port_is_that_of_the_given_address() {
        let mut model = fixtures::model();
        let address_of = |model: &TrainingModel| address(model, Some("fd00::1"));
        model.spec.aggregation.get_or_insert_default().service = None;
        assert_eq!(address_of(&model).as_deref(), Some("[fd00::1]:8418"));
        assert_eq!(address(&model, None), None);
        let given = AggregatorService { address: Some("box:9000".to_owned()), type_: None };
        model.spec.aggregation.get_or_insert_default().service = Some(given);
        assert_eq!(address_of(&model).as_deref(), Some("box:9000"));
        let valid = validate(&model, &fixtures::facts()).unwrap();
        assert_eq!(content(&model, &valid).port, 9000);
    }

    #[test]
    fn each_problem_of_the_node_is_named_with_its_remedy() {
        assert_eq!(problem(&node(), Some("h:1")), None);
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let agent = AgentState { presence: offline, settled: true };
        let failed = AggregatorReport {
            problem: Some(AggregatorProblem {
                reason: "ImageMissing".to_owned(),
                detail: "no image".to_owned(),
            }),
            ..AggregatorReport::default()
        };
        for (aggregator, address, reason, text) in [
            (AggregatorNode { exists: false, ..node() }, Some(""), Reason::NodeNotFound, "edge0"),
            (AggregatorNode { agent, ..node() }, Some(""), Reason::NodeOffline, "waits"),
            (
                AggregatorNode { is_capable: false, ..node() },
                Some(""),
                Reason::AgentTooOld,
                "upgrade neptune-edge",
            ),
            (node(), None, Reason::WaitingForAggregator, "service.address"),
            (
                AggregatorNode { report: None, ..node() },
                Some(""),
                Reason::AwaitingAgent,
                "waiting for node edge0",
            ),
            (
                AggregatorNode { report: Some(failed), ..node() },
                Some(""),
                Reason::ImageMissing,
                "aggregator on node edge0: no image",
            ),
        ] {
            let finding = problem(&aggregator, address).unwrap();
            assert_eq!(finding.reason, reason);
            assert!(finding.message.contains(text), "{}", finding.message);
        }
    }
}
