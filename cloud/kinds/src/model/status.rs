//! Computes the next status of a model from its previous status and observation.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    KeyValue, MeasuredDataset, MeasuredOutput, MetricsSource, ModelNode, ModelNodeState,
    ModelStatus,
};
use neptune_wire::{ModelPresenceReport, NodeName, ObjectKey, PresenceState, redact};

use super::{
    presence::ModelFile,
    resolved::resolved,
    rows::{RowState, RowSummary},
};
use crate::{
    availability::problems,
    finding::Finding,
    fleet::{
        Evaluation, Presence,
        observed::{AgentMessages, AgentState, missing_report},
    },
    kubernetes::conditions::condition,
    reason::Reason,
    steps::StatusInputs,
};

/// Condition type: every node that uses the model and is not offline has it.
const READY: &str = "Ready";
/// Condition type: the metrics belong to the file that the spec names.
const EVALUATED: &str = "Evaluated";

/// The maximum number of services and of nodes in a status. Their total numbers are separate
/// fields.
pub const MAX_LISTED: usize = 32;
/// Maximum number of rejected peers that the entry of a node lists.
const MAX_PEERS: usize = 8;

/// The observation of a model.
#[derive(Debug, Clone)]
pub struct ModelObservation {
    /// The file in the spec.
    pub file: ModelFile,
    /// The first objects that use the model, as in `status.usedBy`, sorted.
    pub users: Vec<String>,
    /// Number of objects that use the model.
    pub user_count: usize,
    /// The numbers of the nodes whose agents need the model.
    pub rows: RowSummary,
    /// The nodes that `rows` lists or names.
    pub nodes: Vec<NodeObservation>,
    /// What the placement lacks; `None` without a placement.
    pub placement: Option<PlacementObservation>,
    /// The newest metrics that a worker reported.
    pub evaluation: Option<Evaluation>,
    /// What a training measured for the file in the spec.
    pub measured: Option<MeasuredByTraining>,
}

/// What a `TrainingModel` measured for the weights that it published.
#[derive(Debug, Clone)]
pub struct MeasuredByTraining {
    /// The `TrainingModel`, as resource/name.
    pub object: String,
    /// The metrics and their data.
    pub measured: MeasuredOutput,
}

/// The nodes that a placement lacks, and why.
#[derive(Debug, Clone, Default)]
pub struct PlacementObservation {
    /// The nodes in the spec that cannot keep the model, with the reason.
    pub unusable: Vec<(String, Finding)>,
    /// Why no node is selected.
    pub nothing: Option<Finding>,
}

/// The observation of a node that needs the model.
#[derive(Debug, Clone)]
pub struct NodeObservation {
    /// The name of the node.
    pub node: NodeName,
    /// The state of its agent.
    pub agent: AgentState,
    /// The newest report of the node on the model; `None` before the first one.
    pub presence: Option<Box<ModelPresenceReport>>,
    /// The object for whose rollout the file in the spec waits on this node.
    pub awaited_rollout: Option<ObjectKey>,
}

