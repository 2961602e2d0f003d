//! Counts what the training tasks of the node do, since the agent started, as metrics in
//! their text format. Pure.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use neptune_agent_core::domain::training::{RunOutcome, TaskEvent, Verdict, VerifyProblem};
use neptune_content::uploads::MAX_BLOCK;

/// The counters of the node's training tasks since the agent started.
#[derive(Debug, Default)]
pub struct TrainingMetrics {
    worker_seconds: AtomicU64,
    upload_bytes: AtomicU64,
    resent_bytes: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// What an upload has sent.
#[derive(Debug, Default)]
pub struct SentBlocks {
    /// The end of the last byte that was sent.
    end: u64,
}

impl SentBlocks {
    /// The next block begins at `offset` of `length` bytes. Returns its bytes, and how many of them
    /// were sent before.
    pub fn block(&mut self, offset: u64, length: u64) -> (u64, u64) {
        let end = offset.saturating_add(MAX_BLOCK).min(length).max(offset);
        let resent = self.end.min(end).saturating_sub(offset);
        self.end = self.end.max(end);
        (end - offset, resent)
    }
}

impl TrainingMetrics {
    /// Counts a block that is sent.
    pub fn on_block(&self, (bytes, resent): (u64, u64)) {
        self.upload_bytes.fetch_add(bytes, Relaxed);
        self.resent_bytes.fetch_add(resent, Relaxed);
    }

    /// Counts the end of a container, and of an update.
    pub fn on_event(&self, event: &TaskEvent) {
        match event {
            TaskEvent::Ran(RunOutcome::Succeeded { seconds }) => {
                self.worker_seconds.fetch_add(*seconds, Relaxed);
            }
            TaskEvent::Ran(RunOutcome::Failed(_)) => drop(self.failed.fetch_add(1, Relaxed)),
            TaskEvent::Uploaded(Verdict::Accepted) => drop(self.accepted.fetch_add(1, Relaxed)),
            TaskEvent::Ran(RunOutcome::Refused(_))
            | TaskEvent::Verified(Err(VerifyProblem::Refused(_)))
            | TaskEvent::Uploaded(Verdict::Refused { .. }) => {
                self.refused.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    /// The families, without the end of a page.
    pub fn page(&self) -> String {
        let mut text = String::new();
        for (name, help, counter) in [
            (
                "neptune_edge_training_worker_seconds",
                "Run time of training containers that succeeded",
                &self.worker_seconds,
            ),
            ("neptune_edge_training_upload_bytes", "Bytes of updates sent", &self.upload_bytes),
            (
                "neptune_edge_training_resent_bytes",
                "Bytes of updates sent more than once",
                &self.resent_bytes,
            ),
        ] {
            let value = counter.load(Relaxed);
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "# HELP {name} {help}.\n# TYPE {name} counter\n{name}_total {value}\n"
            );
        }
        let name = "neptune_edge_training_updates";
        let _ = writeln!(text, "# HELP {name} Results of training tasks.\n# TYPE {name} counter");
        for (result, counter) in
            [("accepted", &self.accepted), ("refused", &self.refused), ("failed", &self.failed)]
        {
            let value = counter.load(Relaxed);
            let _ = writeln!(text, "{name}_total{{result=\"{result}\"}} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_that_is_sent_again_counts_as_resent() {
        let (mut sent, length) = (SentBlocks::default(), 2 * MAX_BLOCK + 5);
        assert_eq!(sent.block(0, length), (MAX_BLOCK, 0));
        assert_eq!(sent.block(MAX_BLOCK, length), (MAX_BLOCK, 0));
        assert_eq!(sent.block(MAX_BLOCK, length), (MAX_BLOCK, MAX_BLOCK), "the answer was lost");
        assert_eq!(sent.block(2 * MAX_BLOCK, length), (5, 0));
        assert_eq!(sent.block(0, length), (MAX_BLOCK, MAX_BLOCK), "the receiver lost its files");
        assert_eq!(sent.block(length, length), (0, 0));
    }

    #[test]
    fn events_are_counted_by_their_result() {
        let metrics = TrainingMetrics::default();
        metrics.on_event(&TaskEvent::Ran(RunOutcome::Succeeded { seconds: 7 }));
        metrics.on_event(&TaskEvent::Uploaded(Verdict::Accepted));
        let message = "why".to_owned();
        metrics.on_event(&TaskEvent::Uploaded(Verdict::Refused { reason: None, message }));
        metrics.on_event(&TaskEvent::Cancelled);
        metrics.on_block((10, 4));
        let page = metrics.page();
        for line in [
            "neptune_edge_training_worker_seconds_total 7",
            "neptune_edge_training_upload_bytes_total 10",
            "neptune_edge_training_resent_bytes_total 4",
            "neptune_edge_training_updates_total{result=\"accepted\"} 1",
            "neptune_edge_training_updates_total{result=\"refused\"} 1",
            "neptune_edge_training_updates_total{result=\"failed\"} 0",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is not in {page}");
        }
    }
}
