//! The options of a link, the message, and their validation. Does not access files or the network.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use zeroize::Zeroizing;

use crate::{BrokerUrl, LinkError};

const CERTIFICATE_UNUSED: &str =
    "a client certificate is given, but the broker address is mqtt://; use mqtts:// for TLS";

/// A client certificate and its private key, as PEM texts. Debug output hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate and its intermediate certificates.
    pub certificate: String,
    /// The private key of the certificate.
    pub key: Zeroizing<String>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

/// The options of a link: broker, identity, last will and subscriptions.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Address of the broker.
    pub url: BrokerUrl,
    /// Client ID, 1 to 65,535 bytes. The broker disconnects a client when another one connects with
    /// the same client ID.
    pub client_id: String,
    /// Last will: the broker publishes it with `QoS` 1 when the connection is lost without
    /// [`Link::close`](crate::Link::close). At most 65,535 bytes of payload.
    pub will: Option<Message>,
    /// PEM file with the CA certificates that may sign the certificate of the broker. Required for
    /// `mqtts`, refused for `mqtt`. This and the other files are read again for each connection: a
    /// renewed file is used from the next connection on, and an invalid one prevents connections
    /// until it is corrected.
    pub ca_file: Option<PathBuf>,
    /// The CA certificates in PEM, instead of a file.
    pub ca: Option<String>,
    /// PEM file with the client certificate and its intermediate certificates. With a client
    /// certificate the dates of the broker's certificate are not compared: who joined a fleet has
    /// its CA, and may have a clock that is wrong.
    pub certificate_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// The client certificate and its key, instead of files.
    pub identity: Option<ClientIdentity>,
    /// File with the password of the user in the URL, instead of a password in the URL. A trailing
    /// newline is ignored.
    pub password_file: Option<PathBuf>,
    /// Whether to allow a non-loopback broker without TLS and authentication
    /// ([`BrokerUrl::is_insecure`]).
    pub allow_insecure: bool,
    /// Interval of pings. The connection is lost when a ping is not answered. Whole seconds, 1 s to
    /// 65,535 s; default 15 s.
    pub keep_alive: Duration,
    /// Maximum packet size in bytes, in both directions; default 1 MiB.
    /// [`Link::publish`](crate::Link::publish) refuses a larger message; a larger one from the
    /// broker is dropped and counted. Must not be above the limit of the broker.
    pub max_packet_size: usize,
    /// Topic filters. The link subscribes to them with `QoS` 1 on each new connection.
    pub subscriptions: Vec<String>,
}

impl LinkOptions {
    /// Returns options without will, files and subscriptions, with the documented defaults, that do
    /// not allow insecure brokers.
    pub fn new(url: BrokerUrl, client_id: impl Into<String>) -> Self {
        Self {
            url,
            client_id: client_id.into(),
            will: None,
            ca_file: None,
            ca: None,
            certificate_file: None,
            key_file: None,
            identity: None,
            password_file: None,
            allow_insecure: false,
            keep_alive: Duration::from_secs(15),
            max_packet_size: 1024 * 1024,
            subscriptions: Vec::new(),
        }
    }

    /// Checks that the files are consistent with the address and each other. Their content is read
    /// later.
    fn check_files(&self) -> Result<(), LinkError> {
        match (self.ca_file.is_some() || self.ca.is_some(), self.url.is_tls()) {
            (false, true) => return Err(LinkError::CaFileMissing),
            (true, false) => return Err(LinkError::CaFileUnused),
            (false, false) | (true, true) => {}
        }
        if self.ca_file.is_some() && self.ca.is_some() {
            return Err(LinkError::Files("a CA file and CA certificates are given; remove one"));
        }
        let has_files = self.certificate_file.is_some() || self.key_file.is_some();
        match &self.identity {
            Some(_) if has_files => {
                return Err(LinkError::Files(
                    "a client certificate and its files are given; remove one",
                ));
            }
            Some(_) if !self.url.is_tls() => return Err(LinkError::Files(CERTIFICATE_UNUSED)),
            _ => {}
        }
        let login = self.url.credentials();
        let why = match (&self.certificate_file, &self.key_file, &self.password_file) {
            (Some(_), None, _) => "a certificate file is given without its key file",
            (None, Some(_), _) => "a key file is given without its certificate file",
            (Some(_), Some(_), _) if !self.url.is_tls() => CERTIFICATE_UNUSED,
            (_, _, Some(_)) if login.is_none() => {
                "a password file is given, but no user in the broker address; use mqtts://user@host"
            }
            (_, _, Some(_)) if login.is_some_and(|(_, password)| !password.is_empty()) => {
                "a password file and a password in the broker address are given; remove one"
            }
            _ => return Ok(()),
        };
        Err(LinkError::Files(why))
    }

    /// Refuses options on which the client library would panic, that it would truncate, or for
    /// which the broker would close the connection.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let bad_id = |why| LinkError::ClientId { client_id: self.client_id.clone(), why };
        if self.client_id.is_empty() {
            return Err(bad_id("it is empty"));
        }
        if self.client_id.len() > usize::from(u16::MAX) {
            return Err(bad_id("it is longer than 65,535 bytes"));
        }
        if self.client_id.chars().any(char::is_control) {
            return Err(bad_id("it contains a control character"));
        }
        if !(1..=u64::from(u16::MAX)).contains(&self.keep_alive.as_secs()) {
            return Err(LinkError::KeepAlive(self.keep_alive));
        }
        if self.url.is_insecure() && !self.allow_insecure {
            return Err(LinkError::InsecureBroker(self.url.clone()));
        }
        self.check_files()?;
        for filter in &self.subscriptions {
            check_text(filter)?;
            if !rumqttc::valid_filter(filter) {
                return Err(bad_topic(
                    filter,
                    "+ must be alone in its level and # alone in the last",
                ));
            }
        }
        if let Some(will) = &self.will {
            let size = will.check()?;
            let max = self.max_packet_size.min(usize::from(u16::MAX));
            if size > max {
                return Err(LinkError::TooLarge { topic: will.topic.clone(), size, max });
            }
        }
        Ok(())
    }
}

