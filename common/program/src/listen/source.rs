//! Where a connection comes from, and the address by which it is counted. Pure.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A client over TCP, with its address.
    Address(SocketAddr),
    /// A client of a Unix socket.
    Local,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Local => f.write_str("local"),
        }
    }
}

/// The address that shares its limits: an IPv4 address, or an IPv6 network of 64 bits, within which
/// a client chooses its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// `None` for clients on this machine: all of them have the same address, so that a limit of the
    /// address would let one of them lock out the others.
    pub fn from_peer(peer: Peer) -> Option<Self> {
        let Peer::Address(address) = peer else { return None };
        let ip = address.ip().to_canonical();
        match ip {
            ip if ip.is_loopback() => None,
            IpAddr::V4(_) => Some(Self(ip)),
            IpAddr::V6(ip) => {
                let network = ip.to_bits() & !u128::from(u64::MAX);
                Some(Self(IpAddr::V6(Ipv6Addr::from_bits(network))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn source(address: &str) -> Option<Source> {
        Source::from_peer(Peer::Address(address.parse().unwrap()))
    }

    #[test]
    fn clients_on_this_machine_share_no_address() {
        for address in ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(source(address), None, "{address}");
        }
        assert_eq!(Source::from_peer(Peer::Local), None);
    }

    #[test]
    fn address_is_that_of_a_machine_or_of_its_ipv6_network() {
        for (a, b, is_same) in [
            ("10.0.0.1:1", "10.0.0.1:2", true),
            ("10.0.0.1:1", "10.0.0.2:1", false),
            ("10.0.0.1:1", "[::ffff:10.0.0.1]:1", true),
            ("[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true),
            ("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false),
        ] {
            assert!(source(a).is_some(), "{a}");
            assert_eq!(source(a) == source(b), is_same, "{a} {b}");
        }
    }
}
