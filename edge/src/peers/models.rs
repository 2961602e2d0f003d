//! The contents of the model store: what peers see of them, and how they are fetched from peers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use neptune_content::Digest;
use neptune_pinned_tls::TlsKey;
use neptune_share::peers::{
    ContentEvent, ContentSource, ContentState, ContentTable, FetchOutcome, FetchRequest,
    FetchTimes, PeerFetcher, Roster,
};
use neptune_store::{PeerFetchRequest, StoredContent};
use neptune_wire::NodeName;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, watch};
use tracing::info;

use super::metrics::PeerCounters;

/// Pause from the time when an object names a content to the first question to the peers. The cloud
/// sends an object to all nodes at once; when all of them want the content, they agree on the one
/// that downloads it.
const SETTLE: Duration = Duration::from_millis(400);

/// The contents of models on this node. Only peers that share theirs see them.
pub struct ModelContents {
    sharing: watch::Receiver<Roster>,
    table: ContentTable,
    /// `None` until the node has a key.
    fetcher: OnceLock<PeerFetcher>,
    counters: Arc<PeerCounters>,
    state: Mutex<ContentsState>,
}

/// What decides the entries of the table.
#[derive(Default)]
struct ContentsState {
    /// The downloads that have begun.
    downloads: HashMap<Digest, DownloadPhase>,
    held: HashSet<Digest>,
    /// The peers whose copy was wrong.
    wrong: BTreeMap<Digest, BTreeSet<NodeName>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DownloadPhase {
    /// Peers are asked, or send the content.
    Peers,
    /// The server of its URL is asked, or sends it.
    Origin,
}

impl ModelContents {
    /// `sharing` are the peers that share contents of models.
    pub fn new(
        sharing: watch::Receiver<Roster>,
        counters: Arc<PeerCounters>,
    ) -> (Self, mpsc::Receiver<ContentEvent>) {
        let (table, events) = ContentTable::new();
        let (fetcher, state) = (OnceLock::new(), Mutex::default());
        (Self { sharing, table, fetcher, counters, state }, events)
    }

    /// Begins to fetch with this key.
    pub fn start(&self, node: &NodeName, key: &TlsKey) {
        let (sharing, times) = (self.sharing.clone(), FetchTimes::default());
        let fetcher = PeerFetcher::new(node.clone(), key.clone(), sharing, times);
        // A second key is never passed.
        drop(self.fetcher.set(fetcher));
    }

    /// An object of this node names the content, which is not here.
    pub fn set_wanted(&self, digest: Digest) {
        self.set_phase(digest, DownloadPhase::Peers);
    }

    /// The content is being downloaded. Ignored unless it is from its URL.
    pub fn set_received(&self, digest: Digest, received: u64) {
        let state = self.lock();
        if state.downloads.get(&digest) == Some(&DownloadPhase::Origin) {
            self.table.set_fetching(digest, received);
        }
    }

    /// The content is not downloaded any more: it failed for now, or no object names it.
    pub fn set_ended(&self, digest: Digest) {
        let mut state = self.lock();
        if state.downloads.remove(&digest).is_some() && !state.held.contains(&digest) {
            self.table.remove(&digest);
        }
    }

    /// Sets all contents that are here. Of two calls, the one that lists them last counts.
    ///
    /// # Errors
    /// The error of `list`.
    pub fn set_held<E>(
        &self,
        list: impl FnOnce() -> Result<Vec<StoredContent>, E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        let contents = list()?;
        let held: HashSet<_> = contents.iter().map(|content| content.digest).collect();
        for digest in state.held.iter().filter(|digest| !held.contains(digest)) {
            self.table.remove(digest);
        }
        for StoredContent { digest, path, bytes } in contents {
            state.downloads.remove(&digest);
            self.table.set_held(digest, path, bytes);
        }
        let ContentsState { downloads, wrong, .. } = &mut *state;
        wrong.retain(|digest, _| held.contains(digest) || downloads.contains_key(digest));
        state.held = held;
        Ok(())
    }

    /// The peers that sent other bytes than those of the content, as far as known.
    pub fn wrong_peers(&self, digest: &Digest) -> Vec<NodeName> {
        self.lock().wrong.get(digest).into_iter().flatten().cloned().collect()
    }

    /// Fetches a content from the peers. Returns the one that sent it; `None` if its URL has to be
    /// used.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn fetch(&self, request: PeerFetchRequest) -> io::Result<Option<NodeName>> {
        let PeerFetchRequest { digest, partial, target, limit } = request;
        let has_peers = self.sharing.borrow().nodes().next().is_some();
        let Some(fetcher) = self.fetcher.get().filter(|_| has_peers) else {
            self.set_phase(digest, DownloadPhase::Origin);
            return Ok(None);
        };
        self.set_phase(digest, DownloadPhase::Peers);
        tokio::time::sleep(SETTLE).await;
        let request = FetchRequest { digest, partial: &partial, target: &target, limit };
        let result = fetcher.fetch(request).await?;
        self.counters.on_fetched(result.received, result.wrong.len());
        if !result.wrong.is_empty() {
            self.lock().wrong.entry(digest).or_default().extend(result.wrong);
        }
        match result.outcome {
            FetchOutcome::Stored(peer) => {
                info!(%digest, %peer, received = result.received, "content received from a peer");
                Ok(Some(peer))
            }
            FetchOutcome::UseOrigin(reason) => {
                info!(%digest, ?reason, "content is downloaded from its URL");
                self.set_phase(digest, DownloadPhase::Origin);
                Ok(None)
            }
        }
    }

