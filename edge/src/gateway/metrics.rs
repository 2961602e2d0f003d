//! Serves the metrics of the agent and of the node's gateways on one address. Those of the gateways
//! are read from their sockets.

use std::{convert::Infallible, io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client,
    header::{CONTENT_TYPE, HOST, HeaderValue},
    server,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, UnixStream},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::merge::{GatewayPage, merge};
use crate::domain::gateway_files::WantedGateways;

/// Time for the answer of a gateway.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of the metrics of a gateway.
const MAX_PAGE: usize = 4 * 1024 * 1024;
/// Connections at a time. Metrics are read by one or two programs.
const MAX_CONNECTIONS: usize = 16;
/// Time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an accept that failed, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics of the agent itself.
pub type NodePage = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves the metrics of the gateways and of the agent, until the task ends.
pub async fn serve(
    listener: TcpListener,
    gateways: watch::Receiver<WantedGateways>,
    node: NodePage,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "connection for metrics not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (gateways, node) = (gateways.clone(), Arc::clone(&node));
        let service = service_fn(move |request| {
            let (gateways, node) = (gateways.clone(), Arc::clone(&node));
            async move { Ok::<_, Infallible>(answer(&request, &gateways, &node).await) }
        });
        let connection = server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "connection for metrics ended");
            }
            drop(place);
        });
    }
}

async fn answer(
    request: &Request<Incoming>,
    gateways: &watch::Receiver<WantedGateways>,
    node: &NodePage,
) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        let mut answer = Response::new(Full::from("see /metrics\n"));
        *answer.status_mut() = StatusCode::NOT_FOUND;
        return answer;
    }
    let sockets: Vec<_> = {
        let wanted = gateways.borrow();
        let gateways = wanted.gateways.iter();
        gateways.map(|(dir, it)| (dir.socket(), it.service.clone(), it.worker.clone())).collect()
    };
    let pages = sockets.into_iter().map(|(socket, service, worker)| async move {
        let text = timeout(GATEWAY_TIMEOUT, read(&socket)).await;
        let text = text.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if let Err(error) = &text {
            debug!(%error, %worker, "gateway does not answer");
        }
        GatewayPage { service, worker, text: text.ok() }
    });
    let mut answer = Response::new(Full::from(merge(&join_all(pages).await, &node())));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    answer
}

/// The metrics of the gateway behind this socket.
async fn read(socket: &Path) -> io::Result<String> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    let request = Request::get("/metrics").header(HOST, "gateway").body(Empty::<Bytes>::new());
    let response = sender.send_request(request.map_err(io::Error::other)?).await;
    let response = response.map_err(io::Error::other)?;
    if response.status() != StatusCode::OK {
        return Err(io::Error::other(response.status().to_string()));
    }
    let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
    let body = body.map_err(io::Error::other)?.to_bytes();
    String::from_utf8(body.into()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde_json::Value;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpStream, UnixListener},
    };

    use super::*;
    use crate::domain::gateway_files::{GatewayDir, GatewayFiles};

    /// Answers one request with these metrics.
    async fn gateway(listener: UnixListener, metrics: &'static str) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).await.unwrap();
        assert!(request[..length].starts_with(b"GET /metrics HTTP/1.1\r\n"));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", metrics.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(metrics.as_bytes()).await.unwrap();
    }

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn gateway_that_does_not_answer_is_down_and_hides_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let bind = |name: &str| {
            let dir = GatewayDir(temp.path().join(name));
            std::fs::create_dir_all(dir.state()).unwrap();
            UnixListener::bind(dir.socket()).unwrap()
        };
        tokio::spawn(gateway(bind("a"), "# TYPE threshold gauge\nthreshold 0.5\n# EOF\n"));
        // It accepts no connection.
        let _stuck = bind("b");
        let files = |name: &str| GatewayFiles {
            service: format!("shop/jointinferenceservices/{name}").parse().unwrap(),
            worker: name.parse().unwrap(),
            config: Value::Null,
            token: None,
            ca: None,
            capture: None,
        };
        let gateways: BTreeMap<_, _> = ["a", "b", "absent"]
            .map(|name| (GatewayDir(temp.path().join(name)), files(name)))
            .into();
        let (_wanted, gateways) =
            watch::channel(WantedGateways { gateways, ..WantedGateways::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, gateways, Arc::new(|| "node_total 1\n".to_owned())));

        let page = get(address, "/metrics").await;
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains(OPEN_METRICS), "{page}");
        let of = |name: &str| format!("namespace=\"shop\",worker=\"{name}\",service=\"{name}\"");
        assert!(page.contains(&format!("\nthreshold{{{}}} 0.5\n", of("a"))), "{page}");
        for (name, is_up) in [("a", 1), ("b", 0), ("absent", 0)] {
            let sample = format!("\nneptune_edge_gateway_up{{{}}} {is_up}\n", of(name));
            assert!(page.contains(&sample), "{sample} is not in {page}");
        }
        assert!(page.contains("\nnode_total 1\n# EOF"), "{page}");
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404 "));
    }
}
