//! Builds the page of a `Model`: its metrics, and where each node has the file from. Pure.

use neptune_api::{Model, ModelNode, ModelNodeState, ModelStatus, ResolvedModel};
use neptune_wire::redact;

use super::{
    build::{RelatedObjects, advice_on, lines_of_nodes},
    format::{number, or_none, short},
    page::{FileLine, ModelLines, Page},
    ready_page::of_ready,
    section::{Section, Value},
};

/// The names of the nodes in the status.
pub fn nodes(model: &Model) -> impl Iterator<Item = &str> {
    model.status.iter().flat_map(|status| &status.nodes).map(|node| node.node.as_str())
}

/// The page of a `Model`.
pub fn of_model(model: &Model, related: &RelatedObjects) -> Page {
    let status = model.status.clone().unwrap_or_default();
    let find = |type_: &str| status.conditions.iter().find(|it| it.type_ == type_);
    let ready = find("Ready");
    let lines = lines_of_nodes(nodes(model), related);
    let mut advice = advice_on(model, status.observed_generation, &lines);
    for wanted in ["Ready", "Evaluated"] {
        let trouble = find(wanted).filter(|it| it.status == "False" && !it.message.is_empty());
        advice.extend(trouble.map(|condition| condition.message.clone()));
    }
    // The condition has one of the messages.
    for node in status.nodes.iter().filter(|node| node.state == ModelNodeState::Failed) {
        let is_new = |message: &&String| !advice.iter().any(|advice| advice.contains(*message));
        if let Some(message) = node.message.as_ref().filter(is_new) {
            advice.push(format!("node {}: {message}", node.node));
        }
    }
    Page {
        model: Some(ModelLines {
            file: redact(&model.spec.model_url),
            resolved: status.resolved.as_ref().map(resolved),
            measured: measured(&status),
            metrics: status.metrics.iter().map(|it| format!("{} {}", it.key, it.value)).collect(),
            present_on: status.present_on,
            placed: status.placed,
            nodes: status.nodes.iter().map(FileLine::from_node).collect(),
        }),
        ..of_ready("Model", model, ready, (lines, advice), related)
    }
}

fn resolved(content: &ResolvedModel) -> String {
    let ResolvedModel { revision, sha256sum, files, bytes } = content;
    let parts = [
        revision.as_ref().map(|revision| format!("revision {revision}")),
        sha256sum.as_ref().map(|sum| format!("sha256 {sum}")),
        files.map(|files| format!("{files} {}", if files == 1 { "file" } else { "files" })),
        bytes.map(|bytes| format!("{bytes} bytes")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn measured(status: &ModelStatus) -> Option<String> {
    let source = status.reported_by.as_ref().filter(|_| !status.metrics.is_empty())?;
    let data = match &source.dataset {
        None => "unknown data".to_owned(),
        Some(dataset) => match (&dataset.sha256, &dataset.state) {
            (Some(sha256), _) => format!("Dataset {} (sha256 {})", dataset.name, short(sha256)),
            (None, Some(state)) => format!("Dataset {} ({state})", dataset.name),
            (None, None) => format!("an unknown state of Dataset {}", dataset.name),
        },
    };
    let on_node =
        if source.node.is_empty() { String::new() } else { format!(" on {}", source.node) };
    Some(format!("by {}{on_node} with {data}", source.object))
}

impl ModelLines {
    /// The file and its metrics, and a row per node.
    pub fn sections(&self) -> [Section; 2] {
        let placed = self.placed.as_ref().map(|placed| format!(", {placed} of the placement"));
        let present = or_none(self.present_on.as_deref());
        let nodes = format!("{present} have it{}", placed.unwrap_or_default());
        let mut values = vec![Value::new("File", or_none(Some(&self.file)))];
        values.extend(Value::optional("Resolved", self.resolved.as_ref()));
        values.push(Value::new("Nodes", nodes));
        if !self.metrics.is_empty() {
            values.push(Value::new("Metrics", self.metrics.join(", ")));
        }
        values.extend(Value::optional("Measured", self.measured.as_ref()));
        let head = &["NODE", "STATE", "SOURCE", "VERSION", "BYTES"];
        [Section::Values(values), Section::table(head, self.nodes.iter().map(FileLine::cells))]
    }
}

impl FileLine {
    fn from_node(node: &ModelNode) -> Self {
        Self {
            node: node.node.clone(),
            state: match &node.reason {
                Some(reason) => format!("{:?} ({reason})", node.state),
                None => format!("{:?}", node.state),
            },
            source: node.source.clone(),
            version: node.sha256sum.as_deref().map(|all| format!("sha256 {}", short(all))),
            bytes: node.bytes,
        }
    }

    fn cells(&self) -> [String; 5] {
        [
            self.node.clone(),
            self.state.clone(),
            or_none(self.source.as_deref()),
            or_none(self.version.as_deref()),
            number(self.bytes),
        ]
    }
}
