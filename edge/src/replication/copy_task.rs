//! Keeps one copy equal to its source: asks the source for its newest generation, and syncs. The
//! cloud is not needed for it.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_content::Digest;
use neptune_share::peers::client::{connection::PeerConnection, kept::KeptConnection};
use neptune_share::replicas::{DatasetDescription, Deletions, Replica, ReplicaError, SyncProgress};
use neptune_wire::{ObjectKey, ReplicaDeletions, ReplicaOf};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::spawn_blocking,
    time::interval,
};
use tracing::{debug, info, warn};

use super::copy_state::{CopyFacts, CopyState, SyncOutcome, next_pause, report};
use crate::{event::AgentEvent, peers::PeerService};

/// Interval between two passes over all bytes of the copy.
const SCRUB_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Interval between two reports of the progress of a sync.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps one copy equal to its source until it is dropped.
pub struct CopyTask {
    pub key: ObjectKey,
    /// The name of the dataset among peers.
    pub name: Digest,
    pub source: ReplicaOf,
    pub data: PathBuf,
    pub state_dir: PathBuf,
    /// Bytes of the file system that stay free.
    pub reserve: u64,
    pub peers: PeerService,
    pub state: watch::Sender<CopyState>,
    pub progress: watch::Sender<Arc<SyncProgress>>,
    /// Somebody may have changed the copy.
    pub recheck: Arc<Notify>,
    pub events: mpsc::Sender<AgentEvent>,
}

/// What the task remembers between two turns.
struct Memory {
    replica: Option<Replica>,
    connection: KeptConnection,
    /// Whether files differ from the generation that was copied.
    is_dirty: bool,
    is_recheck_due: bool,
    scrub_at: Instant,
    equal_at: Instant,
    overwritten: u64,
}

