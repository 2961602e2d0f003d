//! An MQTT broker: a mosquitto, or the one that `NEPTUNE_TEST_BROKER` names (see
//! `hack/test-brokers.sh`) where the configuration is the default one. The demo and some tests use
//! rumqttd, which needs no package.

use std::{
    ffi::OsString,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{Process, free_port, wait::eventually, workspace};

/// Anonymous clients may publish and subscribe to everything.
const OPEN: &str = "allow_anonymous true";

/// A broker on a port of loopback. It keeps nothing on disk: a restart loses retained messages and
/// sessions.
pub struct Broker {
    port: u16,
    server: Server,
    process: Process,
    dir: TempDir,
}

enum Server {
    /// The path of mosquitto, or of a link to it.
    Mosquitto(PathBuf),
    /// The `fleet-broker` of this workspace.
    Rumqttd,
    /// The argument of `hack/broker.sh`.
    Other(OsString),
}

impl Broker {
    /// Starts a broker that is open to all, on a free port, and waits until it accepts connections.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        Self::start_on(free_port()).await
    }

    /// Like [`Broker::start`], on this port.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start_on(port: u16) -> Self {
        let server = match std::env::var_os("NEPTUNE_TEST_BROKER") {
            None => Server::mosquitto(),
            Some(name) if name == "rumqttd" => Server::Rumqttd,
            Some(name) => Server::Other(name),
        };
        Self::launch(port, server, tempfile::tempdir().unwrap(), &listener(port, OPEN)).await
    }

    /// Starts a rumqttd that is open to all, on a free port. It stands in for mosquitto where a
    /// fleet is on one machine: a subscription with wildcards gets at most 100 retained messages,
    /// and topics that begin with `$` are refused.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn rumqttd() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::launch(free_port(), Server::Rumqttd, dir, "").await
    }

    /// Starts a mosquitto on a free port with these lines of configuration. Anonymous clients are
    /// allowed only if the lines allow them.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn with_config(lines: &str) -> Self {
        let port = free_port();
        let dir = tempfile::tempdir().unwrap();
        Self::launch(port, Server::mosquitto(), dir, &listener(port, lines)).await
    }

    /// Starts a mosquitto with a configuration that contains everything, also a listener on `port`.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn with_config_file(port: u16, dir: TempDir, config: &str) -> Self {
        Self::launch(port, Server::mosquitto(), dir, config).await
    }

    /// Like [`Broker::with_config_file`], and the process has this name, so that signals by the name
    /// reach no broker of another test.
    ///
    /// # Panics
    /// If it does not start, or the name has more than 15 characters, which Linux cuts off.
    pub async fn named(name: &str, port: u16, dir: TempDir, config: &str) -> Self {
        assert!(name.len() <= 15, "{name}");
        let program = dir.path().join(name);
        std::os::unix::fs::symlink(sbin("mosquitto"), &program).unwrap();
        Self::launch(port, Server::Mosquitto(program), dir, config).await
    }

    async fn launch(port: u16, server: Server, dir: TempDir, config: &str) -> Self {
        fs::write(dir.path().join("mosquitto.conf"), format!("{COMMON}{config}\n")).unwrap();
        let process = server.start(port, dir.path());
        let mut broker = Self { port, server, process, dir };
        broker.accepts_connections(0).await;
        broker
    }

    /// The port on which the broker listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the broker for clients on this machine.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// The log of the broker so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends SIGHUP: a mosquitto reads its certificate and its list of revoked ones again.
    ///
    /// # Panics
    /// If it does not run.
    pub fn reload(&self) {
        self.process.hang_up();
    }

    /// Kills the broker with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it if it runs, starts it again on the same port, and waits until it accepts
    /// connections.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&mut self) {
        self.process.kill();
        let logged = self.log().len();
        self.process = self.server.start(self.port, self.dir.path());
        self.accepts_connections(logged).await;
    }

    /// `logged`: the length of the log before the start.
    async fn accepts_connections(&mut self, logged: usize) {
        eventually("the broker to accept connections", || {
            if let Some(status) = self.process.exit_status() {
                panic!("the broker exited with {status}:\n{}", self.process.tail(60));
            }
            match self.server {
                // Not by a connection: it would be in the log, which tests read.
                Server::Mosquitto(_) => self.log()[logged..].contains(" running"),
                Server::Rumqttd | Server::Other(_) => {
                    TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                }
            }
        })
        .await;
    }
}

/// As root, mosquitto would change to another user, who may not read the test's files.
const COMMON: &str = "user root\nlog_dest stderr\n";

fn listener(port: u16, lines: &str) -> String {
    // TCP's delay would add 40 ms to many messages.
    let common = "max_queued_messages 0\npersistence false\nset_tcp_nodelay true";
    format!("listener {port} 127.0.0.1\n{common}\n{lines}")
}

impl Server {
    fn mosquitto() -> Self {
        Self::Mosquitto(sbin("mosquitto"))
    }

    fn start(&self, port: u16, dir: &Path) -> Process {
        match self {
            Self::Mosquitto(program) => {
                let config = dir.join("mosquitto.conf");
                let mut command = Command::new(program);
                Process::start("mosquitto", dir, command.arg("-c").arg(config))
            }
            Self::Rumqttd => {
                let mut command = Command::new(workspace::program("fleet-broker"));
                Process::start("broker", dir, command.arg(port.to_string()))
            }
            Self::Other(kind) => {
                let mut command = Command::new(workspace::root().join("hack/broker.sh"));
                Process::start("broker", dir, command.arg(kind).arg(port.to_string()).arg(dir))
            }
        }
    }
}

/// Writes a password file for mosquitto.
///
/// # Panics
/// If `mosquitto_passwd` is missing or fails.
pub fn write_passwords(file: &Path, users: &[(&str, &str)]) {
    fs::write(file, "").unwrap();
    for (user, password) in users {
        let mut command = Command::new("mosquitto_passwd");
        workspace::run(command.arg("-b").arg(file).args([user, password]));
    }
}

/// A program in PATH, or where Debian has those of the administrator.
fn sbin(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: apt-get install {name}"))
}
