//! Watches the Docker engine and observes its containers. The results are sent to the agent as
//! events.

use std::sync::Arc;

use futures::StreamExt as _;
use jiff::Timestamp;
use neptune_agent_core::{backoff::ENGINE_CONNECT, domain::problem::Problem};
use neptune_program::random::random;
use neptune_wire::NodeName;
use tokio::sync::mpsc;

use crate::{
    docker::{ContainerChange, Docker},
    event::EngineEvent,
};

/// Engine events this many seconds before the connection are requested too.
const OVERLAP_SECONDS: i64 = 2;

/// Sends an event when the engine becomes available or unavailable and when a container changes.
/// Runs indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn engine<E: From<EngineEvent>>(
    docker: Arc<Docker>,
    node: NodeName,
    events: mpsc::Sender<E>,
) {
    let mut failures = 0;
    loop {
        let since = Timestamp::now().as_second() - OVERLAP_SECONDS;
        let problem = match docker.version().await {
            Ok(version) => {
                failures = 0;
                // The receiver is dropped only when the process exits.
                let _ = events.send(EngineEvent::Status(Ok(version)).into()).await;
                changes(&docker, &node, since, &events).await
            }
            Err(problem) => problem,
        };
        let _ = events.send(EngineEvent::Status(Err(problem)).into()).await;
        failures += 1;
        tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
    }
}

async fn changes<E: From<EngineEvent>>(
    docker: &Docker,
    node: &NodeName,
    since: i64,
    events: &mpsc::Sender<E>,
) -> Problem {
    let mut changes = match docker.changes(node, since) {
        Ok(changes) => std::pin::pin!(changes),
        Err(problem) => return problem,
    };
    while let Some(change) = changes.next().await {
        match change {
            Ok(ContainerChange { stopped }) => {
                drop(events.send(EngineEvent::ContainersChanged { stopped }.into()).await);
            }
            Err(problem) => return problem,
        }
    }
    Problem {
        reason: neptune_wire::WorkerReason::DockerUnavailable,
        message: "Docker closed the connection; it is probably restarting".to_owned(),
    }
}

/// Observes the containers once, in a task of its own.
pub fn observe<E: From<EngineEvent> + Send + 'static>(
    docker: Arc<Docker>,
    node: NodeName,
    seq: u64,
    events: mpsc::Sender<E>,
) {
    tokio::spawn(async move {
        let result = docker.observe(&node).await;
        let _ = events.send(EngineEvent::ContainersObserved { seq, result }.into()).await;
    });
}
