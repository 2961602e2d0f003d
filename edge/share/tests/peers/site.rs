//! Members of a site, each with a server, a fetcher and a directory. They do what an agent does with
//! a model: ask the peers, then use the origin.

use std::{path::PathBuf, sync::Arc, time::Duration};

use neptune_pinned_tls::TlsKey;
use neptune_share::peers::{
    ContentSource, ContentTable, FetchOutcome, FetchRequest, FetchResult, FetchTimes, Peer,
    PeerFetcher, PeerServer, Roster, bind, limits::DEFAULT_RATE,
};
use neptune_transfer::Digest;
use neptune_wire::NodeName;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, sync::watch, task::JoinHandle};

use crate::origin::Origin;

/// The times of a fetch, 20 times as fast.
pub const TIMES: FetchTimes = FetchTimes {
    // All members share one machine.
    answer: Duration::from_secs(5),
    poll: Duration::from_millis(100),
    no_progress: Duration::from_secs(1),
    busy: Duration::from_secs(30),
    busy_pause: Duration::from_millis(50),
};

pub struct Member {
    pub node: NodeName,
    pub key: TlsKey,
    pub peer: Peer,
    pub table: Arc<ContentTable>,
    pub fetcher: PeerFetcher,
    pub roster: watch::Sender<Roster>,
    pub directory: TempDir,
    pub events: tokio::sync::Mutex<tokio::sync::mpsc::Receiver<neptune_share::peers::ContentEvent>>,
    server: JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Member {
    pub fn start(name: &str, rate: u64) -> Self {
        Self::with(name, rate, TIMES)
    }

    fn with(name: &str, rate: u64, times: FetchTimes) -> Self {
        let node: NodeName = name.parse().unwrap();
        let key = TlsKey::generate();
        let (table, events) = ContentTable::new();
        let table = Arc::new(table);
        let (roster, rosters) = watch::channel(Roster::default());
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = vec![listener.local_addr().unwrap()];
        let peer = Peer { node: node.clone(), addresses, pin: key.pin().clone() };
        let source: Arc<dyn ContentSource> = Arc::<ContentTable>::clone(&table);
        let server = PeerServer::new(&key, rosters.clone(), vec![source], rate);
        let server = tokio::spawn(server.run(listener, std::future::pending()));
        let fetcher = PeerFetcher::new(node.clone(), key.clone(), rosters, times);
        let directory = tempfile::tempdir().unwrap();
        let events = tokio::sync::Mutex::new(events);
        Self { node, key, peer, table, fetcher, roster, directory, events, server }
    }

    /// Ends the server and its connections.
    pub fn kill(&self) {
        self.server.abort();
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.path().join(digest.to_string())
    }

    pub fn partial(&self, digest: &Digest) -> PathBuf {
        self.directory.path().join(format!("{digest}.partial"))
    }

    /// Puts a file there, and offers it under this digest, which may be wrong.
    pub fn hold(&self, digest: Digest, content: &[u8]) {
        std::fs::write(self.path(&digest), content).unwrap();
        self.table.set_held(digest, self.path(&digest), content.len() as u64);
    }

    pub async fn fetch(&self, digest: Digest) -> FetchResult {
        let (partial, target) = (self.partial(&digest), self.path(&digest));
        let request = FetchRequest { digest, partial: &partial, target: &target, limit: 1 << 40 };
        self.fetcher.fetch(request).await.unwrap()
    }

    /// Gets the content from the site or from the origin.
    pub async fn obtain(&self, origin: &Origin) -> FetchOutcome {
        let digest = origin.digest;
        self.table.set_wanted(digest);
        let outcome = self.fetch(digest).await.outcome;
        if matches!(outcome, FetchOutcome::UseOrigin(_)) {
            self.download(origin).await;
        }
        self.table.set_held(digest, self.path(&digest), origin.bytes);
        outcome
    }

    async fn download(&self, origin: &Origin) {
        let digest = origin.digest;
        self.table.set_fetching(digest, 0);
        let mut stream = origin.connect(0).await.unwrap();
        let mut file = tokio::fs::File::create(self.partial(&digest)).await.unwrap();
        let (mut received, mut piece) = (0, vec![0; 64 * 1024]);
        while received < origin.bytes {
            let read = stream.read(&mut piece).await.unwrap();
            assert_ne!(read, 0, "the origin ended early");
            file.write_all(&piece[..read]).await.unwrap();
            received += read as u64;
            self.table.set_fetching(digest, received);
        }
        file.flush().await.unwrap();
        std::fs::rename(self.partial(&digest), self.path(&digest)).unwrap();
    }

    /// Asserts that the file has its digest.
    pub fn assert_has(&self, digest: &Digest) {
        let content = std::fs::read(self.path(digest)).unwrap();
        assert_eq!(Digest::of_bytes(&content), *digest, "{}", self.node);
    }
}

/// Members that know each other.
pub fn site(count: usize) -> Vec<Arc<Member>> {
    site_with(count, TIMES)
}

/// Members that know each other, with these times.
pub fn site_with(count: usize, times: FetchTimes) -> Vec<Arc<Member>> {
    let members = 0..count;
    let members = members.map(|it| Member::with(&format!("edge{it}"), DEFAULT_RATE, times));
    let members: Vec<_> = members.map(Arc::new).collect();
    introduce(&members);
    members
}

/// Gives each of the members the roster of all.
pub fn introduce(members: &[Arc<Member>]) {
    for member in members {
        let peers = members.iter().map(|it| it.peer.clone());
        member.roster.send_replace(Roster::new(&member.node, peers));
    }
}
