//! Watches the Docker engine, and observes its containers. Results come back as events.

use std::sync::Arc;

use futures::StreamExt as _;
use jiff::Timestamp;
use neptune_wire::NodeName;
use tokio::sync::mpsc;

use crate::{
    backoff::ENGINE_CONNECT, domain::problem::Problem, engine::docker::Docker, event::AgentEvent,
    random::random,
};

/// What happened so shortly before the connection to the engine is asked for again.
const OVERLAP_SECONDS: i64 = 2;

/// Tells when the engine comes, goes, and changes one of this node's containers. For ever.
pub async fn engine(docker: Arc<Docker>, node: NodeName, events: mpsc::Sender<AgentEvent>) {
    let mut failures = 0;
    loop {
        let since = Timestamp::now().as_second() - OVERLAP_SECONDS;
        let gone = match docker.version().await {
            Ok(version) => {
                failures = 0;
                // The agent is gone only when the process ends.
                let _ = events.send(AgentEvent::EngineStatus(Ok(version))).await;
                changes(&docker, &node, since, &events).await
            }
            Err(problem) => problem,
        };
        let _ = events.send(AgentEvent::EngineStatus(Err(gone))).await;
        failures += 1;
        tokio::time::sleep(ENGINE_CONNECT.after(failures, random())).await;
    }
}

async fn changes(
    docker: &Docker,
    node: &NodeName,
    since: i64,
    events: &mpsc::Sender<AgentEvent>,
) -> Problem {
    let mut changes = match docker.changes(node, since) {
        Ok(changes) => std::pin::pin!(changes),
        Err(problem) => return problem,
    };
    while let Some(change) = changes.next().await {
        match change {
            Ok(()) => drop(events.send(AgentEvent::ContainersChanged).await),
            Err(problem) => return problem,
        }
    }
    Problem {
        reason: neptune_wire::WorkerReason::DockerUnavailable,
        message: "Docker closed the connection; it is probably restarting".to_owned(),
    }
}

/// Looks at the containers once.
pub fn observe(docker: Arc<Docker>, node: NodeName, seq: u64, events: mpsc::Sender<AgentEvent>) {
    tokio::spawn(async move {
        let result = docker.observe(&node).await;
        let _ = events.send(AgentEvent::ContainersObserved { seq, result }).await;
    });
}
