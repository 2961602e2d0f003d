//! Decides to which IP addresses the store may connect. Pure. Name resolution and connections are
//! in `transfer::connector`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

/// An exception from the refused addresses, in the agent's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedAddress {
    /// Every address of a network, such as `127.0.0.0/8` or `::1`.
    Net(IpNet),
    /// Every address to which exactly this host name resolves, such as `models.local`. Lower case.
    Host(String),
}

/// The text is neither an IP address, a network, nor a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid address {0:?}; use an IP address, a network such as 10.0.0.0/8, or a host name")]
pub struct InvalidAllowedAddress(String);

impl FromStr for AllowedAddress {
    type Err = InvalidAllowedAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAllowedAddress> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Net(address.into()));
        }
        let is_name = !text.is_empty()
            && text.len() <= 253
            && text.bytes().any(|b| b.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if is_name {
            Ok(Self::Host(text.to_ascii_lowercase()))
        } else {
            Err(InvalidAllowedAddress(text.to_owned()))
        }
    }
}

/// The kind of a refused address, or `None` if a connection to `address` is allowed.
///
/// Refuses loopback, link-local, multicast, unspecified and reserved addresses, and those of cloud
/// metadata services, also as IPv4 addresses embedded in IPv6 addresses. Allows private networks,
/// because model servers are usually there.
pub fn refused_kind(
    address: IpAddr,
    host: &str,
    allowed: &[AllowedAddress],
) -> Option<&'static str> {
    let embedded = embedded_v4(address);
    let is_allowed = allowed.iter().any(|allowed| match allowed {
        AllowedAddress::Net(net) => {
            net.contains(&address) || embedded.is_some_and(|v4| net.contains(&v4))
        }
        AllowedAddress::Host(name) => *name == host.trim_end_matches('.').to_ascii_lowercase(),
    });
    if is_allowed {
        return None;
    }
    match (address, embedded) {
        (IpAddr::V4(v4), _) => refused_kind_v4(v4),
        (IpAddr::V6(v6), Some(IpAddr::V4(v4))) => {
            refused_kind_v6(v6).or_else(|| refused_kind_v4(v4))
        }
        (IpAddr::V6(v6), _) => refused_kind_v6(v6),
    }
}

/// The IPv4 address to which packets to this IPv6 address may be delivered.
fn embedded_v4(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(v6) = address else { return None };
    let parts = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let last = v4(parts[6], parts[7]);
    let v4 = match parts {
        // Mapped, compatible, translated (SIIT); NAT64, well-known and local; ISATAP.
        [0, 0, 0, 0, 0, 0xffff | 0, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, 0, 0, 0, 0, ..]
        | [0x64, 0xff9b, 1, ..]
        | [_, _, _, _, 0 | 0x200, 0x5efe, ..] => last,
        // 6to4.
        [0x2002, high, low, ..] => v4(high, low),
        // Teredo inverts the bits.
        [0x2001, 0, ..] => v4(!parts[6], !parts[7]),
        _ => return None,
    };
    Some(IpAddr::V4(v4))
}

fn refused_kind_v4(v4: Ipv4Addr) -> Option<&'static str> {
    match v4.octets() {
        [0, ..] => Some("unspecified"),
        [127, ..] => Some("loopback"),
        // AWS, Azure, GCP and others; Alibaba; Azure; Oracle.
        [169, 254, 169, 254] | [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192] => {
            Some("a metadata service")
        }
        [169, 254, ..] => Some("link-local"),
        [224..=239, ..] => Some("multicast"),
        [240..=255, ..] => Some("reserved or broadcast"),
        _ => None,
    }
}

fn refused_kind_v6(v6: Ipv6Addr) -> Option<&'static str> {
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        // AWS and GCP.
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254] => {
            Some("a metadata service")
        }
        [0xfe80..=0xfeff, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kind(address: &str) -> Option<&'static str> {
        refused_kind(address.parse().unwrap(), "h", &[])
    }

    #[test]
    fn local_and_metadata_addresses_are_refused_in_every_form() {
        for (address, expected) in [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "a metadata service"),
            ("100.100.100.200", "a metadata service"),
            ("168.63.129.16", "a metadata service"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "reserved or broadcast"),
            ("240.0.0.1", "reserved or broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "link-local"),
            ("ff02::1", "multicast"),
            ("fd00:ec2::254", "a metadata service"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:169.254.169.254", "a metadata service"),
            ("::127.0.0.1", "loopback"),
            ("::ffff:0:127.0.0.1", "loopback"),
            ("64:ff9b::127.0.0.1", "loopback"),
            ("64:ff9b:1::169.254.169.254", "a metadata service"),
            ("2002:7f00:1::", "loopback"),
            ("2001:0:1:2:3:4:80ff:fffe", "loopback"),
            ("2001:db8::5efe:7f00:1", "loopback"),
        ] {
            assert_eq!(kind(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn public_and_private_networks_are_allowed() {
        for address in [
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "8.8.8.8",
            "fd12:3456::1",
            "2606:4700::1111",
            "::ffff:10.0.0.1",
            "64:ff9b::8.8.8.8",
            "126.255.255.255",
            "170.0.0.1",
        ] {
            assert_eq!(kind(address), None, "{address}");
        }
    }

    #[test]
    fn configured_networks_and_host_names_are_allowed() {
        let allowed: Vec<AllowedAddress> = ["127.0.0.0/8", "::1", "Models.Local"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let may =
            |address: &str, host| refused_kind(address.parse().unwrap(), host, &allowed).is_none();
        assert!(may("127.0.0.1", "h") && may("::1", "h") && may("::ffff:127.0.0.1", "h"));
        assert!(may("169.254.1.1", "models.local") && may("169.254.1.1", "MODELS.local."));
        assert!(!may("169.254.1.1", "h") && !may("169.254.1.1", "evil.models.local"));
        for bad in ["", "10.0.0.0/33", "a b", "300.1.1.1", "http://h"] {
            assert!(bad.parse::<AllowedAddress>().is_err(), "{bad}");
        }
    }
}