    fn set_phase(&self, digest: Digest, phase: DownloadPhase) {
        let mut state = self.lock();
        state.downloads.insert(digest, phase);
        if state.held.contains(&digest) {
            return;
        }
        match phase {
            DownloadPhase::Peers => self.table.set_wanted(digest),
            DownloadPhase::Origin => self.table.set_fetching(digest, 0),
        }
    }

    fn is_sharing(&self, peer: &NodeName) -> bool {
        self.sharing.borrow().get(peer).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, ContentsState> {
        // Each change is one step, so a panic of another thread leaves no inconsistent value.
        self.state.lock()
    }
}

impl ContentSource for ModelContents {
    fn find(&self, digest: &Digest, peer: &NodeName) -> ContentState {
        if self.is_sharing(peer) { self.table.find(digest, peer) } else { ContentState::Absent }
    }

    fn request(&self, digest: &Digest, peer: &NodeName) -> bool {
        self.is_sharing(peer) && self.table.request(digest, peer)
    }

    fn scrub(&self, digest: &Digest, peer: &NodeName) {
        if self.is_sharing(peer) {
            self.table.scrub(digest, peer);
        }
    }

    fn on_sent(&self, bytes: u64) {
        self.counters.on_sent_model(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_share::peers::Peer;
    use neptune_wire::KeyPin;

    use super::*;

    fn contents() -> (ModelContents, watch::Sender<Roster>, NodeName) {
        let (roster, sharing) = watch::channel(Roster::default());
        let peer: NodeName = "edge1".parse().unwrap();
        let (contents, _events) = ModelContents::new(sharing, Arc::default());
        let member =
            Peer { node: peer.clone(), addresses: Vec::new(), pin: KeyPin("p".to_owned()) };
        roster.send_replace(Roster::new(&"edge0".parse().unwrap(), [member]));
        (contents, roster, peer)
    }

    fn hold(contents: &ModelContents, digests: &[Digest]) {
        let stored =
            |digest: &Digest| StoredContent { digest: *digest, path: "/models/x".into(), bytes: 1 };
        let list = || Ok::<_, io::Error>(digests.iter().map(stored).collect());
        contents.set_held(list).unwrap();
    }

    #[tokio::test]
    async fn content_is_visible_to_members_while_it_is_wanted_or_held() {
        let (contents, roster, peer) = contents();
        let digest = Digest::of_bytes(b"x");
        let find = || contents.find(&digest, &peer);
        assert_eq!(find(), ContentState::Absent);
        contents.set_wanted(digest);
        assert_eq!(find(), ContentState::Wanted);
        contents.set_received(digest, 5);
        assert_eq!(find(), ContentState::Wanted, "peers send it");
        contents.set_phase(digest, DownloadPhase::Origin);
        contents.set_received(digest, 7);
        assert_eq!(find(), ContentState::Fetching(7));
        contents.set_ended(digest);
        assert_eq!(find(), ContentState::Absent);
        contents.set_received(digest, 9);
        assert_eq!(find(), ContentState::Absent, "a late report");

        contents.set_wanted(digest);
        hold(&contents, &[digest]);
        assert!(matches!(find(), ContentState::Held(_)));
        contents.set_wanted(digest);
        contents.set_ended(digest);
        assert!(matches!(find(), ContentState::Held(_)), "another form of it was wanted");
        roster.send_replace(Roster::default());
        assert_eq!(find(), ContentState::Absent);
        assert!(!contents.request(&digest, &peer));
    }

    #[test]
    fn removed_content_is_not_offered() {
        let (contents, _roster, peer) = contents();
        let (kept, gone) = (Digest::of_bytes(b"x"), Digest::of_bytes(b"y"));
        hold(&contents, &[kept, gone]);
        hold(&contents, &[kept]);
        assert!(matches!(contents.find(&kept, &peer), ContentState::Held(_)));
        assert_eq!(contents.find(&gone, &peer), ContentState::Absent);
    }

    #[tokio::test]
    async fn url_is_used_at_once_without_a_key_or_a_peer() {
        let (contents, _roster, peer) = contents();
        let digest = Digest::of_bytes(b"x");
        let request = PeerFetchRequest {
            digest,
            partial: "/nowhere/peer".into(),
            target: "/nowhere/peer-complete".into(),
            limit: 1,
        };
        assert_eq!(contents.fetch(request).await.unwrap(), None);
        assert_eq!(contents.find(&digest, &peer), ContentState::Fetching(0));
    }
}
