//! What a link is told at its start, the message, and the checks of both. Nothing here touches files or the network.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::{BrokerUrl, LinkError};

/// How to reach the broker, as whom, and what to listen to.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The broker.
    pub url: BrokerUrl,
    /// The name of this client: 1 to 65,535 bytes. Two clients with the same id throw each other off the broker.
    pub client_id: String,
    /// What the broker publishes (`QoS` 1) when this client vanishes without [`Link::close`](crate::Link::close). At most 65,535 bytes of payload.
    pub will: Option<Message>,
    /// PEM file of the authorities that may sign the broker's certificate; needed for `mqtts`, refused for `mqtt`.
    /// This and the other files are read anew for each connection: a renewed one is used from the next on, and a
    /// broken one stops the connection only until it is right.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate, with those between it and the authority, by which the broker knows this client.
    pub certificate_file: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    pub key_file: Option<PathBuf>,
    /// File with the password of the URL's user, in place of one in the URL. A line feed at its end is not part of it.
    pub password_file: Option<PathBuf>,
    /// Whether a broker that is open to anybody ([`BrokerUrl::is_insecure`]) is taken.
    pub allow_insecure: bool,
    /// After this time a ping, and after a second without an answer the connection counts as lost. Whole seconds, 1 s
    /// to 65,535 s; 15 s unless set.
    pub keep_alive: Duration,
    /// Bytes of the largest packet, in both directions; 1 MiB unless set. A larger message is refused by
    /// [`Link::publish`](crate::Link::publish); a larger one from the broker costs the connection. Not above the broker's own limit.
    pub max_packet_size: usize,
    /// Topic filters, each subscribed with `QoS` 1 on each new connection.
    pub subscriptions: Vec<String>,
}

impl LinkOptions {
    /// No will, no files, no subscriptions, no open broker, and the defaults named at the fields.
    pub fn new(url: BrokerUrl, client_id: impl Into<String>) -> Self {
        Self {
            url,
            client_id: client_id.into(),
            will: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            password_file: None,
            allow_insecure: false,
            keep_alive: Duration::from_secs(15),
            max_packet_size: 1024 * 1024,
            subscriptions: Vec::new(),
        }
    }

    /// Whether the files fit the address and each other. What is in them is read later.
    fn check_files(&self) -> Result<(), LinkError> {
        match (&self.ca_file, self.url.is_tls()) {
            (None, true) => return Err(LinkError::CaFileMissing),
            (Some(_), false) => return Err(LinkError::CaFileUnused),
            (None, false) | (Some(_), true) => {}
        }
        let login = self.url.credentials();
        let why = match (&self.certificate_file, &self.key_file, &self.password_file) {
            (Some(_), None, _) => "a certificate file without its key file",
            (None, Some(_), _) => "a key file without its certificate file",
            (Some(_), Some(_), _) if !self.url.is_tls() => {
                "a certificate file, and the broker address is mqtt://; write mqtts:// for TLS"
            }
            (_, _, Some(_)) if login.is_none() => {
                "a password file, and no user in the broker address; write mqtts://user@host"
            }
            (_, _, Some(_)) if login.is_some_and(|(_, password)| !password.is_empty()) => {
                "a password file, and a password in the broker address; leave one out"
            }
            _ => return Ok(()),
        };
        Err(LinkError::Files(why))
    }

    /// Refuses what the client library would panic on, cut off, or send to a broker that then hangs up.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let bad_id = |why| LinkError::ClientId { client_id: self.client_id.clone(), why };
        if self.client_id.is_empty() {
            return Err(bad_id("it is empty"));
        }
        if self.client_id.len() > usize::from(u16::MAX) {
            return Err(bad_id("it is longer than 65,535 bytes"));
        }
        if self.client_id.chars().any(char::is_control) {
            return Err(bad_id("it has a control character"));
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

/// What is published and what arrives. Always sent with `QoS` 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Without wildcards, 1 to 65,535 bytes.
    pub topic: String,
    /// Any bytes. Empty together with `retain` clears what the broker retained.
    pub payload: Bytes,
    /// To the broker: keep it for later subscribers. From the broker: it was kept, and is not news.
    pub retain: bool,
}

impl Message {
    /// Bytes of its PUBLISH packet, or what is wrong with its topic.
    pub(crate) fn check(&self) -> Result<usize, LinkError> {
        check_text(&self.topic)?;
        if self.topic.contains(['+', '#']) {
            return Err(bad_topic(&self.topic, "it has a wildcard"));
        }
        // Two bytes of the topic's length and two of the packet id.
        let rest = 2 + self.topic.len() + 2 + self.payload.len();
        // The length is written in groups of seven bits.
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
        return Err(bad_topic(topic, "it has a control character"));
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

    #[test]
    fn the_packet_size_is_the_client_librarys() {
        for payload in [0, 119, 120, 121, 16_375, 16_376, 16_377, 2_097_143, 2_097_144, 2_097_145] {
            let mut publish =
                rumqttc::Publish::new("topic", rumqttc::QoS::AtLeastOnce, vec![0; payload]);
            publish.pkid = 1;
            assert_eq!(message("topic", payload).check().unwrap(), publish.size(), "{payload}");
        }
    }

    #[test]
    fn options_that_no_broker_would_take_are_refused() {
        let good = LinkOptions::new("mqtt://localhost".parse().unwrap(), "me");
        good.check().unwrap();
        let broken: [(&str, Break); 17] = [
            ("--insecure-broker", |o| o.url = "mqtt://b".parse().unwrap()),
            ("needs a CA file", |o| o.url = "mqtts://b".parse().unwrap()),
            ("write mqtts://", |o| o.ca_file = Some("ca".into())),
            ("without its key file", |o| o.certificate_file = Some("c".into())),
            ("without its certificate file", |o| o.key_file = Some("k".into())),
            ("write mqtts://", |o| {
                (o.certificate_file, o.key_file) = (Some("c".into()), Some("k".into()));
            }),
            ("no user", |o| o.password_file = Some("p".into())),
            ("leave one out", |o| {
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
