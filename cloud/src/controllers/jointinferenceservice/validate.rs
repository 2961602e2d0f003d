//! Whether a service can work with what the cluster has, and all that its plan needs, parsed. Pure.
//!
//! The only step that may say no to a spec. Each finding names the field and the remedy.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use neptune_api::{HardExampleAlgorithm, JointInferenceService, KeyValue, Model, WorkerSpec};
use neptune_wire::{Metadata, NodeName, ObjectKey, Resource, Resources, Role, WorkerName};

use crate::{
    environment::{RESERVED, is_variable, variable},
    frameworks::Frameworks,
    model_source::ModelSource,
    quantity,
    reason::{Finding, Reason},
    worker_name::worker_name,
};

/// The algorithms that the workers' library knows, spelt as it spells them.
const ALGORITHMS: [&str; 6] =
    ["IBT", "Threshold", "CrossEntropy", "Random", "CloudOnly", "EdgeOnly"];

/// KubeEdge's mark of an edge node.
const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";

/// The mark of a node whose agent runs the workers, cloud workers too.
const RUNTIME_LABEL: (&str, &str) = ("neptune.io/runtime", "agent");

/// What the cluster has of what a service names.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The edge worker's model.
    pub edge_model: Option<Arc<Model>>,
    /// The cloud worker's model.
    pub cloud_model: Option<Arc<Model>>,
    /// The edge worker's node.
    pub edge_node: Option<Arc<Node>>,
    /// The cloud worker's node.
    pub cloud_node: Option<Arc<Node>>,
    /// The table, or what is wrong with the ConfigMap.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The address that the cloud node's agent gives of itself.
    pub agent_address: Option<String>,
    /// The port of a cloud worker that an agent runs.
    pub agent_port: u16,
}

/// A service that can work.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Its key on the wire.
    pub key: ObjectKey,
    /// Its metadata on the wire.
    pub metadata: Metadata,
    /// The edge worker.
    pub edge: Half,
    /// The cloud worker.
    pub cloud: Half,
    /// Who runs the cloud worker, and how the edge worker finds it.
    pub runtime: Runtime,
}

/// Who runs a cloud worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtime {
    /// The node's kubelet, through a Deployment behind a Service.
    Kubelet,
    /// The node's agent, on an address and a port of the node.
    Agent {
        /// Where the node is reached.
        address: String,
        /// Where the worker listens.
        port: u16,
    },
}

/// One worker, with everything it names resolved.
#[derive(Debug, Clone)]
pub struct Half {
    /// Its name on its node.
    pub name: WorkerName,
    /// Its node.
    pub node: NodeName,
    /// Its model, as in the API.
    pub model: Arc<Model>,
    /// Where its model is.
    pub source: ModelSource,
    /// Its image.
    pub image: String,
    /// What starts its script; empty when the image brings its program.
    pub command: Vec<String>,
    /// Its limits.
    pub limits: Resources,
    /// Its own variables.
    pub env: BTreeMap<String, String>,
}

/// What `validate` reads of a half.
struct Spec<'a> {
    role: Role,
    name: &'a str,
    node_name: &'a str,
    model_name: &'a str,
    worker: &'a WorkerSpec,
    model: Option<&'a Arc<Model>>,
    node: Option<&'a Arc<Node>>,
}

impl Spec<'_> {
    fn field(&self, field: &str) -> String {
        match self.role {
            Role::Edge => format!("spec.edgeWorker.{field}"),
            Role::Cloud => format!("spec.cloudWorker.{field}"),
        }
    }
}

/// Whether a node's agent runs also cloud workers.
pub fn is_agent_node(node: &Node) -> bool {
    label(node, RUNTIME_LABEL.0) == Some(RUNTIME_LABEL.1)
}