impl CopyTask {
    /// Runs until it is aborted.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn run(self) {
        let mut roster = self.peers.roster();
        let now = Instant::now();
        let mut memory = Memory {
            replica: None,
            connection: KeptConnection::default(),
            is_dirty: false,
            is_recheck_due: false,
            scrub_at: now + SCRUB_INTERVAL,
            equal_at: now,
            overwritten: 0,
        };
        let mut pause = Duration::ZERO;
        loop {
            let outcome = self.turn(&mut memory).await;
            if let SyncOutcome::Failed(why) = &outcome {
                warn!(dataset = %self.key, why, "replica cannot be copied");
            }
            let behind = memory.replica.as_ref().map_or(0, |it| it.progress().bytes_behind());
            self.publish(&memory, &outcome, behind).await;
            pause = next_pause(&outcome, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The sender is dropped only when the process exits.
                _ = roster.changed() => memory.connection.close(),
                () = self.recheck.notified() => memory.is_recheck_due = true,
            }
        }
    }

    async fn turn(&self, memory: &mut Memory) -> SyncOutcome {
        if let Err(error) = self.read_copy(memory).await {
            let path = self.data.display();
            return SyncOutcome::Failed(format!("{path}: {error}; check the disk of the node"));
        }
        let described = match self.ask(memory).await {
            Ok(described) => described,
            Err(why) => return SyncOutcome::Unreachable(why),
        };
        self.sync(memory, described).await
    }

    /// Opens the copy, or reads it again if somebody may have changed it.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn read_copy(&self, memory: &mut Memory) -> std::io::Result<()> {
        let is_full = Instant::now() >= memory.scrub_at;
        let is_due = is_full || std::mem::take(&mut memory.is_recheck_due);
        let replica = match memory.replica.take() {
            Some(replica) if !is_due => replica,
            Some(replica) => access(move || replica.reopen(is_full)).await?,
            None => {
                let (data, state, reserve) =
                    (self.data.clone(), self.state_dir.clone(), self.reserve);
                let deletions = match self.source.deletions {
                    ReplicaDeletions::Follow => Deletions::Follow,
                    ReplicaDeletions::Keep => Deletions::Keep,
                };
                access(move || Replica::open(&data, &state, deletions, reserve, is_full)).await?
            }
        };
        if is_full {
            memory.scrub_at = Instant::now() + SCRUB_INTERVAL;
        }
        let changes = replica.local_changes();
        if changes > 0 && !memory.is_dirty {
            warn!(dataset = %self.key, files = changes, "files of the replica were changed; replacing them");
            memory.overwritten += changes as u64;
            memory.is_dirty = true;
        }
        self.progress.send_if_modified(|known| {
            let is_new = !Arc::ptr_eq(known, replica.progress());
            *known = Arc::clone(replica.progress());
            is_new
        });
        memory.replica = Some(replica);
        Ok(())
    }

    /// Asks the source for its newest generation.
    async fn ask(&self, memory: &mut Memory) -> Result<DatasetDescription, String> {
        let node = &self.source.node;
        let key = self.peers.key().ok_or("the node has no key yet")?;
        let peer = self.peers.roster().borrow().get(node).cloned();
        let peer = peer.ok_or_else(|| {
            format!(
                "node {node} is no peer of this node; its agent needs --allow-replicate and --peers-listen"
            )
        })?;
        let text = |error: &dyn std::error::Error| format!("node {node}: {error}");
        let described = memory.connection.describe(key, &peer, &self.name).await;
        let described = described.map_err(|error| text(&error))?;
        let described = described.ok_or_else(|| {
            format!("node {node} does not offer the data; it may be missing there, or be read the first time")
        })?;
        serde_json::from_slice(&described).map_err(|error| text(&error))
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn sync(&self, memory: &mut Memory, described: DatasetDescription) -> SyncOutcome {
        let asked_at = Instant::now();
        let Some(mut replica) = memory.replica.take() else { return SyncOutcome::Behind };
        let is_equal = replica.description() == Some(&described) && !memory.is_dirty;
        let result = if is_equal {
            Ok(false)
        } else if let Some(mut connection) = memory.connection.take() {
            let fetched = self.fetch(memory, &mut replica, &mut connection, &described).await;
            fetched.map(|()| {
                memory.connection.keep(connection);
                true
            })
        } else {
            // The source closed the connection after its answer.
            memory.replica = Some(replica);
            return SyncOutcome::Behind;
        };
        memory.replica = Some(replica);
        match result {
            Ok(is_new) => {
                (memory.equal_at, memory.is_dirty) = (asked_at, false);
                SyncOutcome::Equal { is_new }
            }
            Err(error) if error.is_of_source() => {
                debug!(dataset = %self.key, %error, "sync interrupted");
                SyncOutcome::Behind
            }
            Err(ReplicaError::DiskFull { free, reserve }) => SyncOutcome::Failed(format!(
                "the disk of the node is full: {free} bytes are free, and {reserve} stay free; free some space"
            )),
            Err(error) => SyncOutcome::Failed(error.to_string()),
        }
    }

    async fn fetch(
        &self,
        memory: &Memory,
        replica: &mut Replica,
        connection: &mut PeerConnection,
        described: &DatasetDescription,
    ) -> Result<(), ReplicaError> {
        let progress = Arc::clone(replica.progress());
        let before = replica.description().cloned();
        let mut ticks = interval(PROGRESS_INTERVAL);
        ticks.tick().await;
        let sync = replica.sync(connection, &self.source.node, described);
        tokio::pin!(sync);
        let done = loop {
            tokio::select! {
                done = &mut sync => break done?,
                _ = ticks.tick() => {
                    let behind = progress.bytes_behind();
                    self.publish_as(memory, before.clone(), &SyncOutcome::Behind, behind).await;
                }
            }
        };
        info!(
            dataset = %self.key, generation = done.generation, bytes = done.fetched_bytes,
            blocks = done.fetched_blocks, reused = done.reused_blocks, "replica synced"
        );
        Ok(())
    }

    async fn publish(&self, memory: &Memory, outcome: &SyncOutcome, bytes_behind: u64) {
        let described = memory.replica.as_ref().and_then(Replica::description).cloned();
        self.publish_as(memory, described, outcome, bytes_behind).await;
    }

    async fn publish_as(
        &self,
        memory: &Memory,
        described: Option<DatasetDescription>,
        outcome: &SyncOutcome,
        bytes_behind: u64,
    ) {
        let facts = CopyFacts {
            outcome,
            generation: described.as_ref().map(|it| it.generation),
            bytes_behind,
            since_equal: memory.equal_at.elapsed(),
            overwritten: memory.overwritten,
        };
        let report = Some(report(&facts));
        let is_changed = self.state.send_if_modified(|state| {
            let new = CopyState { described, report };
            let is_changed = *state != new;
            *state = new;
            is_changed
        });
        if is_changed {
            // The receiver is dropped only when the process exits.
            let _ = self.events.send(AgentEvent::DatasetChanged).await;
        }
    }
}

/// Runs blocking file access.
async fn access<T: Send + 'static>(
    task: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    spawn_blocking(task).await.expect("file access does not panic")
}
