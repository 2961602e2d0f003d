//! The status page of an object: its values, and their order in sections. Pure.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{
    cascade::Cascade,
    fleet::{NodeNumbers, RolloutLines},
    format::age,
    section::{Section, Value},
    training::Training,
};

/// The page; its JSON form is the output of `--output json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// One word; `Unknown` until a controller has reconciled the object, and with the last known
    /// state while a node is offline.
    pub state: String,
    pub reason: String,
    /// Last transition of the condition.
    pub since: Option<Timestamp>,
    pub message: String,
    /// Last write of the status.
    pub written: Option<Timestamp>,
    pub workers: Vec<Worker>,
    pub nodes: Vec<NodeLine>,
    /// The numbers of nodes, if labels select several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_counts: Option<NodeNumbers>,
    /// How far the last change reached, if the spec has a rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutLines>,
    pub counted: Option<Counted>,
    /// What the gateways of a service report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<Cascade>,
    /// The run of a `TrainingModel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// The counts and copies of a `Dataset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetLines>,
    /// The metrics and nodes of a `Model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelLines>,
    pub serving: Option<Endpoint>,
    pub events: Vec<EventLine>,
    /// Next steps for the user; empty if nothing is wrong.
    pub advice: Vec<String>,
}

impl Page {
    /// What is between the headline and the next steps. Ages are relative to `now`.
    pub fn sections(&self, now: Timestamp) -> Vec<Section> {
        let workers = Section::table(
            &["ROLE", "WORKER", "NODE", "RUN BY", "STATE", "MODEL", "VERSION"],
            self.workers.iter().map(Worker::cells),
        );
        let nodes = Section::table(
            &["NODE", "READY", "LAST SEEN"],
            self.nodes.iter().map(|node| node.cells(now)),
        );
        let events = Section::table(
            &["LAST SEEN", "TYPE", "REASON", "EVENT"],
            self.events.iter().map(|event| event.cells(now)),
        );
        let mut sections = vec![workers, nodes];
        let counts = self.node_counts.as_ref();
        sections.extend(counts.map(|counts| counts.section(self.kind, &self.name)));
        sections.extend(self.rollout.as_ref().map(RolloutLines::section));
        sections.extend(self.dataset.iter().flat_map(DatasetLines::sections));
        sections.extend(self.model.iter().flat_map(ModelLines::sections));
        sections.extend(self.serving.as_ref().map(Endpoint::section));
        sections.extend(self.counted.as_ref().map(Counted::section));
        sections.extend(self.training.as_ref().map(Training::section));
        sections.extend(self.cascade.as_ref().map(Cascade::section));
        sections.push(events);
        sections
    }
}

/// A worker of a service, or the model server of an `InferenceModel`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    pub role: &'static str,
    pub name: String,
    pub node: String,
    /// `Deployment` or `agent`; in the cloud also `InferenceModel`, `JointInferenceService` or
    /// `endpoint`.
    pub run_by: &'static str,
    pub state: String,
    pub model: String,
    /// Digest of the model on the node, or else of the spec; or the served version.
    pub version: String,
}

impl Worker {
    fn cells(&self) -> [String; 7] {
        let Self { role, name, node, run_by, state, model, version } = self;
        [*role, name, node, *run_by, state, model, version].map(str::to_owned)
    }
}

/// A node of the object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    pub name: String,
    /// Status of the Ready condition: `True`, `False` or `Unknown`; or `no such node`.
    pub ready: String,
    pub last_seen: Option<Timestamp>,
}

impl NodeLine {
    fn cells(&self, now: Timestamp) -> [String; 3] {
        let seen = self.last_seen.map_or("-".to_owned(), |at| format!("{} ago", age(at, now)));
        [self.name.clone(), self.ready.clone(), seen]
    }
}

/// The exact totals of a service, as its status has them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    pub inferences: String,
    pub hard_examples: String,
    pub upload_ratio: String,
    /// Hard examples that the cloud worker did not answer, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallbacks: Option<String>,
    pub reports: Vec<Report>,
}

