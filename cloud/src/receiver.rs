//! The HTTP server of the receivers whose paths contain tokens: limits connections, by address and
//! in time. What a request means is decided by its receiver.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

/// Maximum number of connections. `KubeEdge` opens one per message, a worker one per report.
const MAX_CONNECTIONS: usize = 512;

/// Maximum number of connections of one address whose token was not checked yet. A connection needs
/// a millisecond for that, so cloudcore stays below it; a client that sends nothing does not take
/// the connections of others.
const MAX_UNCHECKED: usize = 64;

/// How long a connection may take to send its request line and headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may take, from its first byte to the last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves indefinitely, one request per connection. `answer` returns the status and the text of the
/// response.
pub async fn serve<A, F>(listener: &TcpListener, answer: A)
where
    A: Fn(Request<Incoming>, TokenCheck) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = (StatusCode, String)> + Send,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let unchecked = Unchecked::default();
    let mut connections = JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = unchecked.enter(peer.ip()) else {
                    tracing::debug!(%peer, "receiver closed a connection: too many of its address wait for a token check");
                    continue;
                };
                let answer = answer.clone();
                connections.spawn(async move {
                    // A connection that exceeds the timeout is closed.
                    let served = connection(stream, answer, TokenCheck::new(place));
                    let _ = timeout(CONNECTION_TIMEOUT, served).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "receiver cannot accept a connection; retrying");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// The place of a connection among those of its address whose token was not checked yet. A receiver
/// that never calls [`TokenCheck::passed`] limits all connections of an address.
#[derive(Debug, Clone)]
pub struct TokenCheck(Arc<Mutex<Option<UncheckedPlace>>>);

impl TokenCheck {
    fn new(place: UncheckedPlace) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }

    /// Frees the place: the token is valid.
    pub fn passed(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The connections whose token was not checked yet, by their address.
#[derive(Debug, Clone, Default)]
struct Unchecked(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection in [`Unchecked`], until it is dropped.
#[derive(Debug)]
struct UncheckedPlace(Unchecked, IpAddr);

impl Unchecked {
    /// `None` if the address has too many connections.
    fn enter(&self, address: IpAddr) -> Option<UncheckedPlace> {
        let mut addresses = self.lock();
        let count = addresses.entry(address).or_default();
        if *count >= MAX_UNCHECKED {
            return None;
        }
        *count += 1;
        drop(addresses);
        Some(UncheckedPlace(self.clone(), address))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UncheckedPlace {
    fn drop(&mut self) {
        let mut addresses = self.0.lock();
        if let Some(count) = addresses.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.1);
            }
        }
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
    use super::*;

    #[test]
    fn idle_connections_of_one_address_leave_room_for_others() {
        let (unchecked, flood) = (Unchecked::default(), IpAddr::from([10, 0, 0, 1]));
        let mut places: Vec<_> = (0..1000).filter_map(|_| unchecked.enter(flood)).collect();
        assert_eq!(places.len(), MAX_UNCHECKED);
        assert!(unchecked.enter(IpAddr::from([10, 0, 0, 2])).is_some());
        places.pop();
        assert!(unchecked.enter(flood).is_some(), "a checked token frees the place");
        drop(places);
        assert!(unchecked.lock().is_empty());
    }
}
