//! The command line: kubeconfig, signals and errors.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

fn devcluster() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devcluster"));
    command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped()).env("NO_COLOR", "1");
    command
}

#[tokio::test]
async fn sigterm_stops_the_server_while_a_watch_is_open() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("deep/kubeconfig");
    let mut child = devcluster()
        .arg("run")
        .arg("--context")
        .arg("mine")
        .arg("--kubeconfig")
        .arg(&path)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = line.rsplit("http://").next().unwrap().trim().to_owned();

    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(config["current-context"], "mine");
    assert_eq!(config["clusters"][0]["cluster"]["server"], format!("http://{address}"));
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1,
        "the temporary file is renamed"
    );

    let mut watch = TcpStream::connect(&address).await.unwrap();
    watch.write_all(b"GET /api/v1/namespaces?watch=1 HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 15];
    timeout(TIMEOUT, watch.read_exact(&mut start)).await.unwrap().unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");

    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().success());
}

#[tokio::test]
async fn occupied_port_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = devcluster().args(["run", "--listen", &address]).output().await.unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("cannot listen on {address}")), "{text}");
}
