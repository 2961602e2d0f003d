//! Asks name servers, and checks `EdgeMesh` on this node. `diagnosis.rs` and `cloud_workers.rs`
//! decide what the results mean.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use tokio::{net::UdpSocket as AsyncUdpSocket, time::timeout};

use crate::commands::doctor::{
    dns,
    facts::{EdgeMeshFacts, NameAnswer},
};

/// A name server on the node answers within milliseconds; one that is silent for this time hangs.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(2);
/// Every cluster has it.
const KNOWN_NAME: &str = "kubernetes.default.svc.cluster.local";
/// Any port: connecting a UDP socket sends nothing.
const ANY_PORT: u16 = 80;

/// Asks a name server for the addresses of a host.
pub async fn ask(server: SocketAddr, host: &str) -> NameAnswer {
    let Some(query) = dns::query(host) else {
        return NameAnswer::Error(format!("{host:?} is no host name"));
    };
    let exchange = async {
        let socket = AsyncUdpSocket::bind(any(server.ip())).await?;
        socket.connect(server).await?;
        socket.send(&query).await?;
        let mut packet = [0; 1232];
        loop {
            let length = socket.recv(&mut packet).await?;
            if let Some(answer) = dns::answer(&packet[..length]) {
                return io::Result::Ok(answer);
            }
        }
    };
    match timeout(DNS_TIMEOUT, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => NameAnswer::Refused,
        Ok(Err(error)) => NameAnswer::Error(error.to_string()),
        Err(_) => NameAnswer::Silent,
    }
}

/// Whether this machine has `EdgeMesh`'s interface.
pub fn has_interface(server: SocketAddr) -> bool {
    UdpSocket::bind((server.ip(), 0)).is_ok()
}

/// `EdgeMesh`'s interface and name server, and the routes to these `ClusterIP`s.
pub async fn edge_mesh(server: SocketAddr, cluster_ips: Vec<IpAddr>) -> EdgeMeshFacts {
    let has_interface = has_interface(server);
    let dns = if has_interface {
        ask(server, KNOWN_NAME).await
    } else {
        NameAnswer::Error("edgemesh0 does not exist".to_owned())
    };
    let unroutable = cluster_ips.into_iter().filter(|address| !has_route(*address)).collect();
    EdgeMeshFacts { has_interface, dns, unroutable }
}

fn has_route(address: IpAddr) -> bool {
    let connected = UdpSocket::bind(any(address)).and_then(|it| it.connect((address, ANY_PORT)));
    let kind = connected.err().map(|error| error.kind());
    !matches!(kind, Some(io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable))
}

/// Any address and port of a family.
fn any(family: IpAddr) -> SocketAddr {
    let address: IpAddr = if family.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    SocketAddr::new(address, 0)
}
