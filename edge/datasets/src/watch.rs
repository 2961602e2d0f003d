//! Keeps the count of a dataset current: one task per dataset counts it after each change. I/O.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    change_watcher::{ChangeDetection, ChangeWatcher},
    counts::SampleCounts,
    error::{DatasetError, DatasetErrorClass},
    local_dataset::{CountState, LocalDataset},
    path_policy::PathPolicy,
    read::ReadMeter,
};

/// Delay between an event and the count, so that a burst of changes causes one count. A replacement
/// by rename is then not seen as a deletion.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// The interval between counts of a directory is at least this multiple of the time that one count
/// takes, so that a growing directory of a million files does not occupy the node.
const DIRECTORY_INTERVAL_FACTOR: u32 = 5;

/// Limits the number of counts that run at the same time in this process. Each has its own buffers
/// and threads.
static CONCURRENT_COUNTS: Semaphore = Semaphore::const_new(4);

/// The times at which a watched dataset is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchIntervals {
    /// Minimum time from the start of one count to the start of the next. Default: 1 s.
    pub min_gap: Duration,
    /// Time from one count to the next if no event arrives. This is the only trigger where inotify
    /// cannot be used, and a fallback elsewhere. Default: 60 s.
    pub poll: Duration,
    /// Time from a failed count to the next one if no event arrives. Default: 10 s.
    pub retry: Duration,
    /// Whether to detect changes with inotify. Default: true.
    pub use_events: bool,
}

impl Default for WatchIntervals {
    fn default() -> Self {
        Self {
            min_gap: Duration::from_secs(1),
            poll: Duration::from_secs(60),
            retry: Duration::from_secs(10),
            use_events: true,
        }
    }
}

/// Interval between two reports of the bytes that a count has read so far.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The current count of a watched dataset.
#[derive(Debug, Clone, Default)]
pub struct CountReport {
    /// The last successful count; `None` before the first one. It remains while `error` is set.
    pub counts: Option<SampleCounts>,
    /// Why the last attempt to count failed; `None` if it succeeded.
    pub error: Option<DatasetError>,
    /// How changes are detected; `None` before the first count.
    pub change_detection: Option<ChangeDetection>,
    /// Bytes read from the dataset since the watch started. Grows during a long count.
    pub bytes_read: u64,
    /// State to store and to pass as `initial` to the next watch of this dataset.
    pub state: Option<Arc<CountState>>,
}

/// Counts the dataset now and after each change. Publishes each change of the result, at most once
/// per `intervals.min_gap`.
///
/// `initial` is the state of an earlier watch. Its counts are published immediately, and only what
/// changed since then is read. It is ignored if it belongs to another dataset.
///
/// The task ends when all receivers are dropped. It also ends after it has published an error of
/// [`DatasetErrorClass::Spec`].
///
/// # Panics
/// If called outside a tokio runtime with time enabled.
pub fn watch_dataset(
    dataset: LocalDataset,
    policy: PathPolicy,
    intervals: WatchIntervals,
    initial: Option<CountState>,
) -> watch::Receiver<CountReport> {
    let state = initial.filter(|state| state.belongs_to(&dataset)).map(Arc::new);
    let counts = state.as_ref().map(|state| state.counts().clone());
    let (reports, receiver) =
        watch::channel(CountReport { counts, state: state.clone(), ..CountReport::default() });
    let meter = Arc::new(ReadMeter::default());
    let task = CountTask {
        dataset,
        policy,
        use_events: intervals.use_events,
        meter: meter.clone(),
        state,
        watcher: ChangeWatcher::default(),
        malformed: None,
    };
    tokio::spawn(async move {
        let _stop = StopOnDrop(meter);
        tokio::select! {
            () = run(task, intervals, &reports) => {}
            () = reports.closed() => {}
        }
    });
    receiver
}

