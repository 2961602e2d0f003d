//! Finds the address at which the node is reached.

use std::{net::IpAddr, time::Duration};

use tokio::net::UdpSocket;

const ROUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// The address of this machine that a packet to `host` would carry: where the cluster's side can
/// reach it if it can at all. `None` without a route or a name server.
pub async fn own_address(host: &str, port: u16) -> Option<IpAddr> {
    let route = async {
        // Nothing is sent: connecting a datagram socket only asks for the route.
        let target = tokio::net::lookup_host((host, port)).await.ok()?.next()?;
        let socket =
            UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await.ok()?;
        socket.connect(target).await.ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    tokio::time::timeout(ROUTE_TIMEOUT, route).await.ok()?
}
