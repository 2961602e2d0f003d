//! Counts what this node exchanges with other nodes.

use std::{
    fmt::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The counters since the start of the agent.
#[derive(Debug, Default)]
pub struct PeerCounters {
    sent_model: AtomicU64,
    sent_dataset: AtomicU64,
    received_model: AtomicU64,
    received_dataset: AtomicU64,
    wrong_content: AtomicU64,
    damaged_copy: AtomicU64,
    /// Connections that the server refused; set when it starts.
    unknown_key: OnceLock<Arc<AtomicU64>>,
}

impl PeerCounters {
    /// Bytes of a model are sent.
    pub fn on_sent_model(&self, bytes: u64) {
        self.sent_model.fetch_add(bytes, Relaxed);
    }

    /// Bytes of a dataset are sent.
    pub fn on_sent_dataset(&self, bytes: u64) {
        self.sent_dataset.fetch_add(bytes, Relaxed);
    }

    /// Bytes of a dataset arrived.
    #[allow(dead_code, reason = "for the replication of Datasets")]
    pub fn on_received_dataset(&self, bytes: u64) {
        self.received_dataset.fetch_add(bytes, Relaxed);
    }

    /// Bytes of a model arrived; `wrong` peers sent other bytes than its own.
    pub fn on_fetched(&self, bytes: u64, wrong: usize) {
        self.received_model.fetch_add(bytes, Relaxed);
        self.wrong_content.fetch_add(wrong as u64, Relaxed);
    }

    /// A copy of this node does not have its digest.
    pub fn on_damaged(&self) {
        self.damaged_copy.fetch_add(1, Relaxed);
    }

    /// Counts the connections that the server refuses.
    pub fn set_refused(&self, refused: Arc<AtomicU64>) {
        // The server starts once.
        drop(self.unknown_key.set(refused));
    }

    /// The metrics, as families of the text format of metrics.
    pub fn page(&self) -> String {
        let bytes = [
            ("sent", "model", &self.sent_model),
            ("sent", "dataset", &self.sent_dataset),
            ("received", "model", &self.received_model),
            ("received", "dataset", &self.received_dataset),
        ];
        let unknown_key = self.unknown_key.get().map_or(0, |count| count.load(Relaxed));
        let rejected = [
            ("wrong_content", self.wrong_content.load(Relaxed)),
            ("damaged_copy", self.damaged_copy.load(Relaxed)),
            ("unknown_key", unknown_key),
        ];
        let mut text = family("peer_bytes", "Bytes exchanged with other nodes");
        for (direction, source, count) in bytes {
            let count = count.load(Relaxed);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "neptune_edge_peer_bytes_total{{direction=\"{direction}\",source=\"{source}\"}} {count}"
            );
        }
        text.push_str(&family("peer_rejected", "Contents and connections of peers not used"));
        for (reason, count) in rejected {
            let _ =
                writeln!(text, "neptune_edge_peer_rejected_total{{reason=\"{reason}\"}} {count}");
        }
        text
    }
}

/// The metric of what the model store downloaded from URLs.
pub fn origin_page(bytes: u64) -> String {
    let family = family("origin_bytes", "Bytes of models and datasets downloaded from their URLs");
    format!("{family}neptune_edge_origin_bytes_total {bytes}\n")
}

fn family(name: &str, help: &str) -> String {
    format!("# HELP neptune_edge_{name} {help}.\n# TYPE neptune_edge_{name} counter\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_counter() {
        let counters = PeerCounters::default();
        counters.on_sent_model(1);
        counters.on_sent_dataset(2);
        counters.on_fetched(3, 4);
        counters.on_received_dataset(5);
        counters.on_damaged();
        counters.set_refused(Arc::new(AtomicU64::new(6)));
        let page = counters.page() + &origin_page(7);
        let samples: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "neptune_edge_peer_bytes_total{direction=\"sent\",source=\"model\"} 1",
                "neptune_edge_peer_bytes_total{direction=\"sent\",source=\"dataset\"} 2",
                "neptune_edge_peer_bytes_total{direction=\"received\",source=\"model\"} 3",
                "neptune_edge_peer_bytes_total{direction=\"received\",source=\"dataset\"} 5",
                "neptune_edge_peer_rejected_total{reason=\"wrong_content\"} 4",
                "neptune_edge_peer_rejected_total{reason=\"damaged_copy\"} 1",
                "neptune_edge_peer_rejected_total{reason=\"unknown_key\"} 6",
                "neptune_edge_origin_bytes_total 7",
            ]
        );
    }
}
