//! One dataset of the node: its watch, its last count and its availability for workers.

use std::{path::PathBuf, time::Instant};

use jiff::Timestamp;
use neptune_agent_core::{
    desired::dataset::{DataSource, DatasetProblem, WantedDataset},
    domain::{
        artifact::{Availability, DownloadState},
        problem::Problem,
    },
};
use neptune_datasets::{
    CountReport, LocalDataset, PathPolicy, SampleCounts, WatchIntervals, watch_dataset,
};
use neptune_wire::{
    DatasetCounts, DatasetReason, DatasetReport, DatasetState, ObjectKey, WorkerReason,
};
use tokio::{
    sync::{mpsc, watch as latest},
    task::AbortHandle,
};
use tracing::{info, warn};

use crate::{
    artifacts::{
        datasets::{
            follower::{DataLocation, DatasetFollower},
            status::{dataset_status, problem_of, remark, state_of, wire_tally},
        },
        downloads::Downloads,
        request::want,
    },
    event::AgentEvent,
    storage::dataset_record::DatasetRecord,
};

pub(super) struct DatasetEntry {
    pub(super) wanted: WantedDataset,
    /// Result of the previous watches.
    pub(super) record: DatasetRecord,
    pub(super) watching: Option<DatasetWatch>,
    /// The last count, and the RFC 3339 time at which it was found to differ from the one before.
    counted: Option<(SampleCounts, String)>,
    pub(super) status: DatasetReport,
    pub(super) is_saved: bool,
    pub(super) saved_at: Option<Instant>,
}

/// The watch of data that is on the node or may appear there.
pub(super) struct DatasetWatch {
    pub(super) path: PathBuf,
    location: latest::Receiver<DataLocation>,
    /// The counts of the data; `None` if it cannot be counted.
    reports: Option<latest::Receiver<CountReport>>,
    /// The directories that may contain the data.
    policy: PathPolicy,
    follower: AbortHandle,
}

impl Drop for DatasetWatch {
    fn drop(&mut self) {
        // The follower holds the last receiver beside this one's: without receivers the count
        // stops.
        self.follower.abort();
    }
}

impl DatasetEntry {
    pub(super) fn new(wanted: &WantedDataset, record: DatasetRecord) -> Self {
        let nothing = (DatasetState::Counting, None);
        let status = dataset_status(wanted, nothing, String::new(), None, record.bytes_read);
        Self {
            wanted: wanted.clone(),
            record,
            watching: None,
            counted: None,
            status,
            is_saved: true,
            saved_at: None,
        }
    }

    pub(super) fn watch(
        &mut self,
        key: &ObjectKey,
        path: PathBuf,
        policy: PathPolicy,
        events: mpsc::Sender<AgentEvent>,
    ) {
        let initial = self.record.state.take();
        let spec = self.wanted.counting.as_ref().ok().map(|(format, options)| LocalDataset {
            path: path.clone(),
            format: *format,
            options: options.clone(),
        });
        // The stored counts of the same data keep their time. They are not read from the watch,
        // which may have counted again by now and whose result has no time yet.
        let known = initial
            .as_ref()
            .filter(|state| spec.as_ref().is_some_and(|dataset| state.belongs_to(dataset)));
        let changed_at = &self.record.changed_at;
        self.counted = known.map(|state| (state.counts().clone(), changed_at.clone()));
        let reports = spec.map(|spec| {
            info!(dataset = %key, path = %path.display(), format = %spec.format, "dataset watch started");
            watch_dataset(spec, policy.clone(), WatchIntervals::default(), initial)
        });
        let (locations, location) = latest::channel(None);
        let follower = DatasetFollower {
            path: path.clone(),
            policy: policy.clone(),
            reports: reports.clone(),
            locations,
            events,
        };
        let follower = tokio::spawn(follower.run()).abort_handle();
        self.watching = Some(DatasetWatch { path, location, reports, policy, follower });
    }

    /// Stops the watch and records its result.
    pub(super) fn stop_watch(&mut self) {
        self.record = self.to_record();
        self.watching = None;
        self.counted = None;
    }

    /// The counts, which change with the data.
    pub(super) fn counts(&self) -> Option<&latest::Receiver<CountReport>> {
        self.watching.as_ref()?.reports.as_ref()
    }

    fn report(&self) -> Option<CountReport> {
        let reports = self.watching.as_ref()?.reports.as_ref()?;
        Some(reports.borrow().clone())
    }

    fn bytes_read(&self, report: Option<&CountReport>) -> u64 {
        self.record.bytes_read.saturating_add(report.map_or(0, |report| report.bytes_read))
    }

    pub(super) fn to_record(&self) -> DatasetRecord {
        let report = self.report();
        let state = report.as_ref().and_then(|report| report.state.as_deref().cloned());
        DatasetRecord {
            state: state.or_else(|| self.record.state.clone()),
            changed_at: self
                .counted
                .as_ref()
                .map_or_else(|| self.record.changed_at.clone(), |(_, at)| at.clone()),
            bytes_read: self.bytes_read(report.as_ref()),
        }
    }

