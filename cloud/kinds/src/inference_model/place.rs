//! Decides where a model is served: by the agent of a node, or by a Deployment in the cloud. A part
//! of `validate`.

use std::collections::{BTreeMap, HashSet};

use neptune_api::{InferenceModel, Placement};
use neptune_wire::{ContainerProgram, NodeName};

use crate::{
    finding::Finding,
    inference_model::target::{InferenceModelFacts, container_inputs},
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL, contains},
        node_selector::{all, choose, edge_nodes, text},
        node_view::NodeView,
    },
    reason::Reason,
    worker::needs::{requested, suitability},
};

/// The supported types of a Service; the first is the default.
const SERVICE_TYPES: [&str; 3] = ["NodePort", "ClusterIP", "LoadBalancer"];

/// Where the server runs, and what keeps it running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The agent of a node.
    Agent {
        /// The node of the agent.
        node: NodeName,
    },
    /// The agent of each of these nodes.
    EachAgent {
        /// The nodes of the agents, sorted by name.
        nodes: Vec<NodeName>,
    },
    /// The cluster, as a Deployment behind a Service.
    Cluster {
        /// The nodes on which the scheduler may place the Pods.
        placement: PodPlacement,
        /// Number of Pods of the Deployment.
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
    /// The node of `spec.nodeName`; `None` if the spec names none.
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
        let is_agent = is_edge || node.runs_agent;
        let remarks = [
            mismatch(name, node, &spec.node_selector),
            without_effect(model),
            one_per_node(model).filter(|_| is_agent),
        ];
        let remark = remarks.into_iter().flatten().reduce(|all, next| format!("{all}; {next}"));
        if is_agent {
            return Some((Place::Agent { node: node.name.clone() }, remark));
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
    let by_agents = !selected.is_empty() && selected.iter().all(|node| node.runs_agent);
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
) -> Option<&'a NodeView> {
    let finding = if let Err(error) = name.parse::<NodeName>() {
        Finding::new(Reason::NameInvalid, format!("spec.nodeName: {error}"))
    } else if let Some(node) = &facts.named {
        if !is_edge || node.is_edge {
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
fn mismatch(name: &str, node: &NodeView, selector: &BTreeMap<String, String>) -> Option<String> {
    (!contains(&node.labels, selector)).then(|| {
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
    nodes: &[&NodeView],
) -> Option<NodeName> {
    let current = model.status.as_ref().and_then(|status| status.node.as_deref());
    let taken: HashSet<_> = facts.used_ports.iter().map(|used| used.node.as_str()).collect();
    let program = requested_program(model);
    let suits = |node: &NodeName| {
        let offer = facts.offers.get(node);
        (!taken.contains(node.as_str()), suitability(&program, offer))
    };
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    choose(uid, nodes, current, &facts.selected.online, suits)
}

/// The part of the server's program that decides which node it is placed on.
fn requested_program(model: &InferenceModel) -> ContainerProgram {
    let resources = model.spec.server.as_ref().and_then(|server| server.resources.as_ref());
    requested(resources, container_inputs(model))
}

/// Whether the server may need something that not each agent offers. Then the plan depends on what
/// agents report.
pub fn needs_offers(model: &InferenceModel) -> bool {
    !model.spec.image_pull_secrets.is_empty()
        || !requested_program(model).required_features().is_empty()
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
    let chosen = SERVICE_TYPES.into_iter().find(|known| *known == requested);
    if chosen.is_none() {
        let known = SERVICE_TYPES.join(", ");
        let message = format!("spec.serviceType {requested:?} must be one of {known}");
        findings.push(Finding::new(Reason::ServiceTypeInvalid, message));
    }
    chosen
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::InferenceModelStatus;

    use super::*;
    use crate::{
        inference_model::{
            fixtures::{self, by_labels},
            validate::validate,
        },
        steps::Steps as _,
    };

    fn placed(
        change: impl FnOnce(&mut InferenceModel, &mut InferenceModelFacts),
    ) -> (Place, Option<String>) {
        let (mut model, mut facts) = (fixtures::model(), fixtures::facts());
        change(&mut model, &mut facts);
        let valid = validate(&model, &facts).unwrap();
        (valid.place, valid.remark)
    }

    fn on(node: &str) -> Place {
        Place::Agent { node: node.parse().unwrap() }
    }

    #[test]
    fn sample_is_served_by_the_agent_of_its_node() {
        assert_eq!(placed(|_, _| ()), (on("precision-5820"), None));
    }

    #[test]
    fn selected_node_is_kept_while_it_matches() {
        assert_eq!(placed(|m, f| by_labels(m, f, &["e1"])).0, on("e1"));
        let with_before = |m: &mut InferenceModel, f: &mut InferenceModelFacts, nodes: &[&str]| {
            by_labels(m, f, nodes);
            let node = Some("e2".to_owned());
            m.status = Some(InferenceModelStatus { node, ..InferenceModelStatus::default() });
        };
        assert_eq!(placed(|m, f| with_before(m, f, &["e1", "e2", "e3"])).0, on("e2"));
        assert_eq!(
            placed(|m, f| with_before(m, f, &["e1"])).0,
            on("e1"),
            "the previous node lost the label"
        );
    }

    #[test]
    fn placement_all_selects_every_edge_node() {
        let all = |m: &mut InferenceModel, f: &mut InferenceModelFacts| {
            by_labels(m, f, &["e1", "e2"]);
            f.selected.nodes.push(fixtures::node("no-edge-node", &[]));
            m.spec.placement = Some(Placement::All);
        };
        let nodes = ["e1", "e2"].map(|node| node.parse().unwrap()).into();
        assert_eq!(placed(all), (Place::EachAgent { nodes }, None));
        let (at, remark) = placed(|m, _| m.spec.placement = Some(Placement::All));
        assert_eq!(at, on("precision-5820"));
        assert!(remark.unwrap().contains("spec.placement All has no effect"));
    }

    #[test]
    fn several_replicas_of_an_agent_are_a_remark_and_a_warning() {
        let mut model = fixtures::model();
        let remark = |model: &InferenceModel| validate(model, &fixtures::facts()).unwrap().remark;
        model.spec.replicas = Some(1);
        assert_eq!((remark(&model), model.warnings(&fixtures::facts())), (None, Vec::new()));
        model.spec.replicas = Some(3);
        let text = "spec.replicas 3 has the effect of 1: an agent runs one server per node";
        assert!(remark(&model).unwrap().starts_with(text));
        assert_eq!(model.warnings(&fixtures::facts()), [remark(&model).unwrap()]);
        let mut model = fixtures::cloud_model();
        model.spec.replicas = Some(3);
        assert_eq!((remark(&model), model.warnings(&fixtures::facts())), (None, Vec::new()));
    }

    #[test]
    fn one_of_several_nodes_is_chosen_where_the_port_is_free() {
        let nodes = ["e1", "e2", "e3"];
        let (first, _) = placed(|m, f| by_labels(m, f, &nodes));
        assert_eq!(placed(|m, f| by_labels(m, f, &nodes)).0, first, "deterministic");
        for free in nodes {
            let (at, _) = placed(|m, f| {
                by_labels(m, f, &nodes);
                let taken = nodes.iter().filter(|node| **node != free);
                f.used_ports = taken.map(|node| fixtures::used_port(node, "a", 8501)).collect();
            });
            assert_eq!(at, on(free));
        }
    }

    #[test]
    fn node_name_takes_precedence_over_labels() {
        let (at, remark) = placed(|model, _| {
            model.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
        });
        assert_eq!(at, on("precision-5820"));
        assert!(remark.unwrap().contains("takes precedence over spec.nodeSelector (area=north)"));
    }

    #[test]
    fn cloud_model_runs_on_an_agent_node_or_in_the_cluster() {
        let agent = || fixtures::node("c1", &[("neptune.io/runtime", "agent")]);
        let named = |node| {
            move |m: &mut InferenceModel, f: &mut InferenceModelFacts| {
                *m = fixtures::cloud_model();
                m.spec.node_name = Some("c1".to_owned());
                f.named = Some(node);
            }
        };
        assert_eq!(placed(named(agent())).0, on("c1"));
        let Place::Cluster { placement, replicas, service_type } =
            placed(named(fixtures::node("c1", &[]))).0
        else {
            unreachable!()
        };
        assert_eq!(
            (placement.node.as_deref(), placement.selector.len(), replicas, service_type),
            (Some("c1"), 0, 1, "NodePort")
        );
        let by_labels = |nodes| {
            move |m: &mut InferenceModel, f: &mut InferenceModelFacts| {
                *m = fixtures::cloud_model();
                m.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
                f.selected = fixtures::selected(nodes);
            }
        };
        assert_eq!(placed(by_labels(vec![agent()])).0, on("c1"));
        for nodes in [vec![], vec![agent(), fixtures::node("c2", &[])]] {
            assert!(
                matches!(placed(by_labels(nodes)).0, Place::Cluster { placement, .. } if placement.selector.len() == 1)
            );
        }
    }
}
