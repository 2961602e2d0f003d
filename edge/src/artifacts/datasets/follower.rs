//! Follows one dataset: locates its data and sends the agent an event when the location or the
//! count changed. The event carries no data; the agent reads the channels.

use std::{
    fs,
    path::{Path, PathBuf},
};

use neptune_agent_core::{backoff::RECHECK_INTERVAL, domain::artifact::LocalArtifact};
use neptune_datasets::{CountReport, DatasetError, PathPolicy};
use tokio::{
    sync::{mpsc, watch as latest},
    task::spawn_blocking,
};

use crate::event::AgentEvent;

/// The result of the last check of the path; `None` before the first check.
pub type DataLocation = Option<Result<LocalArtifact, DatasetError>>;

/// Locates the data of one dataset and sends the agent an event for each change.
pub struct DatasetFollower {
    pub path: PathBuf,
    pub policy: PathPolicy,
    pub reports: Option<latest::Receiver<CountReport>>,
    pub locations: latest::Sender<DataLocation>,
    pub events: mpsc::Sender<AgentEvent>,
}

impl DatasetFollower {
    /// Runs until it is aborted.
    pub async fn run(mut self) {
        let mut is_changed = false;
        loop {
            let (path, policy) = (self.path.clone(), self.policy.clone());
            let check = spawn_blocking(move || locate(&path, &policy));
            let location = check.await.expect("resolving a path does not panic");
            let is_present = location.is_ok();
            is_changed |= self.locations.send_if_modified(|current| {
                let before = current.replace(location);
                before != *current
            });
            if is_changed {
                // The receiver is dropped only when the process exits.
                let _ = self.events.send(AgentEvent::DatasetChanged).await;
            }
            is_changed = self.changed(is_present).await;
        }
    }

    /// Waits for another report, or until missing data is due to be checked again.
    async fn changed(&mut self, is_present: bool) -> bool {
        tokio::select! {
            has_ended = report_or_end(&mut self.reports) => {
                if has_ended {
                    self.reports = None;
                }
                true
            }
            () = tokio::time::sleep(RECHECK_INTERVAL), if !is_present => false,
        }
    }
}

/// Resolves to `false` on a new report, and to `true` when the reports have ended.
async fn report_or_end(reports: &mut Option<latest::Receiver<CountReport>>) -> bool {
    match reports {
        Some(reports) => reports.changed().await.is_err(),
        None => std::future::pending().await,
    }
}

/// What workers mount: the path with all symbolic links resolved, under the file name of the spec.
fn locate(path: &Path, policy: &PathPolicy) -> Result<LocalArtifact, DatasetError> {
    let real = policy.resolve(path)?;
    let is_file = fs::metadata(&real).is_ok_and(|metadata| metadata.is_file());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(LocalArtifact { path: real, file: name.filter(|_| is_file) })
}
