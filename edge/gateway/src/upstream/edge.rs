//! The client of this node's model server.

use std::{error::Error as StdError, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request, Response, Uri,
    body::Incoming,
    header::{CONTENT_LENGTH, HOST, HeaderValue, TE},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use neptune_program::{chain, root_cause};
use parking_lot::RwLock;
use tokio::sync::watch::Receiver;

use super::turn::{self, Turn};
use crate::server::{AnyBody, BodyError, GrpcBody, Wire, boxed, whole};

/// A server on this node answers a connection at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle connections are closed before most servers close them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The client of the edge's model server over REST or gRPC.
#[derive(Debug)]
pub struct EdgeClient {
    /// Another one after a call of gRPC without an answer: its one connection may be dead.
    client: RwLock<Client<HttpConnector, AnyBody>>,
    address: String,
    wire: Wire,
}

/// Why the edge did not answer.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// It cannot be reached, or the connection broke before the answer.
    #[error("{0}")]
    Unreachable(String),
    /// The body of the request cannot be read.
    #[error("{0}")]
    Body(BodyError),
    /// It did not answer in this time.
    #[error("no answer for {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

impl EdgeClient {
    /// Returns a client of the server at `host:port`.
    pub fn new(address: &str, wire: Wire) -> Self {
        Self { client: RwLock::new(client(wire)), address: address.to_owned(), wire }
    }

    /// Returns the address of the server, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Passes a request on, and returns the head of its answer. The time that the client takes for
    /// the body is not the server's.
    ///
    /// # Errors
    /// The server does not take the body, or does not answer, in this time.
    pub async fn pass(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: AnyBody,
        limit: Duration,
    ) -> Result<Response<Incoming>, EdgeError> {
        let (body, turns) = turn::watched(body);
        self.send(method, path, headers, body, (turns, limit)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: AnyBody,
        (turns, limit): (Receiver<Turn>, Duration),
    ) -> Result<Response<Incoming>, EdgeError> {
        let uri: Uri = format!("http://{}{path}", self.address)
            .parse()
            .map_err(|_| EdgeError::Unreachable(format!("{path:?} is no path")))?;
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        if self.wire == Wire::Grpc {
            request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
            request.headers_mut().remove(HOST);
        }
        let current = self.client.read().clone();
        match turn::answered(current.request(request), turns, limit).await {
            None => {
                if self.wire == Wire::Grpc {
                    *self.client.write() = client(self.wire);
                }
                Err(EdgeError::Timeout(limit))
            }
            Some(Err(error)) => Err(of_client(&error)),
            Some(Ok(answer)) => Ok(answer),
        }
    }

    /// Posts a whole body, or the message of gRPC in its frame. A connection that breaks before the
    /// answer is replaced once: the server may have closed an idle one.
    ///
    /// # Errors
    /// There is no answer in time.
    pub async fn post(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<Response<Incoming>, EdgeError> {
        let mut headers = headers.clone();
        match self.wire {
            Wire::Rest => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
                if !headers.contains_key(HOST)
                    && let Ok(host) = HeaderValue::from_str(&self.address)
                {
                    headers.insert(HOST, host);
                }
            }
            Wire::Grpc => {
                headers.remove(CONTENT_LENGTH);
            }
        }
        let framed = || match self.wire {
            Wire::Rest => whole(body.clone()),
            Wire::Grpc => boxed(GrpcBody::request(body.clone())),
        };
        let post = || {
            let time = (turn::servers(), limit);
            self.send(Method::POST, path, headers.clone(), framed(), time)
        };
        match post().await {
            Err(EdgeError::Unreachable(_)) => post().await,
            answered => answered,
        }
    }
}

fn client(wire: Wire) -> Client<HttpConnector, AnyBody> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .http2_only(wire == Wire::Grpc)
        .build(connector)
}

fn of_client(error: &(dyn StdError + 'static)) -> EdgeError {
    if let Some(body) = chain(error).find_map(|cause| cause.downcast_ref::<BodyError>()) {
        return EdgeError::Body(match body {
            BodyError::TooLong(max) => BodyError::TooLong(*max),
            BodyError::Stalled(time) => BodyError::Stalled(*time),
            BodyError::Slow => BodyError::Slow,
            BodyError::NoRoom => BodyError::NoRoom,
            BodyError::Broken(text) => BodyError::Broken(text.to_string().into()),
        });
    }
    let is_refused = |cause: &(dyn StdError + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    EdgeError::Unreachable(match chain(error).last() {
        Some(cause) if is_refused(cause) => "connection refused".to_owned(),
        _ => root_cause(error),
    })
}
