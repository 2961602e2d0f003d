//! Removes the containers that this data directory created under an earlier name of its node.

use std::{collections::BTreeSet, ops::ControlFlow};

use neptune_agent_core::domain::observed_container::former_node;
use neptune_wire::{AgentInstance, NodeName};
use tracing::{info, warn};

use crate::{docker::labels_of_instance, supervisor::Supervisor};

/// Removes the containers, and retries until the engine has done so.
pub async fn remove_containers(
    supervisor: Supervisor,
    instance: AgentInstance,
    former: BTreeSet<NodeName>,
) {
    let labels = labels_of_instance(&instance);
    supervisor
        .sweep(
            &labels,
            |container| {
                let node = former_node(&container.labels, &instance, &former);
                if let Some(node) = node {
                    let id = &container.id;
                    info!(container = id, %node, "removing a container of an earlier node name");
                }
                node.is_some()
            },
            |failures, problem| {
                if failures == 1 {
                    warn!(
                        problem = problem.message,
                        "cannot remove containers of earlier node names; retrying"
                    );
                }
                ControlFlow::Continue(())
            },
        )
        .await;
}