/// The next status. Values without a report since the start of this controller stay.
#[must_use]
pub fn next(previous: &ModelStatus, inputs: &StatusInputs<ModelObservation>) -> ModelStatus {
    let observed = &inputs.observed;
    let rows = &observed.rows;
    let of_nodes = |nodes: &[NodeName]| {
        let observed = |name: &NodeName| observed.nodes.iter().find(|node| node.node == *name);
        let nodes = nodes.iter().filter_map(observed);
        nodes.map(|node| listed(previous, node, inputs)).collect::<Vec<_>>()
    };
    let mut nodes = of_nodes(&rows.missing);
    let unusable: Vec<_> = observed.placement.iter().flat_map(|it| &it.unusable).collect();
    nodes.extend(unusable.iter().copied().map(self::unusable));
    let first = of_nodes(rows.first.as_slice()).into_iter().next();
    let first = first.or_else(|| unusable.first().map(|node| self::unusable(node)));
    nodes.extend(of_nodes(&rows.has));
    let (wanted, present) = (rows.wanted + unusable.len(), rows.present);
    let placed = observed.placement.as_ref();
    let placed =
        placed.map(|_| format!("{}/{}", rows.placed_present, rows.placed + unusable.len()));
    let (metrics, reported_by, update_time) = metrics(previous, observed);
    let (status, finding) = match Finding::join(inputs.findings) {
        Some(finding) => ("False", finding),
        None => ready(first, (present, wanted), observed),
    };
    let conditions = [
        Some((READY, status, finding)),
        evaluated(&metrics, reported_by.as_ref(), observed).map(|(is, why)| (EVALUATED, is, why)),
    ];
    let is_of_this_spec = previous.observed_generation == inputs.generation;
    let kept = previous.resolved.as_ref().filter(|_| is_of_this_spec);
    nodes.truncate(MAX_LISTED);
    let number = |count: usize| i32::try_from(count).ok();
    ModelStatus {
        update_time,
        metrics,
        reported_by,
        used_by: observed.users.iter().take(MAX_LISTED).cloned().collect(),
        users: number(observed.user_count),
        resolved: resolved(kept, present_reports(observed)),
        nodes,
        wanted_on: number(wanted),
        present_on: Some(format!("{present}/{wanted}")),
        placed,
        conditions: conditions
            .into_iter()
            .flatten()
            .map(|(type_, status, finding)| {
                let previous = &previous.conditions;
                condition(previous, type_, status, finding, inputs.generation, inputs.now)
            })
            .collect(),
        observed_generation: inputs.generation,
    }
}

/// The reports of the listed nodes that have the file in the spec, by the name of the node.
fn present_reports(observed: &ModelObservation) -> impl Iterator<Item = &ModelPresenceReport> {
    let node = |name: &NodeName| observed.nodes.iter().find(|node| node.node == *name);
    observed.rows.has.iter().filter_map(move |name| node(name)?.presence.as_deref())
}

/// The entry of a node that cannot keep the model.
fn unusable((node, finding): &(String, Finding)) -> ModelNode {
    ModelNode {
        node: node.clone(),
        state: ModelNodeState::Unknown,
        sha256sum: None,
        bytes: None,
        source: None,
        rejected_peers: Vec::new(),
        reason: Some(finding.reason.to_string()),
        message: Some(finding.message.clone()),
    }
}

/// The entry of a node in the status.
fn listed(
    previous: &ModelStatus,
    node: &NodeObservation,
    inputs: &StatusInputs<ModelObservation>,
) -> ModelNode {
    let entry = |state, finding: Option<Finding>| {
        let (reason, message) =
            finding.map(|finding| (finding.reason.to_string(), finding.message)).unzip();
        ModelNode {
            node: node.node.to_string(),
            state,
            sha256sum: None,
            bytes: None,
            source: None,
            rejected_peers: Vec::new(),
            reason,
            message,
        }
    };
    let Some(presence) = &node.presence else {
        let before = previous.nodes.iter().find(|before| before.node == node.node.as_str());
        let is_of_this_spec = previous.observed_generation == inputs.generation;
        return match before.filter(|_| is_of_this_spec) {
            Some(before) => before.clone(),
            None => entry(
                ModelNodeState::Unknown,
                Some(missing_model(node, "has not reported the model yet")),
            ),
        };
    };
    let ModelPresenceReport {
        state, sha256, bytes, source, rejected_peers, reason, message, ..
    } = &**presence;
    let is_current = inputs.observed.file.is_subject(presence);
    let reported = |default: Reason| {
        let reason = reason.map_or(default, Reason::from);
        let message = if message.is_empty() { reason.to_string() } else { message.clone() };
        Some(Finding::new(reason, message))
    };
    let listed = match state {
        _ if !is_current => entry(
            ModelNodeState::Outdated,
            Some(missing_model(node, "still has an earlier version")),
        ),
        PresenceState::Present => entry(ModelNodeState::Present, None),
        PresenceState::Downloading => {
            entry(ModelNodeState::Downloading, reported(Reason::ModelDownloading))
        }
        PresenceState::Failed => entry(ModelNodeState::Failed, reported(Reason::ModelUnavailable)),
    };
    let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
    ModelNode {
        sha256sum: sha256.clone(),
        bytes,
        source: source.as_ref().map(ToString::to_string),
        rejected_peers: rejected_peers.iter().take(MAX_PEERS).map(ToString::to_string).collect(),
        ..listed
    }
}

