//! Removes the aggregators that nobody wants any more: their `TrainingModel` was deleted while the
//! agent was stopped, or its database was lost.

use std::collections::BTreeSet;

use neptune_agent_core::backoff::ENGINE_CONNECT;
use neptune_program::random::random;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::{files, supervisor::remove};
use crate::{event::AgentEvent, training::job::TrainingNode};

/// Removes all aggregators except these, and reports the end.
pub fn sweep(node: TrainingNode, known: BTreeSet<String>) {
    tokio::spawn(async move {
        let mut failures = 0;
        while let Err(problem) = remove(&node, |uid| !known.contains(uid)).await {
            failures += 1;
            if failures == 1 {
                warn!(problem = problem.message, "cannot look for aggregators; retrying");
            }
            tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
        }
        let data_dir = node.context.data_dir.clone();
        let removed = spawn_blocking(move || {
            let mut unknown =
                files::uids(&data_dir)?.into_iter().filter(|uid| !known.contains(uid));
            unknown.try_for_each(|uid| files::remove(&files::directory(&data_dir, &uid)))
        });
        let removed: std::io::Result<()> = removed.await.expect("removing files does not panic");
        if let Err(error) = removed {
            warn!(%error, "cannot remove files of earlier aggregators");
        }
        // The receiver is dropped only when the process exits.
        let _ = node.events.send(AgentEvent::AggregatorsSwept).await;
    });
}
