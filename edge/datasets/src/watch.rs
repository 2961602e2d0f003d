//! Keeping the count of a dataset up to date: one task a dataset, that counts when something changed. I/O.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, Semaphore, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    dataset::{DatasetSpec, State},
    error::{Class, Error},
    eyes::{Eyes, Watching},
    policy::Policy,
    read::Meter,
    tally::Tally,
};

/// After an event, to let the rest of what a writer does at once come: a rename is not seen as a deletion.
const SETTLE: Duration = Duration::from_millis(50);
/// Listing a directory takes at most one part in so many of the time, so that one of a million files that keeps
/// growing leaves the node to its work.
const DIRECTORY_SHARE: u32 = 5;

/// So many counts run at the same time in this process, each with its buffers and threads; others wait.
static TURNS: Semaphore = Semaphore::const_new(4);

/// When to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// From the beginning of a count to that of the next, at least.
    pub gap: Duration,
    /// From a count to the next if nothing was noticed: all there is where inotify cannot be used, else a safety net.
    pub poll: Duration,
    /// The same, after a failure that may heal.
    pub retry: Duration,
    /// Whether to use inotify.
    pub events: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            gap: Duration::from_secs(1),
            poll: Duration::from_secs(60),
            retry: Duration::from_secs(10),
            events: true,
        }
    }
}

/// What is known of a dataset now.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The last count; none before the first. It stays, as the last known, while `condition` says why there is no newer.
    pub tally: Option<Tally>,
    /// Why the dataset cannot be counted now; none while it can.
    pub condition: Option<Error>,
    /// How changes are noticed; none before the first count.
    pub watching: Option<Watching>,
    /// Bytes read from the dataset since the watch began.
    pub bytes_read: u64,
    /// To be stored and given to the next watch of this dataset, so that it goes on from here.
    pub state: Option<Arc<State>>,
}

/// Counts the dataset now and whenever it changes, and reports each change of the result: at most once a `pace.gap`.
///
/// `initial` is the state of an earlier watch; its tally is there at once, and only what changed since is read.
/// The task ends when all receivers are dropped, or if the spec can never be counted, after that was reported.
/// To be called within a tokio runtime with time enabled.
pub fn watch(
    spec: DatasetSpec,
    policy: Policy,
    pace: Pace,
    initial: Option<State>,
) -> watch::Receiver<Report> {
    let state = initial.filter(|state| state.is_of(&spec)).map(Arc::new);
    let tally = state.as_ref().map(|state| state.tally().clone());
    let (reports, receiver) =
        watch::channel(Report { tally, state: state.clone(), ..Report::default() });
    let meter = Arc::new(Meter::default());
    let counting = Counting {
        spec,
        policy,
        events: pace.events,
        meter: meter.clone(),
        state,
        eyes: Eyes::default(),
        refused: None,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = keep_counting(counting, pace, &reports) => {}
            () = reports.closed() => {}
        }
        // A count that is under way on another thread is of no use any more.
        meter.stop();
    });
    receiver
}

/// All that a count needs and leaves, to be moved to a thread that may block and back.
struct Counting {
    spec: DatasetSpec,
    policy: Policy,
    events: bool,
    meter: Arc<Meter>,
    state: Option<Arc<State>>,
    eyes: Eyes,
    /// A file that is not of its format, and why: it is not read again before it changes.
    refused: Option<(Stamp, Error)>,
}

/// Device, inode, length and modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, u64, u64, i64, i64);

async fn keep_counting(mut counting: Counting, pace: Pace, reports: &watch::Sender<Report>) {
    let wake = counting.eyes.wake();
    loop {
        let turn = TURNS.acquire().await.expect("it is never closed");
        let started = Instant::now();
        let outcome;
        (counting, outcome) = match spawn_blocking(move || counting.once()).await {
            Ok(counted) => counted,
            Err(error) => return tracing::error!(%error, "counting a dataset broke off"),
        };
        drop(turn);
        let condition = outcome.result.err();
        let never = condition.as_ref().is_some_and(|error| error.class() == Class::Spec);
        let idle = if condition.is_some() { pace.retry } else { pace.poll };
        report(reports, &counting, condition, outcome.watching);
        if never {
            return;
        }
        let directory = counting.spec.format.is_directory();
        let gap = if directory {
            (started.elapsed() * DIRECTORY_SHARE).clamp(pace.gap, pace.poll.max(pace.gap))
        } else {
            pace.gap
        };
        wait(&wake, started + gap, idle).await;
    }
}

/// Until there was an event or `idle` has passed, and in no case before `earliest`.
async fn wait(wake: &Notify, earliest: Instant, idle: Duration) {
    if timeout(idle, wake.notified()).await.is_ok() {
        sleep(SETTLE).await;
    }
    sleep_until(earliest).await;
}

fn report(
    reports: &watch::Sender<Report>,
    counting: &Counting,
    condition: Option<Error>,
    watching: Watching,
) {
    reports.send_if_modified(|report| {
        let before = (report.tally.clone(), report.condition.take(), report.watching.take());
        if let Some(state) = &counting.state {
            report.tally = Some(state.tally().clone());
        }
        (report.condition, report.watching) = (condition, Some(watching));
        report.bytes_read = counting.meter.bytes_read();
        report.state.clone_from(&counting.state);
        (&before.0, &before.1, &before.2) != (&report.tally, &report.condition, &report.watching)
    });
}

struct Outcome {
    watching: Watching,
    result: Result<(), Error>,
}

impl Counting {
    fn once(mut self) -> (Self, Outcome) {
        // Before counting: what changes meanwhile wakes the next count.
        let watching = match self.policy.admits(&self.spec.path) {
            // Nothing is looked at outside the allowed directories, nor watched.
            Err(error) => Watching::Polling { reason: error.to_string() },
            Ok(()) if !self.events => {
                Watching::Polling { reason: "inotify is turned off".to_owned() }
            }
            Ok(()) => self.eyes.aim(&self.spec.path, self.spec.format.is_directory(), &self.policy),
        };
        let result = self.count();
        (self, Outcome { watching, result })
    }

    fn count(&mut self) -> Result<(), Error> {
        let stamp = self.policy.admits(&self.spec.path).ok().and_then(|()| stamp(&self.spec.path));
        if let Some((refused, error)) = &self.refused
            && stamp == Some(*refused)
        {
            return Err(error.clone());
        }
        self.refused = None;
        match self.spec.count(self.state.as_deref(), &self.policy, &self.meter) {
            Ok(state) => {
                self.state = Some(Arc::new(state));
                Ok(())
            }
            Err(error) => {
                self.refused =
                    stamp.filter(|_| error.is_of_content()).map(|stamp| (stamp, error.clone()));
                Err(error)
            }
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let now = fs::metadata(path).ok()?;
    Some(Stamp(now.dev(), now.ino(), now.len(), now.mtime(), now.mtime_nsec()))
}
