//! Removes the containers that this data directory created under an earlier name of its node.

use std::{collections::BTreeSet, sync::Arc};

use neptune_agent_core::{
    backoff::ENGINE_CONNECT,
    domain::{observed_container::former_node, problem::Problem},
};
use neptune_program::random::random;
use neptune_wire::{AgentInstance, NodeName};
use tracing::{info, warn};

use crate::docker::{Docker, labels_of_instance};

/// Removes the containers, and retries until the engine has done so.
pub async fn remove_containers(
    docker: Arc<Docker>,
    instance: AgentInstance,
    former: BTreeSet<NodeName>,
) {
    let mut failures = 0;
    while let Err(problem) = remove(&docker, &instance, &former).await {
        if failures == 0 {
            warn!(
                problem = problem.message,
                "cannot remove containers of earlier node names; retrying"
            );
        }
        failures += 1;
        tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
    }
}

async fn remove(
    docker: &Docker,
    instance: &AgentInstance,
    former: &BTreeSet<NodeName>,
) -> Result<(), Problem> {
    let found = docker.socket().list(&labels_of_instance(instance)).await;
    for summary in found.map_err(|error| docker.problem(&error))? {
        let labels = summary.labels.unwrap_or_default();
        let Some(node) = former_node(&labels, instance, former) else { continue };
        info!(container = summary.id, %node, "removing a container of an earlier node name");
        docker
            .remove_all(std::slice::from_ref(&summary.id))
            .await
            .map_err(|error| docker.problem(&error))?;
    }
    Ok(())
}
