//! Fetches one content from the site: executes the actions of `fetch_state`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{HeaderMap, StatusCode};
use neptune_pinned_tls::TlsKey;
use neptune_program::random::random;
use neptune_transfer::Digest;
use neptune_wire::NodeName;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};

use crate::peers::{
    Peer, Roster,
    client::{
        connection::{PeerConnection, PeerError},
        download::{DownloadError, download},
        partial::{PartialSource, PeerPartial},
        pool::{ConnectionPool, availability},
    },
    fetch_state::{
        Availability, DownloadFailure, FetchAction, FetchState, FetchTimes, OriginReason, PollReply,
    },
    protocol::Route,
    quarantine::Quarantine,
};

/// A content to fetch.
#[derive(Debug, Clone, Copy)]
pub struct FetchRequest<'a> {
    /// SHA-256 digest of the content.
    pub digest: Digest,
    /// The file for what was received, in the file system of `target`. It stays if the origin has to
    /// be used, for the next fetch.
    pub partial: &'a Path,
    /// The file for the complete content.
    pub target: &'a Path,
    /// Bytes that the content may have.
    pub limit: u64,
}

/// The end of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchResult {
    /// Whether and from which node the content came.
    pub outcome: FetchOutcome,
    /// Bytes that peers sent.
    pub received: u64,
    /// Peers that served wrong content. They are left alone now.
    pub wrong: Vec<NodeName>,
}

/// How a fetch from peers ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The target has it, from this peer.
    Stored(NodeName),
    /// The caller has to download it from the origin.
    UseOrigin(OriginReason),
}

/// Fetches contents from the members of the site.
pub struct PeerFetcher {
    me: NodeName,
    key: TlsKey,
    roster: watch::Receiver<Roster>,
    quarantine: Mutex<Quarantine>,
    times: FetchTimes,
    pool: ConnectionPool,
}

impl PeerFetcher {
    /// Returns a fetcher of node `me`.
    pub fn new(
        me: NodeName,
        key: TlsKey,
        roster: watch::Receiver<Roster>,
        times: FetchTimes,
    ) -> Self {
        Self {
            me,
            key,
            roster,
            quarantine: Mutex::default(),
            times,
            pool: ConnectionPool::default(),
        }
    }

