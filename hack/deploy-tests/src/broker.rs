//! A mosquitto with the shipped configuration and ACL: only paths and ports are the test's.
#![allow(clippy::unwrap_used, clippy::panic)] // a fixture fails by panicking

use std::{fs, path::PathBuf};

use neptune_harness::{
    Broker, broker::write_passwords, eventually, free_port, tls::Authority, unique, within,
};
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};

use crate::text;

/// The memory that the broker may use, in bytes.
pub const MEMORY_LIMIT: usize = 20_000_000;

/// The central broker as it is shipped, with its users and its limits.
pub struct ShippedBroker {
    nodes: u16,
    cloud: u16,
    ca: PathBuf,
    broker: Broker,
}

impl ShippedBroker {
    /// Starts it with these users, each with the password `of-<name>`.
    pub async fn start(users: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(dir.path().join("ca.crt"));
        let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        authority.server_certificate(&certificate, &key);
        let passwords: Vec<_> = users.iter().map(|user| format!("of-{user}")).collect();
        let users: Vec<_> = users.iter().copied().zip(passwords.iter().map(|p| &**p)).collect();
        write_passwords(&dir.path().join("passwords"), &users);
        fs::write(dir.path().join("neptune.acl"), text("build/acl/neptune.acl")).unwrap();
        let (nodes, cloud) = (free_port(), free_port());
        let here = dir.path().display();
        let config = adapted(
            "build/acl/mosquitto.conf",
            &[
                ("/mosquitto/config/", format!("{here}/")),
                ("/mosquitto/passwords/", format!("{here}/")),
                ("/mosquitto/tls/", format!("{here}/")),
                ("memory_limit 402653184\n", format!("memory_limit {MEMORY_LIMIT}\n")),
                ("listener 8883\n", format!("listener {nodes} 127.0.0.1\n")),
                ("listener 8884\n", format!("listener {cloud} 127.0.0.1\n")),
            ],
        );
        // mosquitto logs denied messages only at the level debug.
        let config = format!("{config}\nlog_type all\n");
        let ca = authority.file().to_owned();
        let broker = Broker::with_config_file(nodes, dir, &config).await;
        Self { nodes, cloud, ca, broker }
    }

    /// The options of a node's connection.
    pub fn as_node(&self, user: &str) -> LinkOptions {
        self.options(user, self.nodes, format!("neptune-edge-{user}"))
    }

    /// The options of a controller's or an observer's connection.
    pub fn as_cloud(&self, user: &str) -> LinkOptions {
        self.options(user, self.cloud, unique(user))
    }

    fn options(&self, user: &str, port: u16, client_id: String) -> LinkOptions {
        let url = format!("mqtts://{user}:of-{user}@localhost:{port}").parse().unwrap();
        LinkOptions { ca_file: Some(self.ca.clone()), ..LinkOptions::new(url, client_id) }
    }

    /// Number of lines of the log that contain a text.
    pub fn logged(&self, text: &str) -> usize {
        self.broker.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Waits until that many lines of the log contain a text.
    pub async fn until_logged(&self, text: &str, count: usize) {
        let what = format!("{count} lines of the broker's log with {text:?}");
        eventually(&what, || self.logged(text) >= count).await;
    }
}

/// A shipped file with these texts replaced, each of which it must contain.
fn adapted(path: &str, replacements: &[(&str, String)]) -> String {
    let mut config = text(path);
    for (shipped, own) in replacements {
        assert!(config.contains(shipped), "{path} does not contain {shipped:?} any more");
        config = config.replace(shipped, own);
    }
    config
}

/// Connects, and waits until the link is up.
pub async fn connect(options: LinkOptions) -> (Link, LinkEvents) {
    let (link, mut events) = Link::start(options).unwrap();
    match next(&mut events).await {
        LinkEvent::Up => (link, events),
        other => panic!("{other:?}"),
    }
}

pub async fn next(events: &mut LinkEvents) -> LinkEvent {
    within("a link event", events.next()).await.expect("the link is open")
}

/// The next message. mosquitto 2.0 disconnects a client for each denied publication, and the link
/// reconnects.
pub async fn next_message(events: &mut LinkEvents) -> Message {
    loop {
        if let LinkEvent::Message(message) = next(events).await {
            return message;
        }
    }
}

/// Publishes, and waits until the broker acknowledges it.
pub async fn publish(link: &Link, topic: &str, payload: &str, retain: bool) {
    let payload = payload.to_owned().into();
    link.publish(Message { topic: topic.to_owned(), payload, retain }).unwrap();
    within("the acknowledgement", link.flushed()).await;
}

/// A node's own mosquitto, open on loopback like `KubeEdge`'s, with the shipped bridge to a central
/// broker.
pub struct LocalBroker(Broker);

impl LocalBroker {
    /// The broker of the node `edge0`.
    pub async fn start(central: &ShippedBroker) -> Self {
        let port = free_port();
        let bridge = adapted(
            "build/acl/bridge.conf",
            &[
                (
                    "address broker.example.org:30883",
                    format!("address localhost:{}", central.nodes),
                ),
                ("/etc/neptune/mqtt-ca.crt", central.ca.display().to_string()),
                ("remote_password secret", "remote_password of-edge0".to_owned()),
            ],
        );
        let config = format!("listener {port} 127.0.0.1\nallow_anonymous true\n{bridge}");
        let dir = tempfile::tempdir().unwrap();
        Self(Broker::with_config_file(port, dir, &config).await)
    }

    /// The options of the connection of the node's agent.
    pub fn options(&self) -> LinkOptions {
        LinkOptions::new(self.0.url().parse().unwrap(), "agent")
    }
}
