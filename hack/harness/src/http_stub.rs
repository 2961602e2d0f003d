//! A small HTTP/1.1 server on loopback for fixtures that play a server of the internet: one request
//! per connection, with the faults of a network.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

/// A received request. Header names are in lower case.
#[derive(Debug, Clone)]
pub struct StubRequest {
    /// The port on which it arrived.
    pub port: u16,
    /// The method in upper case.
    pub method: String,
    /// The path without the query, as it was sent.
    pub path: String,
    /// The query without the question mark.
    pub query: String,
    /// The headers by name.
    pub headers: BTreeMap<String, String>,
}

impl StubRequest {
    /// A header of the request.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A response. A request with the method HEAD gets its headers only.
#[derive(Debug, Clone, Default)]
pub struct StubReply {
    /// HTTP status code of the response.
    pub status: u16,
    /// All headers except `Content-Length`.
    pub headers: Vec<(String, String)>,
    /// The body of the response.
    pub body: Vec<u8>,
    /// The connection ends after this number of bytes of the body.
    pub cut: Option<usize>,
}

impl StubReply {
    /// A response without a body.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// A response with JSON.
    pub fn json(body: String) -> Self {
        Self { body: body.into_bytes(), ..Self::status(200) }
            .with("content-type", "application/json")
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// The response of a server that supports ranges and `If-Range`. `etag` has its quotes.
pub fn ranged(request: &StubRequest, content: &[u8], etag: &str) -> StubReply {
    let range = request.header("range").and_then(|range| range.strip_prefix("bytes="));
    let from = range.and_then(|range| range.split('-').next()?.parse::<usize>().ok());
    let is_same = request.header("if-range").is_none_or(|tag| tag == etag);
    let total = content.len();
    let reply = match from.filter(|_| is_same) {
        Some(from) if from < total => {
            StubReply { body: content[from..].to_vec(), ..StubReply::status(206) }
                .with("content-range", format!("bytes {from}-{}/{total}", total - 1))
        }
        Some(_) => StubReply::status(416).with("content-range", format!("bytes */{total}")),
        None => StubReply { body: content.to_vec(), ..StubReply::status(200) },
    };
    reply.with("etag", etag).with("accept-ranges", "bytes")
}

/// A running server. It records its requests, and the bytes of bodies that it sent.
#[derive(Debug)]
pub struct HttpStub {
    /// The port on loopback.
    pub port: u16,
    seen: Arc<Mutex<Vec<StubRequest>>>,
    sent: Arc<Mutex<u64>>,
    accepting: AbortHandle,
}

impl HttpStub {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(answer: impl Fn(&StubRequest) -> StubReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, sent) =
            (Arc::<Mutex<Vec<StubRequest>>>::default(), Arc::<Mutex<u64>>::default());
        let (answer, all, count) = (Arc::new(answer), Arc::clone(&seen), Arc::clone(&sent));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, all, count) =
                    (Arc::clone(&answer), Arc::clone(&all), Arc::clone(&count));
                tokio::spawn(async move { serve(stream, port, &*answer, &all, &count).await });
            }
        });
        Self { port, seen, sent, accepting: accepting.abort_handle() }
    }

    /// The requests so far, in the order of their arrival.
    ///
    /// # Panics
    /// If a request panicked.
    pub fn requests(&self) -> Vec<StubRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// The bytes of all bodies that were sent.
    ///
    /// # Panics
    /// If a request panicked.
    pub fn sent(&self) -> u64 {
        *self.sent.lock().unwrap()
    }
}

impl Drop for HttpStub {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    port: u16,
    answer: &(impl Fn(&StubRequest) -> StubReply + Send + Sync),
    seen: &Mutex<Vec<StubRequest>>,
    sent: &Mutex<u64>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let request = StubRequest {
        port,
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers: headers.collect(),
    };
    seen.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let mut lines = vec![
        format!("HTTP/1.1 {} Stub", reply.status),
        format!("content-length: {}", reply.body.len()),
        "connection: close".to_owned(),
    ];
    lines.extend(reply.headers.iter().map(|(name, value)| format!("{name}: {value}")));
    stream.write_all((lines.join("\r\n") + "\r\n\r\n").as_bytes()).await.ok()?;
    if request.method != "HEAD" {
        let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
        stream.write_all(body).await.ok()?;
        *sent.lock().unwrap() += body.len() as u64;
    }
    stream.shutdown().await.ok()
}
