//! The edge worker as a program of the user: its algorithm, its references and its task.

use std::net::IpAddr;

use neptune_api::{EdgeWorker, HardExampleAlgorithm, JointInferenceService, WorkerSpec};
use neptune_wire::{Role, Worker};

use crate::{
    finding::Finding,
    joint_inference_service::{
        facts::ServiceFacts,
        resolved::{ResolvedWorker, ValidService},
        worker::{
            resolve::{WorkerInput, resolve_worker},
            task::{object_name, planned_worker},
        },
    },
    kubernetes::nodes::in_url,
    reason::Reason,
    worker::{environment::json, settings::parameters, volumes::agent_mounts},
};

/// Resolves the references of the edge worker; `None` with findings if it is invalid.
pub fn resolve_edge_worker(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedWorker> {
    let edge = &service.spec.edge_worker;
    let input = WorkerInput {
        role: Role::Edge,
        name: &edge.name,
        model_name: facts.edge_model_name(service)?,
        worker: spec,
        model: facts.edge_model.as_ref(),
    };
    let worker = resolve_worker(&input, service, facts, findings);
    let mounts = agent_mounts("spec.edgeWorker.workerSpec", spec.into(), findings);
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    Some(worker?.at_agent(mounts, spec, (facts, namespace)))
}

/// The algorithms of the workers' library, in its spelling.
const ALGORITHMS: [&str; 6] =
    ["IBT", "Threshold", "CrossEntropy", "Random", "CloudOnly", "EdgeOnly"];

/// Checks the algorithm. An unknown name is valid, because the worker's program may implement it,
/// unless it differs from a known name only in spelling.
pub fn check_algorithm(algorithm: &HardExampleAlgorithm, findings: &mut Vec<Finding>) {
    let field = "spec.edgeWorker.hardExampleAlgorithm";
    let name = &algorithm.name;
    let plain = |name: &str| {
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    if name.is_empty() {
        let known = ALGORITHMS.join(", ");
        let message = format!("{field}.name is empty; known algorithms are {known}");
        findings.push(Finding::new(Reason::HardExampleAlgorithmInvalid, message));
    } else if let Some(meant) = ALGORITHMS.iter().find(|known| plain(known) == plain(name))
        && meant != name
    {
        let message = format!("{field}.name {name:?} must be spelled {meant:?}");
        findings.push(Finding::new(Reason::HardExampleAlgorithmInvalid, message));
    }
    parameters(&format!("{field}.parameters"), &algorithm.parameters, findings);
}

/// The task of the edge worker, which calls the cloud worker at this address.
pub fn planned_edge_worker(
    valid: &ValidService,
    resolved: &ResolvedWorker,
    (spec, program): (&EdgeWorker, &WorkerSpec),
    (host, port, address): (String, u16, Option<IpAddr>),
) -> Worker {
    let hosts = address.map(|address| (host.clone(), address)).into_iter().collect();
    let url_host = in_url(&host);
    let algorithm = &spec.hard_example_algorithm;
    let variables = [
        ("NAMESPACE", valid.metadata.namespace.to_string()),
        ("SERVICE_NAME", valid.metadata.name.to_string()),
        ("WORKER_NAME", resolved.name.to_string()),
        ("HEM_NAME", algorithm.name.clone()),
        ("HEM_PARAMETERS", json(&algorithm.parameters)),
        ("BIG_MODEL_URL", format!("http://{url_host}:{port}")),
        ("BIG_MODEL_IP", host),
        ("BIG_MODEL_PORT", port.to_string()),
    ];
    let dataset = valid.dataset.as_deref().map(|dataset| object_name(&dataset.metadata));
    Worker { dataset, hosts, ..planned_worker(Role::Edge, resolved, program, variables, None) }
}
