//! A mosquitto with the shipped configuration and rules: only paths and ports are the test's.
#![allow(clippy::unwrap_used, clippy::panic)] // a fixture fails by panicking

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use free_port::free_port;
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

use crate::text;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The lines that it printed so far.
type Log = watch::Receiver<Vec<String>>;

/// It ends with this value.
pub struct Broker {
    nodes: u16,
    cloud: u16,
    ca: PathBuf,
    log: Log,
    _child: Child,
    _dir: TempDir,
}

impl Broker {
    /// With these users, each with the password `of-<name>`.
    pub async fn start(users: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = certificates(dir.path());
        passwords(&dir.path().join("passwords"), users).await;
        fs::write(dir.path().join("neptune.acl"), text("build/acl/neptune.acl")).unwrap();
        let (nodes, cloud) = (free_port(), free_port());
        let here = dir.path().display();
        let mut config = text("build/acl/mosquitto.conf");
        for (shipped, own) in [
            ("/mosquitto/config/", format!("{here}/")),
            ("/mosquitto/passwords/", format!("{here}/")),
            ("/mosquitto/tls/", format!("{here}/")),
            ("listener 8883\n", format!("listener {nodes} 127.0.0.1\n")),
            ("listener 8884\n", format!("listener {cloud} 127.0.0.1\n")),
        ] {
            assert!(config.contains(shipped), "{shipped:?} is not in mosquitto.conf any more");
            config = config.replace(shipped, &own);
        }
        // As root it would become another user, who may not read the test's files. Refusals are said at
        // the level debug only.
        let config = format!("{config}\nuser root\nlog_dest stderr\nlog_type all\n");
        let file = dir.path().join("mosquitto.conf");
        fs::write(&file, config).unwrap();
        let (child, log) = spawn(&file).await;
        Self { nodes, cloud, ca, log, _child: child, _dir: dir }
    }

    /// How a node connects.
    pub fn as_node(&self, user: &str) -> LinkOptions {
        self.options(user, self.nodes, format!("neptune-edge-{user}"))
    }

    /// How a controller or an observer connects.
    pub fn as_cloud(&self, user: &str) -> LinkOptions {
        self.options(user, self.cloud, format!("{user}-{}", free_port()))
    }

    fn options(&self, user: &str, port: u16, client_id: String) -> LinkOptions {
        let url = format!("mqtts://{user}:of-{user}@localhost:{port}").parse().unwrap();
        LinkOptions { ca_file: Some(self.ca.clone()), ..LinkOptions::new(url, client_id) }
    }

    /// Waits until so many lines of its log have a text, and returns how many do.
    pub async fn logs(&self, text: &str, count: usize) -> usize {
        let lines = |log: &Vec<String>| log.iter().filter(|line| line.contains(text)).count();
        let mut log = self.log.clone();
        let enough = timeout(PATIENCE, log.wait_for(|log| lines(log) >= count)).await;
        drop(enough.map_err(|_| eprintln!("fewer than {count} lines have {text:?}")));
        lines(&self.log.borrow())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.borrow();
            eprintln!("--- the end of mosquitto's log ---");
            log[log.len().saturating_sub(60)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Connects.
pub async fn connect(options: LinkOptions) -> (Link, LinkEvents) {
    let (link, mut events) = Link::start(options).unwrap();
    match next(&mut events).await {
        LinkEvent::Up => (link, events),
        other => panic!("{other:?}"),
    }
}

pub async fn next(events: &mut LinkEvents) -> LinkEvent {
    timeout(PATIENCE, events.next()).await.expect("no event in time").expect("the link is open")
}

/// The next message. mosquitto 2.0 cuts a client off for each publish that it denies, and the link comes back.
pub async fn next_message(events: &mut LinkEvents) -> Message {
    loop {
        if let LinkEvent::Message(message) = next(events).await {
            return message;
        }
    }
}

/// Publishes, and waits until the broker has it.
pub async fn say(link: &Link, topic: &str, payload: &str, retain: bool) {
    let payload = payload.to_owned().into();
    link.publish(Message { topic: topic.to_owned(), payload, retain }).unwrap();
    timeout(PATIENCE, link.flushed()).await.expect("not acknowledged in time");
}

/// An authority, and a certificate of it for `localhost`. Returns the authority's file.
fn certificates(dir: &Path) -> PathBuf {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    // To OpenSSL one with the authority's name would be its own issuer.
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
    let ca = dir.join("ca.crt");
    fs::write(&ca, issuer.pem()).unwrap();
    ca
}

/// As build/acl/README.md has it.
async fn passwords(file: &Path, users: &[&str]) {
    fs::write(file, "").unwrap();
    for user in users {
        let mut command = Command::new("mosquitto_passwd");
        let status =
            command.arg("-b").arg(file).args([user, &*format!("of-{user}")]).status().await;
        assert!(status.expect("mosquitto_passwd comes with mosquitto").success());
    }
}

async fn spawn(config: &Path) -> (Child, Log) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new("mosquitto")
        .arg("-c")
        .arg(config)
        .env("PATH", path)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("mosquitto is installed (hack/test.sh sees to it)");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (keep, mut log) = watch::channel(Vec::new());
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            keep.send_modify(|log| log.push(line));
        }
    });
    let running = |log: &Vec<String>| log.iter().any(|line| line.ends_with(" running"));
    let started = timeout(PATIENCE, log.wait_for(running)).await.is_ok_and(|found| found.is_ok());
    assert!(started, "mosquitto does not take the configuration:\n{}", log.borrow().join("\n"));
    (child, log)
}

/// A node's own mosquitto, open on the loopback as `KubeEdge` has it, with the shipped bridge to a central one.
pub struct LocalBroker {
    port: u16,
    _child: Child,
    _dir: TempDir,
}

impl LocalBroker {
    /// Of the node `edge0`.
    pub async fn start(central: &Broker) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut bridge = text("build/acl/bridge.conf");
        for (shipped, own) in [
            ("address broker.example.org:30883", format!("address localhost:{}", central.nodes)),
            ("/etc/neptune/mqtt-ca.crt", central.ca.display().to_string()),
            ("remote_password secret", "remote_password of-edge0".to_owned()),
        ] {
            assert!(bridge.contains(shipped), "{shipped:?} is not in bridge.conf any more");
            bridge = bridge.replace(shipped, &own);
        }
        let config = format!(
            "user root\nlog_dest stderr\nlistener {port} 127.0.0.1\nallow_anonymous true\n{bridge}"
        );
        let file = dir.path().join("mosquitto.conf");
        fs::write(&file, config).unwrap();
        let (child, _log) = spawn(&file).await;
        Self { port, _child: child, _dir: dir }
    }

    /// How the node's agent connects.
    pub fn options(&self) -> LinkOptions {
        let url = format!("mqtt://127.0.0.1:{}", self.port).parse().unwrap();
        LinkOptions::new(url, "agent")
    }
}
