//! Decides where a model is served: by the agent of a node, or by a Deployment in the cloud. Pure:
//! a part of `validate`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use neptune_api::{InferenceModel, Placement};
use neptune_wire::NodeName;

use crate::{
    controllers::inference_model::target::InferenceModelFacts,
    finding::Finding,
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL, has_labels},
        node_selector::{all, choose, edge_nodes, node_name, text},
        nodes::{is_agent_node, is_edge_node},
    },
    reason::Reason,
};

/// The supported types of a Service; the first is the default.
const SERVICE_TYPES: [&str; 3] = ["NodePort", "ClusterIP", "LoadBalancer"];

/// What runs the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The agent of a node.
    Agent {
        /// The agent's node.
        node: NodeName,
    },
    /// The agent of each of these nodes.
    EachAgent {
        /// The agents' nodes, sorted.
        nodes: Vec<NodeName>,
    },
    /// The cluster, as a Deployment behind a Service.
    Cluster {
        /// The nodes on which the scheduler may place the Pods.
        placement: PodPlacement,
        /// The number of servers.
        replicas: i32,
        /// The type of the Service.
        service_type: &'static str,
    },
}

impl Place {
    /// The nodes whose agents run a server.
    pub fn nodes(&self) -> &[NodeName] {
        match self {
            Self::Agent { node } => std::slice::from_ref(node),
            Self::EachAgent { nodes } => nodes,
            Self::Cluster { .. } => &[],
        }
    }
}

/// The nodes on which the scheduler may place Pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPlacement {
    /// The node of `spec.nodeName`.
    pub node: Option<String>,
    /// The labels of `spec.nodeSelector`, if no node is named.
    pub selector: BTreeMap<String, String>,
    /// Whether control-plane nodes are allowed, if no node is named.
    pub allow_control_plane: bool,
}

/// The place, and a remark on a part of the spec that has no effect.
pub fn place(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    findings: &mut Vec<Finding>,
) -> Option<(Place, Option<String>)> {
    let spec = &model.spec;
    let is_edge = match spec.deploy_to_layer.as_str() {
        "edge" => true,
        "cloud" => false,
        other => {
            let message = format!("spec.deployToLayer {other:?} must be edge or cloud");
            findings.push(Finding::new(Reason::LayerUnknown, message));
            return None;
        }
    };
    let replicas = replicas(spec.replicas, findings);
    let service_type = service_type(spec.service_type.as_deref(), findings);
    let named = spec.node_name.as_deref().filter(|name| !name.is_empty());
    if let Some(name) = named {
        let node = named_node(name, facts, is_edge, findings)?;
        let is_agent = is_edge || is_agent_node(node);
        let remarks = [
            mismatch(name, node, &spec.node_selector),
            without_effect(model),
            one_per_node(model).filter(|_| is_agent),
        ];
        let remark = remarks.into_iter().flatten().reduce(|all, next| format!("{all}; {next}"));
        if is_agent {
            return Some((Place::Agent { node: node_name(node)? }, remark));
        }
        if let Some(finding) = facts.pod_policy.check_node("spec.nodeName", node) {
            findings.push(finding);
            return None;
        }
        let placement = PodPlacement { node: Some(name.to_owned()), ..PodPlacement::default() };
        let (replicas, service_type) = (replicas?, service_type?);
        return Some((Place::Cluster { placement, replicas, service_type }, remark));
    }
    if is_edge && spec.node_selector.is_empty() {
        let message = "spec.nodeName is missing; set it to an edge node or set spec.nodeSelector to labels of one";
        findings.push(Finding::new(Reason::NodeRequired, message));
        return None;
    }
    let selected = &facts.selected.nodes;
    let by_agents = !selected.is_empty() && selected.iter().all(|node| is_agent_node(node));
    if is_edge || by_agents && !spec.node_selector.is_empty() {
        return Some((selected_place(model, facts, findings)?, one_per_node(model)));
    }
    let placement = PodPlacement {
        node: None,
        selector: spec.node_selector.clone(),
        allow_control_plane: facts.pod_policy.allow_control_plane,
    };
    let (replicas, service_type) = (replicas?, service_type?);
    Some((Place::Cluster { placement, replicas, service_type }, without_effect(model)))
}

