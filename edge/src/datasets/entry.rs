//! One dataset of the node: its watch, what was counted, and how it fares for workers.

use std::{path::PathBuf, time::Instant};

use jiff::Timestamp;
use neptune_datasets::{DatasetSpec, Pace, Policy, Report, State, Tally, watch};
use neptune_wire::{
    DatasetCounts, DatasetReason, DatasetReport, DatasetState, ObjectKey, WorkerReason,
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, watch as latest},
    task::AbortHandle,
};
use tracing::{info, warn};

use crate::{
    agent::Event,
    dataset::{DataSource, Trouble, WantedDataset, remark, said, status, told},
    depot::Depot,
    follow::{Follower, Place},
    serving::Supply,
    supplies::Availability,
    track::Problem,
};

/// What is kept of a dataset on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// What the next count goes on from.
    state: Option<State>,
    /// When the data was seen to have changed.
    changed_at: String,
    /// By all watches of the object before.
    bytes_read: u64,
}

pub(super) struct Entry {
    pub(super) wanted: WantedDataset,
    /// Of the watches before this one.
    pub(super) memory: Memory,
    pub(super) watching: Option<Watched>,
    /// The last count, and when it was seen to be another one than before.
    counted: Option<(Tally, String)>,
    pub(super) status: DatasetReport,
    pub(super) is_kept: bool,
    pub(super) kept_at: Option<Instant>,
}

/// Data that is on the node, or may come there.
pub(super) struct Watched {
    pub(super) path: PathBuf,
    place: latest::Receiver<Place>,
    /// None where it cannot be counted.
    reports: Option<latest::Receiver<Report>>,
    /// The directories in which it may be.
    policy: Policy,
    follower: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        // With it goes the last receiver but ours, and the count ends.
        self.follower.abort();
    }
}

impl Entry {
    pub(super) fn new(wanted: &WantedDataset, memory: Memory) -> Self {
        let nothing = (DatasetState::Counting, None);
        let status = status(wanted, nothing, String::new(), None, memory.bytes_read);
        Self {
            wanted: wanted.clone(),
            memory,
            watching: None,
            counted: None,
            status,
            is_kept: true,
            kept_at: None,
        }
    }

    pub(super) fn begin(
        &mut self,
        key: &ObjectKey,
        path: PathBuf,
        policy: Policy,
        events: mpsc::Sender<Event>,
    ) {
        let initial = self.memory.state.take();
        let spec = self.wanted.counting.as_ref().ok().map(|(format, options)| DatasetSpec {
            path: path.clone(),
            format: *format,
            options: options.clone(),
        });
        // What is stored of this very data was found then. The watch is not asked for it: it may have counted by
        // then, and what it found has no time yet.
        let known =
            initial.as_ref().filter(|state| spec.as_ref().is_some_and(|of| state.is_of(of)));
        let changed_at = &self.memory.changed_at;
        self.counted = known.map(|state| (state.tally().clone(), changed_at.clone()));
        let reports = spec.map(|spec| {
            info!(dataset = %key, path = %path.display(), format = %spec.format, "dataset is watched");
            watch(spec, policy.clone(), Pace::default(), initial)
        });
        let (places, place) = latest::channel(None);
        let follower = Follower {
            path: path.clone(),
            policy: policy.clone(),
            reports: reports.clone(),
            places,
            events,
        };
        let follower = tokio::spawn(follower.run()).abort_handle();
        self.watching = Some(Watched { path, place, reports, policy, follower });
    }

    /// Ends the watch. What it found is remembered.
    pub(super) fn forget_watch(&mut self) {
        self.memory = self.to_keep();
        self.watching = None;
        self.counted = None;
    }

    fn report(&self) -> Option<Report> {
        let reports = self.watching.as_ref()?.reports.as_ref()?;
        Some(reports.borrow().clone())
    }

    fn bytes_read(&self, report: Option<&Report>) -> u64 {
        self.memory.bytes_read.saturating_add(report.map_or(0, |report| report.bytes_read))
    }

    pub(super) fn to_keep(&self) -> Memory {
        let report = self.report();
        let state = report.as_ref().and_then(|report| report.state.as_deref().cloned());
        Memory {
            state: state.or_else(|| self.memory.state.clone()),
            changed_at: self
                .counted
                .as_ref()
                .map_or_else(|| self.memory.changed_at.clone(), |(_, at)| at.clone()),
            bytes_read: self.bytes_read(report.as_ref()),
        }
    }

