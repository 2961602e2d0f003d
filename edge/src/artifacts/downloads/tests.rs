//! Downloads with a file system that hangs, and with windows.
#![allow(clippy::unwrap_used, clippy::panic)]
use std::{collections::BTreeSet, sync::mpsc as std_mpsc, thread, time::Duration};

use neptune_agent_core::downloads::{DownloadGate, WindowState};
use neptune_store::StorePolicy;
use neptune_wire::WorkerReason;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::fixtures::HungDir;

#[test]
fn hung_file_system_does_not_block_the_loop() {
    let Some(hung) = HungDir::mount() else {
        eprintln!("skipped: cannot mount a file system");
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let policy = StorePolicy { file_roots: vec![hung.dir.path().into()], ..StorePolicy::default() };
    let store = ModelStore::open(data.path(), policy).unwrap();
    let url = format!("file://{}/m", hung.dir.path().display());
    let (done, is_done) = std_mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap();
        let state = runtime.block_on(async {
            let (events, _events) = mpsc::channel(1);
            let mut downloads = Downloads::new(store, events, 0, (None, DownloadGate::Open));
            let source = ArtifactSource { namespace: "d".parse().unwrap(), url, sha256: None };
            downloads.set_sources(&[source.clone()].into(), Mirrors::new());
            // The task of the download has started.
            tokio::time::sleep(Duration::from_millis(50)).await;
            downloads.state(&source)
        });
        done.send(state).unwrap();
        runtime.shutdown_background();
    });
    let state = is_done.recv_timeout(Duration::from_secs(5));
    drop(hung);
    let state = state.expect("the loop is blocked");
    assert!(matches!(state, DownloadState::Downloading { problem: None, .. }), "{state:?}");
}

/// A server of one file that sends half of the first response, and then nothing.
struct HalfServer {
    url: String,
    /// The first byte of each request.
    requested: mpsc::UnboundedReceiver<usize>,
}

const BYTES: usize = 6 << 20;

impl HalfServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/m", listener.local_addr().unwrap());
        let (sender, requested) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut is_first = true;
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, is_first, sender.clone()));
                is_first = false;
            }
        });
        Self { url, requested }
    }
}

async fn serve(
    mut stream: TcpStream,
    is_first: bool,
    requested: mpsc::UnboundedSender<usize>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let from: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    requested.send(from).ok()?;
    let (status, left) = (if from > 0 { 206 } else { 200 }, BYTES - from);
    let head = format!(
        "HTTP/1.1 {status} X\r\netag: \"1\"\r\ncontent-length: {left}\r\ncontent-range: bytes {from}-{}/{BYTES}\r\n\r\n",
        BYTES - 1
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&vec![7; if is_first { BYTES / 2 } else { left }]).await.ok()?;
    std::future::pending().await
}

fn store(dir: &Path) -> ModelStore {
    let policy = StorePolicy {
        allowed_addresses: vec!["127.0.0.1".parse().unwrap()],
        reserve_bytes: 0,
        ..StorePolicy::default()
    };
    ModelStore::open(dir, policy).unwrap()
}

fn closed(urgent: &[&ArtifactSource]) -> DownloadGate {
    let urgent = || urgent.iter().map(|source| (*source).clone()).collect();
    DownloadGate::new(WindowState::Closed { opens: (1, 0) }, urgent)
}

fn open() -> DownloadGate {
    DownloadGate::new(WindowState::Open, BTreeSet::new)
}

fn problem_of(downloads: &Downloads, source: &ArtifactSource) -> Option<WorkerReason> {
    match downloads.state(source) {
        DownloadState::Downloading { problem, .. } => problem.map(|problem| problem.reason),
        state => panic!("{state:?}"),
    }
}

