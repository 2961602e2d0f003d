//! Validates a service against the cluster and parses the inputs of its plan. The only step that
//! rejects a spec; each finding names the field and the remedy. Pure.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use neptune_api::{Dataset, EdgeWorker, JointInferenceService, Model};
use neptune_wire::{NodeName, ObjectKey, ObjectMetadata, Resource, Role};

use crate::{
    controllers::joint_inference_service::{
        place, pod,
        worker::{ResolvedWorker, WorkerInput, algorithm, resolve},
    },
    finding::Finding,
    kubernetes::{
        identity::identity,
        node_selector::SelectedNodes,
        nodes::{internal_address, is_agent_node},
        pod_policy::PodPolicy,
        report_target::ReportAccess,
    },
    reason::Reason,
    worker::frameworks::Frameworks,
};

/// The objects that a service refers to; `None` if one does not exist.
#[derive(Debug, Clone)]
pub struct ServiceFacts {
    /// The edge worker's model.
    pub edge_model: Option<Arc<Model>>,
    /// The cloud worker's model.
    pub cloud_model: Option<Arc<Model>>,
    /// The edge worker's dataset.
    pub edge_dataset: Option<Arc<Dataset>>,
    /// The edge worker's node, if the spec names it.
    pub edge_node: Option<Arc<Node>>,
    /// The nodes that match the edge worker's selector, if there is one.
    pub edge_selected: SelectedNodes,
    /// The cloud worker's node.
    pub cloud_node: Option<Arc<Node>>,
    /// The framework table, or the error of its `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The address that the cloud node's agent reports.
    pub agent_address: Option<String>,
    /// The port of a cloud worker that an agent runs.
    pub agent_port: u16,
    /// The cloud worker's Service, once it exists.
    pub service: Option<CloudService>,
    /// The domain of the cluster's Services.
    pub cluster_domain: String,
    /// What the operator allows in Pods.
    pub pod_policy: PodPolicy,
    /// How a cloud worker in a Pod reports; `None` if it cannot.
    pub reports: Option<ReportAccess>,
}

/// A valid service.
#[derive(Debug, Clone)]
pub struct ValidService {
    /// The key in messages.
    pub key: ObjectKey,
    /// The metadata in messages.
    pub metadata: ObjectMetadata,
    /// The edge worker.
    pub edge: ResolvedWorker,
    /// The nodes of the edge worker, at least one.
    pub edge_nodes: Vec<NodeName>,
    /// The cloud worker.
    pub cloud: ResolvedWorker,
    /// The node of the cloud worker.
    pub cloud_node: NodeName,
    /// The edge worker's dataset, if the spec names one.
    pub dataset: Option<Arc<Dataset>>,
    /// The runtime of the cloud worker.
    pub runtime: CloudRuntime,
}

/// The nodes of the edge worker of a valid service.
#[derive(Debug, Clone)]
pub struct EdgeNodes(pub Box<[NodeName]>);

impl From<ValidService> for EdgeNodes {
    fn from(valid: ValidService) -> Self {
        Self(valid.edge_nodes.into_boxed_slice())
    }
}

/// The Service of a cloud worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudService {
    /// Its `ClusterIP`; `None` if the API server assigned none.
    pub cluster_ip: Option<IpAddr>,
}

/// The runtime of a cloud worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloudRuntime {
    /// The node's kubelet, by a Deployment with a Service.
    Kubelet {
        /// The domain of the cluster's Services.
        cluster_domain: String,
        /// The Service, once it exists.
        service: Option<CloudService>,
        /// How the worker reports; `None` if it cannot.
        reports: Option<ReportAccess>,
    },
    /// The node's agent, on an address and a port of the node.
    Agent {
        /// The IP address or host name of the node.
        address: String,
        /// The port of the worker in the host network.
        port: u16,
    },
}

