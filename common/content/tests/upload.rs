//! Uploads over real connections that are cut at any byte, with receivers that restart.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Path as UrlPath, State},
    http::{HeaderMap, Response, StatusCode},
    routing::{head, patch},
};
use bytes::Bytes;
use fastrand::Rng;
use neptune_backoff::Backoff;
use neptune_content::{
    Digest,
    client::{Outcome, Upload, upload},
    headers::Block,
    server::{self, Next},
    uploads::{UploadError, UploadId, Uploads},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const BLOCK: u64 = 16 * 1024;

struct Receiver {
    uploads: Arc<Uploads>,
    /// Contents that were judged, also those judged twice.
    judged: AtomicUsize,
}

async fn on_head(
    State(receiver): State<Arc<Receiver>>,
    UrlPath((purpose, content)): UrlPath<(String, String)>,
) -> Response<Body> {
    let id = UploadId { purpose: purpose.parse().unwrap(), content: content.parse().unwrap() };
    server::head(&receiver.uploads, id).await.map(Body::from)
}

async fn on_patch(
    State(receiver): State<Arc<Receiver>>,
    UrlPath((purpose, content)): UrlPath<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let id = UploadId { purpose: purpose.parse().unwrap(), content: content.parse().unwrap() };
    match server::patch(&receiver.uploads, id, &headers, body).await {
        Next::Respond(response) => response.map(Body::from),
        Next::Judge(path) => {
            assert_eq!(Digest::of_bytes(&std::fs::read(path).unwrap()), id.content);
            receiver.judged.fetch_add(1, Ordering::Relaxed);
            Response::builder().status(StatusCode::CREATED).body(Body::from("accepted")).unwrap()
        }
    }
}

async fn receive(directory: &Path) -> (String, Arc<Receiver>, JoinHandle<()>) {
    let uploads = Uploads::open(directory.to_owned(), 64 * 1024 * 1024).unwrap();
    let receiver = Arc::new(Receiver { uploads: Arc::new(uploads), judged: AtomicUsize::new(0) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let routes = Router::new()
        .route("/{purpose}/{content}", head(on_head).merge(patch(on_patch)))
        .layer(DefaultBodyLimit::max(9 * 1024 * 1024))
        .with_state(Arc::clone(&receiver));
    let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (address, receiver, server)
}

/// Forwards connections. While there are budgets, each connection is cut after as many bytes from
/// the client.
struct Proxy {
    address: String,
    sent: Arc<AtomicU64>,
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start(target: Arc<Mutex<String>>, budgets: Vec<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sent, cuts) = (Arc::<AtomicU64>::default(), Arc::<AtomicUsize>::default());
        let budgets = Arc::new(Mutex::new(budgets));
        let (all_sent, all_cuts) = (Arc::clone(&sent), Arc::clone(&cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let budget = budgets.lock().unwrap().pop();
                let target = target.lock().unwrap().clone();
                let (sent, cuts) = (Arc::clone(&all_sent), Arc::clone(&all_cuts));
                tokio::spawn(async move {
                    forward(client, &target, budget, &sent).await;
                    cuts.fetch_add(usize::from(budget.is_some()), Ordering::Relaxed);
                });
            }
        });
        Self { address, sent, cuts }
    }
}

async fn forward(mut client: TcpStream, target: &str, budget: Option<u64>, sent: &AtomicU64) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let mut left = budget.unwrap_or(u64::MAX);
    let (mut up, mut down) = (vec![0; 4096], vec![0; 4096]);
    while left > 0 {
        let limit = up.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        tokio::select! {
            read = client.read(&mut up[..limit]) => match read {
                Ok(read) if read > 0 && server.write_all(&up[..read]).await.is_ok() => {
                    left -= read as u64;
                    sent.fetch_add(read as u64, Ordering::Relaxed);
                }
                _ => return,
            },
            read = server.read(&mut down) => match read {
                Ok(read) if read > 0 && client.write_all(&down[..read]).await.is_ok() => {}
                _ => return,
            },
        }
    }
}