impl Counted {
    fn section(&self) -> Section {
        let Self { inferences, hard_examples, upload_ratio, .. } = self;
        let total = format!(
            "{inferences} inferences, {hard_examples} hard examples answered by the cloud (ratio {upload_ratio})"
        );
        let fallbacks = self.fallbacks.as_ref().map(|number| {
            format!(
                "{number} hard examples not answered by the cloud: the edge's results were used"
            )
        });
        let report = |report: &Report| {
            let Report { node, inferences, hard_examples, epoch, seq } = report;
            format!(
                "{node}: {inferences} inferences, {hard_examples} hard examples (epoch {epoch}, message {seq})"
            )
        };
        let lines = std::iter::once(total).chain(fallbacks).chain(self.reports.iter().map(report));
        Section::Values(vec![Value { name: "Counters".to_owned(), lines: lines.collect() }])
    }
}

/// Counters of one agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub node: String,
    pub inferences: u64,
    pub hard_examples: u64,
    /// Number of the agent's start.
    pub epoch: u64,
    /// Message number within the epoch.
    pub seq: u64,
}

/// Where an `InferenceModel` is served, and in which version.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub url: String,
    pub serving_version: String,
    pub target_version: String,
    /// Download progress of the target version.
    pub progress: Option<String>,
    pub last_failure: Option<String>,
    /// The transformer and its state, if the spec has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transformer: Option<String>,
}

impl Endpoint {
    fn section(&self) -> Section {
        let progress = self.progress.iter().map(|progress| format!(", downloaded: {progress}"));
        let target: String = std::iter::once(self.target_version.clone()).chain(progress).collect();
        let mut values = vec![
            Value::new("URL", &self.url),
            Value::new("Serving", &self.serving_version),
            Value::new("Target", target),
        ];
        values.extend(Value::optional("Failed", self.last_failure.as_ref()));
        values.extend(Value::optional("Through", self.transformer.as_ref()));
        Section::Values(values)
    }
}

/// An Event about the object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    pub time: Option<Timestamp>,
    pub kind: String,
    pub reason: String,
    pub message: String,
}

impl EventLine {
    fn cells(&self, now: Timestamp) -> [String; 4] {
        let time = self.time.map_or("-".to_owned(), |at| age(at, now));
        [time, self.kind.clone(), self.reason.clone(), self.message.clone()]
    }
}

/// The part of the page that only a Dataset has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetLines {
    /// The node with the data.
    pub node: String,
    pub samples: Option<i64>,
    pub bytes: Option<i64>,
    pub generation: Option<i64>,
    pub root: Option<String>,
    /// Copies in sync and all copies, such as `1/2`; absent without replicas.
    pub replicas_in_sync: Option<String>,
    pub replicas: Vec<ReplicaLine>,
}

/// The state of one copy of a Dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaLine {
    pub node: String,
    pub state: String,
    pub bytes_behind: Option<i64>,
    /// Seconds since the copy was equal to the source.
    pub lag_seconds: Option<i64>,
    pub generation: Option<i64>,
    pub samples: Option<i64>,
}

/// The part of the page that only a Model has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelLines {
    /// The address of the file, without credentials.
    pub file: String,
    /// What the address names: revision, digest, number of files, size.
    pub resolved: Option<String>,
    /// Nodes that have the file and nodes that need it, such as `2/3`.
    pub present_on: Option<String>,
    /// Nodes of the placement that have the file and all of them, such as `2/3`; absent without a
    /// placement.
    pub placed: Option<String>,
    pub metrics: Vec<String>,
    /// Who measured the metrics, where, and with which data.
    pub measured: Option<String>,
    pub nodes: Vec<FileLine>,
}

/// The file on a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileLine {
    pub node: String,
    pub state: String,
    /// `Origin` or `Peer:NODE`; absent for a path of the node.
    pub source: Option<String>,
    pub version: Option<String>,
    pub bytes: Option<i64>,
}
