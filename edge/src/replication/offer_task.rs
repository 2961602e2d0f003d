//! Scans the data of one source when it changes, and offers each generation to the replicas.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_content::Digest;
use neptune_datasets::CountReport;
use neptune_share::replicas::{DatasetSource, FileEnd, Generation, SourceData};
use neptune_wire::{NodeName, ObjectKey};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::event::AgentEvent;

/// Minimum time between two generations.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two scans without a known change.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between two passes over all bytes of the data.
const SCRUB_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause after a scan that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// What a node offers: the source, and its newest generation.
pub type Offered = Option<(Arc<DatasetSource>, Generation)>;

/// Offers the data of one source until it is dropped.
pub struct OfferTask {
    pub key: ObjectKey,
    /// The name of the dataset among peers.
    pub name: Digest,
    pub data: SourceData,
    pub state_dir: PathBuf,
    pub end: FileEnd,
    pub replicas: watch::Receiver<BTreeSet<NodeName>>,
    /// Changes with each change of the data. `None` if it is not counted.
    pub counts: Option<watch::Receiver<CountReport>>,
    pub offered: watch::Sender<Offered>,
    pub events: mpsc::Sender<AgentEvent>,
}

impl OfferTask {
    /// Runs until it is aborted.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn run(mut self) {
        let source = loop {
            match self.open().await {
                Ok(source) => break Arc::new(source),
                Err(error) => self.wait_after(&error).await,
            }
        };
        let mut scrub_at = Instant::now() + SCRUB_INTERVAL;
        loop {
            source.set_replicas(self.replicas.borrow_and_update().clone());
            let is_full = Instant::now() >= scrub_at;
            let scanned = Arc::clone(&source);
            let scan = spawn_blocking(move || scanned.scan(is_full)).await;
            match scan.expect("a scan does not panic") {
                Ok(generation) => self.offer(&source, generation).await,
                Err(error) => {
                    self.wait_after(&error).await;
                    continue;
                }
            }
            if is_full {
                scrub_at = Instant::now() + SCRUB_INTERVAL;
            }
            sleep(MIN_INTERVAL).await;
            // Nothing changed before the end of this time.
            let _ = timeout(POLL_INTERVAL, self.changed()).await;
        }
    }

    async fn open(&self) -> io::Result<DatasetSource> {
        let (data, name) = (self.data.clone(), self.name);
        let (state, end) = (self.state_dir.clone(), self.end);
        let open = spawn_blocking(move || DatasetSource::open(data, name, &state, end));
        open.await.expect("opening does not panic")
    }

    async fn offer(&self, source: &Arc<DatasetSource>, generation: Generation) {
        let is_new = self.offered.send_if_modified(|known| {
            let is_new = known.as_ref().is_none_or(|(_, known)| *known != generation);
            *known = Some((Arc::clone(source), generation));
            is_new
        });
        if is_new {
            info!(dataset = %self.key, generation = generation.number, bytes = generation.bytes, "data offered to replicas");
            // The receiver is dropped only when the process exits.
            let _ = self.events.send(AgentEvent::DatasetChanged).await;
        }
    }

    async fn wait_after(&self, error: &io::Error) {
        warn!(dataset = %self.key, %error, "data cannot be offered to replicas; retrying");
        sleep(RETRY_PAUSE).await;
    }

    /// Resolves when the data or the list of replicas changed.
    async fn changed(&mut self) {
        let counts = async {
            if let Some(counts) = &mut self.counts
                && counts.changed().await.is_ok()
            {
                return;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = counts => {}
            // The sender is dropped together with this task.
            _ = self.replicas.changed() => {}
        }
    }
}
