//! Connections to peers that are kept for the next short request.

use std::{collections::HashMap, time::Instant};

use http::{HeaderMap, StatusCode};
use neptune_pinned_tls::TlsKey;
use neptune_wire::NodeName;
use parking_lot::{Mutex, MutexGuard};

use super::connection::{PeerConnection, PeerError};
use crate::peers::{
    Peer,
    fetch_state::Availability,
    limits::MAX_IDLE,
    protocol::{Route, parse_state},
};

/// Idle connections, at most one per peer. A handshake costs more than the request.
#[derive(Default)]
pub struct ConnectionPool(Mutex<HashMap<NodeName, Idle>>);

struct Idle {
    peer: Peer,
    since: Instant,
    connection: PeerConnection,
}

impl ConnectionPool {
    /// Sends a request without a body, and returns the status and the header fields.
    ///
    /// # Errors
    /// The peer is not reachable, or did not answer.
    pub async fn exchange(
        &self,
        key: &TlsKey,
        peer: &Peer,
        route: Route,
    ) -> Result<(StatusCode, HeaderMap), PeerError> {
        let answer = match self.take(peer) {
            // The peer may have closed it meanwhile.
            Some(mut idle) => idle.send(route, HeaderMap::new()).await.map(|it| (idle, it)).ok(),
            None => None,
        };
        let (connection, response) = if let Some(answer) = answer {
            answer
        } else {
            let mut connection = PeerConnection::open(key, peer).await?;
            let response = connection.send(route, HeaderMap::new()).await?;
            (connection, response)
        };
        let (head, _) = response.into_parts();
        self.keep(peer.clone(), connection);
        Ok((head.status, head.headers))
    }

    fn take(&self, peer: &Peer) -> Option<PeerConnection> {
        let idle = self.lock().remove(&peer.node)?;
        let is_usable = idle.peer == *peer && !idle.connection.is_closed();
        (is_usable && idle.since.elapsed() < MAX_IDLE).then_some(idle.connection)
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock")]
    fn keep(&self, peer: Peer, connection: PeerConnection) {
        let mut all = self.lock();
        all.retain(|_, idle| idle.since.elapsed() < MAX_IDLE);
        all.insert(peer.node.clone(), Idle { peer, since: Instant::now(), connection });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Idle>> {
        // Each change is one step, so a panic of another thread leaves no inconsistent value.
        self.0.lock()
    }
}

/// What a peer has, by its answer to [`Route::Head`].
///
/// # Errors
/// It answered with an unexpected status.
pub fn availability(status: StatusCode, headers: &HeaderMap) -> Result<Availability, PeerError> {
    match status {
        StatusCode::OK => Ok(Availability::Held),
        StatusCode::NOT_FOUND => Ok(parse_state(headers)),
        status => Err(PeerError::Status(status)),
    }
}
