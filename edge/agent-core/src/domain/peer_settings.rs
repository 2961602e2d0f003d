//! What the node shares with other nodes, and where it listens for them.

use std::net::{IpAddr, SocketAddr};

use neptune_wire::PeerEndpoint;

/// The effect of `--model-sharing namespace` on `--peers`, for the log and the doctor.
pub const WITHHELD: &str = "models are not shared with other nodes although --peers is given, because --model-sharing is namespace";

/// The settings of the exchange of contents with other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    /// Whether contents of models are shared with the nodes of the zone.
    pub shares_models: bool,
    /// Whether they are not although `--peers` is given, because of `--model-sharing`.
    pub withholds_models: bool,
    /// Whether datasets may be copied to other nodes.
    pub allows_replicas: bool,
    /// `None`: the agent only fetches.
    pub listen: Option<SocketAddr>,
    /// Bytes per second of all uploads.
    pub bytes_per_second: u64,
}

impl PeerSettings {
    /// The endpoint in the reports of the node. `address` is that of the node, for a listener on all
    /// addresses. `None` if the address is not known.
    pub fn endpoint(&self, address: Option<&str>) -> Option<PeerEndpoint> {
        let listen = match self.listen {
            Some(listen) if listen.ip().is_unspecified() => {
                let ip = address?.parse::<IpAddr>().ok()?;
                Some(SocketAddr::new(ip, listen.port()))
            }
            listen => listen,
        };
        Some(PeerEndpoint {
            addresses: listen.iter().map(SocketAddr::to_string).collect(),
            shares_models: self.shares_models,
            allows_replicas: self.allows_replicas,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn listener_on_all_addresses_reports_the_address_of_the_node() {
        let addresses = |listen: Option<&str>, address| {
            let listen = listen.map(|text| text.parse().unwrap());
            let settings = PeerSettings {
                shares_models: true,
                withholds_models: false,
                allows_replicas: false,
                listen,
                bytes_per_second: 1,
            };
            settings.endpoint(address).map(|it| it.addresses)
        };
        let one = |text: &str| Some(vec![text.to_owned()]);
        assert_eq!(addresses(None, None), Some(vec![]));
        assert_eq!(addresses(Some("10.0.0.1:8417"), None), one("10.0.0.1:8417"));
        assert_eq!(addresses(Some("0.0.0.0:9"), Some("10.0.0.2")), one("10.0.0.2:9"));
        assert_eq!(addresses(Some("[::]:9"), Some("fd00::2")), one("[fd00::2]:9"));
        assert_eq!(addresses(Some("0.0.0.0:9"), Some("edge0.example")), None);
        assert_eq!(addresses(Some("0.0.0.0:9"), None), None);
    }
}
