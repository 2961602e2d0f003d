//! Validates a service against the cluster and parses the inputs of its plan. The only step that
//! rejects a spec; each finding names the field and the remedy.

use std::collections::BTreeMap;

use neptune_api::JointInferenceService;
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    joint_inference_service::{
        cloud::{target::cloud_target, worker::resolve_cloud_worker},
        edge::{
            dataset::check_dataset,
            worker::{check_algorithm, resolve_edge_worker},
        },
        facts::ServiceFacts,
        gateway::resolve::resolve_gateway,
        resolved::{CloudRuntime, CloudSide, EdgeSide, ValidService},
        rollout,
        spec::{
            fields::check_forms,
            forms::{CloudForm, EdgeForm},
            placement::{cloud_worker_node, edge_worker_nodes},
        },
        status::silence,
    },
    kubernetes::identity::identity,
    nodes::sealing::trusted_keys,
    worker::{
        needs::{Unmet, UnmetNeeds},
        program_text,
    },
};

/// Checks a service against the facts.
///
/// # Errors
/// All findings, not only the first.
pub fn validate(
    service: &JointInferenceService,
    facts: &ServiceFacts,
) -> Result<ValidService, Vec<Finding>> {
    let mut all = Vec::new();
    let findings = &mut all;
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    program_text::check(&service.spec, findings);
    rollout::check(service, findings);
    silence::check(&service.spec.edge_worker, findings);
    let (edge_form, cloud_form) = check_forms(service, findings);
    if let Some(EdgeForm::Worker(_)) = edge_form {
        check_algorithm(&service.spec.edge_worker.hard_example_algorithm, findings);
    }
    findings.extend(facts.selection.iter().filter_map(|selection| selection.finding.clone()));
    let identity = identity(service, findings);
    let edge_nodes = edge_worker_nodes(service, facts, findings);
    let cloud_node = cloud_worker_node(service, facts, findings);
    check_dataset(&service.spec.edge_worker, edge_nodes.as_deref(), namespace, facts, findings);
    let nodes = (edge_nodes.as_deref().unwrap_or_default(), cloud_node);
    let (edge, cloud) = sides(service, (edge_form, cloud_form), nodes, facts, findings);
    let (Some((key, metadata)), Some(edge), Some(edge_nodes), Some(cloud)) =
        (identity, edge, edge_nodes, cloud)
    else {
        return Err(all);
    };
    if !all.is_empty() {
        return Err(all);
    }
    let (node_values, unmet) = per_node(&edge, &edge_nodes, facts);
    let unmet_cloud = unmet_cloud(&cloud, facts);
    let valid = ValidService {
        key,
        metadata,
        edge,
        edge_nodes,
        sliced: facts.sliced.clone(),
        node_values,
        seal_keys: trusted_keys(&facts.seal_keys),
        unmet,
        unmet_cloud,
        selection: facts.selection.clone(),
        cloud,
        dataset: facts.edge_dataset.clone(),
        total: facts.gateway.total.clone(),
        rollout: None,
    };
    let rollout = rollout::rollout(service, &valid, facts);
    Ok(ValidService { rollout, ..valid })
}

/// The environment of the edge worker on each node, which is empty if it is the same on all, and the
/// nodes that lack something.
fn per_node(
    edge: &EdgeSide,
    nodes: &[NodeName],
    facts: &ServiceFacts,
) -> (BTreeMap<NodeName, BTreeMap<String, String>>, UnmetNeeds) {
    let (mut environments, mut lacking) = (BTreeMap::new(), UnmetNeeds::new());
    let EdgeSide::Worker(worker) = edge else { return (environments, lacking) };
    let values = worker.node_values.as_ref();
    for node in nodes {
        let environment = values.map(|it| it.environment(node, facts.edge_labels(node)));
        let unmet = match environment.transpose() {
            Err(missing) => Some(Unmet::Label(missing)),
            Ok(environment) => {
                environments.extend(environment.map(|it| (node.clone(), it)));
                worker.unmet(node, facts)
            }
        };
        lacking.extend(unmet.map(|unmet| (node.clone(), unmet)));
    }
    (environments, lacking)
}

/// The node of a cloud worker that an agent runs, if it lacks something.
fn unmet_cloud(cloud: &CloudSide, facts: &ServiceFacts) -> Option<(NodeName, Unmet)> {
    let CloudSide::Worker(cloud) = cloud else { return None };
    let is_agent = matches!(cloud.runtime, CloudRuntime::Agent { .. });
    let unmet = is_agent.then(|| cloud.worker.unmet(&cloud.node, facts))??;
    Some((cloud.node.clone(), unmet))
}

