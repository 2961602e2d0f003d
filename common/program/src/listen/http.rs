//! An HTTP/1 connection whose requests need no identity: the first one gives it a place, and probes
//! are answered without one. Used by the servers of pages, reviews and contents.

use std::{error::Error, time::Duration};

use hyper::{
    Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{Entry, Identity};

type BoxError = Box<dyn Error + Send + Sync>;

/// How a server handles its HTTP connections.
#[derive(Debug, Clone, Copy)]
pub struct HttpRules<B> {
    /// How long a connection may be idle between requests, or in a header.
    pub idle_timeout: Duration,
    /// Paths that are answered without a place, so that they always are. Their connections are
    /// closed afterwards.
    pub probes: &'static [&'static str],
    /// The answer while all places are taken. Its connection is closed afterwards.
    pub busy: fn() -> Response<B>,
}

/// The first byte of a connection, which stays unread; `None` if it ends without one. A server
/// waits for it before work that a connection without a client behind it should not cause.
pub async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1)).then_some(first[0])
}

/// A short text that asks the client to try again.
pub fn busy<B: From<&'static str>>() -> Response<B> {
    let mut answer = Response::new(B::from("too many connections; try again\n"));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer
}

/// Serves a connection until its end. The time of a pending connection limits the head of the first
/// request.
pub async fn serve_http<S, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    entry: Entry,
    rules: HttpRules<B>,
    service: S,
) where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let server = entry.server();
    let service = service_fn(move |request: Request<Incoming>| {
        let is_probe = rules.probes.contains(&request.uri().path());
        let is_served = is_probe || entry.admit(Identity::Anonymous).is_ok();
        let answered = is_served.then(|| service.call(request));
        async move {
            match answered {
                None => Ok(closing((rules.busy)())),
                Some(answered) if is_probe => answered.await.map(closing),
                Some(answered) => answered.await,
            }
        }
    });
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(rules.idle_timeout)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = ended {
        tracing::debug!(server, %error, "connection failed");
    }
}

fn closing<B>(mut answer: Response<B>) -> Response<B> {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{convert::Infallible, future::pending, net::SocketAddr};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::{
        super::{Gate, Limits, Refusals, bind, run},
        *,
    };

    const RULES: HttpRules<String> =
        HttpRules { idle_timeout: Duration::from_secs(60), probes: &["/healthz"], busy };

    /// A server with one place, that answers a request with its path.
    fn start() -> SocketAddr {
        let limits = Limits {
            pending: 4,
            pending_per_address: 4,
            pending_reserve: 0,
            pending_time: Duration::from_secs(10),
            hurried_time: Duration::from_secs(10),
            anonymous: 1,
            anonymous_per_address: 1,
            known: 0,
            per_identity: 0,
        };
        let gate = Gate::new("pages", limits, &Refusals::default());
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            run(&listener, &gate, pending(), |stream, _, entry| {
                let service = service_fn(|request: Request<Incoming>| async move {
                    Ok::<_, Infallible>(Response::new(request.uri().path().to_owned()))
                });
                async move {
                    assert_eq!(first_byte(&stream).await, Some(b'G'), "the request is complete");
                    serve_http(stream, entry, RULES, service).await;
                }
            })
            .await
        });
        address
    }

    /// Sends a request, and reads its answer.
    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 1024];
        let read = timeout(Duration::from_secs(10), stream.read(&mut answer)).await;
        String::from_utf8_lossy(&answer[..read.unwrap().unwrap()]).into_owned()
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        matches!(timeout(Duration::from_secs(10), stream.read(&mut [0])).await.unwrap(), Ok(0))
    }

    #[tokio::test]
    async fn probes_are_answered_while_all_places_are_taken() {
        let address = start();
        let connect = || async move { TcpStream::connect(address).await.unwrap() };
        let mut first = connect().await;
        for _ in 0..2 {
            assert!(ask(&mut first, "/a").await.ends_with("\r\n\r\n/a"), "it keeps its place");
        }
        let mut second = connect().await;
        let refused = ask(&mut second, "/a").await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert!(refused.ends_with("too many connections; try again\n"), "{refused}");
        let mut probe = connect().await;
        let answer = ask(&mut probe, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("/healthz"), "{answer}");
        assert!(is_closed(&mut second).await && is_closed(&mut probe).await);
        assert!(ask(&mut first, "/a").await.starts_with("HTTP/1.1 200 "));
    }
}
