//! Decides from which addresses models may be fetched. Resolving names and connecting is dial.rs's.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

/// An exception from the refused addresses, in the agent's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// `127.0.0.0/8`, `::1`: every address in it.
    Net(IpNet),
    /// `models.local`: whatever this very name resolves to.
    Host(String),
}

/// The text is neither an address, a network nor a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address, a network like 10.0.0.0/8, nor a host name")]
pub struct NotAllowable(String);

impl FromStr for Allowed {
    type Err = NotAllowable;

    fn from_str(text: &str) -> Result<Self, NotAllowable> {
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
            Err(NotAllowable(text.to_owned()))
        }
    }
}

/// Why nothing is fetched from `address`, or none if it may be: loopback, link-local, metadata
/// services, multicast, unspecified and reserved ones are refused, also inside IPv6 forms that carry
/// an IPv4 address. Private networks are where model servers live: they are not refused.
pub fn refused(address: IpAddr, host: &str, allowed: &[Allowed]) -> Option<&'static str> {
    let embedded = embedded(address);
    let is_allowed = allowed.iter().any(|allowed| match allowed {
        Allowed::Net(net) => net.contains(&address) || embedded.is_some_and(|v4| net.contains(&v4)),
        Allowed::Host(name) => *name == host.trim_end_matches('.').to_ascii_lowercase(),
    });
    if is_allowed {
        return None;
    }
    match (address, embedded) {
        (IpAddr::V4(v4), _) => kind_v4(v4),
        (IpAddr::V6(v6), Some(IpAddr::V4(v4))) => kind_v6(v6).or_else(|| kind_v4(v4)),
        (IpAddr::V6(v6), _) => kind_v6(v6),
    }
}

/// The IPv4 address that packets to this IPv6 address may end at.
fn embedded(address: IpAddr) -> Option<IpAddr> {
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
        // Teredo hides it.
        [0x2001, 0, ..] => v4(!parts[6], !parts[7]),
        _ => return None,
    };
    Some(IpAddr::V4(v4))
}

fn kind_v4(v4: Ipv4Addr) -> Option<&'static str> {
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

fn kind_v6(v6: Ipv6Addr) -> Option<&'static str> {
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
        refused(address.parse().unwrap(), "h", &[])
    }

    #[test]
    fn addresses_of_the_node_itself_and_of_clouds_are_refused_in_every_dress() {
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
    fn public_and_private_networks_are_not_refused() {
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
    fn the_configuration_allows_networks_and_names() {
        let allowed: Vec<Allowed> = ["127.0.0.0/8", "::1", "Models.Local"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let may = |address: &str, host| refused(address.parse().unwrap(), host, &allowed).is_none();
        assert!(may("127.0.0.1", "h") && may("::1", "h") && may("::ffff:127.0.0.1", "h"));
        assert!(may("169.254.1.1", "models.local") && may("169.254.1.1", "MODELS.local."));
        assert!(!may("169.254.1.1", "h") && !may("169.254.1.1", "evil.models.local"));
        for bad in ["", "10.0.0.0/33", "a b", "300.1.1.1", "http://h"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad}");
        }
    }
}
