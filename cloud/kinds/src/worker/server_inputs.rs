//! Validates the variables and volumes of a model server, and converts its volumes to the mounts of an
//! agent.

use neptune_api::WorkerVariable;
use neptune_wire::ContainerMount;

use crate::{
    finding::Finding,
    kubernetes::{
        container_inputs::ContainerInputs, pod_policy::PodPolicy, pod_volumes::check_pod_volumes,
    },
    reason::Reason,
    worker::{
        config::references,
        volumes::{self, agent_mounts},
    },
};

/// Variables that Neptune sets for a model server, beside those of all workers.
pub const RESERVED: [&str; 3] = ["MODEL_NAME", "SERVING_GRPC_PORT", "SERVING_PORT"];

/// Adds the findings of the inputs of a model server, and returns what an agent mounts. `field` has the
/// inputs; `policy` is that of Pods, if a Pod runs the server.
pub fn mounts(
    field: &str,
    inputs: ContainerInputs<'_>,
    policy: Option<&PodPolicy>,
    findings: &mut Vec<Finding>,
) -> Vec<ContainerMount> {
    let has_label = |it: &&WorkerVariable| {
        it.value_from.as_ref().is_some_and(|source| source.node_label.is_some())
    };
    findings.extend(inputs.env.iter().filter(has_label).map(|variable| {
        let message = format!(
            "{field}.env: {:?} is the value of a node label, which only workers get; use value, secretKeyRef or configMapKeyRef",
            variable.name
        );
        Finding::new(Reason::ValueNotPerNode, message)
    }));
    references::check(field, inputs, findings);
    volumes::check(field, inputs, None, findings);
    match policy {
        Some(policy) => {
            check_pod_volumes(field, inputs, policy, findings);
            Vec::new()
        }
        None => agent_mounts(field, inputs, findings),
    }
}
