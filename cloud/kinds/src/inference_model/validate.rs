//! Validates an `InferenceModel` against the cluster and parses the inputs of its plan. The only
//! step that rejects a spec; each finding names the field and the remedy.

use std::collections::{BTreeMap, HashMap};

use neptune_api::{InferenceModel, InferenceModelSpec, SecretReference};
use neptune_wire::{
    ContainerProgram, NodeName, ObjectKey, ObjectMetadata, SealPublicKey, ServedModel, WorkerName,
    is_label_value,
};

use crate::{
    finding::Finding,
    inference_model::{
        manifest, model_source,
        place::{self, Place},
        program::{self, Listen, ServerProgram},
        target::{InferenceModelFacts, ModelOrigin, container_inputs, hold, model_origin},
    },
    kubernetes::{identity::identity, pod_security, secrets::check_name},
    nodes::sealing::trusted_keys,
    reason::Reason,
    rollout::{planned::ValidRollout, policy},
    worker::{
        container_config::ContainerConfig,
        names::server_name,
        needs::{UnmetNeeds, features_of_server},
        ports::{NodePort, port_behind, transformer_ports},
        program_text,
    },
};

/// A valid `InferenceModel`, with what the plan needs of the cluster.
#[derive(Debug, Clone)]
pub struct ValidInferenceModel {
    /// The key of the object in messages to nodes.
    pub key: ObjectKey,
    /// The metadata of the object in messages to nodes.
    pub metadata: ObjectMetadata,
    /// The name of its server.
    pub name: WorkerName,
    /// Where the server runs, and what keeps it running.
    pub place: Place,
    /// The port of the endpoint.
    pub port: u16,
    /// The port for gRPC; `None` if the spec has none.
    pub grpc_port: Option<u16>,
    /// The nodes without a server, of several, because an older object uses one of its ports there.
    pub taken_ports: BTreeMap<NodeName, Finding>,
    /// The nodes that cannot get the server.
    pub unmet: UnmetNeeds,
    /// What the server gets of its Secrets and `ConfigMap`s, if an agent runs it.
    pub config: ContainerConfig,
    /// The keys of its nodes, to which its Secrets are sealed.
    pub seal_keys: BTreeMap<NodeName, SealPublicKey>,
    /// The program of the server.
    pub program: ServerProgram,
    /// The version to serve; `None` if the image contains its model.
    pub version: Option<ServedModel>,
    /// The Secret with the credentials for `s3://` in Pods.
    pub credentials: Option<SecretReference>,
    /// Whether the spec sets 0 replicas at the edge: the node runs no server.
    pub is_stopped: bool,
    /// Whether the annotation keeps the running version.
    pub hold: bool,
    /// A remark on a part of the spec that has no effect.
    pub remark: Option<String>,
    /// How a change reaches the nodes, which is decided after the validation; `None`: all at once.
    pub rollout: Option<ValidRollout>,
}