/// Checks a service against the facts.
///
/// # Errors
/// All findings, not only the first.
pub fn validate(
    service: &JointInferenceService,
    facts: &ServiceFacts,
) -> Result<ValidService, Vec<Finding>> {
    let mut findings = Vec::new();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let edge_spec = WorkerInput {
        role: Role::Edge,
        name: &edge.name,
        model_name: &edge.model.name,
        worker: &edge.worker_spec,
        model: facts.edge_model.as_ref(),
    };
    let cloud_spec = WorkerInput {
        role: Role::Cloud,
        name: &cloud.name,
        model_name: &cloud.model.name,
        worker: &cloud.worker_spec,
        model: facts.cloud_model.as_ref(),
    };
    algorithm(&edge.hard_example_algorithm, &mut findings);
    let identity = identity(service, &mut findings);
    let edge_nodes = place::edge_worker_nodes(service, facts, &mut findings);
    let cloud_node = place::cloud_worker_node(service, facts, &mut findings);
    dataset(&service.spec.edge_worker, edge_nodes.as_deref(), namespace, facts, &mut findings);
    let edge = resolve(&edge_spec, namespace, name, facts, &mut findings);
    let cloud = resolve(&cloud_spec, namespace, name, facts, &mut findings);
    let runtime = runtime(facts, &mut findings);
    if matches!(runtime, Some(CloudRuntime::Kubelet { .. })) {
        pod::check(&service.spec.cloud_worker, facts, &mut findings);
    }
    let parts = (identity, edge, edge_nodes, cloud, cloud_node, runtime);
    let (
        Some((key, metadata)),
        Some(edge),
        Some(edge_nodes),
        Some(cloud),
        Some(cloud_node),
        Some(runtime),
    ) = parts
    else {
        return Err(findings);
    };
    if !findings.is_empty() {
        return Err(findings);
    }
    let dataset = facts.edge_dataset.clone();
    Ok(ValidService { key, metadata, edge, edge_nodes, cloud, cloud_node, dataset, runtime })
}

fn dataset(
    worker: &EdgeWorker,
    nodes: Option<&[NodeName]>,
    namespace: &str,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) {
    let field = "spec.edgeWorker.dataset.name";
    let Some(name) = worker.dataset.as_ref().map(|dataset| &dataset.name) else { return };
    let Some(dataset) = &facts.edge_dataset else {
        findings.push(Finding::missing_object(
            Reason::DatasetNotFound,
            Resource::Datasets,
            namespace,
            name,
            field,
        ));
        return;
    };
    let data_node = &dataset.spec.node_name;
    if let Some(node) = nodes.into_iter().flatten().find(|node| node.as_str() != data_node) {
        findings.push(Finding::new(
            Reason::DatasetElsewhere,
            format!(
                "{field}: Dataset {name:?} is on node {data_node:?} but the edge worker is on node \"{node}\"; set both nodeName fields to the same node, or use a nodeSelector with placement One that matches it"
            ),
        ));
    }
}

