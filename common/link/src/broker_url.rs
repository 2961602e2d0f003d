//! Parses and prints the address of a broker. The connection resolves the host name.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::LinkError;

/// `mqtt://[user[:password]@]host[:1883]`, or `mqtts://...[:8883]` for TLS.
///
/// Characters of the user and the password may be percent-encoded (`%40` for `@`). An IPv6 address
/// is written in brackets. `Display` and `Debug` never show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    tls: bool,
    login: Option<Login>,
    host: String,
    port: u16,
}

#[derive(Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password: Option<String>,
}

impl BrokerUrl {
    /// Returns the host name or address, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the scheme is `mqtts`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns whether this is a non-loopback broker without TLS and without authentication:
    /// anybody who reaches it can read and publish messages. A host name other than `localhost`
    /// counts as non-loopback.
    pub fn is_insecure(&self) -> bool {
        let is_loopback = match self.host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => self.host == "localhost" || self.host.ends_with(".localhost"),
        };
        !self.tls && self.login.is_none() && !is_loopback
    }

    /// Returns user and password, decoded. A missing password is an empty one and is not sent.
    pub(crate) fn credentials(&self) -> Option<(&str, &str)> {
        let login = self.login.as_ref()?;
        Some((&login.user, login.password.as_deref().unwrap_or_default()))
    }
}

impl FromStr for BrokerUrl {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let error = |why: &str| LinkError::Url(why.to_owned());
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| error("the scheme is missing"))?;
        let tls = match scheme {
            "mqtt" => false,
            "mqtts" => true,
            _ => {
                return Err(LinkError::Url(format!("the scheme {scheme:?} is not mqtt or mqtts")));
            }
        };
        // The last @ terminates the login, so that a password may contain a plain @ or /.
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => (Some(login.parse()?), address),
            None => (None, rest),
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        if address.contains(['/', '?', '#']) {
            return Err(error("unexpected text after the port"));
        }
        let (host, port) = split_port(address)?;
        if host.is_empty() {
            return Err(error("the host is missing"));
        }
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                LinkError::Url(format!("the port {port:?} is not a number from 1 to 65535"))
            })?,
            None if tls => 8883,
            None => 1883,
        };
        Ok(Self { tls, login, host: host.to_owned(), port })
    }
}

fn split_port(address: &str) -> Result<(&str, Option<&str>), LinkError> {
    if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| LinkError::Url("the bracket [ is not closed".into()))?;
        if host.parse::<Ipv6Addr>().is_err() {
            return Err(LinkError::Url(format!("{host:?} in brackets is not an IPv6 address")));
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => {
                Err(LinkError::Url(format!("unexpected {rest:?} between the host and the port")))
            }
        };
    }
    let (host, port) = match address.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    };
    if port.is_some_and(|port| port.contains(':')) {
        return Err(LinkError::Url(
            "more than one colon in the host; write IPv6 addresses in brackets".into(),
        ));
    }
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if let Some(bad) = host.chars().find(|c| !valid(*c)) {
        return Err(LinkError::Url(format!("the host contains the invalid character {bad:?}")));
    }
    Ok((host, port))
}

impl FromStr for Login {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(percent_decode(password)?)),
            None => (text, None),
        };
        if user.is_empty() {
            return Err(LinkError::Url("the user before @ is missing".into()));
        }
        let user = percent_decode(user)?;
        // MQTT encodes the length of both in two bytes.
        if [Some(&user), password.as_ref()]
            .into_iter()
            .flatten()
            .any(|part| part.len() > usize::from(u16::MAX))
        {
            return Err(LinkError::Url(
                "the user or the password is longer than 65,535 bytes".into(),
            ));
        }
        Ok(Self { user, password })
    }
}

fn percent_decode(text: &str) -> Result<String, LinkError> {
    let error = || {
        LinkError::Url(
            "invalid percent-encoding in the user or the password; write a plain % as %25".into(),
        )
    };
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2).ok_or_else(error)?;
        if !code.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(error());
        }
        bytes.push(u8::from_str_radix(code, 16).map_err(|_| error())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes)
        .map_err(|_| LinkError::Url("the user or the password is not UTF-8".into()))
}

