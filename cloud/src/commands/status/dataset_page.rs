//! Builds the page of a `Dataset`: its counts, and how far each replica is. Pure.

use std::fmt::Write as _;

use neptune_api::{Dataset, DatasetReplica};

use super::{
    build::{RelatedObjects, advice_on, lines_of_nodes, number},
    page::{DatasetLines, Page, ReplicaLine},
    ready_page::of_ready,
};

/// The names of the nodes of a Dataset: the source first.
pub fn nodes(dataset: &Dataset) -> impl Iterator<Item = &str> {
    let named = dataset.spec.replicas.iter().flat_map(|replicas| &replicas.node_names);
    let listed = dataset.status.iter().flat_map(|status| &status.replicas);
    std::iter::once(dataset.spec.node_name.as_str())
        .chain(named.map(String::as_str))
        .chain(listed.map(|replica| replica.node.as_str()))
}

/// The page of a `Dataset`.
pub fn of_dataset(dataset: &Dataset, related: &RelatedObjects) -> Page {
    let status = dataset.status.clone().unwrap_or_default();
    let find = |type_: &str| status.conditions.iter().find(|it| it.type_ == type_);
    let ready = find("Ready");
    let lines = lines_of_nodes(nodes(dataset), related);
    let mut advice = advice_on(dataset, status.observed_generation, &lines);
    for wanted in ["Ready", "Replicated"] {
        let trouble = find(wanted).filter(|it| it.status != "True" && !it.message.is_empty());
        advice.extend(trouble.map(|condition| condition.message.clone()));
    }
    // The condition has one of the messages.
    for replica in &status.replicas {
        let is_new = |message: &&String| {
            !message.is_empty() && !advice.iter().any(|advice| advice.contains(*message))
        };
        if let Some(message) = replica.message.as_ref().filter(is_new) {
            advice.push(format!("replica on node {}: {message}", replica.node));
        }
    }
    Page {
        dataset: Some(DatasetLines {
            node: dataset.spec.node_name.clone(),
            samples: status.number_of_samples,
            bytes: status.bytes,
            generation: status.generation,
            root: status.root,
            replicas_in_sync: status.replicas_in_sync,
            replicas: status.replicas.iter().map(ReplicaLine::of).collect(),
        }),
        ..of_ready("Dataset", dataset, ready, (lines, advice), related)
    }
}

impl DatasetLines {
    /// The lines of the page.
    pub fn text(&self) -> String {
        let (samples, bytes) = (number(self.samples), number(self.bytes));
        let mut text = format!("Data      {samples} samples, {bytes} bytes on {}\n", self.node);
        if let (Some(generation), Some(root)) = (self.generation, &self.root) {
            let root = root.get(..12).unwrap_or(root);
            let _ = writeln!(text, "Offered   generation {generation}, root {root}");
        }
        if let Some(in_sync) = &self.replicas_in_sync {
            let _ = writeln!(text, "Replicas  {in_sync} in sync");
        }
        text
    }
}

impl ReplicaLine {
    fn of(replica: &DatasetReplica) -> Self {
        Self {
            node: replica.node.clone(),
            state: format!("{:?}", replica.state),
            bytes_behind: replica.bytes_behind,
            lag_seconds: replica.seconds,
            generation: replica.generation,
            samples: replica.samples,
        }
    }

    /// The cells of its row.
    pub fn cells(&self) -> [String; 6] {
        let lag = self.lag_seconds.map_or("-".to_owned(), |seconds| format!("{seconds}s"));
        [
            self.node.clone(),
            self.state.clone(),
            number(self.bytes_behind),
            lag,
            number(self.generation),
            number(self.samples),
        ]
    }
}
