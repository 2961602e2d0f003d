//! Calls cloud workers as an edge worker does, and checks `EdgeMesh` on this node.
//! `cloud_workers.rs` decides what the results mean.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket as AsyncUdpSocket},
    time::timeout,
};

use crate::{
    commands::doctor::facts::{CallError, CallFacts, Checked, EdgeMeshFacts},
    config::EDGE_MESH_DNS,
};

/// Behind `EdgeMesh` a connection is accepted within 1 ms, so a longer wait means that nothing
/// accepts it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than `EdgeMesh` takes to give up an endpoint (3.8 s). With the connection below the timeout
/// of a check.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(6);
const DNS_TIMEOUT: Duration = Duration::from_secs(2);

/// Any port: connecting a UDP socket sends nothing.
const ANY_PORT: u16 = 80;

/// An A query for `kubernetes.default.svc.cluster.local`.
const DNS_QUERY: &[u8] = b"\x4e\x50\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";

/// Makes one HTTP request. Every status is an answer of a cloud worker.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn call(host: &str, address: SocketAddr) -> CallFacts {
    let began = Instant::now();
    let result = request(host, address, RESPONSE_TIMEOUT).await;
    CallFacts { address, result, took: began.elapsed() }
}

async fn request(
    host: &str,
    address: SocketAddr,
    response_timeout: Duration,
) -> Result<u16, CallError> {
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let mut stream = connected.map_err(|_| CallError::ConnectTimeout)?.map_err(|e| error(&e))?;
    let head = format!(
        "GET / HTTP/1.1\r\nHost: {host}:{}\r\nUser-Agent: neptune-edge-doctor\r\nConnection: close\r\n\r\n",
        address.port()
    );
    let mut start = [0; 12];
    let exchange = async {
        stream.write_all(head.as_bytes()).await?;
        stream.read_exact(&mut start).await
    };
    let exchanged = timeout(response_timeout, exchange).await;
    exchanged.map_err(|_| CallError::Silent)?.map_err(|e| error(&e))?;
    status(&start).ok_or(CallError::NotHttp)
}

/// The status of `HTTP/1.1 200`.
fn status(start: &[u8]) -> Option<u16> {
    let (version, status) = std::str::from_utf8(start).ok()?.split_once(' ')?;
    version.strip_prefix("HTTP/").and_then(|_| status.trim().parse().ok())
}

fn error(error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => CallError::Refused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => CallError::NoRoute,
        io::ErrorKind::TimedOut => CallError::ConnectTimeout,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => CallError::Closed,
        _ => CallError::Other(error.to_string()),
    }
}

/// `EdgeMesh`'s interface and name server, and the routes to these `ClusterIP`s.
pub async fn edge_mesh(cluster_ips: Vec<IpAddr>) -> EdgeMeshFacts {
    let has_interface = UdpSocket::bind((EDGE_MESH_DNS, 0)).is_ok();
    let dns = if has_interface {
        name_server(SocketAddr::new(EDGE_MESH_DNS, 53)).await
    } else {
        Err("edgemesh0 does not exist".to_owned())
    };
    let unroutable = cluster_ips.into_iter().filter(|address| !has_route(*address)).collect();
    EdgeMeshFacts { has_interface, dns, unroutable }
}

/// Whether a name server answers, with any result.
async fn name_server(server: SocketAddr) -> Checked<()> {
    let exchange = async {
        let socket = AsyncUdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0)).await?;
        socket.connect(server).await?;
        socket.send(DNS_QUERY).await?;
        socket.recv(&mut [0; 512]).await
    };
    match timeout(DNS_TIMEOUT, exchange).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no response within {} s", DNS_TIMEOUT.as_secs())),
    }
}

fn has_route(address: IpAddr) -> bool {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any).and_then(|socket| socket.connect((address, ANY_PORT))).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    /// The result of a call to a server that receives the request, and then does this.
    async fn called<F: Future<Output = ()> + Send>(
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) -> Result<u16, CallError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET / HTTP/1.1\r\nHost: cloud:"));
            serve(stream).await;
        });
        call("cloud", address).await.result
    }

    #[tokio::test]
    async fn each_way_a_call_ends_has_its_own_result() {
        let answer = |text: &'static [u8]| {
            called(async move |mut stream: TcpStream| stream.write_all(text).await.unwrap())
        };
        let not_found = answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(not_found, Ok(404), "the examples serve no /");
        assert_eq!(answer(b"SSH-2.0-OpenSSH_9.2\r\n").await, Err(CallError::NotHttp));
        assert_eq!(called(async |stream| drop(stream)).await, Err(CallError::Closed));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(call("cloud", address).await.result, Err(CallError::Refused));
    }

    #[tokio::test]
    async fn accepted_call_without_an_answer_is_silent() {
        // The kernel accepts the connection.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let result = request("cloud", address, Duration::from_millis(50)).await;
        assert_eq!(result, Err(CallError::Silent));
    }

    #[tokio::test]
    async fn name_server_is_asked_and_has_to_answer() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let answer = std::thread::spawn(move || {
            let mut query = [0; 512];
            let (length, client) = server.recv_from(&mut query).unwrap();
            server.send_to(&query[..length], client).unwrap();
            query[..length].to_vec()
        });
        name_server(address).await.unwrap();
        assert_eq!(answer.join().unwrap(), DNS_QUERY);
        let why = name_server(address).await.unwrap_err();
        assert!(why.contains("refused"), "{why}");
    }
}
