//! The status that a model should have, from the one it has and what is known now, and what of its
//! change a user would ask about. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{KeyValue, MetricsSource, ModelNode, ModelNodeState, ModelStatus};
use neptune_wire::{ModelPresenceReport, NodeName, PresenceState};

use super::super::{condition::condition, notice::Notice};
use crate::{
    fleet::{Evaluation, Presence},
    reason::{Finding, Reason},
};

/// Every node that uses the model has it.
const READY: &str = "Ready";
/// The metrics are those of the file that the spec names.
const EVALUATED: &str = "Evaluated";

/// The services and the nodes that a status lists. It tells how many there are beside.
const MOST_LISTED: usize = 32;

/// What a status is made of.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The generation that was looked at.
    pub generation: Option<i64>,
    /// The spec's address.
    pub model_url: String,
    /// The spec's digest, in lower case.
    pub sha256: Option<String>,
    /// Who uses it, in order.
    pub users: Vec<String>,
    /// Whose agents should have it.
    pub nodes: Vec<NodeFacts>,
    /// The newest that a worker said of it.
    pub evaluation: Option<Evaluation>,
    /// Whether this controller has listened long enough for silence to mean something.
    pub settled: bool,
    /// The time.
    pub now: Timestamp,
}

/// What is known of a node that should have the model.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node.
    pub node: NodeName,
    /// Whether its agent is there.
    pub agent: Presence,
    /// What it said last of the model.
    pub presence: Option<Box<ModelPresenceReport>>,
}

/// The next status. What nobody has said since this controller started is as it was.
#[must_use]
pub fn next(previous: &ModelStatus, facts: &Facts) -> ModelStatus {
    let mut nodes: Vec<_> = facts.nodes.iter().map(|node| listed(previous, node, facts)).collect();
    nodes.sort_by_key(|node| node.state == ModelNodeState::Present);
    let wanted = nodes.len();
    let present = nodes.iter().filter(|node| node.state == ModelNodeState::Present).count();
    let (metrics, reported_by, update_time) = metrics(previous, facts);
    let (status, finding) = ready(&nodes, present, facts);
    let conditions = [
        Some((READY, status, finding)),
        evaluated(&metrics, reported_by.as_ref(), facts).map(|(is, why)| (EVALUATED, is, why)),
    ];
    nodes.truncate(MOST_LISTED);
    let number = |count: usize| i32::try_from(count).ok();
    ModelStatus {
        update_time,
        metrics,
        reported_by,
        used_by: facts.users.iter().take(MOST_LISTED).cloned().collect(),
        users: number(facts.users.len()),
        nodes,
        wanted_on: number(wanted),
        present_on: Some(format!("{present}/{wanted}")),
        conditions: conditions
            .into_iter()
            .flatten()
            .map(|(type_, status, finding)| {
                let previous = &previous.conditions;
                condition(previous, type_, status, finding, facts.generation, facts.now)
            })
            .collect(),
        observed_generation: facts.generation,
    }
}

/// What the status says of a node.
fn listed(previous: &ModelStatus, facts: &NodeFacts, all: &Facts) -> ModelNode {
    let entry = |state, finding: Option<Finding>| {
        let (reason, message) =
            finding.map(|finding| (finding.reason.to_string(), finding.message)).unzip();
        ModelNode {
            node: facts.node.to_string(),
            state,
            sha256sum: None,
            bytes: None,
            reason,
            message,
        }
    };
    let Some(presence) = &facts.presence else {
        let before = previous.nodes.iter().find(|before| before.node == facts.node.as_str());
        let is_of_this_spec = previous.observed_generation == all.generation;
        return match before.filter(|_| is_of_this_spec) {
            Some(before) => before.clone(),
            None => {
                entry(ModelNodeState::Unknown, Some(awaited(facts, all, "has not said anything")))
            }
        };
    };
    let ModelPresenceReport { state, sha256, bytes, reason, message, .. } = &**presence;
    let is_current = presence.url == all.model_url
        && (*state != PresenceState::Present || all.sha256.is_none() || all.sha256 == *sha256);
    let said = |default: Reason| {
        let reason = reason.map_or(default, Reason::from);
        let message = if message.is_empty() { reason.to_string() } else { message.clone() };
        Some(Finding::new(reason, message))
    };
    let listed = match state {
        _ if !is_current => {
            entry(ModelNodeState::Outdated, Some(awaited(facts, all, "has an earlier version")))
        }
        PresenceState::Present => entry(ModelNodeState::Present, None),
        PresenceState::Downloading => {
            entry(ModelNodeState::Downloading, said(Reason::ModelDownloading))
        }
        PresenceState::Failed => entry(ModelNodeState::Failed, said(Reason::ModelUnavailable)),
    };
    let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
    ModelNode { sha256sum: sha256.clone(), bytes, ..listed }
}