/// The states of the nodes in a status, which stay for nodes without a report.
pub fn kept_states(
    status: &ModelStatus,
    generation: Option<i64>,
) -> impl Iterator<Item = (NodeName, RowState)> {
    let is_of_this_spec = status.observed_generation == generation;
    let nodes = status.nodes.iter().filter(move |_| is_of_this_spec);
    nodes.filter_map(|node| {
        let state = match node.state {
            ModelNodeState::Present => RowState::Present,
            ModelNodeState::Failed => RowState::Failed,
            _ => RowState::Missing,
        };
        Some((node.node.parse().ok()?, state))
    })
}

/// The finding of a node without a current report.
fn missing_model(node: &NodeObservation, what: &str) -> Finding {
    if let Some(ObjectKey { resource, name, .. }) = &node.awaited_rollout
        && !matches!(node.agent.presence, Presence::Offline { .. })
    {
        let message = format!(
            "keeps its earlier file until the rollout of {resource}/{name} reaches the node"
        );
        return Finding::new(Reason::AwaitingRollout, message);
    }
    let messages = AgentMessages {
        awaiting: format!("agent {what}"),
        never_seen: "no agent of this node has reported; start neptune-edge on the node".to_owned(),
        offline: Box::new(|since| format!("node is offline since {since:.0}; its agent {what}")),
    };
    missing_report(node.agent, &messages)
}

/// Status and finding of the condition Ready. `first` is the first node that cannot get the model, or
/// else that does not have it. Nodes that are offline are counted, and do not decide.
fn ready(
    first: Option<ModelNode>,
    (present, wanted): (usize, usize),
    observed: &ModelObservation,
) -> (&'static str, Finding) {
    let finding = |reason, message: &str| Finding::new(reason, message);
    let nothing = observed.placement.as_ref().and_then(|placement| placement.nothing.clone());
    if let Some(nothing) = nothing.filter(|_| present == wanted) {
        return ("False", nothing);
    }
    if observed.user_count == 0 && observed.placement.is_none() {
        let message = "nothing uses the model; nodes download it when something uses it or spec.placement selects them";
        return ("Unknown", finding(Reason::ModelUnused, message));
    }
    if wanted == 0 {
        let message = "only Pods and model servers use the model; each downloads its own copy, which the status of its object shows";
        return ("Unknown", finding(Reason::ModelInPods, message));
    }
    let Some(first) = first else {
        let message = format!("{present} of {wanted} nodes have the model");
        let away = problems(observed.rows.missing_offline, []);
        return match observed.rows.offline {
            _ if away.is_empty() => ("True", finding(Reason::ModelPresent, &message)),
            all if all == wanted => {
                ("Unknown", finding(Reason::NodeOffline, &format!("{message}; {away}")))
            }
            _ => ("True", finding(Reason::SomeNodesNotReady, &format!("{message}; {away}"))),
        };
    };
    let reason = first.reason.as_deref().and_then(|reason| reason.parse().ok());
    let why = first.message.as_deref().unwrap_or_default();
    let message = format!("{present} of {wanted} nodes have the model; {}: {why}", first.node);
    ("False", Finding::new(reason.unwrap_or(Reason::AwaitingAgent), message))
}

type ReportedMetrics = (Vec<KeyValue>, Option<MetricsSource>, Option<Time>);

