//! Finds the address at which the cloud reaches the node.

use std::{net::IpAddr, time::Duration};

use tokio::net::UdpSocket;

const ROUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// The source address of the route to `host`. `None` without a route, or if `host` does not resolve
/// within 3 s.
pub async fn own_address(host: &str, port: u16) -> Option<IpAddr> {
    let route = async {
        // Connecting a datagram socket selects the route and sends nothing.
        let target = tokio::net::lookup_host((host, port)).await.ok()?.next()?;
        let socket =
            UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await.ok()?;
        socket.connect(target).await.ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    tokio::time::timeout(ROUTE_TIMEOUT, route).await.ok()?
}
