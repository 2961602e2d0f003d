//! The states of the copies of a dataset, and the condition Replicated.

use neptune_api::{DatasetReplica, DatasetReplicaState, DatasetStatus};
use neptune_wire::{DatasetGeneration, DatasetReport, DatasetState, NodeName, ReplicaState};

use super::observed::ReportedDataset;
use crate::{
    finding::Finding,
    fleet::{
        MAX_PARTNERS,
        observed::{AgentMessages, AgentState, Observed, observe},
    },
    reason::Reason,
};

/// The observation of the copies.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicasObservation {
    /// Why the source offers nothing to its replicas, if it is known.
    pub refusal: Option<Finding>,
    /// The observation of each copy.
    pub nodes: Vec<ReplicaObservation>,
    /// The nodes in the spec that cannot keep a copy, with the reason.
    pub unusable: Vec<(String, Finding)>,
}

/// The observation of a copy.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaObservation {
    /// The node that keeps the copy.
    pub node: NodeName,
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// Whether its agent can connect to other nodes.
    pub has_peers: bool,
    /// The node, this one or the source, that has no room for another partner.
    pub crowded: Option<NodeName>,
    /// The newest report of the node on the current content; `None` before the first one.
    pub report: Option<Box<DatasetReport>>,
}

/// What the status has of the copies.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaRows {
    /// A row per node of the spec.
    pub rows: Vec<DatasetReplica>,
    /// Copies in sync and all copies, such as `2/2`.
    pub in_sync: String,
    /// How far the copy that is furthest behind is behind.
    pub lag: Option<String>,
    /// Status and finding of the condition.
    pub condition: (&'static str, Finding),
}

/// The states of all copies.
pub fn rows(
    previous: &DatasetStatus,
    observed: &ReplicasObservation,
    source: &Observed<ReportedDataset>,
) -> ReplicaRows {
    let source = match source {
        Observed::Reported(report) => Some(report),
        _ => None,
    };
    let copies = observed.nodes.iter().map(|copy| row(previous, copy, source));
    let unusable = observed.unusable.iter().map(|(node, finding)| {
        let state = DatasetReplicaState::Failed;
        (finding.reason, with_message(empty(node, state), &finding.message))
    });
    let mut rows: Vec<_> = copies.chain(unusable).collect();
    rows.sort_by(|(_, a), (_, b)| a.node.cmp(&b.node));
    let condition = condition(observed.refusal.as_ref(), &rows);
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let in_sync = rows.iter().filter(|row| row.state == DatasetReplicaState::InSync).count();
    let lag = rows.iter().filter_map(|row| row.seconds).max();
    ReplicaRows {
        in_sync: format!("{in_sync}/{}", rows.len()),
        lag: lag.map(|seconds| format!("{seconds}s")),
        condition,
        rows,
    }
}

