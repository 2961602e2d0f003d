//! Records samples for training: takes them from requests without waiting, and writes them with a
//! thread of its own. `sample.rs` decides which ones, `segments.rs` where.

mod binary;
mod image_index;
mod images;
mod sample;
mod segments;
mod store;
mod writer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

pub use self::sample::{Sample, SampleRow};
use self::{sample::takes, writer::Writer};
use crate::{
    config::{CaptureConfig, What},
    decision::Outcome,
    metrics::CaptureMetrics,
};

/// Requests that wait for the writer.
const QUEUE: usize = 256;
/// Bytes of the bodies of these requests. A larger request waits alone.
const QUEUE_BYTES: u32 = 32 * 1024 * 1024;

/// The capture of a configuration. Ends with its last reference, after what waits is written.
#[derive(Debug)]
pub struct Capture {
    /// The configuration with which the capture was started.
    pub config: CaptureConfig,
    queue: Mutex<Option<SyncSender<Queued>>>,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What became of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureResult {
    /// The sample is written.
    Captured,
    /// The writer was busy, so the sample was dropped.
    Dropped,
    /// The sample is lost, because the directory cannot be written.
    Failed,
    /// The sample is larger than a segment, or has no form in JSON.
    Skipped,
}

/// The counters and the problem of a capture, for the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureState {
    /// Samples that were written since the start.
    pub captured: u64,
    /// Samples that were to be written since the start, and are not.
    pub dropped: u64,
    /// The size of all records.
    pub bytes: u64,
    /// Why the directory cannot be written; `None` if it can.
    pub problem: Option<String>,
}

/// The samples of a request that wait.
#[derive(Debug)]
struct Queued {
    sample: Sample,
    _room: OwnedSemaphorePermit,
}

/// What the writer and its users share.
#[derive(Debug)]
struct Shared {
    metrics: CaptureMetrics,
    captured: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl CaptureResult {
    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl Shared {
    fn count(&self, result: CaptureResult, samples: usize) {
        let samples = samples as u64;
        let counter =
            if result == CaptureResult::Captured { &self.captured } else { &self.dropped };
        counter.fetch_add(samples, Ordering::Relaxed);
        self.metrics.samples(result.as_str(), samples);
    }

    fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.metrics.bytes(bytes);
    }

    fn set_problem(&self, problem: Option<String>) {
        let mut current = self.problem.lock();
        if let Some(problem) = problem.as_ref().filter(|problem| current.as_ref() != Some(problem))
        {
            warn!("samples are not captured: {problem}");
        }
        *current = problem;
    }
}

impl Capture {
    /// Starts the writer. A directory that cannot be written is a problem of the state, and is tried
    /// again each second.
    pub fn start(config: CaptureConfig, metrics: CaptureMetrics) -> Arc<Self> {
        let (queue, waiting) = sync_channel(QUEUE);
        let shared = Arc::new(Shared {
            metrics,
            captured: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            problem: Mutex::default(),
        });
        let writer = Writer::new(config.clone(), Arc::clone(&shared));
        let thread = thread::Builder::new().name("capture".to_owned());
        let writer = thread.spawn(move || writer.run(&waiting));
        let writer = writer.map_err(|error| shared.set_problem(Some(error.to_string()))).ok();
        let room = Arc::new(Semaphore::new(QUEUE_BYTES as usize));
        let (queue, writer) = (Mutex::new(Some(queue)), Mutex::new(writer));
        Arc::new(Self { config, queue, room, shared, writer })
    }

    /// Whether a sample is one to record. `random` is uniform in [0, 1).
    pub fn takes(&self, outcome: Outcome, is_pinned: bool, random: f64) -> bool {
        takes(self.config.what, self.config.pinned, is_pinned, outcome)
            && random < self.config.share
    }

    /// Whether samples that the edge answered with confidence are recorded.
    pub fn takes_easy(&self) -> bool {
        self.config.what == What::All
    }

    /// Hands samples to the writer. Never waits: without room they are dropped and counted.
    pub fn push(&self, sample: Sample) {
        let samples = sample.rows.len();
        let bytes = u32::try_from(sample.bytes()).unwrap_or(u32::MAX).min(QUEUE_BYTES);
        let is_queued = Arc::clone(&self.room).try_acquire_many_owned(bytes).is_ok_and(|room| {
            let queue = self.queue.lock();
            let queued = Queued { sample, _room: room };
            queue.as_ref().is_some_and(|queue| match queue.try_send(queued) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
            })
        });
        if !is_queued {
            self.shared.count(CaptureResult::Dropped, samples);
        }
    }

    /// Returns the counters and the problem as they are now.
    pub fn state(&self) -> CaptureState {
        CaptureState {
            captured: self.shared.captured.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            problem: self.shared.problem.lock().clone(),
        }
    }

    /// Takes no more samples, and returns the writer, which ends after what waits is written.
    pub fn close(&self) -> Option<JoinHandle<()>> {
        self.queue.lock().take();
        self.writer.lock().take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::{config::Protocol, protocol::Payload, server::Wire};

    fn sample(bytes: usize) -> Sample {
        let request = json!({"messages": ["x".repeat(bytes)]}).to_string();
        Sample {
            wire: Wire::Rest,
            protocol: Protocol::Openai,
            output: None,
            has_classes: false,
            time: "2026-01-02T03:04:05Z".parse().unwrap(),
            edge_model: None,
            cloud_model: None,
            request: Payload::from(request.into_bytes()),
            edge: None,
            cloud: None,
            cloud_rows: 1,
            is_whole: true,
            rows: vec![SampleRow { row: 0, cloud_row: None, confidence: None, decision: "hard" }],
        }
    }

    #[test]
    fn each_pushed_sample_is_counted_once_and_none_waits() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"directory": folder.path(), "maxBytes": 10 << 20});
        let config: CaptureConfig = serde_json::from_value(config).unwrap();
        let capture = Capture::start(config, CaptureMetrics::default());
        // Requests that come faster than they are written; one is larger than a segment.
        let (small, large) = (sample(10_000), sample(17 << 20));
        let pushed = 2_000;
        for number in 0..pushed {
            capture.push(if number == 0 { large.clone() } else { small.clone() });
        }
        capture.close().unwrap().join().unwrap();
        let state = capture.state();
        assert_eq!(state.captured + state.dropped, pushed);
        assert!(state.captured > 0 && state.dropped > 0, "{state:?}");
        assert!(state.bytes <= 10 << 20 && state.problem.is_none(), "{state:?}");
        capture.push(sample(1));
        assert_eq!(capture.state().dropped, state.dropped + 1, "the capture has ended");
    }
}
