//! A broker of the test's own: a mosquitto, or the one that `NEPTUNE_TEST_BROKER` names (see `hack/test-brokers.sh`).

use std::{fs, net::TcpStream, path::Path, process::Command, time::Duration};

use crate::{Process, free_port, root};

/// On a free port of loopback. A mosquitto is without persistence: a restart forgets everything.
pub struct Broker {
    port: u16,
    dir: std::path::PathBuf,
    process: Process,
}

impl Broker {
    /// Starts one and waits until it takes connections.
    pub async fn start(dir: &Path) -> Self {
        let port = free_port();
        let broker = Self { port, dir: dir.to_owned(), process: spawn(dir, port) };
        broker.answers().await;
        broker
    }

    /// Its address for clients on this machine.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it, and starts it anew on the same port with nothing remembered.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = spawn(&self.dir, self.port);
        self.answers().await;
    }

    async fn answers(&self) {
        for _ in 0..2400 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no broker answers on port {}:\n{}", self.port, self.process.output());
    }
}

fn spawn(dir: &Path, port: u16) -> Process {
    if let Some(kind) = std::env::var_os("NEPTUNE_TEST_BROKER") {
        let mut command = Command::new(root().join("hack/broker.sh"));
        let own = dir.join(format!("broker-{port}"));
        return Process::start("broker", dir, command.arg(kind).arg(port.to_string()).arg(own));
    }
    let config = dir.join(format!("mosquitto-{port}.conf"));
    let text = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
    );
    fs::write(&config, text).unwrap();
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("mosquitto");
    Process::start("mosquitto", dir, command.arg("-c").arg(config).env("PATH", path))
}
