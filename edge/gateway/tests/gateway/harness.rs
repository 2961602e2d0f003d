//! A scripted model server, a client, and a gateway with a configuration file.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use neptune_gateway::{cli::ReportArgs, run};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket},
    sync::mpsc,
};

/// The client closes idle connections before the gateway does, after its `timeouts.client` of 10 s:
/// a request that is sent on a connection while the gateway closes it fails.
const CLIENT_IDLE: Duration = Duration::from_secs(5);

/// The header with the length of the JSON before binary tensors.
pub const JSON_LENGTH: &str = "inference-header-content-length";

type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A request that a server got.
#[derive(Debug, Clone)]
pub struct Received {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// What a server does with a request.
pub enum Script {
    Answer(StatusCode, &'static str, String),
    /// JSON of this length, and binary tensors.
    Binary(usize, Vec<u8>),
    RetryAfter(StatusCode, u32),
    /// JSON that pages of any origin may read.
    Cors(String),
    /// Pieces of an event stream, each after a pause. Then the end, or a broken connection.
    Stream {
        pieces: Vec<(Duration, String)>,
        breaks: bool,
    },
    /// A body that comes with one byte per second.
    Slow(String),
    /// A script that runs after a pause. A test's server must not block its thread: the gateway's
    /// timers run there.
    Late(Duration, Box<Script>),
    /// Reads the request, and resets the connection.
    Reset,
    Never,
}

pub fn ok(body: impl ToString) -> Script {
    Script::Answer(StatusCode::OK, "application/json", body.to_string())
}

pub fn status(code: u16, body: impl ToString) -> Script {
    Script::Answer(StatusCode::from_u16(code).unwrap(), "application/json", body.to_string())
}

pub fn stream<const N: usize>(pieces: [String; N]) -> Script {
    let pieces = pieces.into_iter().map(|piece| (Duration::ZERO, piece)).collect();
    Script::Stream { pieces, breaks: false }
}

type Answers = dyn Fn(&Received) -> Script + Send + Sync;

type Shared = (Arc<Mutex<Vec<Received>>>, Arc<Mutex<Arc<Answers>>>, Arc<AtomicUsize>);

pub struct Server {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    script: Arc<Mutex<Arc<Answers>>>,
    /// Streams that ended because the reader went away.
    pub abandoned: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Pieces(mpsc::Receiver<Result<Bytes, std::io::Error>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

fn pieces(list: Vec<(Duration, String)>, breaks: bool, abandoned: Arc<AtomicUsize>) -> AnyBody {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for (pause, piece) in list {
            let is_gone = tokio::select! {
                () = sender.closed() => true,
                () = tokio::time::sleep(pause) => sender.send(Ok(piece.into())).await.is_err(),
            };
            if is_gone {
                abandoned.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
        if breaks {
            let _ = sender.send(Err(std::io::Error::other("broken"))).await;
        }
    });
    Pieces(receiver).boxed_unsync()
}

impl Server {
    /// Requests without JSON are refused as real servers do.
    pub async fn start(answers: impl Fn(&Received) -> Script + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answers).await
    }

    /// Starts a server like [`Server::start`], at this address.
    pub async fn start_at(
        address: SocketAddr,
        answers: impl Fn(&Received) -> Script + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Mutex<Arc<Answers>>> = Arc::new(Mutex::new(Arc::new(answers)));
        let abandoned = Arc::new(AtomicUsize::new(0));
        let shared = (Arc::clone(&received), Arc::clone(&script), Arc::clone(&abandoned));
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    // An error is a client that went away, or a scripted reset.
                    let _ =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, received, script, abandoned, accepting }
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Answers otherwise from now on, and forgets what was received.
    pub fn become_script(&self, answers: impl Fn(&Received) -> Script + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(answers);
        self.received.lock().unwrap().clear();
    }

    /// Nobody listens any more.
    pub fn close(&self) {
        self.accepting.abort();
    }
}

async fn answer(
    (received, script, abandoned): Shared,
    request: Request<Incoming>,
) -> Result<Response<AnyBody>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let path = head.uri.path_and_query().unwrap().to_string();
    let request = Received { method: head.method, path, headers: head.headers, body };
    received.lock().unwrap().push(request.clone());
    let is_binary = request.headers.contains_key(JSON_LENGTH);
    let is_json = is_binary
        || request.headers.get("content-type").is_some_and(|kind| kind == "application/json");
    let script = script.lock().unwrap().clone();
    let mut script = if request.method == Method::POST && !is_json {
        status(415, json!({"error": "the content type is not application/json"}))
    } else {
        script(&request)
    };
    while let Script::Late(pause, later) = script {
        tokio::time::sleep(pause).await;
        script = *later;
    }
    let full =
        |text: String| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let build = |code: StatusCode, kind: &str, body| {
        Response::builder().status(code).header("content-type", kind).body(body).unwrap()
    };
    Ok(match script {
        Script::Answer(code, kind, body) => build(code, kind, full(body)),
        Script::Binary(length, body) => {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
            let kind = "application/octet-stream";
            let mut answer = build(StatusCode::OK, kind, body.boxed_unsync());
            answer.headers_mut().insert(JSON_LENGTH, length.into());
            answer
        }
        Script::RetryAfter(code, seconds) => {
            let mut answer = build(code, "text/plain", full("later".to_owned()));
            answer.headers_mut().insert("retry-after", seconds.into());
            answer
        }
        Script::Cors(body) => {
            let mut answer = build(StatusCode::OK, "application/json", full(body));
            answer.headers_mut().insert("access-control-allow-origin", "*".parse().unwrap());
            answer
        }
        Script::Stream { pieces: list, breaks } => {
            build(StatusCode::OK, "text/event-stream", pieces(list, breaks, abandoned))
        }
        Script::Slow(text) => {
            let list = text.chars().map(|c| (Duration::from_secs(1), c.to_string())).collect();
            build(StatusCode::OK, "application/json", pieces(list, false, abandoned))
        }
        Script::Reset => return Err(std::io::Error::other("reset")),
        Script::Never | Script::Late(..) => std::future::pending().await,
    })
}

/// An address at which nobody listens, also none of the tests that run beside this one: its port
/// stays taken until the process ends.
pub fn dead_address() -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

/// An answer that a client got.
#[derive(Debug, Clone)]
pub struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answered {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn decision(&self) -> (&str, &str) {
        (self.header("x-neptune-answered-by"), self.header("x-neptune-decision"))
    }

    pub fn error(&self) -> String {
        let error = &self.json()["error"];
        error["message"].as_str().or(error.as_str()).unwrap_or_default().to_owned()
    }
}

pub struct Setup {
    pub running: Option<run::Running>,
    pub folder: tempfile::TempDir,
    config: Value,
    client: hyper_util::client::legacy::Client<
        hyper_util::client::legacy::connect::HttpConnector,
        Full<Bytes>,
    >,
}

impl Setup {
    /// A gateway with this configuration, which gets the addresses.
    #[expect(clippy::unused_async, reason = "it starts tasks, which needs a runtime")]
    pub async fn start(edge: SocketAddr, cloud: Option<SocketAddr>, changes: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = json!({
            "service": "test", "protocol": "oip",
            "listen": "127.0.0.1:0", "metricsListen": "127.0.0.1:0",
            "edge": {"address": edge.to_string()},
            "hardExample": {"algorithm": "MaxProbability", "threshold": 0.8},
            "timeouts": {"edge": "2s", "cloudFirstByte": "300ms", "cloudTotal": "600ms"},
        });
        if let Some(cloud) = cloud {
            config["cloud"] = json!({"url": format!("http://{cloud}")});
        }
        merge(&mut config, changes);
        let path = folder.path().join("gateway.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let running = run::start(&path, &ReportArgs::default()).unwrap();
        let client =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
                .pool_idle_timeout(CLIENT_IDLE)
                .build_http();
        Self { running: Some(running), folder, config, client }
    }

    pub fn running(&self) -> &run::Running {
        self.running.as_ref().unwrap()
    }

    pub fn config_path(&self) -> PathBuf {
        self.folder.path().join("gateway.json")
    }

    /// Replaces the configuration file as editors do.
    pub fn reconfigure(&mut self, changes: Value) {
        merge(&mut self.config, changes);
        let new = self.folder.path().join("new");
        std::fs::write(&new, self.config.to_string()).unwrap();
        std::fs::rename(new, self.config_path()).unwrap();
    }

    /// Removes fields for the next [`Setup::reconfigure`].
    pub fn revert(&mut self, fields: &[&str]) {
        for field in fields {
            self.config.as_object_mut().unwrap().remove(*field);
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answered {
        self.to(self.running().address, method, path, headers, body).await
    }

    pub async fn to(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answered {
        let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer =
            self.client.request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        // What came before a stream broke.
        let mut read = Vec::new();
        let mut body = body;
        while let Some(Ok(frame)) = body.frame().await {
            read.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        }
        Answered { status: head.status, headers: head.headers, body: read.into() }
    }

    pub async fn post(&self, path: &str, body: impl ToString) -> Answered {
        self.post_with(path, &[], body).await
    }

    pub async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl ToString,
    ) -> Answered {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        self.send(Method::POST, path, &all, body.to_string()).await
    }

    pub async fn page(&self, path: &str) -> Answered {
        let address = self.running().metrics_address.unwrap();
        self.to(address, Method::GET, path, &[], "").await
    }

    pub async fn status(&self) -> Value {
        self.page("/status").await.json()
    }

    /// Waits until the status is as expected.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let begin = tokio::time::timeout(Duration::from_secs(20), async {
            while !is_so(&self.status().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(begin.await.is_ok(), "{what}: {}", self.status().await);
    }

    pub async fn stop(&mut self) {
        self.running.take().unwrap().stop().await;
    }
}

pub fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, value) in changes {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, changes) => *into = changes,
    }
}

/// Sends bytes to the gateway, and returns what comes until it closes the connection.
pub async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    use tokio::io::AsyncReadExt as _;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut text = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut text)).await;
    assert!(read.is_ok(), "the connection is not closed");
    String::from_utf8_lossy(&text).into_owned()
}
