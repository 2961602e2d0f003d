//! Serves contents to the members of the site. Listens on the address that the caller bound, and on
//! no other one.

mod answer;
mod connection;
mod upload;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use neptune_pinned_tls::{TlsKey, server_config};
use neptune_program::listen::{self, Gate, Limits, Refusals, Shares};
use neptune_transfer::rate::RateBucket;
use neptune_wire::KeyPin;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use crate::peers::{
    Roster,
    content::ContentSource,
    limits::{BURST, MAX_UPLOADS, MAX_UPLOADS_PER_MEMBER, MIN_RATE},
    roster::MAX_MEMBERS,
};

/// The name of the server in metrics and in the log.
const SERVER: &str = "peers";
/// A connection has a place after the handshake of a member's key. Each member may poll, and
/// download several contents.
const LIMITS: Limits = Limits {
    pending: 256,
    pending_per_address: 32,
    pending_reserve: 64,
    pending_time: Duration::from_secs(5),
    hurried_time: Duration::from_secs(1),
    anonymous: 0,
    anonymous_per_address: 0,
    known: 4 * MAX_MEMBERS,
    per_identity: 16,
};
/// Bytes that the kernel buffers for one connection. Without this, it would take a slow reader
/// minutes to empty the buffer, which hides that it does not read.
const SEND_BUFFER: u32 = 256 * 1024;

/// What the connections share.
struct Shared {
    acceptor: TlsAcceptor,
    roster: watch::Receiver<Roster>,
    sources: Vec<Arc<dyn ContentSource>>,
    uploads: Shares<KeyPin>,
    rate: Mutex<RateBucket>,
    /// Connections with a key that is not in the roster.
    refused: Arc<AtomicU64>,
}

/// What a node offers to its site.
pub struct PeerServer {
    shared: Arc<Shared>,
    refusals: Refusals,
}

impl PeerServer {
    /// Returns a server with this key. `bytes_per_second` limits all uploads together, and is at
    /// least [`MIN_RATE`](crate::peers::limits::MIN_RATE). A content is looked up in `sources` in turn.
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
            uploads: Shares::new(MAX_UPLOADS, MAX_UPLOADS_PER_MEMBER),
            rate: Mutex::new(RateBucket::new(
                bytes_per_second.max(MIN_RATE),
                BURST,
                Instant::now(),
            )),
            refused: Arc::default(),
        };
        Self { shared: Arc::new(shared), refusals: Refusals::default() }
    }

    /// Counts refused connections here.
    #[must_use]
    pub fn counting(self, refusals: Refusals) -> Self {
        Self { refusals, ..self }
    }

    /// Counts the connections with a key that is not in the roster.
    pub fn refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.refused)
    }

    /// Serves until `shutdown` ends, then ends the connections.
    pub async fn run(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let gate = Gate::new(SERVER, LIMITS, &self.refusals);
        let shared = self.shared;
        listen::run(&listener, &gate, shutdown, |stream, peer, entry| {
            connection::serve(Arc::clone(&shared), stream, peer, entry)
        })
        .await;
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
