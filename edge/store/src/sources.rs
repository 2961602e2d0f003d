//! The URLs of the callers that wait for one artifact. A fetch tries them in turn, so that an
//! unusable URL of one caller does not block the others. No I/O.

use std::sync::Arc;

use parking_lot::Mutex;

use tokio::sync::Notify;

use crate::ArtifactRequest;

/// The requests of the callers that share a fetch. All have the same key.
#[derive(Debug, Default)]
pub struct FetchSources {
    waiting: Mutex<WaitingRequests>,
    added: Notify,
}

#[derive(Debug, Default)]
struct WaitingRequests {
    requests: Vec<(u64, ArtifactRequest)>,
    next_id: u64,
}

/// A caller that waits. Dropping it withdraws its URL.
#[derive(Debug)]
pub struct WaitingCaller {
    sources: Arc<FetchSources>,
    id: u64,
}

impl FetchSources {
    /// Adds the URL of a caller, and those of its mirrors.
    pub fn add(self: &Arc<Self>, request: &ArtifactRequest) -> WaitingCaller {
        let mut waiting = self.waiting.lock();
        let id = waiting.next_id;
        waiting.next_id += 1;
        let added = request.per_location();
        let is_known = |it| waiting.requests.iter().any(|(_, known)| known == it);
        let is_new = !added.iter().all(is_known);
        waiting.requests.extend(added.into_iter().map(|request| (id, request)));
        if is_new {
            self.added.notify_one();
        }
        WaitingCaller { sources: Arc::clone(self), id }
    }

    /// A request that is not in `excluded`, the one that waits longest first.
    pub fn other_than(&self, excluded: &[ArtifactRequest]) -> Option<ArtifactRequest> {
        let waiting = self.waiting.lock();
        let mut requests = waiting.requests.iter().map(|(_, request)| request);
        requests.find(|request| !excluded.contains(request)).cloned()
    }

    /// Resolves when another URL was added since the last call.
    pub async fn added(&self) {
        self.added.notified().await;
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        self.sources.waiting.lock().requests.retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn url_is_tried_while_its_caller_waits() {
        let request = |url: &str| ArtifactRequest::parse(url, None).unwrap();
        let (a, b) = (request("http://a/m"), request("http://b/m"));
        let sources = Arc::new(FetchSources::default());
        let first = sources.add(&a);
        let second = sources.add(&b);
        let third = sources.add(&a);
        sources.added().await;
        assert_eq!(sources.other_than(&[]), Some(a.clone()));
        assert_eq!(sources.other_than(std::slice::from_ref(&a)), Some(b.clone()));
        assert_eq!(sources.other_than(&[a.clone(), b.clone()]), None);
        drop(first);
        assert_eq!(sources.other_than(std::slice::from_ref(&b)), Some(a.clone()));
        drop((second, third));
        assert_eq!(sources.other_than(&[]), None);
    }
}
