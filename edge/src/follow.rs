//! Follows one dataset: looks where its data is, and pokes the agent when there is news of it. What the
//! news is, is left in the channels.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_datasets::{CountReport, DatasetError, PathPolicy};
use tokio::{
    sync::{mpsc, watch as latest},
    task::spawn_blocking,
};

use crate::{agent::Event, edition::Supplied};

/// Between looks for data that is not there.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// What is at the path; none before the first look.
pub type Place = Option<Result<Supplied, DatasetError>>;

/// Pokes the agent whenever there is news of a dataset, and looks where the data is.
pub struct Follower {
    pub path: PathBuf,
    pub policy: PathPolicy,
    pub reports: Option<latest::Receiver<CountReport>>,
    pub places: latest::Sender<Place>,
    pub events: mpsc::Sender<Event>,
}

impl Follower {
    /// Follows it, for ever.
    pub async fn run(mut self) {
        let mut is_news = false;
        loop {
            let (path, policy) = (self.path.clone(), self.policy.clone());
            let looking = spawn_blocking(move || look(&path, &policy));
            let place = looking.await.expect("looking at a path does not panic");
            let is_there = place.is_ok();
            is_news |= self.places.send_if_modified(|held| {
                let before = held.replace(place);
                before != *held
            });
            if is_news {
                // The agent is gone only when the process ends.
                let _ = self.events.send(Event::Dataset).await;
            }
            is_news = self.news(is_there).await;
        }
    }

    /// Waits for another report, or until it is time to look for what is not there.
    async fn news(&mut self, is_there: bool) -> bool {
        tokio::select! {
            is_over = over(&mut self.reports) => {
                if is_over {
                    self.reports = None;
                }
                true
            }
            () = tokio::time::sleep(LOOK_AGAIN), if !is_there => false,
        }
    }
}

/// Resolves when there is a report, or with `true` when there will be none.
async fn over(reports: &mut Option<latest::Receiver<CountReport>>) -> bool {
    match reports {
        Some(reports) => reports.changed().await.is_err(),
        None => std::future::pending().await,
    }
}

/// What workers would mount: the place to which all links lead, under the name in the spec.
fn look(path: &Path, policy: &PathPolicy) -> Result<Supplied, DatasetError> {
    let real = policy.resolve(path)?;
    let is_file = fs::metadata(&real).is_ok_and(|found| found.is_file());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Supplied { path: real, file: name.filter(|_| is_file) })
}