fn content(directory: &Path, length: usize, seed: u64) -> (PathBuf, Digest) {
    let mut random = Rng::with_seed(seed);
    let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
    let path = directory.join("content");
    std::fs::write(&path, &bytes).unwrap();
    (path, Digest::of_bytes(&bytes))
}

fn an_upload(address: &str, path: PathBuf, digest: Digest) -> Upload {
    let purpose = Digest::of_bytes(b"task");
    let length = std::fs::metadata(&path).unwrap().len();
    let millisecond = Duration::from_millis(1);
    let backoff = Backoff::new(millisecond, millisecond);
    Upload {
        url: format!("http://{address}/{purpose}/{digest}"),
        path,
        length,
        block: BLOCK,
        backoff,
    }
}

#[expect(clippy::disallowed_methods, reason = "the test connects to its own server")]
fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().build().unwrap()
}

async fn send(upload_: &Upload) -> Outcome {
    let client = client();
    let sent = upload(&client, upload_, || 0);
    tokio::time::timeout(Duration::from_mins(2), sent).await.expect("it ends").unwrap()
}

#[tokio::test]
async fn upload_cut_at_any_byte_resends_at_most_a_block_per_cut() {
    let directory = tempfile::tempdir().unwrap();
    let length = 2_000_000;
    let (path, digest) = content(directory.path(), length, 1);
    let (address, receiver, _server) = receive(&directory.path().join("received")).await;
    let mut random = Rng::with_seed(2);
    let budgets = (0..1000).map(|_| random.u64(1..3 * BLOCK)).collect();
    let proxy = Proxy::start(Arc::new(Mutex::new(address)), budgets).await;
    let outcome = send(&an_upload(&proxy.address, path, digest)).await;
    // The answer to the last block may be lost; then it is known from the next HEAD.
    assert!(
        matches!(&outcome, Outcome::Accepted(text) if ["", "accepted"].contains(&text.as_str()))
    );
    let file = receiver.uploads.complete(&digest).unwrap();
    assert_eq!(Digest::of_bytes(&std::fs::read(file).unwrap()), digest);
    assert_eq!(receiver.judged.load(Ordering::Relaxed), 1);
    let cuts = proxy.cuts.load(Ordering::Relaxed) as u64;
    assert!(cuts > 50, "{cuts} cuts");
    // A request has less than 1 KiB of header; each cut wastes a HEAD and a PATCH at most.
    let blocks = (length as u64).div_ceil(BLOCK);
    let limit = length as u64 + cuts * (BLOCK + 2048) + blocks * 1024 + 4096;
    let sent = proxy.sent.load(Ordering::Relaxed);
    assert!(sent <= limit, "{sent} bytes for {cuts} cuts, at most {limit}");
}

#[tokio::test]
async fn upload_continues_at_a_receiver_that_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let (path, digest) = content(directory.path(), 400_000, 3);
    let store = directory.path().join("received");
    let target = Arc::new(Mutex::new(String::new()));
    let proxy = Proxy::start(Arc::clone(&target), Vec::new()).await;
    let restarts = async {
        for _ in 0..20 {
            let (address, receiver, server) = receive(&store).await;
            *target.lock().unwrap() = address;
            let id = UploadId { purpose: Digest::of_bytes(b"task"), content: digest };
            let before = receiver.uploads.offset(&id).unwrap();
            while receiver.uploads.complete(&digest).is_none()
                && receiver.uploads.offset(&id).unwrap() <= before
            {
                tokio::task::yield_now().await;
            }
            // Its connections end with it, also in the middle of a block.
            server.abort();
        }
        let (address, receiver, _) = receive(&store).await;
        *target.lock().unwrap() = address;
        receiver
    };
    let upload = an_upload(&proxy.address, path, digest);
    let (outcome, receiver) = tokio::join!(send(&upload), restarts);
    assert!(matches!(outcome, Outcome::Accepted(_)));
    let file = receiver.uploads.complete(&digest).unwrap();
    assert_eq!(Digest::of_bytes(&std::fs::read(file).unwrap()), digest);
}

