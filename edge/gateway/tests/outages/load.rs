//! Clients that send requests one after the other, and what became of each request.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{task::JoinSet, time::sleep};

use crate::proxy::REQUEST_ID;

/// Clients at a time.
pub const CLIENTS: usize = 8;
/// Pause between an answer and the next request of a client.
const PAUSE: Duration = Duration::from_millis(8);
/// A request without an answer by then failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Easy,
    /// The cloud answered as a whole.
    Cloud,
    /// The sample was hard, and the edge answered it.
    Edge,
    /// The cloud's stream broke after its first event, and ended with an error event.
    CutStream,
    /// There was no answer, or something else than an answer.
    Failed,
}

/// A request with its answer.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Number of the request, in the order in which requests were sent.
    pub number: usize,
    pub begin: Instant,
    pub end: Instant,
    pub answered: Answered,
}

/// What is sent, and how an answer is read.
pub struct Traffic {
    pub path: &'static str,
    pub body: Box<dyn Fn(usize) -> String + Send + Sync>,
    /// Whether the body is a whole answer; `None` for a stream that was cut with an error event.
    pub is_whole: fn(&[u8]) -> Option<bool>,
    /// Whether an outage may cut streams.
    pub cuts: bool,
}

/// The running clients and what they recorded.
pub struct Load {
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts the clients, which send requests until they are stopped.
    pub fn start(gateway: SocketAddr, traffic: Traffic) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let traffic = Arc::new(traffic);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (samples, stop, next) =
                (Arc::clone(&samples), Arc::clone(&stop), Arc::clone(&next));
            let traffic = Arc::clone(&traffic);
            clients.spawn(async move {
                let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let request = Request::post(format!("http://{gateway}{}", traffic.path))
                        .header("content-type", "application/json")
                        .header(REQUEST_ID, number)
                        .body(Full::from((traffic.body)(number)))
                        .unwrap();
                    let begin = Instant::now();
                    let exchange = async {
                        let answer = client.request(request).await.ok()?;
                        let (head, body) = answer.into_parts();
                        let body = body.collect().await.ok()?.to_bytes();
                        let is_ok = head.status == 200;
                        is_ok.then(|| read(&head.headers, &body, traffic.is_whole))
                    };
                    let answered = tokio::time::timeout(PATIENCE, exchange).await;
                    let answered = answered.ok().flatten().unwrap_or(Answered::Failed);
                    let sample = Sample { number, begin, end: Instant::now(), answered };
                    samples.lock().unwrap().push(sample);
                    sleep(PAUSE).await;
                }
            });
        }
        Self { samples, stop, clients }
    }

    /// The answers so far.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap().clone()
    }

    /// Whether the cloud answered a request that was sent after this time.
    pub fn first_of_cloud(&self, after: Instant) -> Option<Instant> {
        let samples = self.samples.lock().unwrap();
        let recent = samples.iter().rev().take_while(|sample| sample.end >= after);
        let of_cloud = recent.filter(|it| it.answered == Answered::Cloud && it.begin >= after);
        of_cloud.map(|sample| sample.end).min()
    }

    /// Ends the clients after their requests in flight. Returns all answers.
    pub async fn stop(mut self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.samples()
    }
}

fn read(headers: &HeaderMap, body: &[u8], is_whole: fn(&[u8]) -> Option<bool>) -> Answered {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let answered = match (text("x-neptune-answered-by"), text("x-neptune-decision")) {
        ("edge", "easy") => Answered::Easy,
        ("cloud", "hard") => Answered::Cloud,
        ("edge", "fallback" | "over-budget") => Answered::Edge,
        _ => return Answered::Failed,
    };
    match is_whole(body) {
        Some(true) => answered,
        None if answered == Answered::Cloud => Answered::CutStream,
        _ => Answered::Failed,
    }
}
