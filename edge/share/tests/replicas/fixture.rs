//! A source with its server, a replica, and a link between them that is cut after some bytes.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use neptune_pinned_tls::TlsKey;
use neptune_share::peers::{
    ContentSource, Peer, PeerServer, Roster, bind,
    client::connection::{PeerConnection, PeerError},
};
use neptune_share::replicas::{
    DatasetDescription, DatasetSource, Deletions, FileEnd, Generation, Replica, ReplicaError,
    SourceData, SyncReport,
};
use neptune_transfer::Digest;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

pub struct Fixture {
    pub directory: Arc<TempDir>,
    pub source: Arc<DatasetSource>,
    pub link: Link,
    pub key: TlsKey,
    pub peer: Peer,
    server: JoinHandle<()>,
    _roster: watch::Sender<Roster>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Fixture {
    pub async fn start(end: FileEnd) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let state = directory.path().join("source");
        let files = SourceData::Directory(data);
        let source = DatasetSource::open(files, name(), &state, end).unwrap();
        source.set_replicas(BTreeSet::from(["replica".parse().unwrap()]));
        let source = Arc::new(source);
        let (server_key, key) = (TlsKey::generate(), TlsKey::generate());
        let me = "source".parse().unwrap();
        let replica = Peer {
            node: "replica".parse().unwrap(),
            addresses: Vec::new(),
            pin: key.pin().clone(),
        };
        let (roster, rosters) = watch::channel(Roster::new(&me, [replica]));
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let link = Link::start(listener.local_addr().unwrap()).await;
        let peer = Peer { node: me, addresses: vec![link.address], pin: server_key.pin().clone() };
        let offered: Arc<dyn ContentSource> = Arc::<DatasetSource>::clone(&source);
        let server = PeerServer::new(&server_key, rosters, vec![offered], 1 << 40);
        let server = tokio::spawn(server.run(listener, std::future::pending()));
        let directory = Arc::new(directory);
        Self { directory, source, link, key, peer, server, _roster: roster }
    }

    /// Stops the server, so that another source can use the directory.
    pub async fn stop(mut self) -> Arc<TempDir> {
        self.server.abort();
        let _ = (&mut self.server).await;
        Arc::clone(&self.directory)
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn copy(&self) -> PathBuf {
        self.directory.path().join("copy")
    }

    pub fn replica(&self, deletions: Deletions, is_full: bool) -> Replica {
        let state = self.directory.path().join("replica");
        Replica::open(&self.copy(), &state, deletions, 0, is_full).unwrap()
    }

    pub async fn scan(&self, is_full: bool) -> Generation {
        let source = Arc::clone(&self.source);
        tokio::task::spawn_blocking(move || source.scan(is_full).unwrap()).await.unwrap()
    }

    pub async fn sync(
        &self,
        replica: &mut Replica,
        generation: &Generation,
    ) -> Result<SyncReport, ReplicaError> {
        let mut connection = self.connect().await?;
        let described = DatasetDescription { generation: *generation, file: None };
        replica.sync(&mut connection, &self.peer.node, &described).await
    }

    pub async fn connect(&self) -> Result<PeerConnection, PeerError> {
        PeerConnection::open(&self.key, &self.peer).await
    }

    /// Scans and syncs. Returns what the sync did.
    pub async fn update(&self, replica: &mut Replica) -> SyncReport {
        let generation = self.scan(false).await;
        let report = self.sync(replica, &generation).await.unwrap();
        assert_eq!(replica.root(), generation.root);
        assert_eq!(files(&self.copy()), files(&self.data()));
        let state = files(&self.directory.path().join("replica"));
        assert_eq!(state.len(), 2, "nothing is left but lock and replica.json: {state:?}");
        report
    }
}

/// Returns the digest by which the replicas ask for the dataset.
pub fn name() -> Digest {
    Digest::of_bytes(b"name")
}

/// The files below a directory, with their digests.
pub fn files(directory: &Path) -> BTreeSet<(PathBuf, Digest)> {
    let mut entries = BTreeSet::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let digest = Digest::of_bytes(&std::fs::read(&path).unwrap());
                entries.insert((path.strip_prefix(directory).unwrap().to_owned(), digest));
            }
        }
    }
    entries
}

/// Forwards connections, and counts what the source sends.
pub struct Link {
    pub address: SocketAddr,
    sent: Arc<AtomicU64>,
    /// The connection is cut at this number of bytes.
    cut_at: Arc<AtomicU64>,
    /// The number of connections so far. Those before the second number close at the next answer.
    connections: Arc<AtomicU64>,
    closing: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, cut_at) = (Arc::<AtomicU64>::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let (count, limit) = (Arc::clone(&sent), Arc::clone(&cut_at));
        let (connections, closing) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (opened, ended) = (Arc::clone(&connections), Arc::clone(&closing));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (sent, cut_at) = (Arc::clone(&count), Arc::clone(&limit));
                let number = opened.fetch_add(1, Ordering::Relaxed);
                let closing = Arc::clone(&ended);
                tokio::spawn(async move {
                    let server = TcpStream::connect(to).await.ok()?;
                    // Otherwise each small file waits for a delayed acknowledgement.
                    server.set_nodelay(true).ok()?;
                    client.set_nodelay(true).ok()?;
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let up = tokio::io::copy(&mut from_client, &mut to_server);
                    let down = async {
                        let mut piece = vec![0; 16 * 1024];
                        loop {
                            let read = from_server.read(&mut piece).await.unwrap_or(0);
                            let total = sent.load(Ordering::Relaxed) + read as u64;
                            let is_closing = number < closing.load(Ordering::Relaxed);
                            if read == 0 || is_closing || total > cut_at.load(Ordering::Relaxed) {
                                return;
                            }
                            sent.store(total, Ordering::Relaxed);
                            if to_client.write_all(&piece[..read]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! {
                        _ = up => {}
                        () = down => {}
                    }
                    Some(())
                });
            }
        });
        Self { address, sent, cut_at, connections, closing, task }
    }

    /// Closes the present connections instead of their next answer.
    pub fn close_at_next_answer(&self) {
        self.closing.store(self.connections.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes that arrived, with those of TLS.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Cuts the connection after so many more bytes.
    pub fn cut_after(&self, bytes: u64) {
        self.cut_at.store(self.sent() + bytes, Ordering::Relaxed);
    }

    /// Cuts no connection any more.
    pub fn restore(&self) {
        self.cut_at.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Incompressible bytes, the same for the same seed.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}
