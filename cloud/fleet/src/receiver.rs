//! The HTTP server of the receivers whose paths contain tokens: limits connections, by address and
//! in time. What a request means is decided by its receiver.

use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use neptune_program::listen::{self, Entry, Gate, Identity, Limits, Refusals};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// How long a connection may take to send its request line and headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may take, from its first byte to the last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// `KubeEdge` opens a connection per message, a worker one per report. A connection is pending until
/// its token was checked, which needs a millisecond, so cloudcore stays below the limit of an
/// address; a client that sends nothing does not take the connections of others.
const LIMITS: Limits = Limits {
    pending: 512,
    pending_per_address: 64,
    pending_reserve: 64,
    pending_time: CONNECTION_TIMEOUT,
    hurried_time: HEADER_TIMEOUT,
    anonymous: 512,
    anonymous_per_address: 512,
    known: 0,
    per_identity: 0,
};

/// Serves indefinitely, one request per connection. `server` is the name in metrics. `answer`
/// returns the status and the text of the response.
pub async fn serve<A, F>(
    server: &'static str,
    listener: &TcpListener,
    refusals: &Refusals,
    answer: A,
) where
    A: Fn(Request<Incoming>, TokenCheck) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = (StatusCode, String)> + Send,
{
    let gate = Gate::new(server, LIMITS, refusals);
    listen::run(listener, &gate, pending(), |stream, _, entry| {
        let answer = answer.clone();
        async move {
            // A connection that exceeds the timeout is closed.
            let serving = connection(stream, answer, TokenCheck(entry));
            let _ = timeout(CONNECTION_TIMEOUT, serving).await;
        }
    })
    .await;
}

/// The check of a connection's token. A receiver that never calls [`TokenCheck::passed`] limits all
/// connections of an address.
#[derive(Debug, Clone)]
pub struct TokenCheck(Entry);

impl TokenCheck {
    /// Gives the connection a place: the token is valid. Returns whether there is one.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.0.admit(Identity::Anonymous).is_ok()
    }
}

async fn connection<A, F>(stream: TcpStream, answer: A, check: TokenCheck)
where
    A: Fn(Request<Incoming>, TokenCheck) -> F,
    F: Future<Output = (StatusCode, String)>,
{
    // Without it, small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let answered = answer(request, check.clone());
        async move {
            let (status, text) = answered.await;
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "receiver connection failed");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::net::SocketAddr;

    use neptune_harness::{Attack, under_attack::judge};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn post(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"POST /known HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn attackers_delay_no_message() {
        let listener = listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let answer = |request: Request<Incoming>, check: TokenCheck| async move {
                if request.uri().path() == "/known" && check.passed() {
                    return (StatusCode::OK, String::new());
                }
                // As a receiver that reads the body before it answers.
                let _ = http_body_util::BodyExt::collect(request.into_body()).await;
                (StatusCode::FORBIDDEN, String::new())
            };
            serve("test", &listener, &Refusals::default(), answer).await;
        });
        let known = || async move { post(address).await.starts_with("HTTP/1.1 200 ") };
        judge("receiver", (address, 100), &Attack::all("/unknown"), known).await;
    }
}