/// A message, published or received. Always published with `QoS` 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic without wildcards, 1 to 65,535 bytes.
    pub topic: String,
    /// Payload. An empty payload with `retain` clears the retained message.
    pub payload: Bytes,
    /// Published: the broker retains the message for later subscribers. Received: it is a retained
    /// message, published before the subscription.
    pub retain: bool,
}

impl Message {
    /// Returns the size of its PUBLISH packet in bytes, or an error for an invalid topic.
    pub(crate) fn check(&self) -> Result<usize, LinkError> {
        check_text(&self.topic)?;
        if self.topic.contains(['+', '#']) {
            return Err(bad_topic(&self.topic, "it contains a wildcard"));
        }
        // Two bytes for the length of the topic and two for the packet identifier.
        let rest = 2 + self.topic.len() + 2 + self.payload.len();
        // The remaining length is encoded in groups of seven bits.
        let length_bytes = match rest {
            0..=0x7f => 1,
            0x80..=0x3fff => 2,
            0x4000..=0x1f_ffff => 3,
            _ => 4,
        };
        Ok(1 + length_bytes + rest)
    }
}

fn check_text(topic: &str) -> Result<(), LinkError> {
    if topic.is_empty() {
        return Err(bad_topic(topic, "it is empty"));
    }
    if topic.len() > usize::from(u16::MAX) {
        return Err(bad_topic(topic, "it is longer than 65,535 bytes"));
    }
    if topic.chars().any(char::is_control) {
        return Err(bad_topic(topic, "it contains a control character"));
    }
    Ok(())
}

fn bad_topic(topic: &str, why: &'static str) -> LinkError {
    LinkError::Topic { topic: topic.to_owned(), why }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Break = fn(&mut LinkOptions);

    fn message(topic: &str, payload: usize) -> Message {
        Message { topic: topic.into(), payload: vec![0; payload].into(), retain: false }
    }

    fn identity() -> ClientIdentity {
        ClientIdentity { certificate: "public".into(), key: Zeroizing::new("private".into()) }
    }

    #[test]
    fn debug_output_of_options_has_no_key() {
        let options = LinkOptions {
            identity: Some(identity()),
            ..LinkOptions::new("mqtt://localhost".parse().unwrap(), "me")
        };
        assert!(!format!("{options:?}").contains("private"), "{options:?}");
    }

    #[test]
    fn packet_size_equals_that_of_the_client_library() {
        for payload in [0, 119, 120, 121, 16_375, 16_376, 16_377, 2_097_143, 2_097_144, 2_097_145] {
            let mut publish =
                rumqttc::Publish::new("topic", rumqttc::QoS::AtLeastOnce, vec![0; payload]);
            publish.pkid = 1;
            assert_eq!(message("topic", payload).check().unwrap(), publish.size(), "{payload}");
        }
    }

    #[test]
    fn invalid_options_are_refused() {
        let good = LinkOptions::new("mqtt://localhost".parse().unwrap(), "me");
        good.check().unwrap();
        let broken: [(&str, Break); 20] = [
            ("--insecure-broker", |o| o.url = "mqtt://b".parse().unwrap()),
            ("needs a CA file", |o| o.url = "mqtts://b".parse().unwrap()),
            ("use mqtts://", |o| o.ca_file = Some("ca".into())),
            ("without its key file", |o| o.certificate_file = Some("c".into())),
            ("without its certificate file", |o| o.key_file = Some("k".into())),
            ("use mqtts://", |o| {
                (o.certificate_file, o.key_file) = (Some("c".into()), Some("k".into()));
            }),
            ("use mqtts://", |o| o.identity = Some(identity())),
            ("remove one", |o| {
                o.url = "mqtts://b".parse().unwrap();
                (o.ca_file, o.ca) = (Some("ca".into()), Some(String::new()));
            }),
            ("remove one", |o| {
                o.url = "mqtts://b".parse().unwrap();
                (o.ca, o.identity) = (Some(String::new()), Some(identity()));
                (o.certificate_file, o.key_file) = (Some("c".into()), Some("k".into()));
            }),
            ("but no user", |o| o.password_file = Some("p".into())),
            ("remove one", |o| {
                o.url = "mqtt://u:p@b".parse().unwrap();
                o.password_file = Some("p".into());
            }),
            ("empty", |o| o.client_id.clear()),
            ("control", |o| o.client_id.push('\0')),
            ("longer", |o| o.client_id = "x".repeat(65_536)),
            ("keep alive", |o| o.keep_alive = Duration::from_millis(999)),
            ("keep alive", |o| o.keep_alive = Duration::from_secs(65_536)),
            ("alone", |o| o.subscriptions.push("a/#/b".into())),
            ("empty", |o| o.subscriptions.push(String::new())),
            ("wildcard", |o| o.will = Some(message("a/+", 0))),
            ("limit", |o| o.will = Some(message("a", 65_536))),
        ];
        for (why, break_it) in broken {
            let mut options = good.clone();
            break_it(&mut options);
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