/// Why a node is waited for.
fn awaited(facts: &NodeFacts, all: &Facts, what: &str) -> Finding {
    match facts.agent {
        Presence::Offline { since } => Finding::new(
            Reason::NodeOffline,
            format!("it {what}, and is not connected, last heard {since:.0}"),
        ),
        Presence::Unheard if all.settled => Finding::new(
            Reason::AgentNotSeen,
            "no agent of that node has spoken; start neptune-edge there",
        ),
        Presence::Online | Presence::Unheard => {
            Finding::new(Reason::AwaitingAgent, format!("it {what} yet"))
        }
    }
}

fn ready(nodes: &[ModelNode], present: usize, facts: &Facts) -> (&'static str, Finding) {
    let finding = |reason, message: &str| Finding::new(reason, message);
    if facts.users.is_empty() {
        let message = "no service uses it; a node gets it when one does";
        return ("Unknown", finding(Reason::ModelUnused, message));
    }
    if nodes.is_empty() {
        let message = "only Pods use it, and each fetches its own";
        return ("Unknown", finding(Reason::ModelInPods, message));
    }
    let wanted = nodes.len();
    let failed = nodes.iter().find(|node| node.state == ModelNodeState::Failed);
    let missing = nodes.iter().find(|node| node.state != ModelNodeState::Present);
    let Some(first) = failed.or(missing) else {
        let message = format!("{present} of {wanted} nodes have it");
        return ("True", finding(Reason::ModelPresent, &message));
    };
    let reason = first.reason.as_deref().and_then(|reason| reason.parse().ok());
    let why = first.message.as_deref().unwrap_or_default();
    let message = format!("{present} of {wanted} nodes have it; {}: {why}", first.node);
    ("False", Finding::new(reason.unwrap_or(Reason::AwaitingAgent), message))
}

type Metrics = (Vec<KeyValue>, Option<MetricsSource>, Option<Time>);

/// The newest metrics, and who said them when.
fn metrics(previous: &ModelStatus, facts: &Facts) -> Metrics {
    let known = || {
        let ModelStatus { metrics, reported_by, update_time, .. } = previous;
        (metrics.clone(), reported_by.clone(), update_time.clone())
    };
    let Some(Evaluation { node, object, taken, output }) = &facts.evaluation else {
        return known();
    };
    let source = MetricsSource {
        node: node.to_string(),
        object: format!("{}/{}", object.resource, object.name),
        model_url: output.url.clone(),
        sha256sum: output.sha256.clone(),
        time: output.time.clone(),
    };
    // A status keeps whole seconds.
    let is_older =
        previous.update_time.as_ref().is_some_and(|known| taken.as_second() < known.0.as_second());
    if is_older || previous.reported_by.as_ref() == Some(&source) {
        return known();
    }
    let metrics = output.metrics.iter().map(|metric| KeyValue::new(&metric.key, &metric.value));
    let second = Timestamp::from_second(taken.as_second()).unwrap_or(*taken);
    (metrics.collect(), Some(source), Some(Time(second)))
}