    /// Fetches a content. The source of this node's own server has to say `Wanted` before, so that
    /// others see it; otherwise two nodes become owners.
    ///
    /// # Guarantees
    /// - The target exists only with the digest of the request, synced to the disk.
    /// - A peer whose copy does not have the digest is not used again within its quarantine.
    ///
    /// # Errors
    /// The partial file or the target cannot be written.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn fetch(&self, request: FetchRequest<'_>) -> io::Result<FetchResult> {
        let mut state = FetchState::new(request.digest, self.me.clone(), self.times);
        let mut partial = None;
        let (mut received, mut wrong) = (0, Vec::new());
        loop {
            let action = {
                let (roster, quarantine) = (self.roster.borrow(), self.quarantine());
                state.next(roster.nodes(), &quarantine, Instant::now())
            };
            match action {
                FetchAction::Ask(peers) => {
                    let (answers, silent) =
                        self.ask(&peers, request.digest, state.answer_timeout()).await;
                    state.on_answers(&answers, &silent, random(), Instant::now());
                }
                FetchAction::Request(peer) => {
                    let is_accepted = self.request(&peer, request.digest).await;
                    state.on_requested(is_accepted, Instant::now());
                }
                FetchAction::Poll(peer) => {
                    let reply = self.poll(&peer, request.digest, self.times.answer).await;
                    state.on_progress(reply, Instant::now());
                }
                FetchAction::Wait(until) => sleep_until(until.into()).await,
                FetchAction::Download { from, is_single_source } => {
                    let file = match partial.take() {
                        Some(file) => file,
                        None => PeerPartial::open(request.partial).await?,
                    };
                    let attempt = self.attempt(&request, &from, is_single_source, file).await?;
                    received += attempt.received;
                    partial = attempt.partial;
                    if attempt.result == Err(DownloadFailure::WrongContent) {
                        wrong.push(from);
                    }
                    state.on_download(attempt.result, Instant::now());
                }
                FetchAction::Done(from) => {
                    let outcome = FetchOutcome::Stored(from);
                    return Ok(FetchResult { outcome, received, wrong });
                }
                FetchAction::UseOrigin(reason) => {
                    let outcome = FetchOutcome::UseOrigin(reason);
                    return Ok(FetchResult { outcome, received, wrong });
                }
            }
        }
    }

    /// Asks peers at the same time. Returns the answers, and who is reachable and did not answer.
    async fn ask(
        &self,
        peers: &[NodeName],
        digest: Digest,
        wait: Duration,
    ) -> (BTreeMap<NodeName, Availability>, BTreeSet<NodeName>) {
        let replies = join_all(peers.iter().map(|node| self.poll(node, digest, wait))).await;
        let (mut answers, mut silent) = (BTreeMap::new(), BTreeSet::new());
        for (node, reply) in peers.iter().cloned().zip(replies) {
            match reply {
                PollReply::Answered(answer) => drop(answers.insert(node, answer)),
                PollReply::Silent => drop(silent.insert(node)),
                PollReply::Unreachable => {}
            }
        }
        (answers, silent)
    }

    async fn poll(&self, node: &NodeName, digest: Digest, wait: Duration) -> PollReply {
        let answer = self.exchange(node, Route::Head(digest), wait).await;
        match answer.and_then(|(status, headers)| availability(status, &headers)) {
            Ok(answer) => PollReply::Answered(answer),
            Err(PeerError::NoAnswer(_)) => PollReply::Silent,
            Err(error) => {
                tracing::debug!(peer = %node, %error, "peer is not reachable");
                PollReply::Unreachable
            }
        }
    }

    async fn request(&self, node: &NodeName, digest: Digest) -> bool {
        let answer = self.exchange(node, Route::Want(digest), self.times.answer).await;
        answer.is_ok_and(|(status, _)| status == StatusCode::ACCEPTED)
    }

    /// Sends a short request, and waits for its answer.
    async fn exchange(
        &self,
        node: &NodeName,
        route: Route,
        wait: Duration,
    ) -> Result<(StatusCode, HeaderMap), PeerError> {
        let peer = self.peer(node)?;
        timeout(wait, self.pool.exchange(&self.key, &peer, route)).await?
    }

    fn peer(&self, node: &NodeName) -> Result<Peer, PeerError> {
        self.roster.borrow().get(node).cloned().ok_or(PeerError::NoAddress)
    }

    /// Downloads from one peer, and verifies what is complete.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn attempt(
        &self,
        request: &FetchRequest<'_>,
        from: &NodeName,
        is_single_source: bool,
        mut partial: PeerPartial,
    ) -> io::Result<Attempt> {
        let is_own = matches!(&partial.source, PartialSource::One(node) if node == from);
        if is_single_source && !is_own {
            partial.restart().await?;
        }
        let before = partial.file.length();
        let connection = match self.peer(from) {
            Ok(peer) => PeerConnection::open(&self.key, &peer).await,
            Err(error) => Err(error),
        };
        let downloaded = match connection {
            Ok(mut connection) => {
                let digest = &request.digest;
                download(&mut connection, from, digest, &mut partial, request.limit).await
            }
            Err(error) => Err(error.into()),
        };
        let received = partial.file.length() - before;
        if let Err(error) = downloaded {
            tracing::debug!(peer = %from, digest = %request.digest, %error, received, "download ended");
            let failure = failure_of(error, received)?;
            if failure == DownloadFailure::WrongMixture {
                partial.restart().await?;
            }
            return Ok(Attempt { result: Err(failure), received, partial: Some(partial) });
        }
        if partial.file.digest() == request.digest {
            partial.file.adopt(request.target).await?;
            self.quarantine().on_right_content(from, Instant::now());
            return Ok(Attempt { result: Ok(()), received, partial: None });
        }
        let failure = match partial.source {
            // An empty copy is wrong without a byte of it.
            PartialSource::One(_) | PartialSource::Empty => DownloadFailure::WrongContent,
            PartialSource::Several => DownloadFailure::WrongMixture,
        };
        partial.restart().await?;
        if failure == DownloadFailure::WrongContent {
            self.exclude(from, &request.digest, Instant::now()).await;
        }
        Ok(Attempt { result: Err(failure), received, partial: Some(partial) })
    }

    async fn exclude(&self, node: &NodeName, digest: &Digest, now: Instant) {
        let duration = self.quarantine().add(node, now);
        let minutes = duration.as_secs() / 60;
        tracing::warn!(peer = %node, %digest, minutes, "peer served wrong content, not used for now");
        if let Err(error) = self.exchange(node, Route::Scrub(*digest), self.times.answer).await {
            tracing::debug!(peer = %node, %error, "peer did not take the complaint about its copy");
        }
    }

    fn quarantine(&self) -> MutexGuard<'_, Quarantine> {
        // Each change is one step, so a panic of another thread leaves no inconsistent value.
        self.quarantine.lock()
    }
}

/// What one download from a peer achieved.
struct Attempt {
    result: Result<(), DownloadFailure>,
    received: u64,
    partial: Option<PeerPartial>,
}

/// What an error means for the fetch. An error of the file ends it.
fn failure_of(error: DownloadError, received: u64) -> io::Result<DownloadFailure> {
    Ok(match error {
        DownloadError::File(error) => return Err(error),
        // One of the two lengths is wrong.
        DownloadError::LengthDiffers { .. } => DownloadFailure::WrongMixture,
        DownloadError::TooLarge { .. } => DownloadFailure::Unusable,
        DownloadError::Peer(error) => match error {
            PeerError::Busy => DownloadFailure::Busy,
            PeerError::TooSlow(_) => DownloadFailure::TooSlow,
            PeerError::Status(_) | PeerError::Invalid(_) => DownloadFailure::Unusable,
            PeerError::NoAddress
            | PeerError::Connect { .. }
            | PeerError::Http(_)
            | PeerError::NoAnswer(_) => DownloadFailure::Interrupted(received),
        },
    })
}
