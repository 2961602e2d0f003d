//! The test as the aggregator: it knows its open tasks, trusts one key, and records all that it
//! receives.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use neptune_content::{
    Digest,
    headers::Progress,
    server::{self, Next},
    uploads::{UploadId, Uploads},
};
use neptune_pinned_tls::{TlsKey, pin_of, server_config};
use neptune_wire::{
    KeyPin,
    aggregator::{AggregatorProblem, UpdateAccepted, UpdateReport},
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What the aggregator received.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// The digests of the accepted updates, by task; one per acceptance.
    pub accepted: BTreeMap<String, Vec<String>>,
    /// The reports, by task.
    pub reports: BTreeMap<String, UpdateReport>,
    /// All requests, with headers and bodies.
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    contents: BTreeMap<String, Bytes>,
    open: BTreeSet<String>,
    trusted: Option<KeyPin>,
    is_unavailable: bool,
    refusals: BTreeMap<String, (StatusCode, String)>,
    received: Received,
}

pub struct Aggregator {
    port: u16,
    key: TlsKey,
    state: Arc<Mutex<State>>,
}

impl Aggregator {
    pub async fn start(dir: &Path) -> Self {
        fs::create_dir(dir).unwrap();
        let uploads = Arc::new(Uploads::open(dir.to_owned(), 1 << 20).unwrap());
        let key = TlsKey::generate();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&key)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<State>>::default();
        let all = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state, uploads) =
                    (acceptor.clone(), Arc::clone(&all), Arc::clone(&uploads));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let certificates = stream.get_ref().1.peer_certificates().unwrap();
                    let pin = pin_of(&certificates[0]).unwrap();
                    let service = service_fn(|request| {
                        let (state, uploads) = (Arc::clone(&state), Arc::clone(&uploads));
                        let pin = pin.clone();
                        async move { Ok::<_, Infallible>(answer(request, pin, &state, &uploads).await) }
                    });
                    let connection = http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, key, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn pin(&self) -> String {
        self.key.pin().0.clone()
    }

    pub fn add_content(&self, content: Vec<u8>) {
        let digest = Digest::of_bytes(&content).to_string();
        self.state().contents.insert(digest, content.into());
    }

    pub fn open_task(&self, id: &str) {
        self.state().open.insert(id.to_owned());
    }

    pub fn trust(&self, pin: Option<KeyPin>) {
        self.state().trusted = pin;
    }

    /// Whether it answers 503 or not.
    pub fn set_available(&self, is_available: bool) {
        self.state().is_unavailable = !is_available;
    }

    /// Refuses the updates of a task.
    pub fn refuse(&self, id: &str, status: u16, reason: &str) {
        let status = StatusCode::from_u16(status).unwrap();
        self.state().refusals.insert(id.to_owned(), (status, reason.to_owned()));
    }

    pub fn received(&self) -> Received {
        self.state().received.clone()
    }
}

fn respond(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}

fn problem(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    let problem = AggregatorProblem { reason: reason.to_owned(), detail: "by the test".to_owned() };
    respond(status, serde_json::to_vec(&problem).unwrap())
}

async fn answer(
    request: Request<Incoming>,
    pin: KeyPin,
    state: &Mutex<State>,
    uploads: &Arc<Uploads>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return respond(StatusCode::BAD_REQUEST, "") };
    let body = body.to_bytes();
    {
        let mut state = state.lock().unwrap();
        let head = format!("{} {} {:?}\n", head.method, head.uri, head.headers);
        state.received.bytes.extend_from_slice(head.as_bytes());
        state.received.bytes.extend_from_slice(&body);
        if state.is_unavailable {
            return respond(StatusCode::SERVICE_UNAVAILABLE, "");
        }
        if state.trusted.as_ref() != Some(&pin) {
            return problem(StatusCode::FORBIDDEN, "NodeNotTrusted");
        }
    }
    let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    match (&head.method, &path[..]) {
        (&Method::GET, ["v1", "content", digest]) => {
            match state.lock().unwrap().contents.get(*digest) {
                Some(content) => respond(StatusCode::OK, content.clone()),
                None => respond(StatusCode::NOT_FOUND, ""),
            }
        }
        (&Method::PUT, ["v1", "evaluations", task]) => {
            put_report(task, &body, state, StatusCode::CREATED)
        }
        (&Method::PUT, ["v1", "updates", task, _, "report"]) => {
            put_report(task, &body, state, StatusCode::NO_CONTENT)
        }
        (method, ["v1", "updates", task, digest]) => {
            if !state.lock().unwrap().received.reports.contains_key(*task) {
                return respond(StatusCode::BAD_REQUEST, "the report is missing");
            }
            let id = UploadId { purpose: task.parse().unwrap(), content: digest.parse().unwrap() };
            if method == Method::HEAD {
                // Another task may have sent the same content: it is complete, and not judged for
                // this one.
                if !state.lock().unwrap().received.accepted.contains_key(*task) {
                    let offset = uploads.offset(&id).unwrap();
                    let mut response = respond(StatusCode::NO_CONTENT, "");
                    response
                        .headers_mut()
                        .extend(Progress { offset, is_complete: false }.headers());
                    return response;
                }
                return server::head(uploads, id).await.map(Full::new);
            }
            assert_eq!(method, Method::PATCH);
            match server::patch(uploads, id, &head.headers, body).await {
                Next::Respond(response) => response.map(Full::new),
                Next::Judge(_) => judge(task, digest, state),
            }
        }
        _ => respond(StatusCode::NOT_FOUND, ""),
    }
}

fn put_report(
    task: &str,
    body: &[u8],
    state: &Mutex<State>,
    status: StatusCode,
) -> Response<Full<Bytes>> {
    let mut state = state.lock().unwrap();
    if !state.open.contains(task) {
        return problem(StatusCode::GONE, "RoundClosed");
    }
    let report: UpdateReport = serde_json::from_slice(body).unwrap();
    let known = state.received.reports.insert(task.to_owned(), report.clone());
    assert!(known.is_none_or(|known| known == report), "each attempt has the same report");
    respond(status, "")
}

fn judge(task: &str, digest: &str, state: &Mutex<State>) -> Response<Full<Bytes>> {
    let mut state = state.lock().unwrap();
    if let Some((status, reason)) = state.refusals.get(task) {
        return problem(*status, reason);
    }
    state.received.accepted.entry(task.to_owned()).or_default().push(digest.to_owned());
    let accepted = UpdateAccepted { accepted: true, norm: 0.1, samples: 7 };
    respond(StatusCode::CREATED, serde_json::to_vec(&accepted).unwrap())
}
