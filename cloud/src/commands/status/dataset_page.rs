//! Builds the page of a `Dataset`: its counts, and how far each replica is. Pure.

use neptune_api::{Dataset, DatasetReplica};

use super::{
    build::{RelatedObjects, advice_on, lines_of_nodes},
    format::{number, short},
    page::{DatasetLines, Page, ReplicaLine},
    ready_page::of_ready,
    section::{Section, Value},
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
            replicas: status.replicas.iter().map(ReplicaLine::from_replica).collect(),
        }),
        ..of_ready("Dataset", dataset, ready, (lines, advice), related)
    }
}

impl DatasetLines {
    /// The counts, and a row per replica.
    pub fn sections(&self) -> [Section; 2] {
        let (samples, bytes) = (number(self.samples), number(self.bytes));
        let mut values =
            vec![Value::new("Data", format!("{samples} samples, {bytes} bytes on {}", self.node))];
        if let (Some(generation), Some(root)) = (self.generation, &self.root) {
            let root = short(root);
            values.push(Value::new("Offered", format!("generation {generation}, root {root}")));
        }
        let in_sync = self.replicas_in_sync.as_ref().map(|number| format!("{number} in sync"));
        values.extend(Value::optional("Replicas", in_sync.as_ref()));
        let head = &["REPLICA", "STATE", "BYTES BEHIND", "LAG", "GENERATION", "SAMPLES"];
        let replicas = Section::table(head, self.replicas.iter().map(ReplicaLine::cells));
        [Section::Values(values), replicas]
    }
}

impl ReplicaLine {
    fn from_replica(replica: &DatasetReplica) -> Self {
        Self {
            node: replica.node.clone(),
            state: format!("{:?}", replica.state),
            bytes_behind: replica.bytes_behind,
            lag_seconds: replica.seconds,
            generation: replica.generation,
            samples: replica.samples,
        }
    }

    fn cells(&self) -> [String; 6] {
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
