//! Accepts connections and serves them until the shutdown.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::answer::Answer;

/// The most bytes of the head of a request.
const MAX_HEAD: usize = 32 * 1024;
/// The same for HTTP/2.
const MAX_HEADER_LIST: u32 = 32 * 1024;
/// Between two pings of an HTTP/2 connection, so that dead ones are closed.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Pause after an accept that failed, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The transport of a listener, and of the calls for its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1.
    Rest,
    /// gRPC over HTTP/2.
    Grpc,
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    /// Its address; the port is known here if the configuration has 0.
    pub address: SocketAddr,
}

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time to send the head of a request; an idle connection is closed after it.
    pub head: Duration,
    /// Time for requests in flight at the shutdown.
    pub drain: Duration,
    /// Connections at a time. More wait to be accepted.
    pub connections: usize,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// The address is taken, or not one of this machine.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

/// Serves connections until `stop` ends, then waits for the requests in flight.
pub async fn serve<H, F>(
    listener: Listener,
    wire: Wire,
    limits: Limits,
    stop: impl Future<Output = ()>,
    handle: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let places = std::sync::Arc::new(Semaphore::new(limits.connections));
    tokio::pin!(stop);
    loop {
        let place = tokio::select! {
            () = &mut stop => break,
            place = std::sync::Arc::clone(&places).acquire_owned() => place,
        };
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handle = handle.clone();
        let service = service_fn(move |request| {
            let answer = handle(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let stream = without_delay(stream);
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let ended = match wire {
                Wire::Rest => {
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(limits.head)
                        .max_buf_size(MAX_HEAD.max(8192))
                        .serve_connection(TokioIo::new(stream), service);
                    watcher.watch(connection).await
                }
                // Its pings begin after the first bytes of the client.
                Wire::Grpc if timeout(limits.head, stream.readable()).await.is_err() => Ok(()),
                Wire::Grpc => {
                    let connection = http2::Builder::new(TokioExecutor::new())
                        .timer(TokioTimer::new())
                        .keep_alive_interval(KEEP_ALIVE)
                        .max_header_list_size(MAX_HEADER_LIST)
                        .serve_connection(TokioIo::new(stream), service);
                    watcher.watch(connection).await
                }
            };
            if let Err(error) = ended {
                debug!(%error, "a connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(limits.drain, graceful.shutdown()).await.is_err() {
        warn!("requests were still in flight after {} s and are cut off", limits.drain.as_secs());
    }
}

fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "TCP_NODELAY is not set");
    }
    stream
}
