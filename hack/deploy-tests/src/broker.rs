//! A mosquitto with the shipped configuration and ACL: only paths and ports are the test's.
#![allow(clippy::unwrap_used, clippy::panic)] // a fixture fails by panicking

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpStream,
    path::PathBuf,
};

use neptune_harness::{Broker, broker::write_passwords, eventually, free_port, unique, within};
use neptune_link::{ClientIdentity, Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_pinned_tls::Authority;

use crate::text;

/// The memory that the broker may use, in bytes.
pub const MEMORY_LIMIT: usize = 20_000_000;

/// The central broker as it is shipped, with its users and its limits.
pub struct ShippedBroker {
    nodes: u16,
    cloud: u16,
    authority: Authority,
    dir: PathBuf,
    identities: BTreeMap<String, ClientIdentity>,
    broker: Broker,
}

impl ShippedBroker {
    /// Starts it with certificates for these users.
    pub async fn start(users: &[&str]) -> Self {
        Self::launch("build/acl/mosquitto.conf", users, &[]).await
    }

    /// Starts it with certificates for these users, and further ones that each have the password
    /// `of-<name>`.
    pub async fn with_passwords(users: &[&str], with_password: &[&str]) -> Self {
        Self::launch("build/acl/mosquitto-passwords.conf", users, with_password).await
    }

    async fn launch(config: &str, users: &[&str], with_password: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let authority = Authority::generate(4_000_000_000);
        let server = authority.sign_server(["localhost".to_owned()]).unwrap();
        fs::write(file("ca.crt"), authority.certificate()).unwrap();
        fs::write(file("tls.crt"), server.certificate).unwrap();
        fs::write(file("tls.key"), server.key).unwrap();
        fs::write(file("crl.pem"), authority.revocation_list(&BTreeSet::new(), 1).unwrap())
            .unwrap();
        fs::write(file("neptune.acl"), text("build/acl/neptune.acl")).unwrap();
        let identity = |user: &&str| {
            let signed = authority.sign_user(user).unwrap();
            let (certificate, key) = (signed.certificate, signed.key.into());
            ((*user).to_owned(), ClientIdentity { certificate, key })
        };
        let identities = users.iter().map(identity).collect();
        let (nodes, cloud) = (free_port(), free_port());
        let here = dir.path().display();
        let mut replacements = vec![
            ("/mosquitto/config/", format!("{here}/")),
            ("/mosquitto/tls/", format!("{here}/")),
            ("memory_limit 402653184\n", format!("memory_limit {MEMORY_LIMIT}\n")),
            ("listener 8885\n", format!("listener {nodes} 127.0.0.1\n")),
            ("listener 8886\n", format!("listener {cloud} 127.0.0.1\n")),
        ];
        let (mut nodes, mut cloud) = (nodes, cloud);
        if !with_password.is_empty() {
            let passwords: Vec<_> = with_password.iter().map(|user| format!("of-{user}")).collect();
            let users = with_password.iter().copied().zip(passwords.iter().map(|p| &**p));
            write_passwords(&file("passwords"), &users.collect::<Vec<_>>());
            (nodes, cloud) = (free_port(), free_port());
            replacements.extend([
                ("/mosquitto/passwords/", format!("{here}/")),
                ("/mosquitto/password-tls/", format!("{here}/")),
                ("listener 8883\n", format!("listener {nodes} 127.0.0.1\n")),
                ("listener 8884\n", format!("listener {cloud} 127.0.0.1\n")),
            ]);
        }
        let config = adapted(config, &replacements);
        // mosquitto logs denied messages only at the level debug.
        let config = format!("{config}\nlog_type all\n");
        let path = dir.path().to_owned();
        let broker = Broker::with_config_file(nodes, dir, &config).await;
        // mosquitto 2.1 serves the first listener before it opens the next one.
        eventually("the other listener", || TcpStream::connect(("127.0.0.1", cloud)).is_ok()).await;
        Self { nodes, cloud, authority, dir: path, identities, broker }
    }

    /// The options of a node's connection.
    pub fn as_node(&self, user: &str) -> LinkOptions {
        self.options(user, self.nodes, format!("neptune-edge-{user}"))
    }

    /// The options of a controller's or an observer's connection.
    pub fn as_cloud(&self, user: &str) -> LinkOptions {
        self.options(user, self.cloud, unique(user))
    }

    /// The options of a connection with a password.
    pub fn with_password(&self, user: &str) -> LinkOptions {
        let url = format!("mqtts://{user}:of-{user}@localhost:{}", self.nodes).parse().unwrap();
        let ca = Some(self.authority.certificate().to_owned());
        LinkOptions { ca, ..LinkOptions::new(url, user) }
    }

    /// A user without a certificate has none in its connection.
    fn options(&self, user: &str, port: u16, client_id: String) -> LinkOptions {
        let url = format!("mqtts://localhost:{port}").parse().unwrap();
        let ca = Some(self.authority.certificate().to_owned());
        let identity = self.identities.get(user).cloned();
        LinkOptions { ca, identity, ..LinkOptions::new(url, client_id) }
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

/// A shipped file with these texts replaced.
///
/// # Panics
/// If it does not contain one of them.
pub fn adapted(path: &str, replacements: &[(&str, String)]) -> String {
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
        let identity = &central.identities["edge0"];
        fs::write(central.dir.join("edge0.pem"), &identity.certificate).unwrap();
        fs::write(central.dir.join("edge0.key"), &*identity.key).unwrap();
        let file = |name: &str| central.dir.join(name).display().to_string();
        let bridge = adapted(
            "build/acl/bridge.conf",
            &[
                (
                    "address broker.example.org:30885",
                    format!("address localhost:{}", central.nodes),
                ),
                ("/var/lib/neptune/ca.pem", file("ca.crt")),
                ("/var/lib/neptune/certificate.pem", file("edge0.pem")),
                ("/var/lib/neptune/tls.key", file("edge0.key")),
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