/// Nothing where there are no metrics of which it is known whose they are.
fn evaluated(
    metrics: &[KeyValue],
    source: Option<&MetricsSource>,
    facts: &Facts,
) -> Option<(&'static str, Finding)> {
    let source = source.filter(|_| !metrics.is_empty())?;
    let MetricsSource { node, object, model_url, .. } = source;
    let is_current = *model_url == facts.model_url
        && (facts.sha256.is_none()
            || source.sha256sum.is_none()
            || facts.sha256 == source.sha256sum);
    Some(if is_current {
        let message = format!("the metrics are those that {object} found on node {node}");
        ("True", Finding::new(Reason::MetricsCurrent, message))
    } else {
        let message = format!(
            "the metrics are those that {object} found on node {node} of another version, {model_url}; they change when a worker says what it found of this one"
        );
        ("False", Finding::new(Reason::MetricsOutdated, message))
    })
}

/// What is to be said when `previous` becomes `next`: nodes that cannot get the model, each once for a
/// reason.
pub fn notices(previous: &ModelStatus, next: &ModelStatus) -> Vec<Notice> {
    let has_failed = |node: &&ModelNode| node.state == ModelNodeState::Failed;
    let is_known = |node: &ModelNode| {
        let mut before = previous.nodes.iter().filter(has_failed);
        before.any(|before| before.node == node.node && before.reason == node.reason)
    };
    let failed = next.nodes.iter().filter(has_failed).filter(|node| !is_known(node));
    failed
        .map(|node| {
            let why = node.message.as_deref().unwrap_or_default();
            let reason = node.reason.as_deref().unwrap_or("ModelUnavailable");
            Notice::warning(reason, format!("node {}: {why}", node.node))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{Metric, ModelOutput, WorkerReason};

    use super::*;

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
            progress: None,
            reason: None,
            message: String::new(),
        }
    }

    fn node(name: &str, presence: Option<ModelPresenceReport>) -> NodeFacts {
        NodeFacts {
            node: name.parse().unwrap(),
            agent: Presence::Online,
            presence: presence.map(Box::new),
        }
    }

    fn facts(nodes: Vec<NodeFacts>) -> Facts {
        Facts {
            generation: Some(1),
            model_url: URL.to_owned(),
            sha256: None,
            users: vec!["jointinferenceservices/demo".to_owned()],
            nodes,
            evaluation: None,
            settled: true,
            now: at(100),
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

    fn word(status: &ModelStatus, type_: &str) -> String {
        let found = status.conditions.iter().find(|condition| condition.type_ == type_);
        found.map_or_else(|| "-".to_owned(), |c| format!("{} {}", c.status, c.reason))
    }

    fn accuracy(status: &ModelStatus) -> (&str, i64) {
        let time = status.update_time.as_ref().map_or(0, |time| time.0.as_second());
        (status.metrics.first().map_or("-", |metric| metric.value.as_str()), time)
    }

    #[test]
    fn a_model_is_ready_when_every_node_that_uses_it_has_it() {
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
            let status = next(&ModelStatus::default(), &facts(nodes));
            assert_eq!(word(&status, READY), ready);
            assert_eq!(status.present_on.as_deref(), Some(present_on), "{ready}");
        }
        let unused = Facts { users: vec![], ..facts(vec![]) };
        assert_eq!(word(&next(&ModelStatus::default(), &unused), READY), "Unknown ModelUnused");
    }

    #[test]
    fn what_a_node_has_is_judged_by_the_digest_where_the_spec_gives_one() {
        let of = |sum: String| {
            let nodes = vec![node("a", Some(presence(PresenceState::Present)))];
            let status =
                next(&ModelStatus::default(), &Facts { sha256: Some(sum), ..facts(nodes) });
            status.nodes[0].clone()
        };
        let listed = of("ab".repeat(32));
        assert_eq!((listed.state, listed.bytes), (ModelNodeState::Present, Some(7)));
        assert_eq!(of("cd".repeat(32)).state, ModelNodeState::Outdated);
    }

    #[test]
    fn a_node_that_is_not_there_says_so_and_keeps_what_was_known_of_it() {
        let silent = |agent| NodeFacts { agent, ..node("a", None) };
        let new = |agent, settled| {
            let facts = Facts { settled, ..facts(vec![silent(agent)]) };
            word(&next(&ModelStatus::default(), &facts), READY)
        };
        let gone = Presence::Offline { since: at(1) };
        assert_eq!(new(gone, true), "False NodeOffline");
        assert_eq!(new(Presence::Unheard, true), "False AgentNotSeen");
        assert_eq!(new(Presence::Unheard, false), "False AwaitingAgent");
        let present = next(
            &ModelStatus::default(),
            &facts(vec![node("a", Some(presence(PresenceState::Present)))]),
        );
        let restarted = next(&present, &facts(vec![silent(Presence::Unheard)]));
        assert_eq!(restarted, present, "a controller that starts anew changes nothing");
        let changed = Facts { generation: Some(2), ..facts(vec![silent(Presence::Unheard)]) };
        assert_eq!(next(&present, &changed).nodes[0].state, ModelNodeState::Unknown);
    }

    #[test]
    fn the_newest_metrics_win_and_none_are_blanked() {
        let with = |previous: &ModelStatus, evaluation| {
            next(previous, &Facts { evaluation, ..facts(vec![]) })
        };
        let first = with(&ModelStatus::default(), Some(evaluation("a", 50, "0.9")));
        assert_eq!(accuracy(&first), ("0.9", 50));
        assert_eq!(word(&first, EVALUATED), "True MetricsCurrent");
        let source = first.reported_by.as_ref().unwrap();
        assert_eq!((&*source.node, &*source.object), ("a", "jointinferenceservices/demo"));
        assert_eq!(with(&first, None), first, "a controller that starts anew");
        assert_eq!(accuracy(&with(&first, Some(evaluation("b", 40, "0.1")))), ("0.9", 50));
        assert_eq!(accuracy(&with(&first, Some(evaluation("b", 60, "0.8")))), ("0.8", 60));
        let again = Evaluation { taken: at(70), ..evaluation("a", 50, "0.9") };
        assert_eq!(accuracy(&with(&first, Some(again))), ("0.9", 50), "it was known");
    }

    #[test]
    fn metrics_of_another_version_are_said_to_be() {
        let evaluation = Some(evaluation("a", 50, "0.9"));
        let facts = Facts { evaluation, model_url: "http://h/new".into(), ..facts(vec![]) };
        let status = next(&ModelStatus::default(), &facts);
        assert_eq!(word(&status, EVALUATED), "False MetricsOutdated");
        assert_eq!(word(&ModelStatus::default(), EVALUATED), "-");
    }

    #[test]
    fn long_lists_are_cut_with_the_trouble_first() {
        let mut nodes: Vec<_> = (0..40)
            .map(|n| node(&format!("n{n:02}"), Some(presence(PresenceState::Present))))
            .collect();
        nodes.push(node("zz", Some(presence(PresenceState::Failed))));
        let users = (0..40).map(|n| format!("jointinferenceservices/s{n:02}")).collect();
        let status = next(&ModelStatus::default(), &Facts { users, ..facts(nodes) });
        assert_eq!((status.nodes.len(), status.wanted_on), (32, Some(41)));
        assert_eq!((&*status.nodes[0].node, status.present_on.as_deref()), ("zz", Some("40/41")));
        assert_eq!((status.used_by.len(), status.users), (32, Some(40)));
    }

    #[test]
    fn a_node_that_cannot_get_it_is_an_event_once_for_a_reason() {
        let of = |reason| {
            let failed = presence(PresenceState::Failed);
            let failed =
                ModelPresenceReport { reason: Some(reason), message: "why".into(), ..failed };
            next(&ModelStatus::default(), &facts(vec![node("a", Some(failed))]))
        };
        let unavailable = of(WorkerReason::ModelUnavailable);
        let said = |previous: &ModelStatus, next: &ModelStatus| -> Vec<(String, String)> {
            let notices = notices(previous, next).into_iter();
            notices.map(|notice| (notice.reason, notice.note)).collect()
        };
        let expected = [("ModelUnavailable".to_owned(), "node a: why".to_owned())];
        assert_eq!(said(&ModelStatus::default(), &unavailable), expected);
        assert_eq!(said(&unavailable, &unavailable), []);
        assert_eq!(said(&unavailable, &of(WorkerReason::ModelDigestMismatch)).len(), 1);
    }
}
