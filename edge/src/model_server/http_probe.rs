//! Probes a model server on this node once: an HTTP GET of a path, or a TCP connection. Follows no
//! redirects, keeps no connection open and uses no proxy.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Maximum number of bytes to read for the status line.
const MAX_HEAD_BYTES: usize = 256;

/// Probes the port, or the path if there is one. HTTP status 200 to 399 is healthy.
///
/// # Errors
/// The request and what is wrong, as text.
pub async fn probe(port: u16, path: Option<&str>, within: Duration) -> Result<(), String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let what =
        path.map_or_else(|| format!("port {port}"), |path| format!("GET {path} on port {port}"));
    match timeout(within, request(address, path)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(format!("{what}: {why}")),
        Err(_) => Err(format!("{what}: no response within {} ms", within.as_millis())),
    }
}

async fn request(address: SocketAddr, path: Option<&str>) -> Result<(), String> {
    let plain = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(plain)?;
    let Some(path) = path else { return Ok(()) };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: neptune-edge\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(plain)?;
    let mut head = Vec::new();
    while !head.contains(&b'\n') && head.len() < MAX_HEAD_BYTES {
        if stream.read_buf(&mut head).await.map_err(plain)? == 0 {
            break;
        }
    }
    match status(&head) {
        Some(200..=399) => Ok(()),
        Some(other) => Err(format!("HTTP status {other}")),
        None => Err("the response is not HTTP".to_owned()),
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    async fn server(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
            }
        });
        port
    }

    #[tokio::test]
    async fn good_status_or_open_port_is_healthy_and_others_have_reason() {
        let within = Duration::from_millis(200);
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", None),
            ("HTTP/1.0 302 Found\r\n", None),
            ("HTTP/1.1 404 Not Found\r\n\r\n", Some("404")),
            ("HTTP/1.1 503 Busy\r\n\r\n", Some("503")),
            ("SSH-2.0-x\r\n", Some("not HTTP")),
            ("HTTP/1.1 200", None),
            ("", Some("no response within 200 ms")),
        ] {
            let port = server(answer).await;
            let result = probe(port, Some("/x"), within).await;
            match expected {
                None => assert_eq!(result, Ok(()), "{answer}"),
                Some(why) => assert!(result.unwrap_err().contains(why), "{answer}"),
            }
            assert_eq!(probe(port, None, within).await, Ok(()));
        }
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let why = probe(closed, None, within).await.unwrap_err();
        assert!(why.contains(&format!("port {closed}")), "{why}");
    }
}