/// Checks a model against the facts.
///
/// # Errors
/// All findings, not only the first.
pub fn validate(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
) -> Result<ValidInferenceModel, Vec<Finding>> {
    let mut findings = Vec::new();
    let findings = &mut findings;
    program_text::check(&model.spec, findings);
    policy::check(model.spec.rollout.as_deref(), findings);
    let identity = identity(model, findings);
    let name_fits = model_name(&model.spec.model_name, findings);
    let port = port(model.spec.serving_port, findings);
    let place = place::place(model, facts, findings);
    let nodes = place.as_ref().map_or(&[][..], |(place, _)| place.nodes());
    let on_node = !nodes.is_empty();
    let grpc_port = grpc_port(&model.spec, findings);
    let behind = transformer_port(model, grpc_port, findings);
    let fields = [("servingPort", port), ("grpcPort", grpc_port), ("transformer.port", behind)];
    let after =
        transformer_ports(model).unwrap_or_default().map(|port| ("transformer.port", Some(port)));
    let fields = fields.into_iter().chain(after);
    let place_of = place.as_ref().map(|(place, _)| place);
    let taken_ports = check_ports(fields, place_of, &facts.used_ports, findings);
    let in_pod = place.is_some() && !on_node;
    let listen = Listen { endpoint: port.unwrap_or(1), behind, grpc: grpc_port, in_pod };
    let program = program::program(model, facts, listen, findings);
    let version = match model_origin(model) {
        ModelOrigin::Image(_) => Some(None),
        ModelOrigin::Manifest => {
            let server = program.as_ref().and_then(|program| program.directory.as_ref());
            manifest::version(model, server, on_node || place.is_none(), findings).map(Some)
        }
        ModelOrigin::Model => {
            let server = program.as_ref().and_then(|program| program.directory.as_ref());
            beside_model(&model.spec, findings);
            let source = facts.source.as_ref();
            let on_node = on_node || place.is_none();
            model_source::version(model, source, server, on_node, findings).map(Some)
        }
    };
    secrets(model, findings);
    let context = model.spec.security_context.as_ref();
    findings.extend(pod_security::check("spec.securityContext", context));
    let hold = hold(model);
    let parts = (identity, port, place, program, version);
    let (Some((key, metadata)), Some(port), Some((place, remark)), Some(program), Some(version)) =
        parts
    else {
        return Err(std::mem::take(findings));
    };
    let (version, program) = match &facts.deployed {
        // Agents implement the annotation. A Deployment is planned as it is.
        Some(deployed) if hold && !on_node => {
            manifest::held(model, version, program, deployed, findings)
        }
        _ => (version, program),
    };
    if !findings.is_empty() || !name_fits {
        return Err(std::mem::take(findings));
    }
    let name = server_name(key.namespace.as_str(), key.name.as_str());
    let (config, unmet) = config(model, &program.container, &key, place.nodes(), facts);
    let is_stopped = on_node && model.spec.replicas == Some(0);
    Ok(ValidInferenceModel {
        key,
        metadata,
        name,
        place,
        port,
        grpc_port,
        taken_ports,
        unmet,
        config,
        seal_keys: trusted_keys(&facts.seal_keys),
        program,
        version,
        credentials: model_source::credentials(model, facts.source.as_ref()),
        is_stopped,
        hold,
        remark,
        rollout: None,
    })
}

/// What the server gets of its Secrets and `ConfigMap`s on nodes, and the nodes that lack something. In
/// Pods, for which there are no nodes, the kubelet reads them.
fn config(
    model: &InferenceModel,
    program: &ContainerProgram,
    key: &ObjectKey,
    nodes: &[NodeName],
    facts: &InferenceModelFacts,
) -> (ContainerConfig, UnmetNeeds) {
    if nodes.is_empty() {
        return (ContainerConfig::None, UnmetNeeds::new());
    }
    let (inputs, namespace) = (container_inputs(model), key.namespace.as_str());
    let config = ContainerConfig::resolve(inputs, program, &facts.config, namespace);
    let features = features_of_server(program, &config.required_features(program));
    let lacking = |node: &NodeName| {
        let known = (node, facts.offers.get(node), facts.seal_keys.get(node));
        Some((node.clone(), config.unmet(&features, program, known)?))
    };
    let unmet = nodes.iter().filter_map(lacking).collect();
    (config, unmet)
}

/// Checks that nothing beside `spec.model` names a version.
fn beside_model(spec: &InferenceModelSpec, findings: &mut Vec<Finding>) {
    if !spec.manifest.is_empty() {
        let message = "spec.manifest: give manifest or model, not both; remove one";
        findings.push(Finding::new(Reason::VersionInvalid, message));
    }
    if spec.target_version.as_ref().is_some_and(|version| !version.is_empty()) {
        let message = "spec.targetVersion: remove it: the version comes from the Model";
        findings.push(Finding::new(Reason::VersionInvalid, message));
    }
}

fn secrets(model: &InferenceModel, findings: &mut Vec<Finding>) {
    let spec = &model.spec;
    let pull = spec.image_pull_secrets.iter().map(|secret| ("spec.imagePullSecrets", secret));
    let credentials =
        spec.credentials_secret.iter().map(|secret| ("spec.credentialsSecret", secret));
    let checked =
        pull.chain(credentials).filter_map(|(field, secret)| check_name(field, &secret.name));
    findings.extend(checked);
}

