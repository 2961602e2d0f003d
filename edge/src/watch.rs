//! Watches what happens beside the agent: the Docker engine, the two links, the signals. Everything
//! comes back as events.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use neptune_link::LinkEvents;
use neptune_wire::NodeName;
use tokio::sync::mpsc;

use crate::{agent::Event, backoff::Backoff, dice::dice, docker::Docker, track::Problem};

const ENGINE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// What happened so shortly before the connection to the engine is asked for again.
const OVERLAP_SECONDS: i64 = 2;

/// Tells when the engine comes, goes, and changes one of this node's containers. For ever.
pub async fn docker(docker: Arc<Docker>, node: NodeName, events: mpsc::Sender<Event>) {
    let mut failures = 0;
    loop {
        let since = Timestamp::now().as_second() - OVERLAP_SECONDS;
        let gone = match docker.version().await {
            Ok(version) => {
                failures = 0;
                // The agent is gone only when the process ends.
                let _ = events.send(Event::Docker(Ok(version))).await;
                changes(&docker, &node, since, &events).await
            }
            Err(problem) => problem,
        };
        let _ = events.send(Event::Docker(Err(gone))).await;
        failures += 1;
        tokio::time::sleep(ENGINE.after(failures, dice())).await;
    }
}

async fn changes(
    docker: &Docker,
    node: &NodeName,
    since: i64,
    events: &mpsc::Sender<Event>,
) -> Problem {
    let mut changes = match docker.changes(node, since) {
        Ok(changes) => std::pin::pin!(changes),
        Err(problem) => return problem,
    };
    while let Some(change) = changes.next().await {
        match change {
            Ok(()) => drop(events.send(Event::ContainersChanged).await),
            Err(problem) => return problem,
        }
    }
    Problem {
        reason: neptune_wire::WorkerReason::DockerUnavailable,
        message: "Docker closed the connection; it is probably restarting".to_owned(),
    }
}

/// Looks at the containers once.
pub fn observe(docker: Arc<Docker>, node: NodeName, seq: u64, events: mpsc::Sender<Event>) {
    tokio::spawn(async move {
        let result = docker.observe(&node).await;
        let _ = events.send(Event::Observed { seq, result }).await;
    });
}

/// Passes a link's events on, as `named` ones.
pub async fn link(
    mut link: LinkEvents,
    named: impl Fn(neptune_link::LinkEvent) -> Event,
    events: mpsc::Sender<Event>,
) {
    while let Some(event) = link.next().await {
        if events.send(named(event)).await.is_err() {
            return;
        }
    }
}
