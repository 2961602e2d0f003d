//! The server that nodes ask for their certificates, over TLS with a certificate of the fleet's
//! authority. A slow or large client affects only itself: handshake, headers and body have
//! timeouts; connections, bytes and requests have limits.

use std::{
    future::pending,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header::HOST, uri},
    response::{IntoResponse as _, Response},
    routing::post,
};
use hyper_util::service::TowerToHyperService;
use kube::Client;
use neptune_join::{
    JOIN_PATH, JOIN_SERVER_NAME, JoinAnswer, JoinRefusal, JoinRequest, MAX_JOIN_BODY, RefusalReason,
};
use neptune_pinned_tls::Authority;
use neptune_program::listen::{
    self, Entry, Gate, HttpRules, Limits, Peer, Refusals, Source, first_byte, serve_http,
};
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    await_authority,
    rates::RequestRates,
    request::{Addresses, Joins},
};
use crate::error::Error;

/// Timeout of a TLS handshake with the head of the first request, and of the rest of a request to
/// the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

const RULES: HttpRules<Body> =
    HttpRules { idle_timeout: Duration::from_secs(10), probes: &[], busy: listen::busy };

/// The name of the server in metrics and in the log.
const SERVER: &str = "join";

/// Each node connects once.
const LIMITS: Limits = Limits {
    pending: 64,
    pending_per_address: 8,
    pending_reserve: 32,
    pending_time: TIMEOUT,
    hurried_time: Duration::from_secs(3),
    anonymous: 32,
    anonymous_per_address: 8,
    known: 0,
    per_identity: 0,
};

/// The options of the join server.
#[derive(Debug, Clone)]
pub struct JoinServerSettings {
    /// The address on which to listen.
    pub listen: SocketAddr,
    /// The namespace of the Secret and the tokens.
    pub namespace: String,
    /// The name of the Secret of the authority.
    pub ca_secret: String,
    /// The broker for nodes: `mqtts://HOST:PORT`. Without it, the broker has the address that the
    /// node used for this server, and `broker_port`.
    pub broker_url: Option<String>,
    /// The port of the broker for nodes, without `broker_url`.
    pub broker_port: u16,
    /// The topic prefix of the fleet.
    pub topic_prefix: String,
}

/// The server, with its address bound.
pub struct JoinServer {
    listener: TcpListener,
    client: Client,
    settings: JoinServerSettings,
}

/// What the requests of one connection need.
#[derive(Clone)]
struct Connection {
    server: Arc<Shared>,
    peer: Peer,
}

struct Shared {
    joins: Joins,
    settings: JoinServerSettings,
    rates: Mutex<RequestRates>,
}

impl JoinServer {
    /// Binds the address.
    ///
    /// # Errors
    /// [`Error::Listen`] if the address is in use or does not belong to this host.
    pub fn bind(client: Client, settings: JoinServerSettings) -> Result<Self, Error> {
        let address = settings.listen;
        let listener = listen::bind(address).map_err(|source| Error::Listen {
            flag: "--listen",
            address,
            source,
        })?;
        Ok(Self { listener, client, settings })
    }

    /// Waits for the authority, and serves until the process ends.
    ///
    /// # Errors
    /// The Secret has something that is no authority.
    pub async fn serve(self) -> Result<(), Error> {
        let Self { listener, client, settings } = self;
        let secret = (settings.namespace.as_str(), settings.ca_secret.as_str());
        let authority = await_authority(&client, secret, false).await?;
        let acceptor = TlsAcceptor::from(Arc::new(tls(&authority)?));
        tracing::info!(listen = %settings.listen, pin = authority.pin().0, "join server started");
        let namespace = settings.namespace.clone();
        let joins = Joins { authority, client, namespace, turn: <_>::default() };
        let shared = Arc::new(Shared { joins, settings, rates: Mutex::default() });
        let gate = Gate::new(SERVER, LIMITS, &Refusals::default());
        listen::run(&listener, &gate, pending(), |stream, peer, entry| {
            let connection = Connection { server: Arc::clone(&shared), peer };
            serve_connection(stream, acceptor.clone(), connection, entry)
        })
        .await;
        Ok(())
    }
}

