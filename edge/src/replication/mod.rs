//! Copies of datasets: offers the data of this node to its replicas, and keeps the copies of other
//! nodes' data. Blocks and manifests are left to `neptune-share`, connections to `peers`.

mod copy_state;
mod copy_task;
mod directories;
mod metrics;
mod offer_task;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use neptune_content::Digest;
use neptune_datasets::CountReport;
use neptune_share::peers::ContentSource;
use neptune_share::replicas::{FileEnd, SourceData};
use neptune_sources::DatasetFormat;
use neptune_wire::{DatasetReport, NodeName, ObjectKey, ReplicaOf, ReplicaReport, ReplicaState};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::AbortHandle,
};

pub use self::metrics::ReplicaMetrics;
use neptune_agent_core::{
    desired::dataset::{DataSource, WantedDataset},
    domain::artifact::LocalArtifact,
};

use self::{
    copy_state::{CopyState, wire_generation},
    copy_task::CopyTask,
    directories::ReplicationDirs,
    metrics::CopyView,
    offer_task::{OfferTask, Offered},
};
use crate::{event::AgentEvent, peers::PeerService};

/// The settings of replication.
#[derive(Clone)]
pub struct ReplicationSettings {
    pub data_dir: PathBuf,
    /// Bytes of the file system that copies leave free.
    pub reserve: u64,
    /// Whether the data of this node may be copied to other nodes.
    pub is_allowed: bool,
    /// `None`: this node exchanges nothing with others.
    pub peers: Option<PeerService>,
    pub metrics: Arc<ReplicaMetrics>,
}

/// The datasets that this node offers, and the copies that it keeps.
pub struct Replication {
    settings: ReplicationSettings,
    dirs: ReplicationDirs,
    events: mpsc::Sender<AgentEvent>,
    offers: BTreeMap<ObjectKey, Offer>,
    copies: BTreeMap<ObjectKey, Copy>,
}

/// A source of this node.
struct Offer {
    uid: String,
    data: SourceData,
    end: FileEnd,
    replicas: watch::Sender<BTreeSet<NodeName>>,
    offered: watch::Receiver<Offered>,
    /// Whether peers see it.
    is_shared: bool,
    task: AbortHandle,
}

/// A copy on this node.
struct Copy {
    uid: String,
    source: ReplicaOf,
    view: CopyView,
    recheck: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // The library keeps the directory locked until file access that has begun has ended.
        self.task.abort();
    }
}

impl Replication {
    pub fn new(settings: ReplicationSettings, events: mpsc::Sender<AgentEvent>) -> Self {
        let dirs = ReplicationDirs::new(&settings.data_dir);
        Self { settings, dirs, events, offers: BTreeMap::new(), copies: BTreeMap::new() }
    }

