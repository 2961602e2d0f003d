//! Permits for costly work, of which one client gets only its share.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of all clients, and of each client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shares<K: Ord + Clone>(Arc<Inner<K>>);

#[derive(Debug)]
struct Inner<K> {
    all: Arc<Semaphore>,
    per_client: usize,
    /// The clients that have a permit or wait for one, with the number of both.
    clients: Mutex<BTreeMap<K, (usize, Arc<Semaphore>)>>,
}

/// A permit, until it is dropped.
#[derive(Debug)]
pub struct Share<K: Ord + Clone> {
    // Dropped in this order: the permits, then the client.
    _of_all: OwnedSemaphorePermit,
    _of_client: OwnedSemaphorePermit,
    _client: Client<K>,
}

/// A client in the table, until it is dropped.
#[derive(Debug)]
struct Client<K: Ord + Clone> {
    shares: Shares<K>,
    key: K,
    permits: Arc<Semaphore>,
}

impl<K: Ord + Clone> Shares<K> {
    /// `all` permits, of which a client gets at most `per_client`.
    pub fn new(all: usize, per_client: usize) -> Self {
        let (all, clients) = (Arc::new(Semaphore::new(all)), Mutex::default());
        Self(Arc::new(Inner { all, per_client, clients }))
    }

    /// Waits for a permit. A client above its share waits for its own permits, and delays nobody.
    pub async fn acquire(&self, key: K) -> Share<K> {
        let client = self.client(key);
        let of_client = Arc::clone(&client.permits).acquire_owned().await;
        let of_all = Arc::clone(&self.0.all).acquire_owned().await;
        Share {
            _of_all: of_all.expect("the semaphore is never closed"),
            _of_client: of_client.expect("the semaphore is never closed"),
            _client: client,
        }
    }

    /// A permit, if there is one at once.
    pub fn try_acquire(&self, key: K) -> Option<Share<K>> {
        let client = self.client(key);
        let of_client = Arc::clone(&client.permits).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.0.all).try_acquire_owned().ok()?;
        Some(Share { _of_all: of_all, _of_client: of_client, _client: client })
    }

    fn client(&self, key: K) -> Client<K> {
        let mut clients = self.0.clients.lock();
        let new = || (0, Arc::new(Semaphore::new(self.0.per_client)));
        let (users, permits) = clients.entry(key.clone()).or_insert_with(new);
        *users += 1;
        let permits = Arc::clone(permits);
        drop(clients);
        Client { shares: self.clone(), key, permits }
    }
}

impl<K: Ord + Clone> Drop for Client<K> {
    fn drop(&mut self) {
        let mut clients = self.shares.0.clients.lock();
        if let Some((users, _)) = clients.get_mut(&self.key) {
            *users -= 1;
            if *users == 0 {
                clients.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn client_above_its_share_waits_and_delays_nobody() {
        let shares = Shares::new(4, 2);
        let mut slow = vec![shares.acquire("slow").await, shares.acquire("slow").await];
        let waiting = shares.acquire("slow");
        tokio::pin!(waiting);
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        assert!(shares.try_acquire("slow").is_none());
        let other = timeout(Duration::ZERO, shares.acquire("other")).await.unwrap();
        slow.pop();
        let third = timeout(Duration::ZERO, waiting).await.unwrap();
        drop((slow, other, third));
        assert!(shares.0.clients.lock().is_empty());
    }

    #[tokio::test]
    async fn all_clients_together_have_a_limit() {
        let shares = Shares::new(2, 1);
        let taken = [shares.try_acquire(1).unwrap(), shares.try_acquire(2).unwrap()];
        assert!(shares.try_acquire(3).is_none());
        drop(taken);
        assert!(shares.try_acquire(3).is_some());
        assert!(shares.0.clients.lock().is_empty());
    }
}
