//! An HTTP/1.1 server on loopback whose responses a test scripts byte by byte.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A received request. Header names are in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// Number of requests before this one.
    pub number: usize,
}

impl Request {
    pub fn from(&self) -> Option<usize> {
        let range = self.headers.get("range")?;
        range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// A scripted response of the server.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// The connection ends after this number of bytes of the body.
    pub cut: Option<usize>,
    /// Size of one write in bytes, and the pause after it.
    pub pace: Option<(usize, Duration)>,
    /// Omits Content-Length, so that the body ends with the connection.
    pub is_unsized: bool,
    /// After the body, the connection remains open without data.
    pub hangs: bool,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn cut(self, after: usize) -> Self {
        Self { cut: Some(after), ..self }
    }
}

/// Returns the response of a server that supports ranges and conditions correctly.
pub fn ranged(request: &Request, body: &Bytes, etag: &str) -> Reply {
    let whole = || Reply { status: 200, body: body.clone(), ..Reply::default() }.with("etag", etag);
    let is_same = request.headers.get("if-range").is_none_or(|tag| tag == etag)
        && request.headers.get("if-match").is_none_or(|tag| tag == etag);
    match request.from() {
        Some(_) if !is_same && request.headers.contains_key("if-match") => Reply::status(412),
        Some(from) if is_same && from < body.len() => {
            let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
            Reply { status: 206, body: body.slice(from..), ..Reply::default() }
                .with("etag", etag)
                .with("content-range", range)
        }
        Some(from) if is_same && from >= body.len() => {
            Reply::status(416).with("content-range", format!("bytes */{}", body.len()))
        }
        _ => whole(),
    }
}

pub struct Server {
    pub url: String,
    pub seen: Arc<Mutex<Vec<Request>>>,
    /// Bytes of the body of each response.
    sent: Arc<Mutex<Vec<u64>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, sent) =
            (Arc::<Mutex<Vec<Request>>>::default(), Arc::<Mutex<Vec<u64>>>::default());
        let (script, all, count) = (Arc::new(script), Arc::clone(&seen), Arc::clone(&sent));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, all, count) =
                    (Arc::clone(&script), Arc::clone(&all), Arc::clone(&count));
                tokio::spawn(async move { serve(stream, &*script, &all, &count).await });
            }
        });
        Self { url, seen, sent, task }
    }

    /// Serves one file under every path.
    pub async fn serve_file(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self::start(move |request| ranged(request, &body, "\"1\"")).await
    }

    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub fn sent(&self) -> u64 {
        self.sent.lock().unwrap().iter().sum()
    }

    /// The offset of each response in the file, and the number of bytes sent.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        let (seen, sent) = (self.seen.lock().unwrap(), self.sent.lock().unwrap());
        let from = seen.iter().map(|request| request.from().unwrap_or(0) as u64);
        from.zip(sent.iter().copied()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: &(impl Fn(&Request) -> Reply + Send + Sync),
    seen: &Mutex<Vec<Request>>,
    sent: &Mutex<Vec<u64>>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let request = {
        let mut seen = seen.lock().unwrap();
        let request = Request { path, headers, number: seen.len() };
        seen.push(request.clone());
        sent.lock().unwrap().push(0);
        request
    };
    let reply = script(&request);
    let mut lines = vec![format!("HTTP/1.1 {} X", reply.status), "connection: close".to_owned()];
    let has_length = reply.headers.iter().any(|(name, _)| name == "content-length");
    if !reply.is_unsized && !has_length {
        lines.push(format!("content-length: {}", reply.body.len()));
    }
    lines.extend(reply.headers.iter().map(|(name, value)| format!("{name}: {value}")));
    stream.write_all((lines.join("\r\n") + "\r\n\r\n").as_bytes()).await.ok()?;
    let body = reply.body.slice(..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len()));
    let (step, pause) = reply.pause();
    for chunk in body.chunks(step) {
        stream.write_all(chunk).await.ok()?;
        sent.lock().unwrap()[request.number] += chunk.len() as u64;
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
    if reply.hangs {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await.ok()
}

impl Reply {
    fn pause(&self) -> (usize, Option<Duration>) {
        self.pace.map_or((64 << 10, None), |(step, pause)| (step, Some(pause)))
    }
}