/// Stops a count that still runs on another thread when its result is not needed any more, also
/// because the runtime shuts down.
struct StopOnDrop(Arc<ReadMeter>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The inputs and results of a count. Moves to a blocking thread and back.
struct CountTask {
    dataset: LocalDataset,
    policy: PathPolicy,
    use_events: bool,
    meter: Arc<ReadMeter>,
    state: Option<Arc<CountState>>,
    watcher: ChangeWatcher,
    /// The version of a malformed file, with the error. It is not read again before it changes.
    malformed: Option<(FileVersion, DatasetError)>,
}

/// Identifies the version of a file by its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    /// Modification time, in seconds and nanoseconds.
    modified: (i64, i64),
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn run(mut task: CountTask, intervals: WatchIntervals, reports: &watch::Sender<CountReport>) {
    let changed = task.watcher.changed();
    loop {
        let permit = CONCURRENT_COUNTS.acquire().await.expect("the semaphore is never closed");
        let started = Instant::now();
        let outcome;
        let meter = Arc::clone(&task.meter);
        let mut counting = spawn_blocking(move || task.count_once());
        let counted = loop {
            tokio::select! {
                counted = &mut counting => break counted,
                () = sleep(PROGRESS_INTERVAL) => publish_progress(reports, meter.bytes_read()),
            }
        };
        (task, outcome) = match counted {
            Ok(counted) => counted,
            Err(error) => return tracing::error!(%error, "dataset count task failed"),
        };
        drop(permit);
        let error = outcome.result.err();
        let is_final = error.as_ref().is_some_and(|e| e.class() == DatasetErrorClass::Spec);
        let idle = if error.is_some() { intervals.retry } else { intervals.poll };
        publish(reports, &task, error, outcome.change_detection);
        if is_final {
            return;
        }
        let min_gap = if outcome.is_directory {
            let max_gap = intervals.poll.max(intervals.min_gap);
            (started.elapsed() * DIRECTORY_INTERVAL_FACTOR).clamp(intervals.min_gap, max_gap)
        } else {
            intervals.min_gap
        };
        wait(&changed, started + min_gap, idle).await;
    }
}

/// Waits for an event or for `idle`, and at least until `earliest`.
async fn wait(changed: &Notify, earliest: Instant, idle: Duration) {
    if timeout(idle, changed.notified()).await.is_ok() {
        sleep(SETTLE_TIME).await;
    }
    sleep_until(earliest).await;
}

/// Publishes how far a long count is.
fn publish_progress(reports: &watch::Sender<CountReport>, bytes_read: u64) {
    reports.send_if_modified(|report| {
        std::mem::replace(&mut report.bytes_read, bytes_read) != bytes_read
    });
}

fn publish(
    reports: &watch::Sender<CountReport>,
    task: &CountTask,
    error: Option<DatasetError>,
    change_detection: ChangeDetection,
) {
    reports.send_if_modified(|report| {
        let before = (report.counts.clone(), report.error.take(), report.change_detection.take());
        if let Some(state) = &task.state {
            report.counts = Some(state.counts().clone());
        }
        (report.error, report.change_detection) = (error, Some(change_detection));
        report.bytes_read = task.meter.bytes_read();
        report.state.clone_from(&task.state);
        (&before.0, &before.1, &before.2)
            != (&report.counts, &report.error, &report.change_detection)
    });
}

struct CountOutcome {
    is_directory: bool,
    change_detection: ChangeDetection,
    result: Result<(), DatasetError>,
}

impl CountTask {
    fn count_once(mut self) -> (Self, CountOutcome) {
        // The watches are updated before the count, so that a change during the count triggers the
        // next one.
        let path = &self.dataset.path;
        let resolved = self.policy.resolve(path);
        let is_directory = self.dataset.format.needs_directory()
            || resolved.as_ref().is_ok_and(|real| real.is_dir());
        let change_detection = match (self.policy.check(path), resolved) {
            // Paths outside the allowed directories are neither accessed nor watched.
            (Err(error), _) => ChangeDetection::Polling { reason: error.to_string() },
            _ if !self.use_events => {
                ChangeDetection::Polling { reason: "inotify is disabled".to_owned() }
            }
            (Ok(()), Ok(real)) => self.watcher.update(path, &real, is_directory, &self.policy),
            // It may be created, or become another link.
            (Ok(()), Err(_)) => self.watcher.update(path, path, false, &self.policy),
        };
        let result = self.count();
        (self, CountOutcome { is_directory, change_detection, result })
    }

    fn count(&mut self) -> Result<(), DatasetError> {
        let real = self.policy.resolve(&self.dataset.path).ok();
        let version = real.and_then(|real| FileVersion::read(&real));
        if let Some((malformed, error)) = &self.malformed
            && version == Some(*malformed)
        {
            return Err(error.clone());
        }
        self.malformed = None;
        match self.dataset.count(self.state.as_deref(), &self.policy, &self.meter) {
            Ok(state) => {
                self.state = Some(Arc::new(state));
                Ok(())
            }
            Err(error) => {
                self.malformed = version
                    .filter(|_| error.is_malformed_data())
                    .map(|version| (version, error.clone()));
                Err(error)
            }
        }
    }
}

impl FileVersion {
    fn read(path: &Path) -> Option<Self> {
        let now = fs::metadata(path).ok()?;
        Some(Self {
            device: now.dev(),
            inode: now.ino(),
            length: now.len(),
            modified: (now.mtime(), now.mtime_nsec()),
        })
    }
}