/// The metrics, their source and their time. Those of a training have priority over those of workers
/// while they belong to the file in the spec: it is known which data they were measured with.
fn metrics(previous: &ModelStatus, observed: &ModelObservation) -> ReportedMetrics {
    let known = || {
        let ModelStatus { metrics, reported_by, update_time, .. } = previous;
        (metrics.clone(), reported_by.clone(), update_time.clone())
    };
    if let Some(MeasuredByTraining { object, measured }) = &observed.measured {
        let MeasuredOutput { metrics, node, dataset, time } = measured;
        let source = MetricsSource {
            node: node.clone(),
            object: object.clone(),
            model_url: redact(&observed.file.url),
            sha256sum: observed.file.sha256.clone(),
            dataset: Some(dataset.clone()),
            time: time.0.to_string(),
        };
        return (metrics.clone(), Some(source), Some(time.clone()));
    }
    // The training may have been deleted.
    let is_of_training = previous
        .reported_by
        .as_ref()
        .is_some_and(|source| source.dataset.is_some() && is_of_file(source, observed));
    let Some(Evaluation { node, object, taken, output }) =
        observed.evaluation.as_ref().filter(|_| !is_of_training)
    else {
        return known();
    };
    let source = MetricsSource {
        node: node.to_string(),
        object: format!("{}/{}", object.resource, object.name),
        model_url: redact(&output.url),
        sha256sum: output.sha256.clone(),
        dataset: None,
        time: output.time.clone(),
    };
    // A status has whole seconds.
    let is_older =
        previous.update_time.as_ref().is_some_and(|known| taken.as_second() < known.0.as_second());
    if is_older || previous.reported_by.as_ref() == Some(&source) {
        return known();
    }
    let metrics = output.metrics.iter().map(|metric| KeyValue::new(&metric.key, &metric.value));
    let second = Timestamp::from_second(taken.as_second()).unwrap_or(*taken);
    (metrics.collect(), Some(source), Some(Time(second)))
}

/// Whether metrics belong to the file in the spec.
fn is_of_file(source: &MetricsSource, observed: &ModelObservation) -> bool {
    let file = &observed.file;
    file.has_address(&source.model_url)
        && (file.sha256.is_none() || source.sha256sum.is_none() || file.sha256 == source.sha256sum)
}

