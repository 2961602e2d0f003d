//! Finds the address at which the cloud reaches the node.

use std::{net::IpAddr, time::Duration};

use tokio::net::UdpSocket;

/// A documentation address (RFC 5737) that is reached over the default route.
const BEYOND_DEFAULT_ROUTE: (&str, u16) = ("192.0.2.1", 9);

const ROUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// How the agent finds the address at which the cloud reaches the node.
#[derive(Debug, Clone)]
pub struct AddressLookup {
    advertised: Option<String>,
    /// The host whose route gives the source address, if no address is advertised.
    host: String,
    port: u16,
}

impl AddressLookup {
    /// `host`: of the route that shows the address. Default: a host beyond the default route.
    pub fn new(advertised: Option<String>, host: Option<(&str, u16)>) -> Self {
        let (host, port) = host.unwrap_or(BEYOND_DEFAULT_ROUTE);
        Self { advertised, host: host.to_owned(), port }
    }

    pub async fn find(self) -> Option<String> {
        match self.advertised {
            Some(address) => Some(address),
            None => own_address(&self.host, self.port).await.map(|address| address.to_string()),
        }
    }
}

/// The source address of the route to `host`. `None` without a route, or if `host` does not resolve
/// within 3 s.
async fn own_address(host: &str, port: u16) -> Option<IpAddr> {
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
