//! The thread that writes samples. I/O.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use neptune_backoff::Backoff;

use super::{
    CaptureResult, Queued, Shared,
    sample::{CaptureRecord, Sample, records},
    segments::Bounds,
    store::{AppendError, Store},
};
use crate::{clock, config::CaptureConfig};

/// Interval between two syncs of written records to disk.
const PERIOD: Duration = Duration::from_secs(1);
/// Pause between two attempts to open the directory, which reads all that it has.
const REOPEN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// Records after which a sync does not wait for the period.
const SYNC_RECORDS: u32 = 64;

/// Writes until the queue ends.
pub struct Writer {
    config: CaptureConfig,
    shared: Arc<Shared>,
    /// The open directory; `None` while it cannot be written.
    store: Option<Store>,
    /// Whether the last attempt to open the directory failed.
    is_closed: bool,
    /// Failures since the last record was written, and when the directory is opened again.
    failures: u32,
    open_at: Instant,
    /// Start of this process in milliseconds since 1970, for the ids of records.
    started: i64,
    number: u64,
}

impl Writer {
    /// A writer that did not open its directory yet.
    pub fn new(config: CaptureConfig, shared: Arc<Shared>) -> Self {
        let started = clock::timestamp().as_millisecond();
        let open_at = clock::now();
        Self {
            config,
            shared,
            store: None,
            is_closed: false,
            failures: 0,
            open_at,
            started,
            number: 0,
        }
    }

    /// Writes what the queue has, until it ends.
    pub fn run(mut self, queue: &Receiver<Queued>) {
        self.open();
        let mut next = clock::now() + PERIOD;
        loop {
            match queue.recv_timeout(next.saturating_duration_since(clock::now())) {
                Ok(queued) => self.write(&queued.sample),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.sync();
                    return;
                }
            }
            if clock::now() >= next {
                self.tick();
                next = clock::now() + PERIOD;
            }
        }
    }

    fn open(&mut self) {
        let CaptureConfig { directory, max_bytes, max_samples, .. } = &self.config;
        let bounds = Bounds { max_bytes: *max_bytes, max_samples: *max_samples };
        match Store::open(directory, bounds) {
            Ok(store) => {
                self.shared.set_bytes(store.bytes());
                self.store = Some(store);
                // What failed when it was written may fail again.
                if std::mem::take(&mut self.is_closed) {
                    self.shared.set_problem(None);
                }
            }
            Err(error) => {
                self.is_closed = true;
                self.fail(&error);
            }
        }
    }

    fn write(&mut self, sample: &Sample) {
        let (started, number) = (self.started, &mut self.number);
        let written = records(sample, self.config.labels, || {
            *number += 1;
            format!("{started}-{number}")
        });
        for record in written {
            let result = match record {
                Some(record) => self.append(&record),
                None => CaptureResult::Skipped,
            };
            self.shared.count(result, 1);
        }
        if let Some(store) = &self.store {
            self.shared.set_bytes(store.bytes());
        }
    }

    fn append(&mut self, record: &CaptureRecord) -> CaptureResult {
        let Some(store) = &mut self.store else { return CaptureResult::Failed };
        let now = u64::try_from(clock::timestamp().as_millisecond()).unwrap_or_default();
        match store.append(&record.line, &record.files, now) {
            Ok(()) => {
                self.failures = 0;
                self.shared.set_problem(None);
                if store.unsynced() >= SYNC_RECORDS {
                    self.sync();
                }
                CaptureResult::Captured
            }
            Err(AppendError::TooLarge) => CaptureResult::Skipped,
            Err(AppendError::Full(error)) => {
                self.shared.set_problem(Some(error.to_string()));
                CaptureResult::Failed
            }
            Err(AppendError::Io(error)) => {
                self.fail(&error);
                CaptureResult::Failed
            }
        }
    }

    fn tick(&mut self) {
        self.sync();
        let refreshed = self.store.as_mut().map(Store::refresh);
        match refreshed {
            None if self.open_at <= clock::now() => self.open(),
            None | Some(Ok(())) => {}
            Some(Err(error)) => self.fail(&error),
        }
        if let Some(store) = &self.store {
            self.shared.set_bytes(store.bytes());
        }
    }

    fn sync(&mut self) {
        if let Some(Err(error)) = self.store.as_mut().map(Store::sync) {
            self.fail(&error);
        }
    }

    /// The directory is opened again after a pause.
    fn fail(&mut self, error: &std::io::Error) {
        self.shared.set_problem(Some(error.to_string()));
        self.failures = self.failures.saturating_add(1);
        self.open_at = clock::now() + REOPEN.step(self.failures);
        self.store = None;
    }
}
