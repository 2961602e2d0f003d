//! A mosquitto process on a free port of the loopback interface. With `NEPTUNE_TEST_BROKER`, it is
//! the broker of that name where no special configuration is needed (see `hack/test-brokers.sh`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Configuration without authentication.
pub const OPEN: &str = "allow_anonymous true";

pub struct Mosquitto {
    pub port: u16,
    dir: TempDir,
    child: Child,
}

impl Mosquitto {
    /// Starts a broker with anonymous clients and unlimited queues.
    pub async fn start() -> Self {
        Self::with(OPEN).await
    }

    pub async fn with(config: &str) -> Self {
        // Another process may bind the port before the broker does: try another port.
        for _ in 0..5 {
            if let Some(broker) = Self::on_port(free_port(), config).await {
                return broker;
            }
        }
        panic!("mosquitto does not start");
    }

    pub async fn on_port(port: u16, config: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if let (OPEN, Some(kind)) = (config, std::env::var_os("NEPTUNE_TEST_BROKER")) {
            let child = spawn_other(&kind, port, dir.path()).await;
            return Some(Self { port, dir, child });
        }
        // Started as root, mosquitto switches to another user that cannot read the files of the
        // test.
        let config = format!(
            "user root\nlistener {port} 127.0.0.1\nmax_queued_messages 0\nlog_dest stderr\n{config}\n"
        );
        std::fs::write(dir.path().join("conf"), config).unwrap();
        let child = spawn(dir.path()).await?;
        Some(Self { port, dir, child })
    }

    /// Signal 9.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Starts the broker again on the same port. A mosquitto has no state from before.
    pub async fn restart(&mut self) {
        self.child = match std::env::var_os("NEPTUNE_TEST_BROKER") {
            Some(kind) => spawn_other(&kind, self.port, self.dir.path()).await,
            None => spawn(self.dir.path()).await.expect("mosquitto does not start again"),
        };
    }
}

/// Returns `None` if the broker exits before it listens.
async fn spawn(dir: &Path) -> Option<Child> {
    let mut child = Command::new(program())
        .arg("-c")
        .arg(dir.join("conf"))
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = log.next_line().await.unwrap() {
        if line.ends_with(" running") {
            // Continue reading, so that the broker never blocks on the pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
            return Some(child);
        }
    }
    None
}

/// Starts another broker and waits until it accepts connections.
async fn spawn_other(kind: &OsStr, port: u16, dir: &Path) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/broker.sh");
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(script);
    command.arg(kind).arg(port.to_string()).arg(dir).stdout(log.try_clone().unwrap()).stderr(log);
    let child = command.kill_on_drop(true).spawn().unwrap();
    for _ in 0..600 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return child;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no broker:\n{}", std::fs::read_to_string(dir.join("log")).unwrap());
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|dir| dir.join("mosquitto"))
        .find(|program| program.is_file())
        .expect("these tests need the broker mosquitto (package mosquitto), in PATH or /usr/sbin")
}

pub use free_port::free_port;
