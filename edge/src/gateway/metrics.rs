//! Serves the metrics of the agent and of the node's gateways on one address. Those of the gateways
//! are read from their sockets.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    Request, StatusCode,
    body::Incoming,
    client,
    header::{ACCEPT, HOST},
};
use hyper_util::rt::TokioIo;
use neptune_agent_core::{
    domain::gateway_files::WantedGateways,
    gateway::merge::{GatewayPage, merge},
};
use neptune_program::{
    listen::{Limits, Refusals},
    metrics::{self, OPEN_METRICS},
    pages::{Page, PageServer, text},
};
use tokio::{
    net::{TcpListener, UnixStream},
    sync::watch,
    time::timeout,
};
use tracing::debug;

/// Timeout of a request for the metrics of one gateway.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of the metrics of a gateway.
const MAX_PAGE: usize = 4 * 1024 * 1024;
const SERVER: PageServer =
    PageServer { name: "metrics", limits: LIMITS, idle_timeout: HEAD_TIMEOUT, probes: &[] };
/// Metrics are read by one or two programs.
const LIMITS: Limits = Limits {
    pending: 32,
    pending_per_address: 8,
    pending_reserve: 16,
    pending_time: HEAD_TIMEOUT,
    hurried_time: Duration::from_secs(1),
    anonymous: 32,
    anonymous_per_address: 8,
    known: 0,
    per_identity: 0,
};
/// Timeout for the head of a request to this endpoint.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the metrics of the agent itself.
pub type NodePage = Arc<dyn Fn() -> String + Send + Sync>;

/// What the pages are made of. Cheap to clone.
#[derive(Clone)]
pub struct MetricsPages {
    pub gateways: watch::Receiver<WantedGateways>,
    pub node: NodePage,
}

/// Serves the metrics of the gateways and of the agent, until the task ends.
pub async fn serve(listener: TcpListener, pages: MetricsPages, refusals: Refusals) {
    let answer = move |request| answer(request, pages.clone());
    SERVER.serve(listener, &refusals, answer).await;
}

async fn answer(request: Request<Incoming>, pages: MetricsPages) -> Page {
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "see /metrics\n");
    }
    let sockets: Vec<_> = {
        let wanted = pages.gateways.borrow();
        let gateways = wanted.gateways.iter();
        gateways.map(|(dir, it)| (dir.socket(), it.service.clone(), it.worker.clone())).collect()
    };
    let gateways = sockets.into_iter().map(|(socket, service, worker)| async move {
        let text = timeout(GATEWAY_TIMEOUT, read(&socket)).await;
        let text = text.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if let Err(error) = &text {
            debug!(%error, %worker, "gateway does not answer");
        }
        GatewayPage { service, worker, text: text.ok() }
    });
    metrics::answer(request.headers(), merge(&join_all(gateways).await, &(pages.node)()))
}

/// The metrics of the gateway behind this socket.
async fn read(socket: &Path) -> io::Result<String> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    let request = Request::get("/metrics").header(HOST, "gateway").header(ACCEPT, OPEN_METRICS);
    let request = request.body(Empty::<Bytes>::new());
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

    use neptune_agent_core::domain::gateway_files::{GatewayDir, GatewayFiles};
    use neptune_gateway_config::Document;
    use neptune_program::listen;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpStream, UnixListener},
    };

    use super::*;
    use crate::{
        peers::metrics::{PeerCounters, origin_page},
        replication::ReplicaMetrics,
        training::metrics::TrainingMetrics,
    };

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

    #[test]
    fn every_metric_of_the_agent_is_documented() {
        let refusals = Refusals::default();
        refusals.count("metrics", listen::Refusal::PendingFull);
        let gateway = GatewayPage {
            service: "shop/jointinferenceservices/a".parse().unwrap(),
            worker: "a".parse().unwrap(),
            text: None,
        };
        let node = PeerCounters::default().page()
            + &origin_page(0)
            + &ReplicaMetrics::with_one_copy().text()
            + &TrainingMetrics::default().page()
            + &metrics::program_page("neptune_edge", &refusals);
        let page = metrics::text_format(&merge(&[gateway], &node));
        neptune_harness::metrics_doc::check("neptune-edge", &page);
    }

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\naccept: {OPEN_METRICS}\r\nconnection: close\r\n\r\n"
        );
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
            config: Document::default(),
            model_version: None,
            token: None,
            ca: None,
            tls: None,
            capture: None,
        };
        let gateways: BTreeMap<_, _> = ["a", "b", "absent"]
            .map(|name| (GatewayDir(temp.path().join(name)), files(name)))
            .into();
        let (_wanted, gateways) =
            watch::channel(WantedGateways { gateways, ..WantedGateways::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pages = MetricsPages {
            gateways,
            node: Arc::new(|| "# TYPE node counter\nnode_total 1\n".to_owned()),
        };
        tokio::spawn(serve(listener, pages, Refusals::default()));

        let page = get(address, "/metrics").await;
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains(OPEN_METRICS), "{page}");
        let labels =
            |name: &str| format!("namespace=\"shop\",worker=\"{name}\",service=\"{name}\"");
        assert!(page.contains(&format!("\nthreshold{{{}}} 0.5\n", labels("a"))), "{page}");
        for (name, is_up) in [("a", 1), ("b", 0), ("absent", 0)] {
            let sample = format!("\nneptune_edge_gateway_up{{{}}} {is_up}\n", labels(name));
            assert!(page.contains(&sample), "{sample} is not in {page}");
        }
        assert!(page.contains("\nnode_total 1\n") && page.ends_with("\n# EOF\n"), "{page}");
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404 "));
    }
}