    /// Takes note of the newest report.
    pub(super) fn look(&mut self, key: &ObjectKey, depot: &Depot) {
        let report = self.report();
        if let Some(tally) = report.as_ref().and_then(|report| report.tally.as_ref())
            && self.counted.as_ref().map(|(tally, _)| tally) != Some(tally)
        {
            self.counted = Some((tally.clone(), format!("{:.0}", Timestamp::now())));
            self.is_kept = false;
        }
        let (state, trouble) = self.judge(report.as_ref(), depot);
        let reason = trouble.as_ref().map(|trouble| trouble.reason);
        if (state, reason) != (self.status.state, self.known_reason()) {
            let why = trouble.as_ref().map(|trouble| &*trouble.message);
            if state == DatasetState::Failed {
                warn!(dataset = %key, ?reason, why, "dataset is not counted");
            } else {
                info!(dataset = %key, ?state, ?reason, why, "dataset");
            }
        }
        let remark = report.as_ref().map(remark).unwrap_or_default();
        let tally: Option<DatasetCounts> = self.counted.as_ref().map(|(tally, at)| told(tally, at));
        let bytes_read = self.bytes_read(report.as_ref());
        self.status = status(&self.wanted, (state, trouble), remark, tally, bytes_read);
    }

    /// Less what stands there for want of another.
    fn known_reason(&self) -> Option<DatasetReason> {
        self.status.reason.filter(|reason| *reason != DatasetReason::Counting)
    }

    fn judge(&self, report: Option<&Report>, depot: &Depot) -> (DatasetState, Option<Trouble>) {
        let failed = |trouble: &Trouble| (DatasetState::Failed, Some(trouble.clone()));
        if let Err(trouble) = &self.wanted.source {
            return failed(trouble);
        }
        if let Err(trouble) = &self.wanted.counting {
            return failed(trouble);
        }
        match (report, &self.watching) {
            (Some(report), Some(watched)) => said(report, &watched.policy.allowed_roots),
            _ => self.coming(depot),
        }
    }

    /// Data that is not on the node yet.
    fn coming(&self, depot: &Depot) -> (DatasetState, Option<Trouble>) {
        let Ok(DataSource::Remote(source)) = &self.wanted.source else {
            return (DatasetState::Counting, None);
        };
        let unavailable =
            |message: String| Some(Trouble::new(DatasetReason::DatasetUnavailable, message));
        match depot.supply(source) {
            Supply::Ready => (DatasetState::Counting, None),
            Supply::Coming { trouble: None, .. } => {
                let from = source.want().map(|want| want.printable()).unwrap_or_default();
                let message = format!("it is being downloaded from {from}");
                let trouble = Trouble::new(DatasetReason::DatasetDownloading, message);
                (DatasetState::Counting, Some(trouble))
            }
            Supply::Coming { trouble: Some(trouble), .. } => {
                (DatasetState::Counting, unavailable(trouble.message))
            }
            Supply::Stuck { problem, .. } => (DatasetState::Failed, unavailable(problem.message)),
        }
    }

    /// The data for workers: also what cannot be counted may be mounted.
    pub(super) fn view(&self, key: &ObjectKey, depot: &Depot) -> Availability {
        let problem = |reason, message: String| {
            Some(Problem { reason, message: format!("{key}: {message}") })
        };
        let stuck = |trouble: &Trouble| Availability {
            problem: problem(WorkerReason::DatasetUnavailable, trouble.message.clone()),
            is_stuck: true,
            ..Availability::default()
        };
        if let Err(trouble) = &self.wanted.source {
            return stuck(trouble);
        }
        let Some(watched) = &self.watching else {
            let (state, trouble) = self.coming(depot);
            return match trouble {
                Some(trouble) if state == DatasetState::Failed => stuck(&trouble),
                trouble => Availability {
                    problem: problem(
                        WorkerReason::DatasetDownloading,
                        trouble.map_or_else(String::new, |trouble| trouble.message),
                    ),
                    ..Availability::default()
                },
            };
        };
        match &*watched.place.borrow() {
            Some(Ok(supplied)) => {
                // A file of the store has no name of its own there.
                let supplied = match &self.wanted.source {
                    Ok(DataSource::Remote(source)) => depot.supplied(source).cloned(),
                    Ok(DataSource::Local(_)) | Err(_) => Some(supplied.clone()),
                };
                Availability { usable: supplied, ..Availability::default() }
            }
            Some(Err(error)) => stuck(&Trouble::of(error, &watched.policy.allowed_roots)),
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