/// The configuration with a certificate for the name that nodes check. The chain ends with the
/// authority, whose key nodes compare with their token.
fn tls(authority: &Authority) -> Result<ServerConfig, Error> {
    let what = "the certificate of the join server";
    let signed = authority
        .sign_server([JOIN_SERVER_NAME.to_owned()])
        .map_err(|source| Error::Sign { what: what.to_owned(), source })?;
    let der = |pem: &str| {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("a signed certificate is PEM")
    };
    let chain = vec![der(&signed.certificate), der(authority.certificate())];
    let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).expect("a new key is PEM");
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("the key is that of the certificate");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Handles a connection. The time of a pending connection limits the handshake and the head of the
/// first request.
async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    connection: Connection,
    entry: Entry,
) {
    if first_byte(&stream).await.is_none() {
        return;
    }
    let router = Router::new().route(JOIN_PATH, post(join)).with_state(connection);
    match acceptor.accept(stream).await {
        Ok(stream) => serve_http(stream, entry, RULES, TowerToHyperService::new(router)).await,
        Err(error) => tracing::debug!(%error, "TLS handshake of a join failed"),
    }
}

async fn join(State(connection): State<Connection>, request: Request) -> Response {
    let answer = timeout(TIMEOUT, connection.answer(request)).await.unwrap_or_else(|_| {
        Err(refusal(
            RefusalReason::NotReady,
            "the request took more than 10 s; run the same command again",
        ))
    });
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => {
            let status = StatusCode::from_u16(refusal.reason.status());
            (status.unwrap_or(StatusCode::BAD_REQUEST), Json(refusal)).into_response()
        }
    }
}

impl Connection {
    async fn answer(&self, request: Request) -> Result<JoinAnswer, JoinRefusal> {
        let peer = self.peer;
        if !self.server.rates.lock().admit(Source::from_peer(peer), now()) {
            let text = "more than 10 requests in a minute from this address; run the same command again in a minute";
            return Err(refusal(RefusalReason::TooManyRequests, text));
        }
        let addresses = self.server.addresses(&request)?;
        let body = to_bytes(request.into_body(), MAX_JOIN_BODY).await;
        let body = body.map_err(|_| {
            refusal(
                RefusalReason::RequestInvalid,
                "the request is larger than 16 KiB or incomplete",
            )
        })?;
        let request: JoinRequest = serde_json::from_slice(&body).map_err(|error| {
            refusal(RefusalReason::RequestInvalid, &format!("the request is not valid: {error}"))
        })?;
        let answer = self.server.joins.answer(&request, addresses).await;
        let JoinRequest { node, id, agent_version, arch, .. } = &request;
        match &answer {
            Ok(_) => tracing::info!(%node, %id, %peer, agent_version, arch, "node joined"),
            Err(refusal) => {
                tracing::info!(%node, %id, %peer, reason = %refusal.reason, "join refused");
            }
        }
        answer
    }
}

impl Shared {
    fn addresses(&self, request: &Request) -> Result<Addresses, JoinRefusal> {
        let topic_prefix = self.settings.topic_prefix.clone();
        if let Some(broker_url) = self.settings.broker_url.clone() {
            return Ok(Addresses { broker_url, topic_prefix });
        }
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host: Option<uri::Authority> = host.and_then(|host| host.parse().ok());
        let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
            let text = "the request has no usable Host header";
            return Err(refusal(RefusalReason::RequestInvalid, text));
        };
        let broker_url = format!("mqtts://{}:{}", host.host(), self.settings.broker_port);
        Ok(Addresses { broker_url, topic_prefix })
    }
}

fn refusal(reason: RefusalReason, message: &str) -> JoinRefusal {
    JoinRefusal { reason, message: message.to_owned() }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> Instant {
    Instant::now()
}
