//! The address of `/metrics`: of TCP, or the path of a Unix socket.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// An address of pages for machines: `host:port`, or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// A Unix socket at this absolute path.
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let address = text.parse().map(Self::Tcp);
            return address.map_err(|_| format!("{text:?} is neither address:port nor unix:PATH"));
        };
        let path = PathBuf::from(path);
        if path.is_absolute() {
            Ok(Self::Unix(path))
        } else {
            Err(format!("{text:?} has to name an absolute path"))
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Serialize for MetricsAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MetricsAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_of_tcp_or_a_socket_path() {
        for text in ["127.0.0.1:9464", "[::1]:9464", "unix:/var/lib/neptune-gateway/gateway.sock"] {
            let address = text.parse::<MetricsAddress>().map(|address| address.to_string());
            assert_eq!(address.as_deref(), Ok(text));
        }
        for text in ["", "localhost", "unix:", "unix:gateway.sock", "/run/gateway.sock"] {
            assert!(text.parse::<MetricsAddress>().is_err(), "{text:?} was accepted");
        }
    }
}