fn runtime(facts: &ServiceFacts, findings: &mut Vec<Finding>) -> Option<CloudRuntime> {
    let node = facts.cloud_node.as_ref()?;
    if !is_agent_node(node) {
        return Some(CloudRuntime::Kubelet {
            cluster_domain: facts.cluster_domain.clone(),
            service: facts.service,
            reports: facts.reports.clone(),
        });
    }
    let internal = internal_address(node).map(str::to_owned);
    if let Some(address) = internal.or_else(|| facts.agent_address.clone()) {
        return Some(CloudRuntime::Agent { address, port: facts.agent_port });
    }
    findings.push(Finding::new(
                Reason::CloudAddressUnknown,
                format!(
                    "spec.cloudWorker.nodeName: node {} has no InternalIP in its status and its agent has not reported an address; start neptune-edge on the node",
                    node.metadata.name.as_deref().unwrap_or_default()
                ),
            ));
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{
        DatasetReference, EnvironmentVariable, KeyValue, Limits, Placement, ResourceRequirements,
        SecretReference, SecurityContext,
    };

    use super::*;
    use crate::{
        controllers::joint_inference_service::fixtures,
        reason::{Phase, ReasonGroup},
    };

    type Case =
        (&'static str, fn(&mut JointInferenceService, &mut ServiceFacts), Reason, &'static str);

    fn findings(change: fn(&mut JointInferenceService, &mut ServiceFacts)) -> Vec<Finding> {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        change(&mut service, &mut facts);
        validate(&service, &facts).err().unwrap_or_default()
    }

    fn change_model(model: &mut Option<Arc<Model>>, change: impl Fn(&mut Model)) {
        change(Arc::make_mut(model.as_mut().unwrap()));
    }

    fn limit(service: &mut JointInferenceService, memory: &str) {
        let limits = Limits { cpu: Some("500m".to_owned()), memory: Some(memory.to_owned()) };
        service.spec.edge_worker.worker_spec.resources =
            Some(ResourceRequirements { limits: Some(limits) });
    }

    fn env(service: &mut JointInferenceService, name: &str) {
        let variable = EnvironmentVariable { name: name.to_owned(), value: String::new() };
        service.spec.cloud_worker.worker_spec.env.push(variable);
    }

    fn name_dataset(service: &mut JointInferenceService) {
        let name = "frames".to_owned();
        service.spec.edge_worker.dataset = Some(DatasetReference { name });
    }

    const CASES: &[Case] = &[
        (
            "model missing",
            |_, f| f.edge_model = None,
            Reason::ModelNotFound,
            "Model \"small-model\" not found in namespace \"default\"; create it or correct spec.edgeWorker.model.name",
        ),
        (
            "big model missing",
            |_, f| f.cloud_model = None,
            Reason::ModelNotFound,
            "spec.cloudWorker.model.name",
        ),
        (
            "dataset missing",
            |s, _| name_dataset(s),
            Reason::DatasetNotFound,
            "Dataset \"frames\" not found in namespace \"default\"",
        ),
        (
            "dataset on another node",
            |s, f| {
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "edge1"));
            },
            Reason::DatasetElsewhere,
            "is on node \"edge1\" but the edge worker is on node \"edge0\"",
        ),
        (
            "edge node missing",
            |_, f| f.edge_node = None,
            Reason::NodeNotFound,
            "node \"edge0\" not found; correct spec.edgeWorker.nodeName",
        ),
        (
            "cloud node missing",
            |_, f| f.cloud_node = None,
            Reason::NodeNotFound,
            "spec.cloudWorker.nodeName",
        ),
        (
            "neither node nor labels",
            |s, _| s.spec.edge_worker.node_name = None,
            Reason::NodeRequired,
            "spec.edgeWorker.nodeName is missing; set it to an edge node or set spec.edgeWorker.nodeSelector",
        ),
        (
            "node and labels",
            |s, _| s.spec.edge_worker.node_selector = [("a".into(), "b".into())].into(),
            Reason::PlacementInvalid,
            "spec.edgeWorker.nodeName and spec.edgeWorker.nodeSelector are mutually exclusive",
        ),
        (
            "labels of none",
            |s, f| fixtures::select(s, f, &[]),
            Reason::NodeNotFound,
            "spec.edgeWorker.nodeSelector: no node has the labels area=north",
        ),
        (
            "labels of too many",
            |s, f| {
                let names: Vec<_> = (0..65).map(|n| format!("e{n}")).collect();
                fixtures::select(s, f, &names.iter().map(String::as_str).collect::<Vec<_>>());
                s.spec.edge_worker.placement = Some(Placement::All);
            },
            Reason::TooManyNodes,
            "spec.edgeWorker.nodeSelector: 65 edge nodes match",
        ),
        (
            "dataset on one of all nodes",
            |s, f| {
                fixtures::select(s, f, &["e1", "e2"]);
                s.spec.edge_worker.placement = Some(Placement::All);
                name_dataset(s);
                f.edge_dataset = Some(fixtures::dataset("frames", "e1"));
            },
            Reason::DatasetElsewhere,
            "is on node \"e1\" but the edge worker is on node \"e2\"",
        ),
        (
            "no edge node",
            |_, f| f.edge_node = Some(fixtures::node("edge0", &[])),
            Reason::NodeNotEdge,
            "neptune.io/runtime=agent",
        ),
        (
            "broken table",
            |_, f| f.frameworks = Err("line 3".into()),
            Reason::FrameworksInvalid,
            "line 3",
        ),
        (
            "scheme",
            |_, f| change_model(&mut f.edge_model, |m| m.spec.model_url = "ftp://h/m".into()),
            Reason::ModelUrlInvalid,
            "spec.modelUrl \"ftp://h/m\" of Model small-model",
        ),
        (
            "no url",
            |_, f| change_model(&mut f.cloud_model, |m| m.spec.model_url.clear()),
            Reason::ModelUrlInvalid,
            "the address is empty",
        ),
        (
            "digest",
            |_, f| change_model(&mut f.edge_model, |m| m.spec.sha256sum = Some("abc".into())),
            Reason::ModelDigestInvalid,
            "64 hex digits",
        ),
        (
            "framework",
            |s, _| s.spec.edge_worker.worker_spec.framework_type = "tensorfow".into(),
            Reason::FrameworkUnknown,
            "is not one of container, python, pytorch, tensorflow",
        ),
        (
            "image",
            |s, _| s.spec.cloud_worker.worker_spec.framework_type = "container".into(),
            Reason::ImageRequired,
            "spec.cloudWorker.workerSpec.image is missing",
        ),
        (
            "relative scriptDir",
            |s, _| s.spec.edge_worker.worker_spec.script_dir = "code".into(),
            Reason::ScriptDirInvalid,
            "spec.edgeWorker.workerSpec.scriptDir \"code\"",
        ),
        (
            "scriptDir up",
            |s, _| s.spec.edge_worker.worker_spec.script_dir = "/code/../etc".into(),
            Reason::ScriptDirInvalid,
            "..",
        ),
        (
            "scriptDir root",
            |s, _| s.spec.edge_worker.worker_spec.script_dir = "//".into(),
            Reason::ScriptDirInvalid,
            "not \"/\"",
        ),
        (
            "no script",
            |s, _| s.spec.edge_worker.worker_spec.script_boot_file.clear(),
            Reason::ScriptBootFileInvalid,
            "spec.edgeWorker.workerSpec.scriptBootFile",
        ),
        (
            "script up",
            |s, _| s.spec.edge_worker.worker_spec.script_boot_file = "../x".into(),
            Reason::ScriptBootFileInvalid,
            "relative to it",
        ),
        (
            "algorithm misspelled",
            |s, _| s.spec.edge_worker.hard_example_algorithm.name = "cross_entropy".into(),
            Reason::HardExampleAlgorithmInvalid,
            "must be spelled \"CrossEntropy\"",
        ),
        (
            "algorithm empty",
            |s, _| s.spec.edge_worker.hard_example_algorithm.name.clear(),
            Reason::HardExampleAlgorithmInvalid,
            "known algorithms are IBT",
        ),
        (
            "duplicate parameter",
            |s, _| {
                let parameters = &mut s.spec.edge_worker.worker_spec.parameters;
                parameters.push(KeyValue::new("nms_threshold", "0.7"));
            },
            Reason::ParameterDuplicate,
            "duplicate key \"nms_threshold\"",
        ),
        (
            "parameters of one variable",
            |s, _| {
                let parameters = &mut s.spec.edge_worker.worker_spec.parameters;
                parameters.push(KeyValue::new("nms-threshold", "0.7"));
            },
            Reason::ParameterDuplicate,
            "both become the environment variable NMS_THRESHOLD",
        ),
        (
            "parameter without key",
            |s, _| {
                s.spec.edge_worker.hard_example_algorithm.parameters.push(KeyValue::new("", "1"));
            },
            Reason::ParameterInvalid,
            "spec.edgeWorker.hardExampleAlgorithm.parameters: empty key",
        ),
        (
            "reserved variable",
            |s, _| env(s, "MODEL_URL"),
            Reason::EnvInvalid,
            "spec.cloudWorker.workerSpec.env: \"MODEL_URL\" is set by Neptune",
        ),
        ("no variable", |s, _| env(s, "1A"), Reason::EnvInvalid, "must be letters"),
        (
            "duplicate variable",
            |s, _| {
                env(s, "A");
                env(s, "A");
            },
            Reason::EnvInvalid,
            "\"A\" is a duplicate; remove one",
        ),
        (
            "worker name",
            |s, _| s.spec.edge_worker.name = "edge worker".into(),
            Reason::NameInvalid,
            "spec.edgeWorker.name \"edge worker\"",
        ),
        (
            "no worker name",
            |s, _| s.spec.cloud_worker.name.clear(),
            Reason::NameInvalid,
            "spec.cloudWorker.name",
        ),
        (
            "node name",
            |s, _| s.spec.edge_worker.node_name = Some("workers".into()),
            Reason::NameInvalid,
            "reserved",
        ),
        (
            "memory",
            |s, _| limit(s, "1 GB"),
            Reason::ResourceInvalid,
            "spec.edgeWorker.workerSpec.resources.limits.memory \"1 GB\"",
        ),
        ("no memory", |s, _| limit(s, "0"), Reason::ResourceInvalid, "above 0"),
        (
            "scripts on the node of a Pod",
            |_, f| f.pod_policy.host_paths.clear(),
            Reason::HostPathNotAllowed,
            "spec.cloudWorker.workerSpec.scriptDir: a Pod may not mount \"/code\" of its node (none is allowed)",
        ),
        (
            "model on the node of a Pod",
            |_, f| change_model(&mut f.cloud_model, |m| m.spec.model_url = "/.".into()),
            Reason::HostPathNotAllowed,
            "spec.modelUrl of Model big-model: a Pod may not mount \"/.\" of its node (allowed are /code)",
        ),
        (
            "Pod on a control-plane node",
            |_, f| {
                let labels = [("node-role.kubernetes.io/control-plane", "")];
                f.cloud_node = Some(fixtures::node("solar-corona-cloud", &labels));
            },
            Reason::NodeIsControlPlane,
            "spec.cloudWorker.nodeName: node solar-corona-cloud is a control-plane node",
        ),
        (
            "root without permission",
            |s, _| {
                s.spec.edge_worker.worker_spec.security_context =
                    Some(SecurityContext { run_as_user: Some(0), ..SecurityContext::default() });
            },
            Reason::SecurityContextInvalid,
            "spec.edgeWorker.workerSpec.securityContext.runAsUser 0",
        ),
        (
            "pull secret without a name",
            |s, _| {
                let secret = SecretReference { name: "Reg Cred".into() };
                s.spec.cloud_worker.worker_spec.image_pull_secrets.push(secret);
            },
            Reason::SecretNameInvalid,
            "spec.cloudWorker.workerSpec.imagePullSecrets: \"Reg Cred\"",
        ),
        (
            "credentials without a name",
            |_, f| {
                change_model(&mut f.cloud_model, |m| {
                    m.spec.credentials_secret = Some(SecretReference::default());
                });
            },
            Reason::SecretNameInvalid,
            "spec.credentialsSecret of Model big-model",
        ),
        (
            "no address",
            |_, f| {
                f.cloud_node =
                    Some(fixtures::node("solar-corona-cloud", &[("neptune.io/runtime", "agent")]));
            },
            Reason::CloudAddressUnknown,
            "spec.cloudWorker.nodeName: node solar-corona-cloud has no InternalIP",
        ),
    ];

    #[test]
    fn every_finding_has_its_reason_and_names_its_field() {
        for (name, change, reason, text) in CASES {
            let findings = findings(*change);
            assert_eq!(findings.iter().map(|f| f.reason).collect::<Vec<_>>(), [*reason], "{name}");
            assert!(findings[0].message.contains(text), "{name}: {}", findings[0].message);
        }
    }

    #[test]
    fn sample_is_valid() {
        let valid = validate(&fixtures::service(), &fixtures::facts()).unwrap();
        assert_eq!(valid.edge.image, "tensorflow/tensorflow:1.15.5-py3");
        assert!(matches!(valid.runtime, CloudRuntime::Kubelet { .. }));
        assert_eq!(valid.cloud.name.as_str(), "helmet-detection-demo-work-1a02631a");
    }

    #[test]
    fn labels_select_one_node_that_is_kept_or_all() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2", "e3"]);
        let nodes = |service: &JointInferenceService, facts: &ServiceFacts| -> Vec<String> {
            let nodes = validate(service, facts).unwrap().edge_nodes;
            nodes.iter().map(ToString::to_string).collect()
        };
        for kept in ["e1", "e2", "e3"] {
            service.status = Some(fixtures::placed_on(&[kept]));
            facts.edge_selected.online = ["e1".to_owned()].into();
            assert_eq!(nodes(&service, &facts), [kept]);
        }
        service.status = Some(fixtures::placed_on(&["gone"]));
        assert_eq!(nodes(&service, &facts), ["e1"], "the connected one");
        name_dataset(&mut service);
        facts.edge_dataset = Some(fixtures::dataset("frames", "e3"));
        assert_eq!(nodes(&service, &facts), ["e3"], "where the dataset is");
        (service.spec.edge_worker.dataset, facts.edge_dataset) = (None, None);
        service.spec.edge_worker.placement = Some(Placement::All);
        assert_eq!(nodes(&service, &facts), ["e1", "e2", "e3"]);
    }

    #[test]
    fn all_findings_are_reported_at_once() {
        let all = findings(|service, facts| {
            facts.edge_model = None;
            facts.cloud_node = None;
            service.spec.edge_worker.worker_spec.script_dir.clear();
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
                let worker = &mut s.spec.edge_worker.worker_spec;
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
                let worker = &mut s.spec.cloud_worker.worker_spec;
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
        for reason in Reason::ALL.iter().filter(is_obstacle).chain(&of_its_models) {
            assert!(CASES.iter().any(|case| case.2 == *reason), "{reason}");
        }
    }
}
