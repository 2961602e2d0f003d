//! An engine with fixed answers, for tests.
#![allow(clippy::unwrap_used)]

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

use crate::docker::Docker;

/// What the engine answers to a request; `None`: nothing.
pub type Answers = fn(&str) -> Option<(u16, serde_json::Value)>;

/// Answers each request on a connection of its own.
async fn serve(mut stream: UnixStream, answers: Answers) {
    let mut request = vec![0; 64 * 1024];
    let read = stream.read(&mut request).await.unwrap();
    let line = String::from_utf8_lossy(&request[..read]);
    let path = line.split(' ').nth(1).unwrap_or_default();
    let Some((status, body)) = answers(path) else { return std::future::pending().await };
    let body = body.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// An engine with these answers, as long as the directory of its socket exists and the test runs.
pub fn engine(answers: Answers) -> (Docker, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answers));
        }
    });
    (Docker::new(&socket), directory)
}