/// The state of one copy, and the reason if it is not in sync.
fn row(
    previous: &DatasetStatus,
    copy: &ReplicaObservation,
    source: Option<&ReportedDataset>,
) -> (Reason, DatasetReplica) {
    let node = &copy.node;
    let before = previous.replicas.iter().find(|before| before.node == node.as_str());
    let known = |state| DatasetReplica {
        state,
        message: None,
        ..before.cloned().unwrap_or_else(|| empty(node.as_str(), state))
    };
    let meanwhile = "the copy on it is used as it is".to_owned();
    let messages = AgentMessages::new("", node, "report the state of its replica", meanwhile);
    match observe(copy.agent, copy.report.as_deref(), &messages) {
        Observed::Unreachable(finding) => (
            Reason::ReplicaOffline,
            with_message(known(DatasetReplicaState::Offline), &finding.message),
        ),
        Observed::Unknown(finding) => before.map_or_else(
            || {
                let row = empty(node.as_str(), DatasetReplicaState::Syncing);
                (Reason::ReplicasSyncing, with_message(row, &finding.message))
            },
            |before| (reason(before.state), before.clone()),
        ),
        Observed::Pending(finding) if finding.reason == Reason::AgentNotSeen => (
            Reason::ReplicaOffline,
            with_message(known(DatasetReplicaState::Offline), &finding.message),
        ),
        Observed::Pending(_) | Observed::Reported(_) if !copy.has_peers => {
            let message = format!(
                "the agent of node {node} does not connect to other nodes; start it with --peers, and upgrade it if it does not know this option"
            );
            let row = empty(node.as_str(), DatasetReplicaState::Failed);
            (Reason::ReplicaFailed, with_message(row, &message))
        }
        Observed::Pending(_) | Observed::Reported(_) if copy.crowded.is_some() => {
            let crowded = copy.crowded.as_ref().unwrap_or(node);
            let message = format!(
                "node {crowded} exchanges datasets with {MAX_PARTNERS} other nodes already, and older Datasets come first; use another node, or remove replicas of other Datasets"
            );
            let row = known(DatasetReplicaState::Failed);
            (Reason::TooManyPartners, with_message(row, &message))
        }
        Observed::Pending(finding) => (
            Reason::ReplicasSyncing,
            with_message(known(DatasetReplicaState::Syncing), &finding.message),
        ),
        Observed::Reported(report) => reported(node, report, source),
    }
}

fn reported(
    node: &NodeName,
    report: &DatasetReport,
    source: Option<&ReportedDataset>,
) -> (Reason, DatasetReplica) {
    let Some(copy) = report.replica.as_deref() else {
        let message = format!("the agent of node {node} does not support replicas; upgrade it");
        let row = empty(node.as_str(), DatasetReplicaState::Failed);
        return (Reason::ReplicaFailed, with_message(row, &message));
    };
    let mut state = match copy.state {
        ReplicaState::InSync => DatasetReplicaState::InSync,
        ReplicaState::Syncing => DatasetReplicaState::Syncing,
        ReplicaState::Offline => DatasetReplicaState::Offline,
        ReplicaState::Failed => DatasetReplicaState::Failed,
    };
    let mut message = copy.message.clone();
    if let Some(why) =
        source.and_then(|source| divergence(source, report, copy.generation.as_ref()))
    {
        (state, message) = (DatasetReplicaState::Diverged, why);
    }
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let row = DatasetReplica {
        generation: copy.generation.as_ref().map(|it| number(it.number)),
        bytes_behind: Some(number(copy.bytes_behind)),
        samples: report.tally.as_ref().map(|tally| number(tally.number_of_samples)),
        seconds: Some(number(copy.seconds)),
        changed: (copy.overwritten > 0).then(|| number(copy.overwritten)),
        ..empty(node.as_str(), state)
    };
    (reason(state), with_message(row, &message))
}

/// Why a copy differs from the source although it has the same generation. Counts are compared only
/// if both were made of the same number of bytes: each side counts on its own, and at its own time.
fn divergence(
    source: &ReportedDataset,
    report: &DatasetReport,
    copy: Option<&DatasetGeneration>,
) -> Option<String> {
    let (own, copy) = (source.generation.as_ref()?, copy?);
    if own.number != copy.number {
        return None;
    }
    if own.bytes == copy.bytes && own.root != copy.root {
        return Some(format!(
            "generation {} has another content than at the source; the agent copies it again",
            own.number
        ));
    }
    let (counted, copied) = (source.counts.as_ref()?, report.tally.as_ref()?);
    let is_comparable = source.is_counted
        && report.state == DatasetState::Counted
        && counted.bytes == copied.bytes
        && copied.number_of_samples != counted.number_of_samples;
    is_comparable.then(|| {
        format!(
            "{} samples are counted in the copy and {} at the source, in the same number of bytes",
            copied.number_of_samples, counted.number_of_samples
        )
    })
}

