//! Answers the API server's reviews over HTTPS. Whoever is slow, or sends too much, hurts only himself:
//! handshake, headers and body have their time, connections and bytes their limit.

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

/// An API server's own limit for a write.
const LONGEST_BODY: usize = 3 * 1024 * 1024;

/// For a TLS handshake, and for a request from its first byte to the answer. The API server waits as long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// For the next request on a connection that is kept open.
const IDLE: Duration = Duration::from_secs(30);

/// Connections at a time. An API server needs a few.
const CONNECTIONS: usize = 128;

/// Takes the address without listening: while there is nothing to answer with, connections are refused
/// at once.
///
/// # Errors
/// [`Error::Webhook`] when it is taken or not this machine's.
pub fn bind(address: SocketAddr) -> Result<TcpSocket, Error> {
    let error = |source| Error::Webhook { address, source };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(error)?;
    socket.set_reuseaddr(true).map_err(error)?;
    socket.bind(address).map_err(error)?;
    Ok(socket)
}

/// Answers until the program ends.
pub async fn serve(
    socket: TcpSocket,
    serving_certificate: Arc<ServingCertificate>,
    reviewer: Reviewer,
) {
    let listener = match socket.listen(1024) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the webhook cannot listen");
            return std::future::pending().await;
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(tls(Arc::clone(&serving_certificate))));
    let router = Router::new().route("/validate", post(validate)).with_state(reviewer);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Such as too many open files: it passes when connections end.
                tracing::warn!(%error, "the webhook cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, router, serving_certificate) =
            (acceptor.clone(), router.clone(), Arc::clone(&serving_certificate));
        tokio::spawn(async move {
            if let Err(error) = serving_certificate.refresh() {
                tracing::warn!(%error, "what was read before is shown");
            }
            connection(stream, acceptor, router).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match timeout(TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn validate(State(reviewer): State<Reviewer>, request: Request) -> Response {
    match timeout(TIMEOUT, review(&reviewer, request.into_body())).await {
        Ok(response) => response,
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the review took too long\n").into_response(),
    }
}

async fn review(reviewer: &Reviewer, body: Body) -> Response {
    let Ok(bytes) = to_bytes(body, LONGEST_BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "a review has at most 3 MiB\n").into_response();
    };
    let review = serde_json::from_slice::<AdmissionReview<DynamicObject>>(&bytes);
    let request: AdmissionRequest<DynamicObject> = match review.map(TryInto::try_into) {
        Ok(Ok(request)) => request,
        Ok(Err(error)) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("no AdmissionReview: {error}\n"))
                .into_response();
        }
    };
    Json(reviewer.answer(&request).await.into_review()).into_response()
}
