//! A join server for the tests of `neptune-edge join`, as strict as that of `neptune-cloud`: it
//! issues a certificate once for a token, and again for the same key only.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    io,
    net::Ipv4Addr,
    sync::Arc,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Response, body::Incoming, header, server::conn::http1};
use hyper_util::rt::TokioIo;
use neptune_join::{
    JOIN_PATH, JOIN_SERVER_NAME, JOIN_VERSION, JoinAnswer, JoinRefusal, JoinRequest, JoinToken,
    MAX_JOIN_BODY, RefusalReason,
};
use neptune_pinned_tls::{Authority, Serial, SigningRequest};
use neptune_program::random::secure;
use neptune_wire::KeyPin;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

/// 2026-11-29: the clock of the fleet.
pub const NOW: i64 = 1_795_910_400;

/// What the server does with the next requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// Decides about the request, and answers.
    Answer,
    /// Decides, and closes the connection instead of answering.
    Lose,
    /// Neither decides nor answers.
    Hang,
    /// Has no place for connections.
    Busy,
    /// Answers with something else.
    Garbage,
}

/// A permission that the server issued.
#[derive(Debug, Clone)]
pub struct Entry {
    node: String,
    sha256: String,
    /// Whether its time is over.
    pub is_expired: bool,
    /// Whether it may give a name to another key.
    pub replaces: bool,
    failures: u32,
    /// The key that used it, and the serial number of its certificate.
    pub used_by: Option<(KeyPin, Serial)>,
}

/// What the server knows.
#[derive(Debug)]
pub struct State {
    /// The tokens by their IDs.
    pub tokens: BTreeMap<String, Entry>,
    /// The trusted keys of nodes.
    pub known: BTreeMap<String, KeyPin>,
    /// The names of revoked nodes.
    pub revoked: BTreeSet<String>,
    /// What it does with requests.
    pub behavior: Behavior,
    /// The address of the broker that it names.
    pub broker_url: String,
    /// How many requests it got.
    pub requests: usize,
}

/// A running server on loopback.
pub struct JoinServer {
    /// The URL with its port.
    pub url: String,
    /// What signs the certificates.
    pub authority: Arc<Authority>,
    /// What it knows, also for the test.
    pub state: Arc<Mutex<State>>,
    /// Notified with each request.
    pub requested: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for JoinServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl JoinServer {
    /// Starts one with an authority of its own.
    pub async fn start() -> Self {
        let authority = Arc::new(Authority::generate(NOW.unsigned_abs()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            tokens: BTreeMap::new(),
            known: BTreeMap::new(),
            revoked: BTreeSet::new(),
            behavior: Behavior::Answer,
            // Nothing listens there.
            broker_url: "mqtts://127.0.0.1:1".to_owned(),
            requests: 0,
        }));
        let requested = Arc::new(Notify::new());
        let shared = Shared {
            authority: authority.clone(),
            state: state.clone(),
            requested: requested.clone(),
        };
        let acceptor = TlsAcceptor::from(Arc::new(tls(&authority)));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, acceptor.clone(), shared.clone()));
            }
        });
        Self { url, authority, state, requested, task }
    }

    /// Issues a token for a node, and returns its text.
    pub fn enroll(&self, node: &str) -> String {
        let token = JoinToken::new(node.parse().unwrap(), &self.authority.pin(), secure().unwrap());
        let token = token.unwrap();
        let entry = Entry {
            node: node.to_owned(),
            sha256: token.secret.sha256(),
            is_expired: false,
            replaces: false,
            failures: 0,
            used_by: None,
        };
        self.state.lock().tokens.insert(token.id.to_string(), entry);
        token.to_text().to_string()
    }

    /// Changes the entry of a token.
    pub fn change(&self, token: &str, change: impl FnOnce(&mut Entry)) {
        let id = token.split(':').nth(2).unwrap();
        change(self.state.lock().tokens.get_mut(id).unwrap());
    }
}

#[derive(Clone)]
struct Shared {
    authority: Arc<Authority>,
    state: Arc<Mutex<State>>,
    requested: Arc<Notify>,
}

