//! Serves admission reviews over HTTPS. A slow or large client affects only itself: handshake,
//! headers and body have timeouts; connections and bytes have limits.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionReview},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
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

/// Timeout of a TLS handshake, and of a request from its first byte to the answer. Equal to the API
/// server's timeout.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may be idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of connections. An API server needs a few.
const MAX_CONNECTIONS: usize = 128;

/// Binds the address without listening: until [`serve`] is called, connections are refused at once.
///
/// # Errors
/// [`Error::Webhook`] if the address is in use or does not belong to this host.
pub fn bind(address: SocketAddr) -> Result<TcpSocket, Error> {
    let error = |source| Error::Webhook { address, source };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(error)?;
    socket.set_reuseaddr(true).map_err(error)?;
    socket.bind(address).map_err(error)?;
    Ok(socket)
}

/// Serves reviews indefinitely.
pub async fn serve(
    socket: TcpSocket,
    serving_certificate: Arc<ServingCertificate>,
    reviewer: Reviewer,
) {
    let listener = match socket.listen(1024) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "webhook cannot listen");
            return std::future::pending().await;
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(tls(Arc::clone(&serving_certificate))));
    let router = Router::new().route("/validate", post(validate)).with_state(reviewer);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example too many open files; it succeeds when connections are closed.
                tracing::warn!(%error, "webhook cannot accept a connection; retrying");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, router, serving_certificate) =
            (acceptor.clone(), router.clone(), Arc::clone(&serving_certificate));
        tokio::spawn(async move {
            if let Err(error) = serving_certificate.refresh() {
                tracing::warn!(%error, "cannot reload the webhook certificate; keeping the previous one");
            }
            connection(stream, acceptor, router).await;
            drop(slot);
        });
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match timeout(TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "webhook TLS handshake failed"),
        Err(_) => return tracing::debug!("webhook TLS handshake timed out"),
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "webhook connection failed");
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
