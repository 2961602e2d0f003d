//! The router's HTTP endpoint: receives POSTs for the nodes. `rules.rs` decides their route,
//! `node.rs` delivers them.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::cloudcore::Cloudcore;
use crate::pace::ATTEMPTS;
use crate::uri::Route;

/// Maximum size of a body in bytes (measured).
const MAX_BODY: usize = 12 << 20;

/// Serves while cloudcore runs. While it does not, new connections are closed at once. When it
/// stops, open connections are aborted.
pub async fn serve(cloudcore: Arc<Cloudcore>, listener: TcpListener) {
    let mut open = cloudcore.open();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let is_open = *open.borrow_and_update();
                if let (Ok((stream, _)), true) = (accepted, is_open) {
                    connections.spawn(connection(Arc::clone(&cloudcore), stream));
                }
            }
            changed = open.changed() => {
                if changed.is_err() {
                    return;
                }
                if !*open.borrow_and_update() {
                    connections.abort_all();
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(cloudcore: Arc<Cloudcore>, stream: TcpStream) {
    // Otherwise small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let cloudcore = Arc::clone(&cloudcore);
        async move { Ok::<_, Infallible>(answer(&cloudcore, request).await) }
    });
    let served =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "connection to the router failed");
    }
}

/// Every method is treated as POST, as in cloudcore.
async fn answer(cloudcore: &Cloudcore, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    // The raw target with its query: KubeEdge builds topics from it.
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let body = read(body).await;
    let (downward, body) = match (cloudcore.route(&target), body) {
        (Route::NoRule, _) => return response(StatusCode::NOT_FOUND, "Request error"),
        (_, None) => return response(StatusCode::BAD_REQUEST, "Request error,body is null"),
        (Route::TooShort, _) => return response(StatusCode::OK, ""),
        (Route::Publish(downward), Some(body)) => (downward, body),
    };
    for attempt in 1..=ATTEMPTS {
        let node = cloudcore.node(&downward.node);
        if node.is_some_and(|node| node.publish(downward.topic.clone(), body.clone())) {
            tokio::time::sleep(cloudcore.answer_delay()).await;
            return response(StatusCode::OK, "message delivered");
        }
        if attempt < ATTEMPTS {
            tokio::time::sleep(cloudcore.pace().retry_interval()).await;
        }
    }
    response(StatusCode::INTERNAL_SERVER_ERROR, "no session with the node")
}

/// Reads a body. `None` if it is too large or incomplete. A too large body is read to its end, so
/// that the client reads the answer.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let mut read = Some(BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        read = read.filter(|read| read.len() + data.len() <= MAX_BODY);
        if let Some(read) = &mut read {
            read.extend_from_slice(&data);
        }
    }
    read.map(BytesMut::freeze)
}

fn response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
