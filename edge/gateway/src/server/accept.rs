//! Accepts connections and serves them until the shutdown.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use neptune_program::listen::{self, Entry, Gate, Identity, Refusals};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    answer::{Answer, busy_connection},
    tls::ListenerTls,
};

/// The most bytes of the head of a request.
const MAX_HEAD: usize = 32 * 1024;
/// The most bytes of the headers of an HTTP/2 request.
const MAX_HEADER_LIST: u32 = 32 * 1024;
/// Interval between two pings of an HTTP/2 connection, so that dead ones are closed.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time to send the head of a request while many connections have sent none.
const HURRIED: Duration = Duration::from_secs(2);

/// The transport of a listener, and of the calls for its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1, with the JSON of a protocol.
    Rest,
    /// gRPC, which is HTTP/2.
    Grpc,
}

impl Wire {
    /// The protocol of a listener, as ALPN names it.
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Rest => b"http/1.1",
            Self::Grpc => b"h2",
        }
    }
}

/// The listener on which a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// The name of the server in metrics.
    pub server: &'static str,
    /// Whether only this machine reaches the listener.
    pub is_loopback: bool,
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    /// Address of the listener. The port is known here if the configuration has 0.
    pub address: SocketAddr,
}

/// Limits of the connections of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time to send the head of a request; an idle connection is closed after it.
    pub head: Duration,
    /// Time for requests in flight at the shutdown.
    pub drain: Duration,
    /// Connections at a time. While all are in use, the newest is refused.
    pub connections: usize,
}

impl Limits {
    /// Limits of the listener. A connection has a place from its first request on. A gateway in the
    /// cloud may have all its clients behind one address, which leaves a quarter for others.
    fn of_listener(self) -> listen::Limits {
        listen::Limits {
            pending: 1024,
            pending_per_address: 256,
            pending_reserve: 64,
            pending_time: self.head,
            hurried_time: self.head.min(HURRIED),
            anonymous: self.connections,
            anonymous_per_address: self.connections.div_ceil(4).saturating_mul(3),
            known: 0,
            per_identity: 0,
        }
    }
}

/// The counters of a server for the connections that it refuses.
#[derive(Debug, Clone, Copy)]
pub struct CountedAs<'a> {
    /// The name of the server in metrics and in the log.
    pub server: &'static str,
    /// Counts the refused connections by server and reason.
    pub refusals: &'a Refusals,
}

impl Listener {
    /// Listens on an address.
    ///
    /// # Errors
    /// The address is taken, or not one of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = listen::bind(address)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Returns the description of this listener for its requests.
    pub const fn entrance(&self, server: &'static str) -> Entrance {
        Entrance { server, is_loopback: self.address.ip().is_loopback() }
    }
}

/// Serves connections until `stop` ends, then waits for the requests in flight. `tls` is `None` for
/// a listener that never has any.
pub async fn serve<H, F>(
    listener: Listener,
    (wire, tls): (Wire, Option<ListenerTls>),
    limits: Limits,
    counted: CountedAs<'_>,
    stop: impl Future<Output = ()>,
    handle: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let gate = Gate::new(counted.server, limits.of_listener(), counted.refusals);
    let connections = listen::run(&listener.listener, &gate, stop, |stream, _, entry| {
        let watcher = graceful.watcher();
        let handle = handle.clone();
        let acceptor = tls.as_ref().and_then(ListenerTls::acceptor);
        let connection = Connection { wire, limits, entry, watcher };
        async move {
            let stream = without_delay(stream);
            let Some(acceptor) = acceptor else {
                if wire == Wire::Rest || stream.readable().await.is_ok() {
                    connection.serve(stream, handle).await;
                }
                return;
            };
            // The client has not shown yet what it is: the time of a pending connection is also
            // that of its handshake. One without a byte costs no work.
            if listen::first_byte(&stream).await.is_none() {
                return;
            }
            match acceptor.accept(stream).await {
                Ok(stream) => connection.serve(stream, handle).await,
                Err(error) => debug!(%error, "a TLS handshake failed"),
            }
        }
    })
    .await;
    drop(listener);
    if timeout(limits.drain, graceful.shutdown()).await.is_err() {
        warn!("requests were still in flight after {} s and are cut off", limits.drain.as_secs());
    }
    drop(connections);
}

/// A connection that was accepted.
struct Connection {
    wire: Wire,
    limits: Limits,
    entry: Entry,
    watcher: Watcher,
}

impl Connection {
    /// Serves the connection until its end.
    async fn serve<S, H, F>(self, stream: S, handle: H)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<Incoming>) -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let Self { wire, limits, entry, watcher } = self;
        let ended = match wire {
            Wire::Rest => {
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits.head)
                    .max_buf_size(MAX_HEAD.max(8192))
                    .serve_connection(TokioIo::new(stream), admitting(entry, handle));
                watcher.watch(connection).await
            }
            // A client of gRPC connects before it has a request, and is watched by pings, which
            // begin after its first bytes, or its handshake.
            Wire::Grpc => {
                if entry.admit(Identity::Anonymous).is_err() {
                    return;
                }
                let connection = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(KEEP_ALIVE)
                    .max_header_list_size(MAX_HEADER_LIST)
                    .serve_connection(TokioIo::new(stream), admitting(entry, handle));
                watcher.watch(connection).await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "a connection ended");
        }
    }
}

/// Gives a connection a place with its first request.
fn admitting<H, F>(
    entry: Entry,
    handle: H,
) -> impl Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send>
where
    H: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    service_fn(move |request| {
        let answer = entry.admit(Identity::Anonymous).map(|()| handle(request));
        async move {
            Ok::<_, Infallible>(match answer {
                Ok(answer) => answer.await,
                Err(_) => busy_connection(),
            })
        }
    })
}

fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY is not set");
    }
    stream
}