fn reason(state: DatasetReplicaState) -> Reason {
    match state {
        DatasetReplicaState::InSync => Reason::ReplicasInSync,
        DatasetReplicaState::Syncing => Reason::ReplicasSyncing,
        DatasetReplicaState::Offline => Reason::ReplicaOffline,
        DatasetReplicaState::Diverged => Reason::ReplicaDiverged,
        DatasetReplicaState::Failed => Reason::ReplicaFailed,
    }
}

/// The condition: why the source offers nothing, else the copy with the worst state.
fn condition(
    refusal: Option<&Finding>,
    rows: &[(Reason, DatasetReplica)],
) -> (&'static str, Finding) {
    if let Some(refusal) = refusal {
        return ("False", refusal.clone());
    }
    // The states are declared from good to bad, but a failure is worse than a difference.
    let worst = rows.iter().max_by_key(|(_, row)| row.state);
    match worst {
        Some((reason, row)) if row.state != DatasetReplicaState::InSync => {
            let why = row.message.as_deref().unwrap_or("data is being copied");
            ("False", Finding::new(*reason, format!("node {}: {why}", row.node)))
        }
        _ => {
            let message = match rows.len() {
                1 => "the replica has the data of the source".to_owned(),
                count => format!("all {count} replicas have the data of the source"),
            };
            ("True", Finding::new(Reason::ReplicasInSync, message))
        }
    }
}

fn empty(node: &str, state: DatasetReplicaState) -> DatasetReplica {
    DatasetReplica {
        node: node.to_owned(),
        state,
        generation: None,
        bytes_behind: None,
        samples: None,
        seconds: None,
        changed: None,
        message: None,
    }
}