fn named_node<'a>(
    name: &str,
    facts: &'a InferenceModelFacts,
    is_edge: bool,
    findings: &mut Vec<Finding>,
) -> Option<&'a Node> {
    let finding = if let Err(error) = name.parse::<NodeName>() {
        Finding::new(Reason::NameInvalid, format!("spec.nodeName: {error}"))
    } else if let Some(node) = &facts.named {
        if !is_edge || is_edge_node(node) {
            return Some(node);
        }
        Finding::new(
            Reason::NodeNotEdge,
            format!(
                "spec.nodeName: node {name} has neither the label {EDGE_LABEL} nor {}={}; label the node or use an edge node",
                RUNTIME_LABEL.0, RUNTIME_LABEL.1
            ),
        )
    } else {
        Finding::missing_node(name, "spec.nodeName")
    };
    findings.push(finding);
    None
}

/// The remark if `spec.nodeName` and `spec.nodeSelector` disagree: the name takes precedence.
fn mismatch(name: &str, node: &Node, selector: &BTreeMap<String, String>) -> Option<String> {
    (!has_labels(&node.metadata, selector)).then(|| {
        let labels = text(selector);
        format!("spec.nodeName {name} takes precedence over spec.nodeSelector ({labels}), which this node does not match")
    })
}

/// The remark if `spec.placement` has no effect.
fn without_effect(model: &InferenceModel) -> Option<String> {
    (model.spec.placement == Some(Placement::All)).then(|| {
        "spec.placement All has no effect: only a nodeSelector that matches nodes with agents has several"
            .to_owned()
    })
}

/// The remark if `spec.replicas` asks agents for more than one server per node.
pub fn one_per_node(model: &InferenceModel) -> Option<String> {
    let replicas = model.spec.replicas.filter(|replicas| *replicas > 1)?;
    Some(format!(
        "spec.replicas {replicas} has the effect of 1: an agent runs one server per node; for several, set placement All with a nodeSelector"
    ))
}

/// The edge nodes that match the labels: all of them, or one.
fn selected_place(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    findings: &mut Vec<Finding>,
) -> Option<Place> {
    let field = "spec.nodeSelector";
    let nodes = edge_nodes(field, &model.spec.node_selector, &facts.selected, findings)?;
    match model.spec.placement.unwrap_or_default() {
        Placement::All => {
            let nodes = all(field, &nodes, findings)?;
            Some(Place::EachAgent { nodes })
        }
        Placement::One => chosen(model, facts, &nodes).map(|node| Place::Agent { node }),
    }
}

/// The node in the status, if it still matches, or else a new choice.
fn chosen(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    nodes: &[&Node],
) -> Option<NodeName> {
    let current = model.status.as_ref().and_then(|status| status.node.as_deref());
    let has_port = |node: &str| !facts.used_ports.iter().any(|used| used.node == node);
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    choose(uid, nodes, current, &facts.selected.online, has_port)
}

/// Whether the Service of a model may have the address of a node.
pub fn is_external(model: &InferenceModel) -> bool {
    service_type(model.spec.service_type.as_deref(), &mut Vec::new()) != Some("ClusterIP")
}

fn replicas(replicas: Option<i32>, findings: &mut Vec<Finding>) -> Option<i32> {
    let replicas = replicas.unwrap_or(1);
    if replicas < 0 {
        let message = format!("spec.replicas {replicas} must be 0 or more");
        findings.push(Finding::new(Reason::ReplicasInvalid, message));
        return None;
    }
    Some(replicas)
}

fn service_type(type_: Option<&str>, findings: &mut Vec<Finding>) -> Option<&'static str> {
    let requested = type_.filter(|type_| !type_.is_empty()).unwrap_or(SERVICE_TYPES[0]);
    let found = SERVICE_TYPES.into_iter().find(|known| *known == requested);
    if found.is_none() {
        let known = SERVICE_TYPES.join(", ");
        let message = format!("spec.serviceType {requested:?} must be one of {known}");
        findings.push(Finding::new(Reason::ServiceTypeInvalid, message));
    }
    found
}