    /// Updates the status from the newest report of the watch.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub(super) fn refresh(&mut self, key: &ObjectKey, downloads: &Downloads) {
        let report = self.report();
        if let Some(tally) = report.as_ref().and_then(|report| report.counts.as_ref())
            && self.counted.as_ref().map(|(tally, _)| tally) != Some(tally)
        {
            self.counted = Some((tally.clone(), format!("{:.0}", Timestamp::now())));
            self.is_saved = false;
        }
        let (state, problem) = self.assess(report.as_ref(), downloads);
        let reason = problem.as_ref().map(|problem| problem.reason);
        if (state, reason) != (self.status.state, self.reported_reason()) {
            let message = problem.as_ref().map(|problem| &*problem.message);
            if state == DatasetState::Failed {
                warn!(dataset = %key, ?reason, message, "dataset count failed");
            } else {
                info!(dataset = %key, ?state, ?reason, message, "dataset state changed");
            }
        }
        let remark = report.as_ref().map(remark).unwrap_or_default();
        let tally: Option<DatasetCounts> =
            self.counted.as_ref().map(|(tally, at)| wire_tally(tally, at));
        let bytes_read = self.bytes_read(report.as_ref());
        self.status = dataset_status(&self.wanted, (state, problem), remark, tally, bytes_read);
    }

    /// The reported reason without `Counting`, which is filled in where there is no other.
    fn reported_reason(&self) -> Option<DatasetReason> {
        self.status.reason.filter(|reason| *reason != DatasetReason::Counting)
    }

    fn assess(
        &self,
        report: Option<&CountReport>,
        downloads: &Downloads,
    ) -> (DatasetState, Option<DatasetProblem>) {
        let failed = |problem: &DatasetProblem| (DatasetState::Failed, Some(problem.clone()));
        if let Err(problem) = &self.wanted.source {
            return failed(problem);
        }
        if let Err(problem) = &self.wanted.counting {
            return failed(problem);
        }
        match (report, &self.watching) {
            (Some(report), Some(watched)) => state_of(report, &watched.policy.allowed_roots),
            _ => self.download_progress(downloads),
        }
    }

    /// The state of data that is not on the node yet.
    fn download_progress(&self, downloads: &Downloads) -> (DatasetState, Option<DatasetProblem>) {
        let source = match &self.wanted.source {
            Ok(DataSource::Remote(source)) => source,
            Ok(DataSource::Replica(source)) => {
                let message = format!("copying from node {}", source.node);
                let problem = DatasetProblem::new(DatasetReason::DatasetDownloading, message);
                return (DatasetState::Counting, Some(problem));
            }
            Ok(DataSource::Local(_)) | Err(_) => return (DatasetState::Counting, None),
        };
        let unavailable =
            |message: String| Some(DatasetProblem::new(DatasetReason::DatasetUnavailable, message));
        match downloads.state(source) {
            DownloadState::Ready => (DatasetState::Counting, None),
            DownloadState::Downloading { problem: None, .. } => {
                let from = want(source).map(|want| want.redacted_url()).unwrap_or_default();
                let message = format!("downloading from {from}");
                let problem = DatasetProblem::new(DatasetReason::DatasetDownloading, message);
                (DatasetState::Counting, Some(problem))
            }
            DownloadState::Downloading { problem: Some(problem), .. }
                if problem.reason == WorkerReason::DownloadWindow =>
            {
                let problem = DatasetProblem::new(DatasetReason::DownloadWindow, problem.message);
                (DatasetState::Counting, Some(problem))
            }
            DownloadState::Downloading { problem: Some(problem), .. } => {
                (DatasetState::Counting, unavailable(problem.message))
            }
            DownloadState::Stuck { problem, .. } => {
                (DatasetState::Failed, unavailable(problem.message))
            }
        }
    }

    /// The availability for workers. Data that cannot be counted may still be mounted.
    pub(super) fn availability(&self, key: &ObjectKey, downloads: &Downloads) -> Availability {
        let worker_problem = |reason, message: String| {
            Some(Problem { reason, message: format!("{key}: {message}") })
        };
        let stuck = |problem: &DatasetProblem| Availability {
            problem: worker_problem(WorkerReason::DatasetUnavailable, problem.message.clone()),
            is_stuck: true,
            ..Availability::default()
        };
        if let Err(problem) = &self.wanted.source {
            return stuck(problem);
        }
        let Some(watched) = &self.watching else {
            let (state, problem) = self.download_progress(downloads);
            return match problem {
                Some(problem) if state == DatasetState::Failed => stuck(&problem),
                problem => Availability {
                    problem: worker_problem(
                        WorkerReason::DatasetDownloading,
                        problem.map_or_else(String::new, |problem| problem.message),
                    ),
                    ..Availability::default()
                },
            };
        };
        match &*watched.location.borrow() {
            Some(Ok(local_artifact)) => {
                // The store names files by digest; the download knows the file name for the
                // container.
                let local_artifact = match &self.wanted.source {
                    Ok(DataSource::Remote(source)) => downloads.local_artifact(source).cloned(),
                    Ok(DataSource::Local(_) | DataSource::Replica(_)) | Err(_) => {
                        Some(local_artifact.clone())
                    }
                };
                Availability { usable: local_artifact, ..Availability::default() }
            }
            Some(Err(error)) => stuck(&problem_of(error, &watched.policy.allowed_roots)),
            None => Availability {
                problem: worker_problem(
                    WorkerReason::DatasetDownloading,
                    format!("checking {}", watched.path.display()),
                ),
                ..Availability::default()
            },
        }
    }
}