fn with_message(row: DatasetReplica, message: &str) -> DatasetReplica {
    DatasetReplica { message: (!message.is_empty()).then(|| message.to_owned()), ..row }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::Presence;

    fn copy(presence: Presence, report: Option<&Value>) -> ReplicaObservation {
        ReplicaObservation {
            node: "edge1".parse().unwrap(),
            agent: AgentState { presence, settled: true },
            has_peers: true,
            crowded: None,
            report: report.map(|report| serde_json::from_value(report.clone()).unwrap()),
        }
    }

    fn report(state: &str, root: &str, samples: u64, bytes: u64) -> Value {
        json!({
            "content": "00", "state": "Counted", "bytesRead": 1,
            "tally": {"numberOfSamples": samples, "bytes": bytes, "changedAt": ""},
            "replica": {
                "state": state, "generation": {"number": 7, "root": root, "bytes": 100},
                "bytesBehind": 5, "seconds": 3,
            },
        })
    }

    fn source() -> Observed<ReportedDataset> {
        let counts = json!({"numberOfSamples": 10, "bytes": 100, "changedAt": ""});
        Observed::Reported(ReportedDataset {
            is_counted: true,
            finding: Finding::new(Reason::Counted, ""),
            counts: Some(serde_json::from_value(counts).unwrap()),
            bytes_read: 0,
            generation: Some(DatasetGeneration { number: 7, root: "aa".to_owned(), bytes: 100 }),
        })
    }

    fn rows_for(copy: ReplicaObservation) -> ReplicaRows {
        let observed =
            ReplicasObservation { refusal: None, nodes: vec![copy], unusable: Vec::new() };
        rows(&DatasetStatus::default(), &observed, &source())
    }

    #[test]
    fn reported_states_are_rows_and_the_condition() {
        use DatasetReplicaState::{Diverged, Failed, InSync, Offline, Syncing};
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let in_sync = report("InSync", "aa", 10, 100);
        let mut too_old = in_sync.clone();
        too_old["replica"] = Value::Null;
        for (presence, report, expected) in [
            (Presence::Online, Some(in_sync.clone()), (InSync, Reason::ReplicasInSync)),
            (
                Presence::Online,
                Some(report("Syncing", "aa", 10, 100)),
                (Syncing, Reason::ReplicasSyncing),
            ),
            (
                Presence::Online,
                Some(report("Offline", "aa", 10, 100)),
                (Offline, Reason::ReplicaOffline),
            ),
            (
                Presence::Online,
                Some(report("Failed", "aa", 10, 100)),
                (Failed, Reason::ReplicaFailed),
            ),
            (
                Presence::Online,
                Some(report("InSync", "bb", 10, 100)),
                (Diverged, Reason::ReplicaDiverged),
            ),
            (
                Presence::Online,
                Some(report("InSync", "aa", 9, 100)),
                (Diverged, Reason::ReplicaDiverged),
            ),
            // Counted at another time.
            (
                Presence::Online,
                Some(report("InSync", "aa", 9, 90)),
                (InSync, Reason::ReplicasInSync),
            ),
            (Presence::Online, None, (Syncing, Reason::ReplicasSyncing)),
            (Presence::Online, Some(too_old), (Failed, Reason::ReplicaFailed)),
            (Presence::NeverSeen, None, (Offline, Reason::ReplicaOffline)),
            (offline, Some(in_sync), (Offline, Reason::ReplicaOffline)),
        ] {
            let text = format!("{presence:?} {report:?}");
            let rows = rows_for(copy(presence, report.as_ref()));
            assert_eq!((rows.rows[0].state, rows.condition.1.reason), expected, "{text}");
            let is_in_sync = expected.0 == InSync;
            assert_eq!(rows.in_sync, if is_in_sync { "1/1" } else { "0/1" }, "{text}");
            assert_eq!(rows.condition.0, if is_in_sync { "True" } else { "False" }, "{text}");
        }
    }

    #[test]
    fn agent_without_peers_is_named_with_its_option() {
        let old = ReplicaObservation { has_peers: false, ..copy(Presence::Online, None) };
        let rows = rows_for(old);
        assert_eq!(rows.rows[0].state, DatasetReplicaState::Failed);
        assert!(rows.condition.1.message.contains("start it with --peers"), "{rows:?}");
    }

    #[test]
    fn pair_without_room_is_named_with_the_limit() {
        let crowded = Some("hub".parse().unwrap());
        let rows = rows_for(ReplicaObservation { crowded, ..copy(Presence::Online, None) });
        assert_eq!(rows.rows[0].state, DatasetReplicaState::Failed);
        assert_eq!(rows.condition.1.reason, Reason::TooManyPartners);
        let message = &rows.condition.1.message;
        assert!(message.contains("node hub exchanges datasets with 64 other nodes"), "{message}");
    }

    #[test]
    fn source_that_offers_nothing_is_the_condition() {
        let refusal = Finding::new(Reason::ReplicationNotAllowed, "no");
        let observed = ReplicasObservation {
            refusal: Some(refusal.clone()),
            nodes: vec![copy(Presence::Online, Some(&report("Offline", "aa", 1, 1)))],
            unusable: vec![("edge9".to_owned(), Finding::new(Reason::NodeNotFound, "gone"))],
        };
        let rows = rows(&DatasetStatus::default(), &observed, &source());
        assert_eq!(rows.condition, ("False", refusal));
        let brief: Vec<_> = rows.rows.iter().map(|row| (&*row.node, row.state)).collect();
        assert_eq!(
            brief,
            [("edge1", DatasetReplicaState::Offline), ("edge9", DatasetReplicaState::Failed)]
        );
        assert_eq!((&*rows.in_sync, rows.lag.as_deref()), ("0/2", Some("3s")));
    }

    #[test]
    fn numbers_stay_while_the_node_is_offline() {
        let first = rows_for(copy(Presence::Online, Some(&report("InSync", "aa", 10, 100))));
        let previous = DatasetStatus { replicas: first.rows, ..DatasetStatus::default() };
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let observed = ReplicasObservation {
            refusal: None,
            nodes: vec![copy(offline, None)],
            unusable: Vec::new(),
        };
        let row = &rows(&previous, &observed, &source()).rows[0];
        assert_eq!((row.state, row.samples), (DatasetReplicaState::Offline, Some(10)));
    }
}