/// Shows `***` instead of a password.
impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "mqtts://" } else { "mqtt://" })?;
        if let Some(login) = &self.login {
            for byte in login.user.bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    write!(f, "{}", char::from(byte))?;
                } else {
                    write!(f, "%{byte:02X}")?;
                }
            }
            f.write_str(if login.password.is_some() { ":***@" } else { "@" })?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrokerUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn broker_url_is_printed_without_password() {
        let table = [
            ("mqtt://broker", "mqtt://broker:1883", None),
            ("mqtts://broker.example.org/", "mqtts://broker.example.org:8883", None),
            ("mqtt://127.0.0.1:2883", "mqtt://127.0.0.1:2883", None),
            ("mqtt://[::1]", "mqtt://[::1]:1883", None),
            ("mqtts://[fe80::2]:99", "mqtts://[fe80::2]:99", None),
            ("mqtt://ann@b:1", "mqtt://ann@b:1", Some(("ann", ""))),
            ("mqtt://ann:secret@b", "mqtt://ann:***@b:1883", Some(("ann", "secret"))),
            ("mqtt://a%40b:p%3a%25@b", "mqtt://a%40b:***@b:1883", Some(("a@b", "p:%"))),
            ("mqtt://ann:p@ss/w:rd?@b", "mqtt://ann:***@b:1883", Some(("ann", "p@ss/w:rd?"))),
            ("mqtt://ann:@my_broker", "mqtt://ann:***@my_broker:1883", Some(("ann", ""))),
        ];
        for (text, printed, credentials) in table {
            let url: BrokerUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), printed);
            assert_eq!(url.credentials(), credentials, "{text}");
            assert_eq!(format!("{url:?}"), format!("BrokerUrl({printed})"));
        }
        let url: BrokerUrl = "mqtts://[::1]:7".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.is_tls()), ("::1", 7, true));
    }

    #[test]
    fn anonymous_unencrypted_remote_broker_is_insecure() {
        for insecure in
            ["mqtt://broker", "mqtt://192.0.2.1", "mqtt://[2001:db8::1]", "mqtt://0.0.0.0"]
        {
            assert!(insecure.parse::<BrokerUrl>().unwrap().is_insecure(), "{insecure}");
        }
        for secure in [
            "mqtts://broker",
            "mqtt://u:p@broker",
            "mqtt://localhost",
            "mqtt://127.1.2.3",
            "mqtt://[::1]",
            "mqtt://[::ffff:127.0.0.1]",
        ] {
            assert!(!secure.parse::<BrokerUrl>().unwrap().is_insecure(), "{secure}");
        }
    }

    #[test]
    fn invalid_url_is_refused_with_the_reason_and_without_the_password() {
        let table = [
            ("", "scheme is missing"),
            ("broker:1883", "scheme is missing"),
            ("tcp://broker", "\"tcp\" is not"),
            ("mqtt://", "host is missing"),
            ("mqtt://:1883", "host is missing"),
            ("mqtt://broker:0", "port \"0\""),
            ("mqtt://broker:65536", "port \"65536\""),
            ("mqtt://broker:", "port \"\""),
            ("mqtt://broker:1883/topic", "text after the port"),
            ("mqtt://broker?x", "text after the port"),
            ("mqtt://bro ker", "invalid character ' '"),
            ("mqtt://::1", "in brackets"),
            ("mqtt://[::1", "not closed"),
            ("mqtt://[broker]", "not an IPv6"),
            ("mqtt://[::1]1883", "between the host and the port"),
            ("mqtt://@broker", "user before @"),
            ("mqtt://:secret@broker", "user before @"),
            ("mqtt://ann:secret%@broker", "%25"),
            ("mqtt://ann:secret%+1@broker", "%25"),
            ("mqtt://ann:secret%ff@broker", "not UTF-8"),
            ("mqtt://ann:secret@broker:x", "port \"x\""),
        ];
        for (text, why) in table {
            let error = text.parse::<BrokerUrl>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("mqtt://[user[:password]@]host[:1883]"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
