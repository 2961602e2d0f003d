//! An HTTP server with one file behind an uplink with a limited rate, which all requests share.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, StatusCode, header},
    routing::get,
};
use tokio::{net::TcpListener, sync::Mutex, time::Instant};

const PIECE: usize = 32 * 1024;

/// Serves `/model.bin` until it is dropped.
pub struct SlowOrigin {
    address: SocketAddr,
    uplink: Arc<Uplink>,
    task: tokio::task::JoinHandle<()>,
}

struct Uplink {
    content: Bytes,
    bytes_per_second: u64,
    sent: AtomicU64,
    /// When everything that was sent is paid for.
    paid_at: Mutex<Instant>,
    /// When the first request came, and when the last byte was sent.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
}

impl SlowOrigin {
    /// Serves a file at this rate, on a free port of loopback.
    pub async fn start(content: Vec<u8>, bytes_per_second: u64) -> Self {
        let uplink = Arc::new(Uplink {
            content: content.into(),
            bytes_per_second,
            sent: AtomicU64::new(0),
            paid_at: Mutex::new(Instant::now()),
            times: Mutex::default(),
        });
        let router = Router::new().route("/model.bin", get(serve)).with_state(Arc::clone(&uplink));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, uplink, task }
    }

    /// The URL of the file.
    pub fn url(&self) -> String {
        format!("http://{}/model.bin", self.address)
    }

    /// Time from the first request to the last byte. On a busy machine it is longer than at that
    /// rate.
    pub async fn transfer_time(&self) -> Duration {
        let (start, end) = *self.uplink.times.lock().await;
        start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
    }

    /// Bytes that were sent in all responses together.
    pub fn sent(&self) -> u64 {
        self.uplink.sent.load(Ordering::Relaxed)
    }
}

impl Drop for SlowOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers with the file, or with the rest of it from the first byte of a range.
async fn serve(State(uplink): State<Arc<Uplink>>, headers: HeaderMap) -> Response<Body> {
    uplink.times.lock().await.0.get_or_insert_with(Instant::now);
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let from =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let from: usize = from.unwrap_or(0);
    let total = uplink.content.len();
    let rest = uplink.content.slice(from.min(total)..);
    let mut answer = Response::builder()
        .header(header::ETAG, "\"1\"")
        .header(header::CONTENT_LENGTH, rest.len());
    if from > 0 {
        let range = format!("bytes {from}-{}/{total}", total - 1);
        answer = answer.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range);
    }
    let pieces = futures::stream::unfold((uplink, rest), |(uplink, mut rest)| async move {
        if rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        let nanoseconds = piece.len() as u64 * 1_000_000_000 / uplink.bytes_per_second;
        let cost = Duration::from_nanos(nanoseconds);
        let until = {
            let mut paid_at = uplink.paid_at.lock().await;
            *paid_at = Instant::now().max(*paid_at) + cost;
            *paid_at
        };
        tokio::time::sleep_until(until).await;
        uplink.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        uplink.times.lock().await.1 = Some(Instant::now());
        Some((Ok::<_, Infallible>(piece), (uplink, rest)))
    });
    answer.body(Body::from_stream(pieces)).unwrap()
}
