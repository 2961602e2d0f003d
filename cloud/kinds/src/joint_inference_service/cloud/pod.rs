//! Validates what matters only if the cloud worker runs in a Pod: its node, and the paths of that
//! node. A part of `validate`.

use neptune_api::WorkerSpec;
use neptune_wire::ArtifactAddress;

use crate::{
    finding::Finding, joint_inference_service::facts::ServiceFacts,
    kubernetes::pod_volumes::check_pod_volumes,
};

/// Adds the findings of a cloud worker in a Pod.
pub fn check_pod(spec: &WorkerSpec, facts: &ServiceFacts, findings: &mut Vec<Finding>) {
    let policy = &facts.pod_policy;
    let node = facts.cloud_node.as_deref();
    findings.extend(node.and_then(|node| policy.check_node("spec.cloudWorker.nodeName", node)));
    check_pod_volumes("spec.cloudWorker.workerSpec", spec.into(), policy, findings);
    let mounts_scripts = facts.frameworks.as_ref().is_ok_and(|frameworks| {
        frameworks
            .find(&spec.framework_type, &spec.framework_version)
            .is_some_and(|framework| !framework.command.is_empty())
    });
    // `worker` rejects a path that is not absolute.
    if mounts_scripts && spec.script_dir.starts_with('/') {
        let field = "spec.cloudWorker.workerSpec.scriptDir";
        findings.extend(policy.check_host_path(field, &spec.script_dir));
    }
    if let Some(model) = &facts.cloud_model
        && let Ok(ArtifactAddress::Path(path)) = model.spec.model_url.parse()
    {
        let name = model.metadata.name.as_deref().unwrap_or_default();
        let field = format!("spec.modelUrl of Model {name}");
        findings.extend(policy.check_host_path(&field, &path));
    }
}
