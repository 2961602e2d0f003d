//! Follows one dataset: checks where its data is, and sends an event when its state changed. The
//! state itself is in the channels.

use std::{
    fs,
    path::{Path, PathBuf},
};

use neptune_datasets::{CountReport, DatasetError, PathPolicy};
use tokio::{
    sync::{mpsc, watch as latest},
    task::spawn_blocking,
};

use crate::{backoff::RECHECK_INTERVAL, domain::artifact::LocalArtifact, event::AgentEvent};

/// What is at the path; none before the first look.
pub type DataLocation = Option<Result<LocalArtifact, DatasetError>>;

/// Pokes the agent whenever there is news of a dataset, and looks where the data is.
pub struct Follower {
    pub path: PathBuf,
    pub policy: PathPolicy,
    pub reports: Option<latest::Receiver<CountReport>>,
    pub locations: latest::Sender<DataLocation>,
    pub events: mpsc::Sender<AgentEvent>,
}

impl Follower {
    /// Follows it, for ever.
    pub async fn run(mut self) {
        let mut is_changed = false;
        loop {
            let (path, policy) = (self.path.clone(), self.policy.clone());
            let locating = spawn_blocking(move || locate(&path, &policy));
            let location = locating.await.expect("looking at a path does not panic");
            let is_present = location.is_ok();
            is_changed |= self.locations.send_if_modified(|current| {
                let before = current.replace(location);
                before != *current
            });
            if is_changed {
                // The agent is gone only when the process ends.
                let _ = self.events.send(AgentEvent::DatasetChanged).await;
            }
            is_changed = self.changed(is_present).await;
        }
    }

    /// Waits for another report, or until it is time to look for what is not there.
    async fn changed(&mut self, is_present: bool) -> bool {
        tokio::select! {
            is_over = report_or_end(&mut self.reports) => {
                if is_over {
                    self.reports = None;
                }
                true
            }
            () = tokio::time::sleep(RECHECK_INTERVAL), if !is_present => false,
        }
    }
}

/// Resolves when there is a report, or with `true` when there will be none.
async fn report_or_end(reports: &mut Option<latest::Receiver<CountReport>>) -> bool {
    match reports {
        Some(reports) => reports.changed().await.is_err(),
        None => std::future::pending().await,
    }
}

/// What workers would mount: the path to which all links lead, under the name in the spec.
fn locate(path: &Path, policy: &PathPolicy) -> Result<LocalArtifact, DatasetError> {
    let real = policy.resolve(path)?;
    let is_file = fs::metadata(&real).is_ok_and(|found| found.is_file());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(LocalArtifact { path: real, file: name.filter(|_| is_file) })
}