/// Checks the name, which becomes part of paths and arguments.
fn model_name(name: &str, findings: &mut Vec<Finding>) -> bool {
    let fits = is_label_value(name);
    if !fits {
        findings.push(Finding::new(
            Reason::ModelNameInvalid,
            format!(
                "spec.modelName {name:?} must be at most 63 letters, digits, '.', '-' and '_', beginning and ending with a letter or digit"
            ),
        ));
    }
    fits
}

fn port(port: Option<i32>, findings: &mut Vec<Finding>) -> Option<u16> {
    let message = match port {
        None => {
            "spec.servingPort is missing; set it to the port of the endpoint, 1 to 65535".to_owned()
        }
        Some(number) => match u16::try_from(number) {
            Ok(port) if port > 0 => return Some(port),
            _ => format!("spec.servingPort {number} must be a port, 1 to 65535"),
        },
    };
    findings.push(Finding::new(Reason::ServingPortInvalid, message));
    None
}

/// The port for gRPC; `None` without one, and with a finding if it is invalid.
fn grpc_port(spec: &InferenceModelSpec, findings: &mut Vec<Finding>) -> Option<u16> {
    let number = spec.grpc_port?;
    let message = if spec.serving_port == Some(number) {
        format!("spec.grpcPort {number} is also spec.servingPort; choose another port")
    } else {
        match u16::try_from(number) {
            Ok(port) if port > 0 => return Some(port),
            _ => format!("spec.grpcPort {number} must be a port, 1 to 65535"),
        }
    };
    findings.push(Finding::new(Reason::ServingPortInvalid, message));
    None
}

/// The port of the server behind a transformer; `None` without one, and with a finding if it is
/// invalid.
fn transformer_port(
    model: &InferenceModel,
    grpc_port: Option<u16>,
    findings: &mut Vec<Finding>,
) -> Option<u16> {
    let number = model.spec.transformer.as_ref()?.port.unwrap_or_default();
    let behind = port_behind(model);
    let message = if grpc_port.is_some() {
        "spec.grpcPort: remove it: a transformer has no port for gRPC".to_owned()
    } else if behind.is_none() {
        format!("spec.transformer.port {number} must be a port, 1 to 65535, or 0 to choose one")
    } else if behind.map(i32::from) == model.spec.serving_port {
        format!(
            "spec.transformer.port {number} is also spec.servingPort, on which the transformer listens; choose another port, or 0"
        )
    } else {
        return behind;
    };
    findings.push(Finding::new(Reason::TransformerInvalid, message));
    behind
}

