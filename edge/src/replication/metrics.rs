//! The metrics of the copies on this node, in the OpenMetrics text format.

#![allow(clippy::doc_markdown, reason = "OpenMetrics is a name")]

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use neptune_share::replicas::SyncProgress;
use neptune_wire::ObjectKey;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::copy_state::CopyState;

/// What is read of one copy.
#[derive(Debug, Clone)]
pub struct CopyView {
    pub state: watch::Receiver<CopyState>,
    pub progress: watch::Receiver<Arc<SyncProgress>>,
}

/// The copies on this node, shared with the server of the metrics.
#[derive(Debug, Default)]
pub struct ReplicaMetrics(Mutex<BTreeMap<ObjectKey, CopyView>>);

impl ReplicaMetrics {
    /// Replaces the copies of which metrics are served.
    pub fn set(&self, copies: BTreeMap<ObjectKey, CopyView>) {
        *self.0.lock() = copies;
    }

    /// The families of all copies; empty without any.
    pub fn text(&self) -> String {
        let copies = self.0.lock().clone();
        let reports: Vec<_> = copies
            .iter()
            .filter_map(|(key, copy)| {
                let report = copy.state.borrow().report.clone()?;
                let labels = format!("namespace=\"{}\",name=\"{}\"", key.namespace, key.name);
                Some((labels, report, Arc::clone(&copy.progress.borrow())))
            })
            .collect();
        let mut text = String::new();
        if reports.is_empty() {
            return text;
        }
        let mut family = |name: &str, kind: &str, help: &str, samples: Vec<String>| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for sample in samples {
                let _ = writeln!(text, "{sample}");
            }
        };
        let name = "neptune_edge_replica_bytes_behind";
        let samples = reports
            .iter()
            .map(|(labels, report, _)| format!("{name}{{{labels}}} {}", report.bytes_behind));
        family(name, "gauge", "Bytes that a copy of a Dataset lacks.", samples.collect());
        let name = "neptune_edge_replica_lag_seconds";
        let samples = reports
            .iter()
            .map(|(labels, report, _)| format!("{name}{{{labels}}} {}", report.seconds));
        family(name, "gauge", "Time since the copy was equal to its source.", samples.collect());
        let name = "neptune_edge_replica_blocks";
        let samples = reports.iter().flat_map(|(labels, _, progress)| {
            [
                ("reused", progress.reused()),
                ("sent", progress.sent()),
                ("resent", progress.resent()),
            ]
            .map(|(result, count)| format!("{name}_total{{{labels},result=\"{result}\"}} {count}"))
        });
        family(name, "counter", "Blocks of 1 MiB that a copy got.", samples.collect());
        text
    }
}

#[cfg(test)]
impl ReplicaMetrics {
    /// The metrics of one copy, for tests of pages.
    pub fn with_one_copy() -> Self {
        let report = neptune_wire::ReplicaReport {
            state: neptune_wire::ReplicaState::Syncing,
            generation: None,
            bytes_behind: 7,
            seconds: 5,
            overwritten: 0,
            message: String::new(),
        };
        let (_state, state) =
            watch::channel(CopyState { report: Some(report), ..CopyState::default() });
        let (_progress, progress) = watch::channel(Arc::default());
        let key: ObjectKey = "shop/datasets/log".parse().expect("it is a key");
        let metrics = Self::default();
        metrics.set([(key, CopyView { state, progress })].into());
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_has_its_samples() {
        assert_eq!(ReplicaMetrics::default().text(), "");
        let metrics = ReplicaMetrics::with_one_copy();
        let text = metrics.text();
        for line in [
            "neptune_edge_replica_bytes_behind{namespace=\"shop\",name=\"log\"} 7",
            "neptune_edge_replica_lag_seconds{namespace=\"shop\",name=\"log\"} 5",
            "# TYPE neptune_edge_replica_blocks counter",
            "neptune_edge_replica_blocks_total{namespace=\"shop\",name=\"log\",result=\"resent\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
        }
    }
}
