//! Fetches the parts of an artifact through the store, so that they are shared like all artifacts.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::{ArtifactRequest, FetchPhase, FetchProgress, ModelError, inventory::Artifact};

type Fetch = dyn Fn(
        ArtifactRequest,
        watch::Sender<FetchProgress>,
    ) -> BoxFuture<'static, Result<Artifact, Arc<ModelError>>>
    + Send
    + Sync;

/// Fetches the parts of an artifact. Cheap to clone.
#[derive(Clone)]
pub struct PartFetch(Arc<Fetch>);

impl PartFetch {
    /// `fetch` retries transient errors.
    pub fn new(
        fetch: impl Fn(
            ArtifactRequest,
            watch::Sender<FetchProgress>,
        ) -> BoxFuture<'static, Result<Artifact, Arc<ModelError>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(fetch))
    }

    /// Fetches a part. Its progress is added to `done`, the bytes of the parts before it; `total` is
    /// the size of all parts, if known.
    ///
    /// # Errors
    /// The permanent errors of the part, as [`ModelError::Part`].
    pub async fn fetch(
        &self,
        request: ArtifactRequest,
        progress: &watch::Sender<FetchProgress>,
        (done, total): (u64, Option<u64>),
    ) -> Result<Artifact, ModelError> {
        let (sender, mut updates) = watch::channel(FetchProgress::default());
        let mut fetching = (self.0)(request, sender);
        loop {
            tokio::select! {
                biased;
                result = &mut fetching => return result.map_err(ModelError::Part),
                Ok(()) = updates.changed() => {
                    let part = updates.borrow_and_update().clone();
                    progress.send_replace(FetchProgress {
                        received: done + part.received,
                        total,
                        // Further parts follow.
                        phase: match part.phase {
                            FetchPhase::Finishing => FetchPhase::Downloading,
                            phase => phase,
                        },
                        ..part
                    });
                }
            }
        }
    }
}