/// Checks that no older object uses a port of the server on its node. Returns the nodes on which one
/// does, if there are several: the others run a server. A port has the name of its field.
fn check_ports(
    ports: impl Iterator<Item = (&'static str, Option<u16>)>,
    place: Option<&Place>,
    used: &[NodePort],
    findings: &mut Vec<Finding>,
) -> BTreeMap<NodeName, Finding> {
    let nodes = place.map_or(&[][..], Place::nodes).iter();
    let nodes: HashMap<_, _> = nodes.map(|node| (node.as_str(), node)).collect();
    let is_each = matches!(place, Some(Place::EachAgent { .. }));
    let mut taken_ports = BTreeMap::new();
    for (field, port) in ports {
        let on_node = |used: &NodePort| {
            let node = *nodes.get(used.node.as_str()).filter(|_| Some(used.port) == port)?;
            let message = format!(
                "spec.{field} {} is already used by {used} on node {node}; choose another port or node",
                used.port
            );
            Some((node, Finding::new(Reason::ServingPortTaken, message)))
        };
        let mut taken = used.iter().filter_map(on_node);
        if is_each {
            for (node, finding) in taken {
                taken_ports.entry(node.clone()).or_insert(finding);
            }
        } else {
            findings.extend(taken.next().map(|(_, finding)| finding));
        }
    }
    taken_ports
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{
        Model, ModelReference, ModelSpec, Placement, SecretReference, SecurityContext,
        ServerOverrides, ServingHealth, Transformer,
    };

    use super::*;
    use crate::{
        inference_model::{
            fixtures::{self, by_labels},
            target::{Deployed, HOLD_ANNOTATION, target_version},
        },
        reason::{Phase, ReasonGroup},
        steps::Steps as _,
        worker::ports::PortUse,
    };

    type Case =
        (&'static str, fn(&mut InferenceModel, &mut InferenceModelFacts), Reason, &'static str);

    fn findings(change: fn(&mut InferenceModel, &mut InferenceModelFacts)) -> Vec<Finding> {
        let (mut model, mut facts) = (fixtures::model(), fixtures::facts());
        change(&mut model, &mut facts);
        validate(&model, &facts).map(|_| ()).unwrap_err()
    }

    /// Makes the model one that Triton serves with gRPC.
    fn triton(model: &mut InferenceModel, _: &mut InferenceModelFacts) {
        model.spec.framework_type = "triton".to_owned();
        model.spec.grpc_port = Some(8502);
    }

    fn health(model: &mut InferenceModel, change: impl FnOnce(&mut ServingHealth)) {
        change(model.spec.health.get_or_insert_default());
    }

    fn transformer(model: &mut InferenceModel, change: impl FnOnce(&mut Transformer)) {
        let transformer = model.spec.transformer.get_or_insert_default();
        transformer.image = Some("t:1".to_owned());
        change(transformer);
    }

    #[test]
    fn server_yields_on_the_nodes_where_an_older_object_has_its_port() {
        let (model, mut facts) = (fixtures::model(), fixtures::facts());
        assert!(model.yielded(&facts).is_empty());
        let port = u16::try_from(model.spec.serving_port.unwrap()).unwrap();
        facts.used_ports = vec![fixtures::used_port("precision-5820", "b", port)];
        assert_eq!(model.yielded(&facts), ["precision-5820".parse().unwrap()].into());
    }

    const CASES: &[Case] = &[
        (
            "NUL in an argument of a transformer",
            |m, _| transformer(m, |t| t.args = vec!["a".to_owned(), "\0".to_owned()]),
            Reason::TextInvalid,
            "spec.transformer.args[1] contains a NUL character",
        ),
        (
            "port of a server behind a transformer",
            |m, f| {
                transformer(m, |t| t.port = Some(13_501));
                f.used_ports = vec![fixtures::used_port("precision-5820", "b", 13_501)];
            },
            Reason::ServingPortTaken,
            "spec.transformer.port 13501 is already used by InferenceModel default/b on node precision-5820",
        ),
        (
            "port of a transformer behind the proxy",
            |m, f| {
                transformer(m, |t| t.port = Some(13_501));
                f.used_ports = vec![fixtures::used_port("precision-5820", "b", 13_503)];
            },
            Reason::ServingPortTaken,
            "spec.transformer.port 13503 is already used by InferenceModel default/b on node precision-5820",
        ),
        (
            "transformer without a program",
            |m, _| transformer(m, |t| t.image = None),
            Reason::TransformerInvalid,
            "spec.transformer: give image or scriptDir",
        ),
        (
            "port of the endpoint for the server behind a transformer",
            |m, _| transformer(m, |t| t.port = Some(8501)),
            Reason::TransformerInvalid,
            "spec.transformer.port 8501 is also spec.servingPort",
        ),
        (
            "port behind a transformer",
            |m, _| transformer(m, |t| t.port = Some(-1)),
            Reason::TransformerInvalid,
            "spec.transformer.port -1 must be a port, 1 to 65535, or 0",
        ),
        (
            "transformer with gRPC",
            |m, f| {
                triton(m, f);
                transformer(m, |_| ());
            },
            Reason::TransformerInvalid,
            "spec.grpcPort: remove it: a transformer has no port for gRPC",
        ),
        (
            "scripts in a Pod",
            |m, _| {
                *m = fixtures::cloud_model();
                transformer(m, |t| {
                    (t.image, t.framework_type) = (None, Some("python".to_owned()));
                    t.framework_version = Some("3.12".to_owned());
                    t.script_dir = Some("/srv/t".to_owned());
                    t.script_boot_file = Some("t.py".to_owned());
                });
            },
            Reason::TransformerInvalid,
            "spec.transformer.scriptDir: Pods in the cloud have no scripts of a node",
        ),
        (
            "Model without a digest",
            |m, f| {
                (m.spec.manifest, m.spec.target_version) = (Vec::new(), None);
                m.spec.model = Some(ModelReference { name: "small".to_owned() });
                let model_url = "http://h/small".to_owned();
                let spec = ModelSpec { model_url, ..ModelSpec::default() };
                f.source = Some(Model::new("small", spec).into());
            },
            Reason::ModelDigestRequired,
            "Model small has no spec.sha256sum",
        ),
        (
            "port of another",
            |_, f| {
                f.used_ports = vec![
                    fixtures::used_port("elsewhere", "a", 8501),
                    fixtures::used_port("precision-5820", "b", 8501),
                ];
            },
            Reason::ServingPortTaken,
            "spec.servingPort 8501 is already used by InferenceModel default/b on node precision-5820",
        ),
        (
            "port of gRPC of a gateway",
            |m, f| {
                triton(m, f);
                let mut used = fixtures::used_port("precision-5820", "b", 8502);
                used.used_for = PortUse::Gateway;
                f.used_ports = vec![used];
            },
            Reason::ServingPortTaken,
            "spec.grpcPort 8502 is already used by JointInferenceService default/b on node precision-5820",
        ),
        (
            "one port for REST and gRPC",
            |m, f| {
                triton(m, f);
                m.spec.grpc_port = m.spec.serving_port;
            },
            Reason::ServingPortInvalid,
            "spec.grpcPort 8501 is also spec.servingPort",
        ),
        (
            "port of gRPC",
            |m, f| {
                triton(m, f);
                m.spec.grpc_port = Some(65_536);
            },
            Reason::ServingPortInvalid,
            "spec.grpcPort 65536 must be a port, 1 to 65535",
        ),
        (
            "framework without gRPC",
            |m, _| m.spec.grpc_port = Some(8502),
            Reason::ServingPortInvalid,
            "spec.grpcPort: the model server of framework \"tensorflow\" has no gRPC",
        ),
        (
            "argument for a port that is not set",
            |m, f| {
                triton(m, f);
                m.spec.grpc_port = None;
                m.spec.server = Some(ServerOverrides {
                    args: vec!["--port={grpcPort}".to_owned()],
                    ..ServerOverrides::default()
                });
            },
            Reason::ServingPortInvalid,
            "spec.grpcPort is missing: the arguments of the server have {grpcPort}",
        ),
        (
            "layer",
            |m, _| m.spec.deploy_to_layer = "fog".into(),
            Reason::LayerUnknown,
            "spec.deployToLayer \"fog\" must be edge or cloud",
        ),
        (
            "neither node nor labels",
            |m, _| {
                m.spec.node_name = None;
                m.spec.node_selector.clear();
            },
            Reason::NodeRequired,
            "spec.nodeName is missing",
        ),
        (
            "empty node name",
            |m, _| {
                m.spec.node_name = Some(String::new());
                m.spec.node_selector.clear();
            },
            Reason::NodeRequired,
            "spec.nodeName is missing",
        ),
        (
            "node name",
            |m, _| m.spec.node_name = Some("Edge_0".into()),
            Reason::NameInvalid,
            "spec.nodeName: ",
        ),
        (
            "no such node",
            |_, f| f.named = None,
            Reason::NodeNotFound,
            "node \"precision-5820\" not found: there is neither a Node nor an EdgeNode of that name; correct spec.nodeName, create the EdgeNode, or join the machine with keadm",
        ),
        (
            "no edge node",
            |_, f| f.named = Some(fixtures::node("precision-5820", &[])),
            Reason::NodeNotEdge,
            "neither the label node-role.kubernetes.io/edge",
        ),
        (
            "labels of none",
            |m, f| by_labels(m, f, &[]),
            Reason::NodeNotFound,
            "no node has the labels area=north",
        ),
        (
            "labels of a cloud node",
            |m, f| {
                by_labels(m, f, &[]);
                f.selected = fixtures::selected(vec![fixtures::node("c1", &[])]);
            },
            Reason::NodeNotEdge,
            "no node with the labels area=north is an edge node (c1)",
        ),
        (
            "more nodes than placement All supports",
            |m, f| {
                let nodes: Vec<_> = (0..10_001).map(|n| format!("e{n}")).collect();
                by_labels(m, f, &nodes.iter().map(String::as_str).collect::<Vec<_>>());
                m.spec.placement = Some(Placement::All);
            },
            Reason::TooManyNodes,
            "spec.nodeSelector: 10001 edge nodes match, and placement All supports 10000",
        ),
        (
            "model name",
            |m, _| m.spec.model_name = "../etc".into(),
            Reason::ModelNameInvalid,
            "spec.modelName \"../etc\"",
        ),
        (
            "neither image nor manifest",
            |m, _| m.spec.manifest.clear(),
            Reason::ManifestRequired,
            "spec.manifest and spec.image are empty",
        ),
        (
            "unknown target",
            |m, _| m.spec.target_version = Some("5".into()),
            Reason::TargetVersionUnknown,
            "spec.targetVersion \"5\" is not in spec.manifest, which has 3, 4",
        ),
        (
            "no target",
            |m, _| m.spec.target_version = None,
            Reason::TargetVersionUnknown,
            "spec.targetVersion is missing; set it to one of 3, 4",
        ),
        (
            "duplicate",
            |m, _| m.spec.manifest[0].version = Some("4".into()),
            Reason::VersionDuplicate,
            "spec.manifest[1].version: duplicate version \"4\"",
        ),
        (
            "no version",
            |m, _| m.spec.manifest[0].version = None,
            Reason::VersionInvalid,
            "spec.manifest[0].version \"\"",
        ),
        (
            "version is a path",
            |m, _| m.spec.manifest[0].version = Some("../3".into()),
            Reason::VersionInvalid,
            "spec.manifest[0].version \"../3\"",
        ),
        (
            "version is a parent",
            |m, _| m.spec.manifest[0].version = Some("..".into()),
            Reason::VersionInvalid,
            "spec.manifest[0].version",
        ),
        (
            "version is not a number",
            |m, _| m.spec.manifest[0].version = Some("v3".into()),
            Reason::VersionInvalid,
            "must be a whole number above 0",
        ),
        (
            "version begins with 0",
            |m, _| m.spec.manifest[0].version = Some("03".into()),
            Reason::VersionInvalid,
            "must be a whole number above 0",
        ),
        (
            "scheme",
            |m, _| m.spec.manifest[1].download_url = Some("ftp://h/m".into()),
            Reason::DownloadUrlInvalid,
            "spec.manifest[1].downloadURL \"ftp://h/m\": the scheme \"ftp\" is not supported",
        ),
        (
            "no URL",
            |m, _| m.spec.manifest[0].download_url = None,
            Reason::DownloadUrlInvalid,
            "spec.manifest[0].downloadURL \"\": the address is empty",
        ),
        (
            "bucket without a key",
            |m, _| m.spec.manifest[0].download_url = Some("s3://bucket/".into()),
            Reason::DownloadUrlInvalid,
            "the object key is empty",
        ),
        (
            "files of one file",
            |m, _| m.spec.manifest[0].files = vec!["*.json".into()],
            Reason::DownloadUrlInvalid,
            "spec.manifest[0].files: ",
        ),
        (
            "digest",
            |m, _| m.spec.manifest[0].sha256sum = Some("abc".into()),
            Reason::ModelDigestInvalid,
            "spec.manifest[0].sha256sum \"abc\" must be 64 hex digits",
        ),
        (
            "no port",
            |m, _| m.spec.serving_port = None,
            Reason::ServingPortInvalid,
            "spec.servingPort is missing",
        ),
        (
            "port 0",
            |m, _| m.spec.serving_port = Some(0),
            Reason::ServingPortInvalid,
            "spec.servingPort 0 must be a port",
        ),
        (
            "port too high",
            |m, _| m.spec.serving_port = Some(65_536),
            Reason::ServingPortInvalid,
            "spec.servingPort 65536 must be a port",
        ),
        (
            "archive for a server of one file",
            |m, _| {
                m.spec.framework_type = "llamacpp".into();
                m.spec.manifest.retain(|file| file.version == m.spec.target_version);
            },
            Reason::DownloadUrlInvalid,
            "the model server loads one file, not an archive or a directory",
        ),
        (
            "framework",
            |m, _| m.spec.framework_type = "caffe".into(),
            Reason::FrameworkUnknown,
            "spec.frameworkType \"caffe\" has no model server; use one of llamacpp, ollama, onnx, openvino, tensorflow, triton, vllm",
        ),
        (
            "table",
            |_, f| f.frameworks = Err("ConfigMap: no".into()),
            Reason::FrameworksInvalid,
            "ConfigMap: no",
        ),
        (
            "replicas",
            |m, _| m.spec.replicas = Some(-1),
            Reason::ReplicasInvalid,
            "spec.replicas -1 must be 0 or more",
        ),
        (
            "service type",
            |m, _| m.spec.service_type = Some("Nodeport".into()),
            Reason::ServiceTypeInvalid,
            "spec.serviceType \"Nodeport\" must be one of NodePort, ClusterIP, LoadBalancer",
        ),
        (
            "two checks",
            |m, _| {
                health(m, |h| {
                    h.tcp = Some(true);
                    h.http_path = Some("/".into());
                });
            },
            Reason::HealthInvalid,
            "spec.health: httpPath and tcp",
        ),
        (
            "relative path",
            |m, _| health(m, |h| h.http_path = Some("ping".into())),
            Reason::HealthInvalid,
            "spec.health.httpPath \"ping\"",
        ),
        (
            "period",
            |m, _| health(m, |h| h.period_seconds = Some(0)),
            Reason::HealthInvalid,
            "spec.health.periodSeconds 0 must be 1 to",
        ),
        (
            "probation",
            |m, _| health(m, |h| h.probation_seconds = Some(-1)),
            Reason::HealthInvalid,
            "spec.health.probationSeconds -1 must be 0 to",
        ),
        (
            "version of an image",
            |m, _| {
                m.spec.image = Some("i".into());
                health(m, |h| h.http_path = Some("/{version}".into()));
            },
            Reason::HealthInvalid,
            "{version} is not available with spec.image",
        ),
        (
            "files of a node in the cloud",
            |m, _| {
                *m = fixtures::cloud_model();
                m.spec.manifest[0].download_url = Some("file:///m".into());
            },
            Reason::DownloadUrlInvalid,
            "Pods in the cloud have no access to files",
        ),
        (
            "Pod on a control-plane node",
            |m, f| {
                *m = fixtures::cloud_model();
                m.spec.node_name = Some("c1".into());
                f.named =
                    Some(fixtures::node("c1", &[("node-role.kubernetes.io/control-plane", "")]));
            },
            Reason::NodeIsControlPlane,
            "spec.nodeName: node c1 is a control-plane node",
        ),
        (
            "root without permission",
            |m, _| {
                m.spec.security_context =
                    Some(SecurityContext { run_as_user: Some(0), ..SecurityContext::default() });
            },
            Reason::SecurityContextInvalid,
            "spec.securityContext.runAsUser 0",
        ),
        (
            "pull secret",
            |m, _| m.spec.image_pull_secrets.push(SecretReference { name: "A b".into() }),
            Reason::SecretNameInvalid,
            "spec.imagePullSecrets: \"A b\"",
        ),
        (
            "credentials",
            |m, _| m.spec.credentials_secret = Some(SecretReference::default()),
            Reason::SecretNameInvalid,
            "spec.credentialsSecret: \"\"",
        ),
        (
            "held version",
            |m, f| {
                *m = fixtures::cloud_model();
                m.metadata.annotations = Some([(HOLD_ANNOTATION.into(), "true".into())].into());
                f.deployed = Some(Deployed::Version("2".into()));
            },
            Reason::HeldVersionMissing,
            "spec no longer has version 2, kept by annotation",
        ),
    ];

    #[test]
    fn every_finding_has_its_reason_and_names_its_field() {
        for (case, change, reason, text) in CASES {
            let findings = findings(*change);
            let [finding] = &findings[..] else { unreachable!("{case}: {findings:#?}") };
            assert_eq!(finding.reason, *reason, "{case}: {}", finding.message);
            assert!(finding.message.contains(text), "{case}: {}", finding.message);
        }
    }

    #[test]
    fn every_obstacle_in_a_spec_has_a_case() {
        let is_obstacle = |reason: &&Reason| {
            let is_of_kind = reason.group() == ReasonGroup::InferenceModel;
            reason.phase() == Phase::Obstacle && (is_of_kind || **reason == Reason::NodeRequired)
        };
        for reason in Reason::ALL.iter().filter(is_obstacle) {
            assert!(CASES.iter().any(|(_, _, of_case, _)| of_case == reason), "{reason}");
        }
    }

    #[test]
    fn all_findings_are_reported_at_once() {
        let findings = findings(|model, _| {
            model.spec.serving_port = None;
            model.spec.framework_type = "caffe".into();
            model.spec.manifest[0].sha256sum = Some("abc".into());
            model.spec.node_name = None;
            model.spec.node_selector.clear();
        });
        let reasons: Vec<_> = findings.iter().map(|finding| finding.reason).collect();
        assert_eq!(
            reasons,
            [
                Reason::ServingPortInvalid,
                Reason::NodeRequired,
                Reason::FrameworkUnknown,
                Reason::ModelDigestInvalid
            ]
        );
    }

    #[test]
    fn image_takes_precedence_over_manifest() {
        let (mut model, facts) = (fixtures::model(), fixtures::facts());
        model.spec.image = Some("mine:1".to_owned());
        model.spec.framework_type = "caffe".to_owned();
        model.spec.manifest[0].version = Some("../..".to_owned());
        model.spec.target_version = Some("9".to_owned());
        let valid = validate(&model, &facts).unwrap();
        assert_eq!(valid.program.container.image, "mine:1");
        assert_eq!((valid.version, valid.program.health.http_path), (None, None));
        assert_eq!(target_version(&model), Some("mine:1"));
    }

    #[test]
    fn held_deployment_keeps_its_version() {
        let mut model = fixtures::cloud_model();
        model.metadata.annotations = Some([(HOLD_ANNOTATION.to_owned(), "true".to_owned())].into());
        let facts = |deployed: Option<&str>| InferenceModelFacts {
            deployed: deployed.map(|version| Deployed::Version(version.to_owned())),
            ..fixtures::facts()
        };
        for (deployed, expected) in [(None, "4"), (Some("4"), "4"), (Some("3"), "3")] {
            let valid = validate(&model, &facts(deployed)).unwrap();
            assert_eq!(valid.version.unwrap().version, expected);
        }
        let image = InferenceModelFacts {
            deployed: Some(Deployed::Image("mine:1".into())),
            ..fixtures::facts()
        };
        let findings = validate(&model, &image).unwrap_err();
        assert_eq!(findings[0].reason, Reason::HeldVersionMissing);
        let mut by_image = model.clone();
        by_image.spec.image = Some("mine:2".to_owned());
        assert_eq!(validate(&by_image, &image).unwrap().program.container.image, "mine:1");
        assert!(validate(&by_image, &facts(Some("3"))).is_err());
        model.metadata.annotations =
            Some([(HOLD_ANNOTATION.to_owned(), "false".to_owned())].into());
        assert_eq!(validate(&model, &facts(Some("3"))).unwrap().version.unwrap().version, "4");
    }
}
