//! The cloud worker as a program of the user: its runtime, its address and its task.

use std::net::IpAddr;

use neptune_api::{JointInferenceService, WorkerSpec};
use neptune_wire::{NodeName, ObjectMetadata, Role, Worker};

use crate::{
    finding::Finding,
    joint_inference_service::{
        cloud::pod::check_pod,
        facts::ServiceFacts,
        resolved::{CloudRuntime, SERVICE_PORT, ValidCloudWorker},
        spec::names::service_host,
        worker::{
            resolve::{WorkerInput, resolve_worker},
            task::planned_worker,
        },
    },
    reason::Reason,
    worker::{node_values, volumes::agent_mounts},
};

/// Resolves the references, the node and the runtime of the cloud worker; `None` with findings if it is
/// invalid.
pub fn resolve_cloud_worker(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    node: Option<NodeName>,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ValidCloudWorker> {
    let cloud = &service.spec.cloud_worker;
    let input = WorkerInput {
        role: Role::Cloud,
        name: &cloud.name,
        model_name: &cloud.model.as_ref()?.name,
        worker: spec,
        model: facts.cloud_model.as_ref(),
    };
    let mut worker = resolve_worker(&input, service, facts, findings);
    if worker.as_ref().is_some_and(|worker| worker.node_values.is_some()) {
        findings.push(node_values::refused("spec.cloudWorker.workerSpec"));
    }
    let runtime = cloud_runtime(facts, findings);
    match runtime {
        Some(CloudRuntime::Kubelet { .. }) => check_pod(spec, facts, findings),
        Some(CloudRuntime::Agent { .. }) => {
            let mounts = agent_mounts("spec.cloudWorker.workerSpec", spec.into(), findings);
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            worker = worker.map(|worker| worker.at_agent(mounts, spec, (facts, namespace)));
        }
        None => {}
    }
    Some(ValidCloudWorker { worker: worker?, node: node?, runtime: runtime? })
}

fn cloud_runtime(facts: &ServiceFacts, findings: &mut Vec<Finding>) -> Option<CloudRuntime> {
    let node = facts.cloud_node.as_ref()?;
    if !node.runs_agent {
        return Some(CloudRuntime::Kubelet {
            cluster_domain: facts.cluster_domain.clone(),
            service: facts.service,
            reports: facts.reports.clone(),
        });
    }
    if let Some(address) = facts.cloud_node_address() {
        return Some(CloudRuntime::Agent { address, port: facts.agent_port });
    }
    findings.push(Finding::new(
                Reason::CloudAddressUnknown,
                format!(
                    "spec.cloudWorker.nodeName: node {} has no InternalIP in its status and its agent has not reported an address; start neptune-edge on the node",
                    node.name
                ),
            ));
    None
}

/// The address at which the edge reaches a cloud worker: host, port, and the IP address of the host
/// if no DNS is needed.
pub fn cloud_worker_address(
    cloud: &ValidCloudWorker,
    namespace: &str,
) -> (String, u16, Option<IpAddr>) {
    match &cloud.runtime {
        CloudRuntime::Kubelet { cluster_domain, service, .. } => {
            // The full name: on an edge node no search domain completes a shorter one.
            let host = service_host(cloud.worker.name.as_str(), namespace, cluster_domain);
            (host, SERVICE_PORT, service.and_then(|service| service.cluster_ip))
        }
        CloudRuntime::Agent { address, port } => (address.clone(), *port, None),
    }
}

/// The task of the cloud worker.
pub fn planned_cloud_worker(
    cloud: &ValidCloudWorker,
    spec: &WorkerSpec,
    service: &ObjectMetadata,
) -> Worker {
    let port = match &cloud.runtime {
        CloudRuntime::Kubelet { .. } => SERVICE_PORT,
        CloudRuntime::Agent { port, .. } => *port,
    };
    let variables = [
        ("NAMESPACE", service.namespace.to_string()),
        ("SERVICE_NAME", service.name.to_string()),
        ("WORKER_NAME", cloud.worker.name.to_string()),
        ("BIG_MODEL_BIND_IP", "0.0.0.0".to_owned()),
        ("BIG_MODEL_BIND_PORT", port.to_string()),
    ];
    planned_worker(Role::Cloud, &cloud.worker, spec, variables, Some(port))
}
