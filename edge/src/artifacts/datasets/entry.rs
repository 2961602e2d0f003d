//! One dataset of the node: its watch, its counts, and its availability for workers.

use std::{path::PathBuf, time::Instant};

use jiff::Timestamp;
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
            follower::{DataLocation, Follower},
            status::{dataset_status, remark, state_of, wire_tally},
        },
        downloads::Downloads,
    },
    desired::dataset::{DataSource, DatasetProblem, WantedDataset},
    domain::{
        artifact::{Availability, DownloadState},
        dataset_record::DatasetRecord,
        problem::Problem,
    },
    event::AgentEvent,
};

pub(super) struct DatasetEntry {
    pub(super) wanted: WantedDataset,
    /// Of the watches before this one.
    pub(super) record: DatasetRecord,
    pub(super) watching: Option<DatasetWatch>,
    /// The last count, and when it was seen to be another one than before.
    counted: Option<(SampleCounts, String)>,
    pub(super) status: DatasetReport,
    pub(super) is_saved: bool,
    pub(super) saved_at: Option<Instant>,
}

/// Data that is on the node, or may come there.
pub(super) struct DatasetWatch {
    pub(super) path: PathBuf,
    location: latest::Receiver<DataLocation>,
    /// None where it cannot be counted.
    reports: Option<latest::Receiver<CountReport>>,
    /// The directories in which it may be.
    policy: PathPolicy,
    follower: AbortHandle,
}

impl Drop for DatasetWatch {
    fn drop(&mut self) {
        // With it goes the last receiver but ours, and the count ends.
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

    pub(super) fn start_watch(
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
        // What is stored of this very data was found then. The watch is not asked for it: it may
        // have counted by then, and what it found has no time yet.
        let known =
            initial.as_ref().filter(|state| spec.as_ref().is_some_and(|of| state.belongs_to(of)));
        let changed_at = &self.record.changed_at;
        self.counted = known.map(|state| (state.counts().clone(), changed_at.clone()));
        let reports = spec.map(|spec| {
            info!(dataset = %key, path = %path.display(), format = %spec.format, "dataset is watched");
            watch_dataset(spec, policy.clone(), WatchIntervals::default(), initial)
        });
        let (locations, location) = latest::channel(None);
        let follower = Follower {
            path: path.clone(),
            policy: policy.clone(),
            reports: reports.clone(),
            locations,
            events,
        };
        let follower = tokio::spawn(follower.run()).abort_handle();
        self.watching = Some(DatasetWatch { path, location, reports, policy, follower });
    }

    /// Ends the watch. What it found is remembered.
    pub(super) fn stop_watch(&mut self) {
        self.record = self.to_record();
        self.watching = None;
        self.counted = None;
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

    /// Takes note of the newest report.
    pub(super) fn refresh(&mut self, key: &ObjectKey, downloads: &Downloads) {
        let report = self.report();
        if let Some(tally) = report.as_ref().and_then(|report| report.counts.as_ref())
            && self.counted.as_ref().map(|(tally, _)| tally) != Some(tally)
        {
            self.counted = Some((tally.clone(), format!("{:.0}", Timestamp::now())));
            self.is_saved = false;
        }
        let (state, found) = self.assess(report.as_ref(), downloads);
        let reason = found.as_ref().map(|found| found.reason);
        if (state, reason) != (self.status.state, self.known_reason()) {
            let why = found.as_ref().map(|found| &*found.message);
            if state == DatasetState::Failed {
                warn!(dataset = %key, ?reason, why, "dataset is not counted");
            } else {
                info!(dataset = %key, ?state, ?reason, why, "dataset");
            }
        }
        let remark = report.as_ref().map(remark).unwrap_or_default();
        let tally: Option<DatasetCounts> =
            self.counted.as_ref().map(|(tally, at)| wire_tally(tally, at));
        let bytes_read = self.bytes_read(report.as_ref());
        self.status = dataset_status(&self.wanted, (state, found), remark, tally, bytes_read);
    }

    /// Less what stands there for want of another.
    fn known_reason(&self) -> Option<DatasetReason> {
        self.status.reason.filter(|reason| *reason != DatasetReason::Counting)
    }

    fn assess(
        &self,
        report: Option<&CountReport>,
        downloads: &Downloads,
    ) -> (DatasetState, Option<DatasetProblem>) {
        let failed = |found: &DatasetProblem| (DatasetState::Failed, Some(found.clone()));
        if let Err(found) = &self.wanted.source {
            return failed(found);
        }
        if let Err(found) = &self.wanted.counting {
            return failed(found);
        }
        match (report, &self.watching) {
            (Some(report), Some(watched)) => state_of(report, &watched.policy.allowed_roots),
            _ => self.download_state(downloads),
        }
    }

    /// Data that is not on the node yet.
    fn download_state(&self, downloads: &Downloads) -> (DatasetState, Option<DatasetProblem>) {
        let Ok(DataSource::Remote(source)) = &self.wanted.source else {
            return (DatasetState::Counting, None);
        };
        let unavailable =
            |message: String| Some(DatasetProblem::new(DatasetReason::DatasetUnavailable, message));
        match downloads.state(source) {
            DownloadState::Ready => (DatasetState::Counting, None),
            DownloadState::InProgress { problem: None, .. } => {
                let from = source.want().map(|want| want.redacted_url()).unwrap_or_default();
                let message = format!("it is being downloaded from {from}");
                let found = DatasetProblem::new(DatasetReason::DatasetDownloading, message);
                (DatasetState::Counting, Some(found))
            }
            DownloadState::InProgress { problem: Some(found), .. } => {
                (DatasetState::Counting, unavailable(found.message))
            }
            DownloadState::Failed { problem, .. } => {
                (DatasetState::Failed, unavailable(problem.message))
            }
        }
    }

    /// The data for workers: also what cannot be counted may be mounted.
    pub(super) fn availability(&self, key: &ObjectKey, downloads: &Downloads) -> Availability {
        let problem = |reason, message: String| {
            Some(Problem { reason, message: format!("{key}: {message}") })
        };
        let unavailable_for_workers = |found: &DatasetProblem| Availability {
            problem: problem(WorkerReason::DatasetUnavailable, found.message.clone()),
            needs_help: true,
            ..Availability::default()
        };
        if let Err(found) = &self.wanted.source {
            return unavailable_for_workers(found);
        }
        let Some(watched) = &self.watching else {
            let (state, found) = self.download_state(downloads);
            return match found {
                Some(found) if state == DatasetState::Failed => unavailable_for_workers(&found),
                found => Availability {
                    problem: problem(
                        WorkerReason::DatasetDownloading,
                        found.map_or_else(String::new, |found| found.message),
                    ),
                    ..Availability::default()
                },
            };
        };
        match &*watched.location.borrow() {
            Some(Ok(local_artifact)) => {
                // A file of the store has no name of its own there.
                let local_artifact = match &self.wanted.source {
                    Ok(DataSource::Remote(source)) => downloads.local_artifact(source).cloned(),
                    Ok(DataSource::Local(_)) | Err(_) => Some(local_artifact.clone()),
                };
                Availability { usable: local_artifact, ..Availability::default() }
            }
            Some(Err(error)) => {
                unavailable_for_workers(&DatasetProblem::of(error, &watched.policy.allowed_roots))
            }
            None => Availability {
                problem: problem(
                    WorkerReason::DatasetDownloading,
                    format!("looking at {}", watched.path.display()),
                ),
                ..Availability::default()
            },
        }
    }
}
