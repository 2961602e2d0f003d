//! How the caller fetches a content from other nodes. The transfer itself is the caller's.

use std::{fmt, future::Future, io, path::PathBuf, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use neptune_wire::NodeName;

use crate::Digest;

/// A content to fetch from other nodes.
#[derive(Debug, Clone)]
pub struct PeerFetchRequest {
    /// SHA-256 digest of the content.
    pub digest: Digest,
    /// The file for what was received. It stays for the next fetch.
    pub partial: PathBuf,
    /// The file for the complete content, in the same directory.
    pub target: PathBuf,
    /// Bytes that the content may have.
    pub limit: u64,
}

type Fetch =
    dyn Fn(PeerFetchRequest) -> BoxFuture<'static, io::Result<Option<NodeName>>> + Send + Sync;

/// Fetches contents from other nodes. Cheap to clone.
#[derive(Clone)]
pub struct PeerFetch(pub(crate) Arc<Fetch>);

impl PeerFetch {
    /// `fetch` returns the node that sent the content, after the target has it, synced to the disk.
    /// `None`: the URL has to be used.
    pub fn new<F>(fetch: impl Fn(PeerFetchRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Option<NodeName>>> + Send + 'static,
    {
        Self(Arc::new(move |request| fetch(request).boxed()))
    }
}

impl fmt::Debug for PeerFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerFetch").finish()
    }
}
