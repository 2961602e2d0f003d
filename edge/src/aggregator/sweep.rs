//! Removes the aggregators that nobody wants any more: their `TrainingModel` was deleted while the
//! agent was stopped, or its database was lost.

use std::{collections::BTreeSet, ops::ControlFlow};

use neptune_edge_engine::supervisor::FoundContainer;
use tokio::task::spawn_blocking;
use tracing::warn;

use super::{
    files,
    run::{labels, uid_of},
};
use crate::{event::AgentEvent, training::job::TrainingNode};

/// Removes all aggregators except these, and reports the end.
pub fn sweep(node: TrainingNode, known: BTreeSet<String>) {
    tokio::spawn(async move {
        let is_unknown = |container: &FoundContainer| {
            uid_of(&node, container).is_some_and(|uid| !known.contains(&uid))
        };
        let labels = labels();
        node.supervisor
            .sweep(&labels, is_unknown, |failures, problem| {
                if failures == 1 {
                    warn!(problem = problem.message, "cannot look for aggregators; retrying");
                }
                ControlFlow::Continue(())
            })
            .await;
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
