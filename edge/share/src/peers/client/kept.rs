//! One connection to a peer that is kept between two requests.

use std::time::Instant;

use neptune_pinned_tls::TlsKey;
use neptune_transfer::Digest;

use super::{
    connection::{PeerConnection, PeerError},
    download::{DownloadError, describe},
};
use crate::peers::{Peer, limits::MAX_IDLE};

/// The connection to a peer that is asked every few seconds. Both sides close it while it is idle,
/// so one failure does not mean that the peer is offline.
#[derive(Default)]
pub struct KeptConnection(Option<(PeerConnection, Instant)>);

impl KeptConnection {
    /// Asks as [`describe`] does, and retries once over a new connection if a connection fails.
    ///
    /// # Errors
    /// Both connections failed, or the peer answered with an error. No connection is kept.
    pub async fn describe(
        &mut self,
        key: &TlsKey,
        peer: &Peer,
        dataset: &Digest,
    ) -> Result<Option<Vec<u8>>, DownloadError> {
        match self.attempt(key, peer, dataset).await {
            Err(DownloadError::Peer(
                error @ (PeerError::Http(_) | PeerError::NoAnswer(_) | PeerError::Connect { .. }),
            )) => {
                tracing::debug!(peer = %peer.node, %error, "connection failed; reconnecting");
                self.attempt(key, peer, dataset).await
            }
            answer => answer,
        }
    }

    async fn attempt(
        &mut self,
        key: &TlsKey,
        peer: &Peer,
        dataset: &Digest,
    ) -> Result<Option<Vec<u8>>, DownloadError> {
        let mut connection = match self.take() {
            Some(connection) => connection,
            None => PeerConnection::open(key, peer).await?,
        };
        describe(&mut connection, dataset).await.inspect(|_| self.keep(connection))
    }

    /// Takes the connection out. `None` if there is none that can still be used.
    pub fn take(&mut self) -> Option<PeerConnection> {
        let (connection, since) = self.0.take()?;
        (!connection.is_closed() && since.elapsed() < MAX_IDLE).then_some(connection)
    }

    /// Keeps a connection that was just used.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock")]
    pub fn keep(&mut self, connection: PeerConnection) {
        self.0 = Some((connection, Instant::now()));
    }

    /// Closes the connection, because the peer has another key or address.
    pub fn close(&mut self) {
        self.0 = None;
    }
}