/// Resolves what runs on the edge nodes and what answers hard samples. A worker of the cloud is
/// checked in any case.
fn sides(
    service: &JointInferenceService,
    (edge, cloud): (Option<EdgeForm>, Option<CloudForm>),
    (edge_nodes, cloud_node): (&[NodeName], Option<NodeName>),
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> (Option<EdgeSide>, Option<CloudSide>) {
    let edge_worker = match edge {
        Some(EdgeForm::Worker(spec)) => resolve_edge_worker(service, spec, facts, findings),
        _ => None,
    };
    let cloud_worker = match cloud {
        Some(CloudForm::Worker(spec)) => {
            resolve_cloud_worker(service, spec, cloud_node, facts, findings)
        }
        _ => None,
    };
    match (edge, cloud) {
        (Some(EdgeForm::Worker(_)), _) => {
            let edge = edge_worker.map(|worker| EdgeSide::Worker(Box::new(worker)));
            (edge, cloud_worker.map(|worker| CloudSide::Worker(Box::new(worker))))
        }
        (Some(edge), Some(cloud)) => {
            let cloud = cloud_target(service, cloud, cloud_worker.as_ref(), facts, findings);
            let target = cloud.as_ref().map(|(target, _)| target);
            let edge = resolve_gateway(service, edge, edge_nodes, target, facts, findings);
            (edge, cloud.map(|(_, side)| side))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        joint_inference_service::{
            cases::{change_model, cloud_program, edge_program, findings, name_dataset},
            cloud::tests::CLOUD_CASES,
            edge::tests::EDGE_CASES,
            fixtures,
            gateway::tests::GATEWAY_CASES,
            resolved::{CloudRuntime, PlacedService},
            server::tests::SERVER_CASES,
            spec::tests::SPEC_CASES,
            worker::tests::{WORKER_CASES, env, limit},
        },
        reason::{Phase, Reason, ReasonGroup},
    };

    #[test]
    fn sample_is_valid() {
        let valid = validate(&fixtures::service(), &fixtures::facts()).unwrap();
        let (EdgeSide::Worker(edge), CloudSide::Worker(cloud)) = (&valid.edge, &valid.cloud) else {
            unreachable!("both are workers")
        };
        assert_eq!(edge.program.image, "tensorflow/tensorflow:1.15.5-py3");
        assert!(matches!(cloud.runtime, CloudRuntime::Kubelet { .. }));
        assert_eq!(cloud.worker.name.as_str(), "helmet-detection-demo-work-1a02631a");
        assert!(PlacedService::from(valid).gateway.is_none());
    }

    #[test]
    fn all_findings_are_reported_at_once() {
        let all = findings(|service, facts| {
            facts.edge_model = None;
            facts.cloud_node = None;
            edge_program(service).script_dir.clear();
        });
        let reasons: Vec<_> = all.iter().map(|finding| finding.reason).collect();
        assert_eq!(
            reasons,
            [Reason::NodeNotFound, Reason::ModelNotFound, Reason::ScriptDirInvalid]
        );
    }

    #[test]
    fn unusual_specs_that_can_work_are_valid() {
        let pass: &[fn(&mut JointInferenceService, &mut ServiceFacts)] = &[
            |s, _| s.spec.edge_worker.hard_example_algorithm.name = "MyOwn".into(),
            |_, f| f.edge_node = Some(fixtures::node("edge0", &[("neptune.io/runtime", "agent")])),
            |_, f| *f = fixtures::facts_with_agent(),
            |_, f| {
                f.cloud_node =
                    Some(fixtures::node("solar-corona-cloud", &[("neptune.io/runtime", "agent")]));
                f.agent_address = Some("192.0.2.9".into());
            },
            |s, _| {
                let worker = edge_program(s);
                worker.framework_type = "container".into();
                worker.image = Some("digits:1".into());
                worker.script_dir = "not used".into();
                worker.script_boot_file.clear();
            },
            |s, _| limit(s, "1.5Gi"),
            |s, f| {
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "edge0"));
            },
            |s, _| env(s, "NMS_THRESHOLD"),
            |_, f| f.pod_policy.host_paths = vec!["/".into()],
            |s, f| {
                f.pod_policy.host_paths.clear();
                let worker = cloud_program(s);
                worker.framework_type = "container".into();
                worker.image = Some("digits:1".into());
            },
            |_, f| {
                let labels = [("node-role.kubernetes.io/control-plane", "")];
                f.cloud_node = Some(fixtures::node("solar-corona-cloud", &labels));
                f.pod_policy.allow_control_plane = true;
            },
            |_, f| {
                *f = fixtures::facts_with_agent();
                f.pod_policy.host_paths.clear();
            },
            |_, f| change_model(&mut f.edge_model, |m| m.spec.sha256sum = Some("aB".repeat(32))),
        ];
        for (number, change) in pass.iter().enumerate() {
            assert_eq!(findings(*change), [], "case {number}");
        }
    }

    #[test]
    fn every_obstacle_in_a_spec_has_a_case() {
        let is_obstacle = |reason: &&Reason| {
            let group = reason.group();
            let is_of_service =
                matches!(group, ReasonGroup::Shared | ReasonGroup::JointInferenceService);
            reason.phase() == Phase::Obstacle && is_of_service
        };
        let of_its_models = [Reason::ModelUrlInvalid];
        let cases =
            [SPEC_CASES, WORKER_CASES, EDGE_CASES, SERVER_CASES, CLOUD_CASES, GATEWAY_CASES]
                .concat();
        for reason in Reason::ALL.iter().filter(is_obstacle).chain(&of_its_models) {
            assert!(cases.iter().any(|case| case.2 == *reason), "{reason}");
        }
    }
}