/// Status and finding of the condition Evaluated; `None` without metrics of a known source.
fn evaluated(
    metrics: &[KeyValue],
    source: Option<&MetricsSource>,
    observed: &ModelObservation,
) -> Option<(&'static str, Finding)> {
    let source = source.filter(|_| !metrics.is_empty())?;
    let MetricsSource { node, object, model_url, dataset, .. } = source;
    // Those of `record-metrics` may be of no node.
    let on_node = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    Some(if is_of_file(source, observed) {
        let message = match dataset {
            Some(MeasuredDataset { name, .. }) => {
                format!("metrics were measured by {object}{on_node} with Dataset {name:?}")
            }
            None => format!("metrics were reported by {object}{on_node}"),
        };
        ("True", Finding::new(Reason::MetricsCurrent, message))
    } else {
        let message = format!(
            "metrics are those of another version, {model_url}, reported by {object}{on_node}; they are updated when a worker reports metrics of the current version, or by kubectl neptune record-metrics"
        );
        ("False", Finding::new(Reason::MetricsOutdated, message))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use neptune_wire::{Metric, ModelOutput, WorkerReason};

    use super::*;
    use crate::model::rows::NodeRows;

    const URL: &str = "http://h/small.pb";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn presence(state: PresenceState) -> ModelPresenceReport {
        ModelPresenceReport {
            state,
            url: URL.to_owned(),
            sha256: Some("ab".repeat(32)),
            bytes: Some(7),
            files: Some(1),
            revision: None,
            source: None,
            rejected_peers: Vec::new(),
            progress: None,
            reason: None,
            message: String::new(),
        }
    }

    fn node(name: &str, presence: Option<ModelPresenceReport>) -> NodeObservation {
        NodeObservation {
            node: name.parse().unwrap(),
            agent: AgentState { presence: Presence::Online, settled: true },
            presence: presence.map(Box::new),
            awaited_rollout: None,
        }
    }

    fn inputs(observed: ModelObservation) -> StatusInputs<'static, ModelObservation> {
        let now = at(100);
        StatusInputs { generation: Some(1), findings: &[], observed, is_settled: true, now }
    }

    fn next(previous: &ModelStatus, observed: ModelObservation) -> ModelStatus {
        next_by(previous, inputs(observed))
    }

    /// The next status, with the numbers of the observed nodes. With a placement it has all of them
    /// except the one named `user`.
    fn next_by(
        previous: &ModelStatus,
        mut inputs: StatusInputs<'_, ModelObservation>,
    ) -> ModelStatus {
        let observed = &mut inputs.observed;
        let names = observed.nodes.iter().map(|node| node.node.clone());
        let is_placed = |name: &NodeName| observed.placement.is_some() && name.as_str() != "user";
        let (placed, used): (BTreeSet<_>, BTreeSet<_>) = names.partition(is_placed);
        let mut rows = NodeRows::default();
        rows.set_placed(&placed.into_iter().collect());
        rows.set_service("demo", used);
        for node in &observed.nodes {
            let state = observed.file.row_state(node.presence.as_deref());
            let is_offline = matches!(node.agent.presence, Presence::Offline { .. });
            rows.set_report(&node.node, state, is_offline);
        }
        observed.rows = rows.summary(kept_states(previous, inputs.generation), MAX_LISTED);
        observed.user_count = observed.users.len();
        super::next(previous, &inputs)
    }

    fn file(url: &str, sha256: Option<String>) -> ModelFile {
        ModelFile { url: url.to_owned(), sha256 }
    }

    fn observed(nodes: Vec<NodeObservation>) -> ModelObservation {
        ModelObservation {
            file: file(URL, None),
            users: vec!["jointinferenceservices/demo".to_owned()],
            user_count: 1,
            rows: RowSummary::default(),
            nodes,
            placement: None,
            evaluation: None,
            measured: None,
        }
    }

    fn by_training(accuracy: &str, second: i64) -> MeasuredByTraining {
        let dataset = MeasuredDataset {
            name: "digits-test".to_owned(),
            sha256: Some("cd".repeat(32)),
            state: None,
        };
        MeasuredByTraining {
            object: "trainingmodels/digits".to_owned(),
            measured: MeasuredOutput {
                metrics: vec![KeyValue::new("accuracy", accuracy)],
                node: "edge7".to_owned(),
                dataset,
                time: Time(at(second)),
            },
        }
    }

    fn evaluation(node: &str, second: i64, accuracy: &str) -> Evaluation {
        let metrics = vec![Metric { key: "accuracy".into(), value: accuracy.into() }];
        Evaluation {
            node: node.parse().unwrap(),
            object: "default/jointinferenceservices/demo".parse().unwrap(),
            taken: at(second),
            output: ModelOutput {
                model: "small-model".parse().unwrap(),
                uid: "uid".into(),
                format: "pb".into(),
                url: URL.into(),
                sha256: None,
                metrics,
                time: format!("{:.3}", at(second)),
            },
        }
    }

    fn brief(status: &ModelStatus, type_: &str) -> String {
        let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
        condition.map_or_else(|| "-".to_owned(), |c| format!("{} {}", c.status, c.reason))
    }

    fn accuracy(status: &ModelStatus) -> (&str, i64) {
        let time = status.update_time.as_ref().map_or(0, |time| time.0.as_second());
        (status.metrics.first().map_or("-", |metric| metric.value.as_str()), time)
    }

    #[test]
    fn model_is_ready_when_every_node_that_uses_it_has_it() {
        use PresenceState::{Downloading, Failed, Present};
        let failed = || {
            let reason = Some(WorkerReason::ModelDigestMismatch);
            let message = "sha256 is another".to_owned();
            ModelPresenceReport { reason, message, ..presence(Failed) }
        };
        let earlier = || ModelPresenceReport { url: "http://h/old".into(), ..presence(Present) };
        for (nodes, ready, present_on) in [
            (vec![], "Unknown ModelInPods", "0/0"),
            (vec![node("a", Some(presence(Present)))], "True ModelPresent", "1/1"),
            (
                vec![node("a", Some(presence(Present))), node("b", Some(presence(Downloading)))],
                "False ModelDownloading",
                "1/2",
            ),
            (
                vec![node("a", Some(presence(Downloading))), node("b", Some(failed()))],
                "False ModelDigestMismatch",
                "0/2",
            ),
            (vec![node("a", None)], "False AwaitingAgent", "0/1"),
            (vec![node("a", Some(earlier()))], "False AwaitingAgent", "0/1"),
        ] {
            let status = next(&ModelStatus::default(), observed(nodes));
            assert_eq!(brief(&status, READY), ready);
            assert_eq!(status.present_on.as_deref(), Some(present_on), "{ready}");
        }
        let unused = ModelObservation { users: vec![], ..observed(vec![]) };
        assert_eq!(brief(&next(&ModelStatus::default(), unused), READY), "Unknown ModelUnused");
    }

    #[test]
    fn node_that_a_rollout_keeps_back_awaits_it_and_has_not_failed() {
        let earlier = |state| ModelPresenceReport { url: "http://h/old".into(), ..presence(state) };
        let kept_back = |name: &str, state| NodeObservation {
            awaited_rollout: Some("default/jointinferenceservices/slow".parse().unwrap()),
            ..node(name, Some(earlier(state)))
        };
        let (has, waits, failed) = (
            node("a", Some(presence(PresenceState::Present))),
            kept_back("b", PresenceState::Present),
            kept_back("c", PresenceState::Failed),
        );
        let observed = observed(vec![has, waits, failed]);
        let status = next(&ModelStatus::default(), observed);
        assert_eq!(brief(&status, READY), "False AwaitingRollout");
        assert_eq!(status.present_on.as_deref(), Some("1/3"));
        let row = &status.nodes[0];
        assert_eq!(
            (row.state, row.reason.as_deref()),
            (ModelNodeState::Outdated, Some("AwaitingRollout"))
        );
        let message = "keeps its earlier file until the rollout of jointinferenceservices/slow reaches the node";
        assert_eq!(row.message.as_deref(), Some(message));
        assert_eq!(status.nodes[1].state, ModelNodeState::Outdated, "of another file");
    }

    #[test]
    fn first_node_with_the_file_of_the_spec_names_its_content() {
        use PresenceState::{Downloading, Failed, Present};
        let reported = |name: &str, state, url: &str| {
            let (url, revision) = (url.to_owned(), Some(name.repeat(40)));
            node(name, Some(ModelPresenceReport { url, revision, ..presence(state) }))
        };
        let mut nodes = vec![
            node("0", None),
            reported("a", Downloading, URL),
            reported("b", Failed, URL),
            reported("c", Present, "http://h/old.pb"),
        ];
        let before = next(&ModelStatus::default(), observed(nodes.clone()));
        assert_eq!(before.resolved, None);
        nodes.extend([reported("d", Present, URL), reported("e", Present, URL)]);
        let resolved = next(&before, observed(nodes)).resolved.unwrap();
        assert_eq!(resolved.revision, Some("d".repeat(40)));
    }

    #[test]
    fn digest_of_the_spec_decides_what_is_current() {
        let node_with = |sum: String| {
            let nodes = vec![node("a", Some(presence(PresenceState::Present)))];
            let status = next(
                &ModelStatus::default(),
                ModelObservation { file: file(URL, Some(sum)), ..observed(nodes) },
            );
            status.nodes[0].clone()
        };
        let listed = node_with("ab".repeat(32));
        assert_eq!((listed.state, listed.bytes), (ModelNodeState::Present, Some(7)));
        assert_eq!(node_with("cd".repeat(32)).state, ModelNodeState::Outdated);
    }

    #[test]
    fn missing_node_has_a_reason_and_keeps_its_last_state() {
        let without_report = |presence, settled| NodeObservation {
            agent: AgentState { presence, settled },
            ..node("a", None)
        };
        let new = |agent, settled| {
            let observed = observed(vec![without_report(agent, settled)]);
            brief(&next(&ModelStatus::default(), observed), READY)
        };
        let offline = Presence::Offline { since: at(1) };
        assert_eq!(new(offline, true), "Unknown NodeOffline");
        assert_eq!(new(Presence::NeverSeen, true), "False AgentNotSeen");
        assert_eq!(new(Presence::NeverSeen, false), "False AwaitingAgent");
        let present = next(
            &ModelStatus::default(),
            observed(vec![node("a", Some(presence(PresenceState::Present)))]),
        );
        let restarted = next(&present, observed(vec![without_report(Presence::NeverSeen, true)]));
        assert_eq!(restarted, present, "a restarted controller changes nothing");
        let changed = inputs(observed(vec![without_report(Presence::NeverSeen, true)]));
        let changed = StatusInputs { generation: Some(2), ..changed };
        assert_eq!(next_by(&present, changed).nodes[0].state, ModelNodeState::Unknown);
    }

    #[test]
    fn model_is_ready_without_the_nodes_that_are_offline() {
        use PresenceState::{Downloading, Failed, Present};
        let offline = Presence::Offline { since: at(1) };
        let away = |name: &str, report: Option<PresenceState>| NodeObservation {
            agent: AgentState { presence: offline, settled: true },
            ..node(name, report.map(presence))
        };
        let here = |name: &str, report: PresenceState| node(name, Some(presence(report)));
        let ready = |nodes| {
            let status = next(&ModelStatus::default(), observed(nodes));
            let ready = status.conditions.iter().find(|condition| condition.type_ == READY);
            let message = ready.unwrap().message.clone();
            (brief(&status, READY), message)
        };
        for (nodes, expected, message) in [
            (
                vec![away("a", None), here("b", Present), away("c", Some(Failed))],
                "True SomeNodesNotReady",
                "1 of 3 nodes have the model; 2 nodes are offline",
            ),
            (
                vec![away("a", Some(Present)), here("b", Present)],
                "True ModelPresent",
                "2 of 2 nodes have the model",
            ),
            (
                vec![away("a", Some(Failed)), here("b", Downloading)],
                "False ModelDownloading",
                "0 of 2 nodes have the model; b: ModelDownloading",
            ),
            (
                vec![away("a", Some(Present)), away("b", None)],
                "Unknown NodeOffline",
                "1 of 2 nodes have the model; 1 node is offline",
            ),
        ] {
            assert_eq!(ready(nodes), (expected.to_owned(), message.to_owned()));
        }
    }

    #[test]
    fn newest_metrics_win_and_missing_ones_change_nothing() {
        let with = |previous: &ModelStatus, evaluation| {
            next(previous, ModelObservation { evaluation, ..observed(vec![]) })
        };
        let first = with(&ModelStatus::default(), Some(evaluation("a", 50, "0.9")));
        assert_eq!(accuracy(&first), ("0.9", 50));
        assert_eq!(brief(&first, EVALUATED), "True MetricsCurrent");
        let source = first.reported_by.as_ref().unwrap();
        assert_eq!((&*source.node, &*source.object), ("a", "jointinferenceservices/demo"));
        assert_eq!(with(&first, None), first, "a restarted controller");
        assert_eq!(accuracy(&with(&first, Some(evaluation("b", 40, "0.1")))), ("0.9", 50));
        assert_eq!(accuracy(&with(&first, Some(evaluation("b", 60, "0.8")))), ("0.8", 60));
        let again = Evaluation { taken: at(70), ..evaluation("a", 50, "0.9") };
        assert_eq!(accuracy(&with(&first, Some(again))), ("0.9", 50), "already in the status");
    }

    #[test]
    fn metrics_of_a_training_name_their_data_and_outlive_worker_reports() {
        let with = |previous: &ModelStatus, measured, evaluation| {
            next(previous, ModelObservation { evaluation, measured, ..observed(vec![]) })
        };
        let of_worker = with(&ModelStatus::default(), None, Some(evaluation("a", 50, "0.1")));
        assert_eq!(of_worker.reported_by.as_ref().unwrap().dataset, None);
        let training = || Some(by_training("0.95", 40));
        let status = with(&of_worker, training(), Some(evaluation("a", 60, "0.2")));
        assert_eq!(accuracy(&status), ("0.95", 40));
        let source = status.reported_by.clone().unwrap();
        assert_eq!((&*source.node, &*source.object), ("edge7", "trainingmodels/digits"));
        assert_eq!(source.dataset.unwrap().sha256, Some("cd".repeat(32)));
        let evaluated = status.conditions.iter().find(|it| it.type_ == EVALUATED).unwrap();
        assert_eq!(
            evaluated.message,
            "metrics were measured by trainingmodels/digits on node edge7 with Dataset \"digits-test\""
        );
        // Also after the TrainingModel is deleted, until the file changes.
        let deleted = with(&status, None, Some(evaluation("a", 70, "0.3")));
        assert_eq!(deleted, status);
        assert_eq!(accuracy(&with(&status, Some(by_training("0.94", 80)), None)), ("0.94", 80));
        let other = ModelObservation {
            file: file("http://h/new", None),
            evaluation: Some(evaluation("a", 70, "0.3")),
            ..observed(vec![])
        };
        let replaced = next(&status, other);
        assert_eq!(accuracy(&replaced), ("0.3", 70));
        assert_eq!(replaced.reported_by.unwrap().dataset, None);
    }

    #[test]
    fn metrics_of_another_version_are_outdated() {
        let evaluation = Some(evaluation("a", 50, "0.9"));
        let file = file("http://h/new", None);
        let observed = ModelObservation { file, evaluation, ..observed(vec![]) };
        let status = next(&ModelStatus::default(), observed);
        assert_eq!(brief(&status, EVALUATED), "False MetricsOutdated");
        assert_eq!(brief(&ModelStatus::default(), EVALUATED), "-");
    }

    #[test]
    fn placement_counts_its_nodes_and_not_those_of_users() {
        let placed = |name: &str, state: Option<PresenceState>| node(name, state.map(presence));
        let lists = |nodes: Vec<NodeObservation>, placement| ModelObservation {
            users: Vec::new(),
            placement: Some(placement),
            ..observed(nodes)
        };
        let status_of = |observed| next(&ModelStatus::default(), observed);
        let present = Some(PresenceState::Present);
        let all = lists(
            vec![placed("a", present), placed("b", present)],
            PlacementObservation::default(),
        );
        let status = status_of(all);
        assert_eq!(status.placed.as_deref(), Some("2/2"));
        assert_eq!(brief(&status, READY), "True ModelPresent");
        let user = node("user", Some(presence(PresenceState::Present)));
        let loading = placed("b", Some(PresenceState::Downloading));
        let status = status_of(lists(
            vec![placed("a", present), loading, user],
            PlacementObservation::default(),
        ));
        assert_eq!(
            (status.placed.as_deref(), status.present_on.as_deref()),
            (Some("1/2"), Some("2/3"))
        );
        assert_eq!(brief(&status, READY), "False ModelDownloading");

        let gone = ("gone".to_owned(), Finding::missing_node("gone", "spec.placement.nodeNames"));
        let unusable = PlacementObservation { unusable: vec![gone], nothing: None };
        let status = status_of(lists(vec![placed("a", present)], unusable));
        assert_eq!(status.placed.as_deref(), Some("1/2"));
        assert_eq!(brief(&status, READY), "False NodeNotFound");
        assert_eq!(&*status.nodes[0].node, "gone");
        let nothing = Some(Finding::new(Reason::NodeNotFound, "no edge node has the labels"));
        let nothing = PlacementObservation { unusable: Vec::new(), nothing };
        let status = status_of(lists(vec![], nothing));
        assert_eq!(status.placed.as_deref(), Some("0/0"));
        assert_eq!(brief(&status, READY), "False NodeNotFound");
        assert_eq!(status_of(observed(vec![])).placed, None);
    }

    #[test]
    fn invalid_spec_is_the_reason_of_ready_also_without_a_user() {
        let findings = [Finding::new(Reason::ModelDigestInvalid, "spec.sha256sum")];
        let observed = ModelObservation { users: Vec::new(), ..observed(vec![]) };
        let invalid = StatusInputs { findings: &findings, ..inputs(observed) };
        let status = next_by(&ModelStatus::default(), invalid);
        assert_eq!(brief(&status, READY), "False ModelDigestInvalid");
    }

    #[test]
    fn placement_on_many_nodes_lists_some_and_counts_all() {
        let nodes = (0..2_000)
            .map(|n| node(&format!("n{n:04}"), (n != 7).then(|| presence(PresenceState::Present))));
        let observed = ModelObservation {
            placement: Some(PlacementObservation::default()),
            ..observed(nodes.collect())
        };
        let status = next(&ModelStatus::default(), observed);
        assert_eq!((status.placed.as_deref(), status.nodes.len()), (Some("1999/2000"), 32));
        assert_eq!(&*status.nodes[0].node, "n0007");
    }

    #[test]
    fn long_lists_are_cut_with_failed_nodes_first() {
        let mut nodes: Vec<_> = (0..40)
            .map(|n| node(&format!("n{n:02}"), Some(presence(PresenceState::Present))))
            .collect();
        nodes.push(node("zz", Some(presence(PresenceState::Failed))));
        let users = (0..40).map(|n| format!("jointinferenceservices/s{n:02}")).collect();
        let status = next(&ModelStatus::default(), ModelObservation { users, ..observed(nodes) });
        assert_eq!((status.nodes.len(), status.wanted_on), (32, Some(41)));
        assert_eq!((&*status.nodes[0].node, status.present_on.as_deref()), ("zz", Some("40/41")));
        assert_eq!((status.used_by.len(), status.users), (32, Some(40)));
    }
}