#[tokio::test]
async fn file_that_is_not_its_digest_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = content(directory.path(), 50_000, 4);
    let (address, receiver, _server) = receive(&directory.path().join("received")).await;
    let digest = Digest::of_bytes(b"another content");
    let outcome = send(&an_upload(&address, path, digest)).await;
    let Outcome::Refused(status, text) = outcome else { panic!("{outcome:?}") };
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text.contains("DigestMismatch"), "{text}");
    let id = UploadId { purpose: Digest::of_bytes(b"task"), content: digest };
    assert_eq!(receiver.uploads.offset(&id).unwrap(), 0);
    assert_eq!(receiver.judged.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn repeated_last_block_is_accepted_again_and_others_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (path, digest) = content(directory.path(), 40_000, 5);
    let (address, _receiver, _server) = receive(&directory.path().join("received")).await;
    let upload = an_upload(&address, path.clone(), digest);
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let send_block = async |from: usize, to: usize| {
        let body = bytes.slice(from..to);
        let block = Block {
            offset: from as u64,
            is_last: to == bytes.len(),
            length: bytes.len() as u64,
            digest: Digest::of_bytes(&body),
        };
        client().patch(&upload.url).headers(block.headers()).body(body).send().await.unwrap()
    };
    assert_eq!(send_block(10_000, 20_000).await.status(), StatusCode::CONFLICT);
    assert_eq!(send_block(0, 10_000).await.status(), StatusCode::NO_CONTENT);
    let conflict = send_block(0, 10_000).await;
    assert_eq!(conflict.status(), StatusCode::CONFLICT);
    assert_eq!(conflict.headers()["upload-offset"], "10000");
    for _ in 0..2 {
        assert_eq!(send_block(10_000, 40_000).await.status(), StatusCode::CREATED);
    }
    let mut block = Block { offset: 0, is_last: true, length: 1, digest: Digest::of_bytes(b"y") };
    let damaged = client().patch(&upload.url).headers(block.headers()).body("x").send().await;
    assert_eq!(damaged.unwrap().status(), StatusCode::BAD_REQUEST);
    block.length = 1 << 40;
    let large = client().patch(&upload.url).headers(block.headers()).body("y").send().await;
    assert_eq!(large.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn contents_of_other_purposes_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(directory.path().to_owned(), 100).unwrap();
    let id = |purpose: &[u8]| UploadId {
        purpose: Digest::of_bytes(purpose),
        content: Digest::of_bytes(b"ab"),
    };
    let first = Block { offset: 0, is_last: false, length: 2, digest: Digest::of_bytes(b"a") };
    uploads.append(&id(b"kept"), first, b"a").unwrap();
    uploads.append(&id(b"old"), first, b"a").unwrap();
    uploads.retain(|purpose| *purpose == Digest::of_bytes(b"kept"), |_| false).unwrap();
    assert_eq!(uploads.offset(&id(b"kept")).unwrap(), 1);
    assert_eq!(uploads.offset(&id(b"old")).unwrap(), 0);
}

#[test]
fn first_block_of_another_content_replaces_that_of_a_purpose() {
    let directory = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(directory.path().to_owned(), 100).unwrap();
    let id = |purpose: &[u8], content: &[u8]| UploadId {
        purpose: Digest::of_bytes(purpose),
        content: Digest::of_bytes(content),
    };
    let first = Block { offset: 0, is_last: false, length: 2, digest: Digest::of_bytes(b"a") };
    let (old, other, new) = (id(b"task", b"ab"), id(b"other task", b"ad"), id(b"task", b"ac"));
    for id in [&old, &other, &new] {
        uploads.append(id, first, b"a").unwrap();
    }
    let offsets = || [old, other, new].map(|id| uploads.offset(&id).unwrap());
    assert_eq!(offsets(), [0, 1, 1]);
    let damaged = uploads.append(&old, first, b"x");
    assert!(matches!(damaged, Err(UploadError::BlockDigest)));
    assert_eq!(offsets(), [0, 1, 1], "a block that is refused replaces nothing");
}

#[test]
fn contents_of_a_purpose_that_arrive_together_leave_one() {
    let directory = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(directory.path().to_owned(), 100).unwrap();
    let first = Block { offset: 0, is_last: false, length: 2, digest: Digest::of_bytes(b"a") };
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let uploads = &uploads;
            scope.spawn(move || {
                for number in 0..20_u8 {
                    let content = Digest::of_bytes(&[thread, number]);
                    let id = UploadId { purpose: Digest::of_bytes(b"task"), content };
                    uploads.append(&id, first, b"a").unwrap();
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(directory.path().join("partial")).unwrap().count(), 1);
}

#[tokio::test]
async fn blocks_that_a_receiver_does_not_wait_for_become_smaller() {
    let directory = tempfile::tempdir().unwrap();
    let (path, digest) = content(directory.path(), 1 << 20, 8);
    let (_, receiver, _server) = receive(&directory.path().join("received")).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let on_patch = async |receiver, path, headers, body: Bytes| {
        if body.len() > 300_000 {
            return Response::builder().status(408).body(Body::empty()).unwrap();
        }
        on_patch(receiver, path, headers, body).await
    };
    let routes = Router::new()
        .route("/{purpose}/{content}", head(on_head).merge(patch(on_patch)))
        .layer(DefaultBodyLimit::max(9 * 1024 * 1024))
        .with_state(Arc::clone(&receiver));
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let upload = Upload { block: 1 << 20, ..an_upload(&address, path, digest) };
    assert_eq!(send(&upload).await, Outcome::Accepted("accepted".to_owned()));
    assert!(receiver.uploads.complete(&digest).is_some());
}

/// A power failure may leave the length of a block, and not its bytes.
#[tokio::test]
async fn damaged_part_of_an_earlier_process_is_received_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, digest) = content(directory.path(), 50_000, 6);
    let store = directory.path().join("received");
    let id = UploadId { purpose: Digest::of_bytes(b"task"), content: digest };
    let partial = store.join("partial").join(format!("{}.{digest}", id.purpose));
    drop(Uploads::open(store.clone(), 100_000).unwrap());
    std::fs::write(&partial, vec![0; 20_000]).unwrap();
    let (address, receiver, _server) = receive(&store).await;
    let outcome = send(&an_upload(&address, path, digest)).await;
    assert_eq!(outcome, Outcome::Accepted("accepted".to_owned()));
    assert!(receiver.uploads.complete(&digest).is_some());
}

#[test]
fn damaged_content_is_refused_if_one_process_received_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let id = UploadId { purpose: Digest::of_bytes(b"task"), content: Digest::of_bytes(b"ab") };
    let block = |offset: u64, bytes: &[u8]| Block {
        offset,
        is_last: offset + bytes.len() as u64 == 2,
        length: 2,
        digest: Digest::of_bytes(bytes),
    };
    let open = || Uploads::open(directory.path().to_owned(), 100).unwrap();
    open().append(&id, block(0, b"x"), b"x").unwrap();
    let uploads = open();
    for is_refused in [false, true] {
        let error = uploads.append(&id, block(u64::from(!is_refused), b"b"), b"b");
        // The second time it begins at 0.
        let error = match error {
            Ok(_) => uploads.append(&id, block(1, b"x"), b"x").unwrap_err(),
            Err(error) => error,
        };
        match error {
            UploadError::Offset { expected, .. } => assert!(!is_refused && expected == 0),
            UploadError::ContentDigest(_) => assert!(is_refused),
            other => panic!("{other}"),
        }
        assert_eq!(uploads.offset(&id).unwrap(), 0);
    }
}
