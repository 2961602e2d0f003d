//! Serves admission reviews over HTTPS. A slow or large client affects only itself: handshake,
//! headers and body have timeouts; connections and bytes have limits.

use std::{future::pending, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use hyper_util::service::TowerToHyperService;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionReview},
};
use neptune_program::listen::{
    self, Entry, Gate, HttpRules, Limits, Refusals, first_byte, serve_http,
};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    admission::{
        reviewer::Reviewer,
        serving_certificate::{ServingCertificate, tls},
    },
    error::Error,
};

/// Maximum body size in bytes: the API server's limit for a write.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// Timeout of a TLS handshake with the head of the first request, and of the rest of a request to
/// the answer. Equal to the API server's timeout.
const TIMEOUT: Duration = Duration::from_secs(5);

const RULES: HttpRules<Body> =
    HttpRules { idle_timeout: Duration::from_secs(30), probes: &[], busy: listen::busy };

/// The name of the server in metrics and in the log.
const SERVER: &str = "webhook";

/// An API server needs a few connections.
const LIMITS: Limits = Limits {
    pending: 512,
    pending_per_address: 32,
    pending_reserve: 64,
    pending_time: TIMEOUT,
    hurried_time: Duration::from_secs(2),
    anonymous: 128,
    anonymous_per_address: 64,
    known: 0,
    per_identity: 0,
};

/// Binds the address without listening: until [`serve`] is called, connections are refused at once.
///
/// # Errors
/// [`Error::Listen`] if the address is in use or does not belong to this host.
pub fn bind(address: SocketAddr) -> Result<TcpSocket, Error> {
    let error = |source| Error::Listen { flag: "--webhook-listen", address, source };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(error)?;
    socket.set_reuseaddr(true).map_err(error)?;
    socket.bind(address).map_err(error)?;
    Ok(socket)
}

/// Listens on the bound socket, and serves admission reviews until the process ends.
pub async fn serve(
    socket: TcpSocket,
    serving_certificate: Arc<ServingCertificate>,
    reviewer: Reviewer,
    refusals: Refusals,
) {
    let listener = match socket.listen(1024) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "webhook cannot listen");
            return std::future::pending().await;
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(tls(&serving_certificate)));
    let router = Router::new().route("/validate", post(validate)).with_state(reviewer);
    let gate = Gate::new(SERVER, LIMITS, &refusals);
    listen::run(&listener, &gate, pending(), |stream, _, entry| {
        connection(stream, acceptor.clone(), router.clone(), entry)
    })
    .await;
}

/// Handles a connection. The time of a pending connection limits the handshake and the head of the
/// first request.
async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router, entry: Entry) {
    if first_byte(&stream).await.is_none() {
        return;
    }
    match acceptor.accept(stream).await {
        Ok(stream) => serve_http(stream, entry, RULES, TowerToHyperService::new(router)).await,
        Err(error) => tracing::debug!(%error, "webhook TLS handshake failed"),
    }
}

async fn validate(State(reviewer): State<Reviewer>, request: Request) -> Response {
    match timeout(TIMEOUT, review(&reviewer, request.into_body())).await {
        Ok(response) => response,
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "review timed out\n").into_response(),
    }
}

async fn review(reviewer: &Reviewer, body: Body) -> Response {
    let Ok(bytes) = to_bytes(body, MAX_BODY_BYTES).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "review exceeds 3 MiB\n").into_response();
    };
    let review = serde_json::from_slice::<AdmissionReview<DynamicObject>>(&bytes);
    let request: AdmissionRequest<DynamicObject> = match review.map(TryInto::try_into) {
        Ok(Ok(request)) => request,
        Ok(Err(error)) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}\n"))
                .into_response();
        }
    };
    Json(reviewer.answer(&request).await.into_review()).into_response()
}