/// Handles the events of the tasks until `is_reached`.
async fn until(
    downloads: &mut Downloads,
    events: &mut mpsc::Receiver<AgentEvent>,
    is_reached: impl Fn(&Downloads) -> bool,
) {
    let reached = async {
        while !is_reached(downloads) {
            let Some(AgentEvent::Download { source, event }) = events.recv().await else {
                panic!("another event");
            };
            downloads.on_event(&source, event);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached).await.unwrap();
}

#[tokio::test]
async fn download_stops_at_the_end_of_its_window_and_continues_in_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = HalfServer::start().await;
    let namespace = "d".parse().unwrap();
    let source = ArtifactSource { namespace, url: server.url.clone(), sha256: None };
    let (sender, mut events) = mpsc::channel(16);
    let gate = (None, DownloadGate::undecided());
    let mut downloads = Downloads::new(store(dir.path()), sender, 0, gate);
    downloads.set_sources(&[source.clone()].into(), Mirrors::new());
    assert!(downloads.set_gate(closed(&[])), "the reported problem changed");
    assert_eq!(problem_of(&downloads, &source), Some(WorkerReason::DownloadWindow));
    assert!(!downloads.set_gate(closed(&[])), "nothing changed");

    assert!(downloads.set_gate(open()));
    let received = |downloads: &Downloads| match downloads.state(&source) {
        DownloadState::Downloading { progress, .. } => progress.received_bytes,
        _ => 0,
    };
    let half = u64::try_from(BYTES / 2).unwrap();
    until(&mut downloads, &mut events, |downloads| received(downloads) == half).await;
    assert!(downloads.set_gate(closed(&[])));
    assert_eq!(problem_of(&downloads, &source), Some(WorkerReason::DownloadWindow));
    assert_eq!(received(&downloads), half, "the progress stays");

    assert!(downloads.set_gate(open()));
    until(&mut downloads, &mut events, |downloads| downloads.artifact(&source).is_some()).await;
    assert_eq!(server.requested.recv().await, Some(0));
    let resumed = server.requested.recv().await.unwrap();
    assert!(resumed > BYTES / 4, "resumed from {resumed}");
    assert_eq!(downloads.artifact(&source).unwrap().bytes, 2 * half);
    assert!(downloads.set_gate(closed(&[])), "the gate closes for others");
    assert_eq!(downloads.state(&source), DownloadState::Ready);
}

#[tokio::test]
async fn urgent_download_runs_outside_of_the_windows() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = HalfServer::start().await;
    let source = |path: &str| ArtifactSource {
        namespace: "d".parse().unwrap(),
        url: format!("{}{path}", server.url),
        sha256: None,
    };
    let (urgent, update) = (source("/urgent"), source("/update"));
    let (sender, _events) = mpsc::channel(16);
    let gate = (None, DownloadGate::undecided());
    let mut downloads = Downloads::new(store(dir.path()), sender, 0, gate);
    downloads.set_sources(&[urgent.clone(), update.clone()].into(), Mirrors::new());
    downloads.set_gate(closed(&[&urgent]));
    assert_eq!(problem_of(&downloads, &urgent), None);
    assert_eq!(problem_of(&downloads, &update), Some(WorkerReason::DownloadWindow));
    assert_eq!(server.requested.recv().await, Some(0));

    downloads.set_gate(closed(&[]));
    assert_eq!(problem_of(&downloads, &urgent), Some(WorkerReason::DownloadWindow));
    assert!(server.requested.try_recv().is_err(), "the update was requested");
}

#[tokio::test]
async fn added_mirror_is_used_by_a_download_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = HalfServer::start().await;
    let source = ArtifactSource {
        namespace: "d".parse().unwrap(),
        // Refuses connections, which the download retries.
        url: "http://127.0.0.1:1/m".to_owned(),
        sha256: Some("ab".repeat(32)),
    };
    let (sender, _events) = mpsc::channel(16);
    let mut downloads = Downloads::new(store(dir.path()), sender, 0, (None, DownloadGate::Open));
    let wanted = [source.clone()].into();
    downloads.set_sources(&wanted, Mirrors::new());
    let progress = &mut downloads.entries.get_mut(&source).unwrap().progress;
    progress.wait_for(|progress| progress.last_error.is_some()).await.unwrap();
    // The agent leaves out the first one, and keeps the number of the second.
    let mirrors = vec!["later://mirror/m".to_owned(), server.url.clone()];
    downloads.set_sources(&wanted, [(source.clone(), mirrors)].into());
    assert_eq!(server.requested.recv().await, Some(0));
}
