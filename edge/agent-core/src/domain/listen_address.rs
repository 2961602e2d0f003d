//! The address by which the node's containers reach a listener.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address at which containers of this node reach a broker with this listen address: loopback
/// for an unspecified address.
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listen.port())
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), listen.port())
        }
        _ => listen,
    }
}