/// The chain is the server's certificate and that of the authority.
fn tls(authority: &Authority) -> ServerConfig {
    let server = authority.sign_server([JOIN_SERVER_NAME.to_owned()]).unwrap();
    let chain = [server.certificate.as_str(), authority.certificate()];
    let chain = chain.map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).to_vec();
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap()
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, shared: Shared) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = hyper::service::service_fn(|request| answer(request, shared.clone()));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    shared: Shared,
) -> Result<Response<Full<Bytes>>, io::Error> {
    shared.state.lock().requests += 1;
    let behavior = shared.state.lock().behavior;
    shared.requested.notify_one();
    let response = |status: u16, body: Vec<u8>| {
        Ok(Response::builder().status(status).body(Full::new(Bytes::from(body))).unwrap())
    };
    match behavior {
        Behavior::Hang => pending().await,
        Behavior::Busy => return response(503, b"too many connections; try again\n".to_vec()),
        Behavior::Garbage => return response(200, b"<html>".to_vec()),
        Behavior::Answer | Behavior::Lose => {}
    }
    let decided = match read(request).await {
        Ok(request) => decide(&mut shared.state.lock(), &shared.authority, &request),
        Err(why) => Err((RefusalReason::RequestInvalid, why)),
    };
    if behavior == Behavior::Lose {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    match decided {
        Ok(answer) => response(200, serde_json::to_vec(&answer).unwrap()),
        Err((reason, message)) => {
            let refusal = JoinRefusal { reason, message };
            response(reason.status(), serde_json::to_vec(&refusal).unwrap())
        }
    }
}

async fn read(request: Request<Incoming>) -> Result<JoinRequest, String> {
    if request.method() != Method::POST || request.uri().path() != JOIN_PATH {
        return Err("no such route".to_owned());
    }
    let has = |name, value: &str| request.headers().get(name).is_some_and(|it| it == value);
    if !has(header::CONTENT_TYPE, "application/json")
        || !request.headers().contains_key(header::HOST)
    {
        return Err("no JSON, or no host".to_owned());
    }
    let body = Limited::new(request.into_body(), MAX_JOIN_BODY).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

fn decide(
    state: &mut State,
    authority: &Authority,
    request: &JoinRequest,
) -> Result<JoinAnswer, (RefusalReason, String)> {
    use RefusalReason as R;
    let refuse = |reason, message: &str| Err((reason, message.to_owned()));
    let node = request.node.as_str();
    if request.version != JOIN_VERSION
        || request.agent_version.is_empty()
        || request.arch.is_empty()
    {
        return refuse(R::RequestInvalid, "another version");
    }
    let csr = match SigningRequest::from_pem(&request.csr) {
        Ok(csr) if csr.name() == node => csr,
        Ok(_) => return refuse(R::RequestInvalid, "the signing request is for another node"),
        Err(error) => return refuse(R::RequestInvalid, &error.to_string()),
    };
    let Some(entry) = state.tokens.get_mut(request.id.as_str()) else {
        return refuse(R::TokenRefused, "no such token");
    };
    if entry.sha256 != request.secret.sha256() || entry.node != node {
        entry.failures += 1;
        if entry.failures == 5 {
            state.tokens.remove(request.id.as_str());
        }
        return refuse(R::TokenRefused, "no such token");
    }
    if entry.is_expired {
        return refuse(R::TokenExpired, "the token has expired");
    }
    if state.revoked.contains(node) && !entry.replaces {
        return refuse(R::NodeRevoked, "the node is revoked");
    }
    if state.known.get(node).is_some_and(|known| known != csr.pin()) && !entry.replaces {
        return refuse(R::NodeKeyKnown, "the node has another key");
    }
    let (pin, serial) = entry
        .used_by
        .get_or_insert_with(|| (csr.pin().clone(), Serial::from_random(secure().unwrap())));
    if pin != csr.pin() {
        return Err((R::TokenUsed, format!("the key {} used the token", pin.0)));
    }
    Ok(JoinAnswer {
        certificate: authority.sign_node(&csr, *serial).unwrap(),
        ca: authority.certificate().to_owned(),
        broker_url: state.broker_url.clone(),
        topic_prefix: "neptune".to_owned(),
        time: NOW,
        warnings: vec!["NodeMissing: there is no Node of this name yet".to_owned()],
    })
}
