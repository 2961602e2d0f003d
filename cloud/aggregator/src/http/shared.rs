//! What all requests share, and how many of them use memory and cores at a time.

use std::sync::Arc;

use neptune_content::{Digest, uploads::UploadId};
use neptune_program::listen::Shares;
use neptune_wire::{NodeName, aggregator::RunTask};
use tokio::sync::Semaphore;

use crate::{aggregator::Aggregator, error::Error};

/// Blocks of updates in memory at a time, each of at most 8 MiB.
const MAX_BLOCKS: usize = 32;
/// The same of one node: a slow node delays its own updates only. Two, because the block of a
/// connection that broke may still be waited for.
const MAX_BLOCKS_PER_NODE: usize = 2;
/// Updates that are checked at a time. A check uses a core.
const MAX_CHECKS: usize = 2;

/// What all requests share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shared {
    pub aggregator: Arc<Aggregator>,
    pub blocks: Shares<NodeName>,
    pub checks: Arc<Semaphore>,
}

impl Shared {
    pub fn new(aggregator: Arc<Aggregator>) -> Self {
        Self {
            aggregator,
            blocks: Shares::new(MAX_BLOCKS, MAX_BLOCKS_PER_NODE),
            checks: Arc::new(Semaphore::new(MAX_CHECKS)),
        }
    }

    /// Runs a function that waits for the disk.
    pub async fn blocking<T: Send + 'static>(
        &self,
        function: impl FnOnce(&Aggregator) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let aggregator = Arc::clone(&self.aggregator);
        let result = tokio::task::spawn_blocking(move || function(&aggregator)).await;
        result.unwrap_or_else(|error| Err(Error::Start(error.to_string())))
    }
}

/// A request for an update that may continue.
pub struct Upload {
    pub task: RunTask,
    pub content: Digest,
    pub id: UploadId,
}
