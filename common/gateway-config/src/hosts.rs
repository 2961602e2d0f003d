//! Under which hosts clients may address the gateway. A browser sends the name in its address bar,
//! so a page whose name was rebound to this machine is known by it.

use std::net::IpAddr;

use http::uri::Authority;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Hosts in addition to `localhost` and the addresses of loopback. On a listener that is not on
/// loopback, any host is allowed unless some are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// The hosts that apply to a listener; `None` if it answers every host.
    pub const fn on(&self, is_loopback: bool) -> Option<&Self> {
        if is_loopback || !self.0.is_empty() { Some(self) } else { None }
    }

    /// Whether requests with this host are answered, as [`host_of`] returns it.
    pub fn has(&self, host: &str) -> bool {
        is_local(host) || self.0.iter().any(|allowed| allowed == host)
    }
}

impl<'de> Deserialize<'de> for AllowedHosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let host = |text: String| match host_of(&text) {
            Some(host) if host.len() == text.trim_end_matches('.').len() => Ok(host),
            _ => Err(D::Error::custom(format!(
                "allowedHosts: {text:?} is no host; write a name or an address without a port"
            ))),
        };
        Vec::deserialize(deserializer)?.into_iter().map(host).collect::<Result<_, _>>().map(Self)
    }
}

/// The host of `host[:port]` in lower case; `None` if it is none.
pub fn host_of(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
    let host = authority.host();
    let port = text.strip_prefix(host)?;
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    // A name may end with the dot of the root.
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

fn is_local(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host == "localhost" || address.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn hosts(text: &str) -> Result<AllowedHosts, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn loopback_and_listed_hosts_are_allowed_with_any_port() {
        let hosts = hosts(r#"["Edge0.example.", "192.0.2.7", "[2001:db8::1]"]"#).unwrap();
        for text in [
            "localhost",
            "LocalHost.:8080",
            "127.0.0.1:1",
            "127.8.9.1",
            "[::1]",
            "[::1]:65535",
            "[::ffff:127.0.0.1]:1",
            "edge0.EXAMPLE:8080",
            "192.0.2.7:",
            "[2001:db8::1]:8080",
        ] {
            assert!(hosts.has(&host_of(text).unwrap()), "{text}");
        }
        for text in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x.localhost",
            "192.0.2.8",
            "0.0.0.0",
            "[::2]",
        ] {
            assert!(!hosts.has(&host_of(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_host_with_a_port_is_none() {
        for text in [
            "", ":80", ".", "a b", "me@a", "a:65536", "a:x", "a/b", "http://a", "a:1:2", "a?b",
            "[::1",
        ] {
            assert_eq!(host_of(text), None, "{text:?}");
        }
    }

    #[test]
    fn listed_host_with_a_port_is_refused_by_name() {
        for text in [
            r#"["a:80"]"#,
            r#"["http://a"]"#,
            r#"[""]"#,
            r#"["a", "*."]"#.replace("*.", "a/").as_str(),
        ] {
            assert!(hosts(text).unwrap_err().contains("without a port"), "{text}");
        }
    }

    #[test]
    fn hosts_apply_to_loopback_or_if_some_are_listed() {
        let (none, some) = (AllowedHosts::default(), hosts(r#"["a"]"#).unwrap());
        assert!(none.on(true).is_some() && none.on(false).is_none());
        assert!(some.on(true).is_some() && some.on(false).is_some());
    }

    proptest! {
        #[test]
        fn no_text_panics_and_names_of_others_are_not_allowed(text in ".{0,40}") {
            let host = host_of(&text);
            if let Some(host) = host.filter(|host| AllowedHosts::default().has(host)) {
                prop_assert!(host == "localhost" || host.contains("127.") || host.contains(':'));
            }
        }
    }
}
