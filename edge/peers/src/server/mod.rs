//! Serves contents to the members of the site. Listens on the address that the caller bound, and on
//! no other one.

mod answer;
mod connection;
mod upload;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use neptune_pinned_tls::{TlsKey, server_config};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Roster,
    content::ContentSource,
    limits::{MAX_UPLOADS, RateBucket},
    roster::MAX_MEMBERS,
};

/// Connections at the same time: each member may poll and download.
const MAX_CONNECTIONS: usize = 2 * MAX_MEMBERS;
/// Pause after a connection was not accepted, for example without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes that the kernel buffers for one connection. Without this, it would take a slow reader
/// minutes to empty the buffer, which hides that it does not read.
const SEND_BUFFER: u32 = 256 * 1024;

/// What the connections share.
struct Shared {
    acceptor: TlsAcceptor,
    roster: watch::Receiver<Roster>,
    sources: Vec<Arc<dyn ContentSource>>,
    uploads: Arc<Semaphore>,
    rate: Mutex<RateBucket>,
    /// Connections with a key that is not in the roster.
    refused: Arc<AtomicU64>,
}

/// What a node offers to its site.
pub struct PeerServer {
    shared: Arc<Shared>,
}

impl PeerServer {
    /// Returns a server with this key. `bytes_per_second` limits all uploads together, and is at
    /// least [`MIN_RATE`](crate::limits::MIN_RATE). A content is looked up in `sources` in turn.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(
        key: &TlsKey,
        roster: watch::Receiver<Roster>,
        sources: Vec<Arc<dyn ContentSource>>,
        bytes_per_second: u64,
    ) -> Self {
        let shared = Shared {
            acceptor: TlsAcceptor::from(Arc::new(server_config(key))),
            roster,
            sources,
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
            rate: Mutex::new(RateBucket::new(bytes_per_second, Instant::now())),
            refused: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Counts the connections with a key that is not in the roster.
    pub fn refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.refused)
    }

    /// Serves until `shutdown` ends, then ends the connections.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            while connections.try_join_next().is_some() {}
            let accept = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (listener.accept().await, place.expect("the semaphore is never closed"))
            };
            let (accepted, place) = tokio::select! {
                () = &mut shutdown => return,
                accepted = accept => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let shared = Arc::clone(&self.shared);
                    connections.spawn(async move {
                        connection::serve(shared, stream, address).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a peer was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Listens on one address.
///
/// # Errors
/// The address is in use, or not one of this machine.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(1024)
}