fn label<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Checks a service against the facts.
///
/// # Errors
/// Everything that stands in its way, not only the first.
pub fn validate(service: &JointInferenceService, facts: &Facts) -> Result<Checked, Vec<Finding>> {
    let mut findings = Vec::new();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let edge_spec = Spec {
        role: Role::Edge,
        name: &edge.name,
        node_name: &edge.node_name,
        model_name: &edge.model.name,
        worker: &edge.worker_spec,
        model: facts.edge_model.as_ref(),
        node: facts.edge_node.as_ref(),
    };
    let cloud_spec = Spec {
        role: Role::Cloud,
        name: &cloud.name,
        node_name: &cloud.node_name,
        model_name: &cloud.model.name,
        worker: &cloud.worker_spec,
        model: facts.cloud_model.as_ref(),
        node: facts.cloud_node.as_ref(),
    };
    algorithm(&edge.hard_example_algorithm, &mut findings);
    let identity = identity(service, &mut findings);
    let edge = half(&edge_spec, namespace, name, facts, &mut findings);
    let cloud = half(&cloud_spec, namespace, name, facts, &mut findings);
    let runtime = runtime(facts, &mut findings);
    match (identity, edge, cloud, runtime) {
        (Some((key, metadata)), Some(edge), Some(cloud), Some(runtime)) if findings.is_empty() => {
            Ok(Checked { key, metadata, edge, cloud, runtime })
        }
        _ => Err(findings),
    }
}

/// The key of a service, if it can have one.
pub fn key(service: &JointInferenceService) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: service.metadata.namespace.as_deref()?.parse().ok()?,
        resource: Resource::JointInferenceServices,
        name: service.metadata.name.as_deref()?.parse().ok()?,
    })
}

fn identity(
    service: &JointInferenceService,
    findings: &mut Vec<Finding>,
) -> Option<(ObjectKey, Metadata)> {
    let Some(key) = key(service) else {
        let message = "metadata: the namespace or the name is none of RFC 1123; rename the service";
        findings.push(Finding::new(Reason::NameInvalid, message));
        return None;
    };
    let metadata = Metadata {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        uid: service.metadata.uid.clone().unwrap_or_default(),
    };
    Some((key, metadata))
}

fn half(
    spec: &Spec,
    namespace: &str,
    service: &str,
    facts: &Facts,
    findings: &mut Vec<Finding>,
) -> Option<Half> {
    let before = findings.len();
    let name = name(spec, namespace, service, findings);
    let node = node(spec, findings);
    let model = model(spec, namespace, findings);
    let program = program(spec, facts, findings);
    parameters(&spec.field("workerSpec.parameters"), &spec.worker.parameters, findings);
    let env = env(spec, findings);
    let limits = limits(spec, findings);
    if findings.len() > before {
        return None;
    }
    let ((model, source), (image, command)) = (model?, program?);
    Some(Half { name: name?, node: node?, model, source, image, command, limits, env })
}

fn name(
    spec: &Spec,
    namespace: &str,
    service: &str,
    findings: &mut Vec<Finding>,
) -> Option<WorkerName> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if spec.name.is_empty() || !spec.name.chars().all(fits) {
        findings.push(Finding::new(
            Reason::NameInvalid,
            format!("{} {:?} must be letters, digits, '-' or '.'", spec.field("name"), spec.name),
        ));
        return None;
    }
    Some(worker_name(namespace, service, spec.role, spec.name))
}

fn node(spec: &Spec, findings: &mut Vec<Finding>) -> Option<NodeName> {
    let field = spec.field("nodeName");
    let name: NodeName = match spec.node_name.parse() {
        Ok(name) => name,
        Err(error) => {
            findings.push(Finding::new(Reason::NameInvalid, format!("{field}: {error}")));
            return None;
        }
    };
    let Some(node) = spec.node else {
        findings.push(Finding::new(
            Reason::NodeNotFound,
            format!(
                "{field}: the cluster has no node {name:?}; correct the name or join the node",
                name = name.as_str()
            ),
        ));
        return None;
    };
    if spec.role == Role::Edge && label(node, EDGE_LABEL).is_none() && !is_agent_node(node) {
        findings.push(Finding::new(
            Reason::NodeNotEdge,
            format!(
                "{field}: node {name} has neither the label {EDGE_LABEL} nor {}={}; label it, or name an edge node",
                RUNTIME_LABEL.0, RUNTIME_LABEL.1
            ),
        ));
        return None;
    }
    Some(name)
}