    /// Sets the datasets of the node. Starts the copies, and stops what is not wanted any more.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedDataset>) {
        let stopped: Vec<_> = self
            .offers
            .iter()
            .filter(|(key, offer)| {
                let wanted = wanted.get(*key).filter(|wanted| !wanted.replicas.is_empty());
                wanted.is_none_or(|wanted| wanted.uid != offer.uid)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in stopped {
            self.stop_offer(&key);
        }
        self.copies.retain(|key, copy| {
            let wanted = wanted.get(key);
            wanted.is_some_and(|it| it.uid == copy.uid && source_of(it) == Some(&copy.source))
        });
        for (key, wanted) in wanted {
            if let (Some(source), Some(peers)) = (source_of(wanted), &self.settings.peers)
                && !self.copies.contains_key(key)
            {
                let copy = self.start_copy(key, &wanted.uid, source.clone(), peers.clone());
                self.copies.insert(key.clone(), copy);
            }
        }
        let views = self.copies.iter().map(|(key, copy)| (key.clone(), copy.view.clone()));
        self.settings.metrics.set(views.collect());
    }

    /// Offers data that is on this node, or stops to offer it. `counts` change with the data.
    pub fn set_data(
        &mut self,
        key: &ObjectKey,
        wanted: &WantedDataset,
        data: Option<&LocalArtifact>,
        counts: Option<&watch::Receiver<CountReport>>,
    ) {
        let is_offered = self.settings.is_allowed && !wanted.replicas.is_empty();
        let data = data.filter(|_| is_offered).and_then(source_data);
        let Some(data) = data else {
            self.stop_offer(key);
            return;
        };
        let end = file_end(wanted);
        let is_same = |offer: &Offer| offer.data == data && offer.end == end;
        if !self.offers.get(key).is_some_and(is_same) {
            self.stop_offer(key);
            let offer = self.start_offer(key, wanted, data, counts.cloned());
            self.offers.insert(key.clone(), offer);
        }
        let Some(offer) = self.offers.get_mut(key) else { return };
        offer.replicas.send_if_modified(|known| {
            let is_new = *known != wanted.replicas;
            known.clone_from(&wanted.replicas);
            is_new
        });
        if let (false, Some((source, _))) = (offer.is_shared, &*offer.offered.borrow())
            && let Some(peers) = &self.settings.peers
        {
            let source: Arc<dyn ContentSource> = Arc::clone(source) as _;
            peers.datasets().insert(key.clone(), source);
            offer.is_shared = true;
        }
    }

    /// The path of a complete copy: a directory, or its only file.
    pub fn location(&self, key: &ObjectKey) -> Option<PathBuf> {
        let copy = self.copies.get(key)?;
        let state = copy.view.state.borrow();
        let described = state.described.as_ref()?;
        let root = self.dirs.copy(&copy.uid);
        Some(described.file.as_ref().map_or(root.clone(), |file| file.below(&root)))
    }

    /// The directory that has the copy of a dataset.
    pub fn directory(&self, uid: &str) -> PathBuf {
        self.dirs.copy(uid)
    }

    /// The count of a copy changed, which may be by somebody else than its task.
    pub fn recheck(&self, key: &ObjectKey) {
        if let Some(copy) = self.copies.get(key) {
            copy.recheck.notify_one();
        }
    }

    /// Adds the states of source and copy to a report.
    pub fn add_to(&self, key: &ObjectKey, wanted: &WantedDataset, report: &mut DatasetReport) {
        let offered = self.offers.get(key).and_then(|offer| offer.offered.borrow().clone());
        report.generation = offered.map(|(_, generation)| wire_generation(&generation));
        report.replica = source_of(wanted).map(|source| Box::new(self.replica_report(key, source)));
    }

    fn replica_report(&self, key: &ObjectKey, source: &ReplicaOf) -> ReplicaReport {
        let copy = self.copies.get(key);
        let reported = copy.and_then(|copy| copy.view.state.borrow().report.clone());
        reported.unwrap_or_else(|| {
            let (state, message) = match copy {
                Some(_) => (ReplicaState::Syncing, format!("connecting to node {}", source.node)),
                None => (
                    ReplicaState::Failed,
                    "the agent does not connect to other nodes; start it with --peers".to_owned(),
                ),
            };
            let (generation, bytes_behind, seconds, overwritten) = (None, 0, 0, 0);
            ReplicaReport { state, generation, bytes_behind, seconds, overwritten, message }
        })
    }

    /// Removes the directories that no dataset needs, unless a container mounts them.
    pub fn gc(&self, wanted: &BTreeMap<ObjectKey, WantedDataset>, mounts: &[&str]) {
        let uids = |is_kept: fn(&WantedDataset) -> bool| {
            let kept = wanted.values().filter(|wanted| is_kept(wanted));
            kept.map(|wanted| wanted.uid.clone()).collect::<BTreeSet<_>>()
        };
        let copies = uids(|wanted| source_of(wanted).is_some());
        let sources = uids(|wanted| !wanted.replicas.is_empty());
        self.dirs.gc(&copies, &sources, mounts);
    }

    fn start_offer(
        &self,
        key: &ObjectKey,
        wanted: &WantedDataset,
        data: SourceData,
        counts: Option<watch::Receiver<CountReport>>,
    ) -> Offer {
        let (replicas, names) = watch::channel(wanted.replicas.clone());
        let (sender, offered) = watch::channel(None);
        let task = OfferTask {
            key: key.clone(),
            name: name(&wanted.uid),
            data: data.clone(),
            state_dir: self.dirs.source_state(&wanted.uid),
            end: file_end(wanted),
            replicas: names,
            counts,
            offered: sender,
            events: self.events.clone(),
        };
        let task = tokio::spawn(task.run()).abort_handle();
        let (uid, end) = (wanted.uid.clone(), file_end(wanted));
        Offer { uid, data, end, replicas, offered, is_shared: false, task }
    }

    fn stop_offer(&mut self, key: &ObjectKey) {
        if self.offers.remove(key).is_some()
            && let Some(peers) = &self.settings.peers
        {
            peers.datasets().remove(key);
        }
    }

    fn start_copy(
        &self,
        key: &ObjectKey,
        uid: &str,
        source: ReplicaOf,
        peers: PeerService,
    ) -> Copy {
        let (sender, state) = watch::channel(CopyState::default());
        let (progress, counters) = watch::channel(Arc::default());
        let recheck = Arc::<Notify>::default();
        let task = CopyTask {
            key: key.clone(),
            name: name(uid),
            source: source.clone(),
            data: self.dirs.copy(uid),
            state_dir: self.dirs.copy_state(uid),
            reserve: self.settings.reserve,
            peers,
            state: sender,
            progress,
            recheck: Arc::clone(&recheck),
            events: self.events.clone(),
        };
        let task = tokio::spawn(task.run()).abort_handle();
        let view = CopyView { state, progress: counters };
        Copy { uid: uid.to_owned(), source, view, recheck, task }
    }
}

/// Returns the source of a copy; `None` if the dataset is not one.
fn source_of(wanted: &WantedDataset) -> Option<&ReplicaOf> {
    match &wanted.source {
        Ok(DataSource::Replica(source)) => Some(source),
        _ => None,
    }
}

/// The name of a dataset among peers.
fn name(uid: &str) -> Digest {
    Digest::of_bytes(uid.as_bytes())
}

/// Returns what a node offers of a dataset; `None` for a file whose name cannot be replicated.
fn source_data(data: &LocalArtifact) -> Option<SourceData> {
    let Some(file) = &data.file else { return Some(SourceData::Directory(data.path.clone())) };
    Some(SourceData::File(data.path.clone(), file.parse().ok()?))
}

/// Returns where content ends. Formats with a record per line end at a line, so that no replica has
/// a part of a record.
fn file_end(wanted: &WantedDataset) -> FileEnd {
    match &wanted.counting {
        Ok((DatasetFormat::Csv | DatasetFormat::Txt | DatasetFormat::Jsonl, _)) => {
            FileEnd::LastLine
        }
        _ => FileEnd::Whole,
    }
}
