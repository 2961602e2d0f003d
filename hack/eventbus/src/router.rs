//! The router's HTTP endpoint: takes POSTs for the nodes. What a request means is decided in `rules.rs`, what becomes of
//! it in `node.rs`.

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
use crate::pace::TRIES;
use crate::uri::Asked;

/// The largest body (seen).
const MAX_BODY: usize = 12 << 20;

/// Serves while cloudcore is there. A connection that comes while it is not is closed at once, and those that are open
/// when it goes are cut off in the middle of whatever they did.
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
    // Without it, small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let cloudcore = Arc::clone(&cloudcore);
        async move { Ok::<_, Infallible>(answer(&cloudcore, request).await) }
    });
    let served =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection to the router broke");
    }
}

/// Any method is as good as POST: cloudcore does not look.
async fn answer(cloudcore: &Cloudcore, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    // The target as it was written: KubeEdge's topics are made of it, query included.
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let body = read(body).await;
    let (downward, body) = match (cloudcore.asked(&target), body) {
        (Asked::NoRule, _) => return response(StatusCode::NOT_FOUND, "Request error"),
        (_, None) => return response(StatusCode::BAD_REQUEST, "Request error,body is null"),
        (Asked::TooShort, _) => return response(StatusCode::OK, ""),
        (Asked::Publish(downward), Some(body)) => (downward, body),
    };
    for attempt in 1..=TRIES {
        let node = cloudcore.node(&downward.node);
        if node.is_some_and(|node| node.publish(downward.topic.clone(), body.clone())) {
            tokio::time::sleep(cloudcore.answer_delay()).await;
            return response(StatusCode::OK, "message delivered");
        }
        if attempt < TRIES {
            tokio::time::sleep(cloudcore.pace().try_again()).await;
        }
    }
    response(StatusCode::INTERNAL_SERVER_ERROR, "no session with the node")
}

/// `None` if it is too large or breaks off. Read to its end in any case, so that the client gets to reading the answer.
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