fn model(
    spec: &Spec,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<(Arc<Model>, ModelSource)> {
    let field = spec.field("model.name");
    let name = spec.model_name;
    let Some(model) = spec.model else {
        findings.push(Finding::new(
            Reason::ModelNotFound,
            format!("{field}: there is no Model {name:?} in namespace {namespace:?}; apply it"),
        ));
        return None;
    };
    let source = match model.spec.model_url.parse() {
        Ok(source) => source,
        Err(error) => {
            findings.push(Finding::new(
                Reason::ModelUrlInvalid,
                format!(
                    "spec.modelUrl {:?} of Model {name}: {error}; write http://..., https://..., file:///... or an absolute path on the node",
                    model.spec.model_url
                ),
            ));
            return None;
        }
    };
    if let Some(digest) = &model.spec.sha256sum
        && (digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        findings.push(Finding::new(
            Reason::ModelDigestInvalid,
            format!("spec.sha256sum {digest:?} of Model {name} must be 64 hex digits, as sha256sum prints them"),
        ));
        return None;
    }
    Some((Arc::clone(model), source))
}

fn program(
    spec: &Spec,
    facts: &Facts,
    findings: &mut Vec<Finding>,
) -> Option<(String, Vec<String>)> {
    let worker = spec.worker;
    let frameworks = match &facts.frameworks {
        Ok(frameworks) => frameworks,
        Err(error) => {
            findings.push(Finding::new(Reason::FrameworksInvalid, error.clone()));
            return None;
        }
    };
    let framework = &worker.framework_type;
    let Some(found) = frameworks.find(framework, &worker.framework_version) else {
        findings.push(Finding::new(
            Reason::FrameworkUnknown,
            format!(
                "{} {framework:?} is not one of {}; correct it or add it to the ConfigMap neptune-frameworks",
                spec.field("workerSpec.frameworkType"),
                frameworks.known()
            ),
        ));
        return None;
    };
    if !found.command.is_empty() {
        scripts(spec, findings);
    }
    let own = worker.image.clone().filter(|image| !image.is_empty());
    let Some(image) = own.or(found.image) else {
        findings.push(Finding::new(
            Reason::ImageRequired,
            format!(
                "{} is missing: the framework {framework:?} has no image of its own",
                spec.field("workerSpec.image")
            ),
        ));
        return None;
    };
    Some((image, found.command))
}

fn scripts(spec: &Spec, findings: &mut Vec<Finding>) {
    let goes_up = |path: &str| path.split('/').any(|part| part == "..");
    let (dir, file) = (&spec.worker.script_dir, &spec.worker.script_boot_file);
    if !dir.starts_with('/')
        || dir.trim_end_matches('/').is_empty()
        || goes_up(dir)
        || dir.contains(':')
    {
        findings.push(Finding::new(
            Reason::ScriptDirInvalid,
            format!(
                "{} {dir:?} must be an absolute path on the node, not \"/\", without \"..\" and ':'",
                spec.field("workerSpec.scriptDir")
            ),
        ));
    }
    if file.is_empty() || file.starts_with('/') || goes_up(file) {
        findings.push(Finding::new(
            Reason::ScriptBootFileInvalid,
            format!(
                "{} {file:?} must be a file in scriptDir, relative to it, without \"..\"",
                spec.field("workerSpec.scriptBootFile")
            ),
        ));
    }
}

fn parameters(field: &str, parameters: &[KeyValue], findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for KeyValue { key, .. } in parameters {
        if key.is_empty() {
            findings
                .push(Finding::new(Reason::ParameterInvalid, format!("{field}: a key is empty")));
        } else if let Some(first) = seen.insert(variable(key), key) {
            let message = if first == key {
                format!("{field}: {key:?} stands there twice; remove one")
            } else {
                format!(
                    "{field}: {first:?} and {key:?} both become the environment variable {}; rename one",
                    variable(key)
                )
            };
            findings.push(Finding::new(Reason::ParameterDuplicate, message));
        }
    }
}

fn env(spec: &Spec, findings: &mut Vec<Finding>) -> BTreeMap<String, String> {
    let field = spec.field("workerSpec.env");
    let mut env = BTreeMap::new();
    for variable in &spec.worker.env {
        let name = &variable.name;
        let wrong = if !is_variable(name) {
            "must be letters, digits and '_', not beginning with a digit"
        } else if RESERVED.contains(&name.as_str()) {
            "is set by Neptune; choose another name"
        } else if env.insert(name.clone(), variable.value.clone()).is_some() {
            "stands there twice; remove one"
        } else {
            continue;
        };
        findings.push(Finding::new(Reason::EnvInvalid, format!("{field}: {name:?} {wrong}")));
    }
    env
}

fn limits(spec: &Spec, findings: &mut Vec<Finding>) -> Resources {
    let limits = spec.worker.resources.as_ref().and_then(|resources| resources.limits.clone());
    let limits = limits.unwrap_or_default();
    let mut read = |name: &str, text: Option<&String>, per_unit| {
        let parsed = text.map(|text| quantity::parse(text, per_unit).filter(|amount| *amount > 0));
        if parsed == Some(None) {
            findings.push(Finding::new(
                Reason::ResourceInvalid,
                format!(
                    "{}.{name} {:?} must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"",
                    spec.field("workerSpec.resources.limits"),
                    text.map(String::as_str).unwrap_or_default()
                ),
            ));
        }
        parsed.flatten()
    };
    Resources {
        cpu_millis: read("cpu", limits.cpu.as_ref(), 1000),
        memory_bytes: read("memory", limits.memory.as_ref(), 1),
    }
}

/// Known names pass. Any other may be one that the worker's own program knows and passes too, unless
/// it is a known one in another spelling, which can only be a typing error.
fn algorithm(algorithm: &HardExampleAlgorithm, findings: &mut Vec<Finding>) {
    let field = "spec.edgeWorker.hardExampleAlgorithm";
    let name = &algorithm.name;
    let plain = |name: &str| {
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    if name.is_empty() {
        let known = ALGORITHMS.join(", ");
        let message = format!("{field}.name is empty; known are {known}");
        findings.push(Finding::new(Reason::HardExampleAlgorithmInvalid, message));
    } else if let Some(meant) = ALGORITHMS.iter().find(|known| plain(known) == plain(name))
        && meant != name
    {
        let message = format!("{field}.name {name:?} is spelt {meant:?}");
        findings.push(Finding::new(Reason::HardExampleAlgorithmInvalid, message));
    }
    parameters(&format!("{field}.parameters"), &algorithm.parameters, findings);
}

fn runtime(facts: &Facts, findings: &mut Vec<Finding>) -> Option<Runtime> {
    let node = facts.cloud_node.as_ref()?;
    if !is_agent_node(node) {
        return Some(Runtime::Kubelet);
    }
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .find(|address| address.type_ == "InternalIP")
        .map(|address| address.address.clone());
    match internal.or_else(|| facts.agent_address.clone()) {
        Some(address) => Some(Runtime::Agent { address, port: facts.agent_port }),
        None => {
            findings.push(Finding::new(
                Reason::CloudAddressUnknown,
                format!(
                    "spec.cloudWorker.nodeName: node {} has no InternalIP in its status, and its agent has not given an address; start neptune-edge there",
                    node.metadata.name.as_deref().unwrap_or_default()
                ),
            ));
            None
        }
    }
}
