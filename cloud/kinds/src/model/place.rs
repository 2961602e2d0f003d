//! The nodes that `spec.placement` of a model selects, and the warning about a placement without a
//! digest.

use std::sync::Arc;

use neptune_api::{Model, ModelPlacement};
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL},
        node_selector::text,
        node_view::NodeView,
    },
    reason::Reason,
};

/// The minimum number of hex digits that make a part of a URL immutable: those of a Git commit.
const MIN_HASH_DIGITS: usize = 40;

/// The nodes that a placement refers to.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    /// The nodes of `nodeNames`; `None` for one that does not exist.
    pub named: Vec<(String, Option<Arc<NodeView>>)>,
    /// The nodes that match `nodeSelector`, sorted by name.
    pub selected: Vec<Arc<NodeView>>,
}

/// The nodes of a placement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlacedModel {
    /// The edge nodes that keep the model, sorted.
    pub nodes: Arc<[NodeName]>,
    /// The nodes in the spec that cannot keep it, with the reason.
    pub unusable: Vec<(String, Finding)>,
    /// Why no node is selected, if the placement selects none.
    pub nothing: Option<Finding>,
}

/// Checks the form of a placement.
pub fn check(placement: &ModelPlacement) -> Option<Finding> {
    let message = match (placement.node_names.is_empty(), placement.node_selector.is_empty()) {
        (false, true) | (true, false) => return None,
        (false, false) => {
            "spec.placement: give nodeNames or nodeSelector, not both; remove one".to_owned()
        }
        (true, true) => {
            "spec.placement has neither nodeNames nor nodeSelector; set one, or remove placement"
                .to_owned()
        }
    };
    Some(Finding::new(Reason::PlacementInvalid, message))
}

/// The nodes of the placement, none without one. A node that cannot keep the model prevents no
/// other.
pub fn place(model: &Model, facts: &ModelFacts) -> PlacedModel {
    let Some(placement) = &model.spec.placement else { return PlacedModel::default() };
    let (mut placed, mut nodes) = (PlacedModel::default(), Vec::new());
    for (name, node) in &facts.named {
        match usable(name, node.as_deref()) {
            Ok(node) => nodes.push(node),
            Err(finding) => placed.unusable.push((name.clone(), finding)),
        }
    }
    let edge = facts.selected.iter().filter(|node| node.is_edge);
    nodes.extend(edge.map(|node| node.name.clone()));
    nodes.sort();
    nodes.dedup();
    placed.nodes = nodes.into();
    if placed.nodes.is_empty() && placed.unusable.is_empty() {
        let labels = text(&placement.node_selector);
        let message = format!(
            "spec.placement.nodeSelector: no edge node has the labels {labels}; label one, or correct the selector"
        );
        placed.nothing = Some(Finding::new(Reason::NodeNotFound, message));
    }
    placed
}

fn usable(name: &str, node: Option<&NodeView>) -> Result<NodeName, Finding> {
    let field = "spec.placement.nodeNames";
    let parsed = name
        .parse::<NodeName>()
        .map_err(|error| Finding::new(Reason::NameInvalid, format!("{field}: {error}")))?;
    let node = node.ok_or_else(|| Finding::missing_node(name, field))?;
    if node.is_edge {
        return Ok(parsed);
    }
    let (label, value) = RUNTIME_LABEL;
    let message = format!(
        "{field}: node {name} has neither the label {EDGE_LABEL} nor {label}={value}; label the node or remove it"
    );
    Err(Finding::new(Reason::NodeNotEdge, message))
}

/// The warning about a placement whose nodes may have different files.
pub fn warning(model: &Model) -> Option<String> {
    let spec = &model.spec;
    let is_fixed = spec.sha256sum.is_some() || is_immutable(&spec.model_url);
    (spec.placement.is_some() && !is_fixed).then(|| {
        "placement needs a sha256sum or an immutable path: without it nodes may have different files"
            .to_owned()
    })
}

/// Whether a part of an address is a commit or a digest, so that its content cannot change.
fn is_immutable(address: &str) -> bool {
    let mut parts = address.split(|c: char| !c.is_ascii_alphanumeric());
    parts.any(|part| {
        part.len() >= MIN_HASH_DIGITS && part.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use neptune_api::ModelSpec;

    use super::*;
    use crate::model::fixtures::{model, node};

    fn placed_on(placement: ModelPlacement) -> Model {
        model(ModelSpec { placement: Some(Box::new(placement)), ..ModelSpec::default() })
    }

    fn names(nodes: &[&str]) -> ModelPlacement {
        let node_names = nodes.iter().map(|node| (*node).to_owned()).collect();
        ModelPlacement { node_names, ..ModelPlacement::default() }
    }

    fn site(site: &str) -> ModelPlacement {
        let node_selector = [("site".to_owned(), site.to_owned())].into();
        ModelPlacement { node_selector, ..ModelPlacement::default() }
    }

    #[test]
    fn named_node_that_cannot_keep_the_model_prevents_no_other() {
        let facts = ModelFacts {
            named: vec![
                ("edge1".to_owned(), Some(node("edge1", true))),
                ("gone".to_owned(), None),
                ("cloud".to_owned(), Some(node("cloud", false))),
                ("edge0".to_owned(), Some(node("edge0", true))),
            ],
            selected: Vec::new(),
        };
        let placed = place(&placed_on(names(&["edge1", "gone", "cloud", "edge0"])), &facts);
        assert_eq!(
            placed.nodes.iter().map(NodeName::as_str).collect::<Vec<_>>(),
            ["edge0", "edge1"]
        );
        let unusable: Vec<_> =
            placed.unusable.iter().map(|(node, finding)| (&**node, finding.reason)).collect();
        assert_eq!(unusable, [("gone", Reason::NodeNotFound), ("cloud", Reason::NodeNotEdge)]);
        assert_eq!(
            placed.unusable[1].1.message,
            "spec.placement.nodeNames: node cloud has neither the label node-role.kubernetes.io/edge nor neptune.io/runtime=agent; label the node or remove it"
        );
        assert_eq!(placed.nothing, None);
    }

    #[test]
    fn selector_places_only_on_edge_nodes_and_reports_when_none_match() {
        let selected = |nodes: &[(&str, bool)]| ModelFacts {
            named: Vec::new(),
            selected: nodes.iter().map(|(name, is_edge)| node(name, *is_edge)).collect(),
        };
        let model = placed_on(site("west"));
        let placed = place(&model, &selected(&[("edge0", true), ("cloud", false)]));
        assert_eq!(placed.nodes.iter().map(NodeName::as_str).collect::<Vec<_>>(), ["edge0"]);
        let placed = place(&model, &selected(&[("cloud", false)]));
        assert!(placed.nodes.is_empty());
        assert_eq!(
            placed.nothing.map(|finding| finding.message).as_deref(),
            Some(
                "spec.placement.nodeSelector: no edge node has the labels site=west; label one, or correct the selector"
            )
        );
    }

    #[test]
    fn placement_needs_exactly_one_form() {
        let reason = |placement: &ModelPlacement| check(placement).map(|finding| finding.reason);
        assert_eq!(reason(&names(&["edge0"])), None);
        assert_eq!(reason(&site("west")), None);
        let both = ModelPlacement { node_names: vec!["edge0".to_owned()], ..site("west") };
        assert_eq!(reason(&both), Some(Reason::PlacementInvalid));
        assert_eq!(reason(&ModelPlacement::default()), Some(Reason::PlacementInvalid));
    }

    #[test]
    fn placement_without_digest_or_commit_is_a_warning() {
        let mut model = placed_on(names(&["edge0"]));
        "https://models.example/small.json".clone_into(&mut model.spec.model_url);
        assert!(
            warning(&model).is_some_and(|text| text.starts_with("placement needs a sha256sum"))
        );
        model.spec.sha256sum = Some("ab".repeat(32));
        assert_eq!(warning(&model), None);
        model.spec.sha256sum = None;
        model.spec.model_url = format!("https://hub.example/m/resolve/{}/a.gguf", "0f".repeat(20));
        assert_eq!(warning(&model), None);
        model.spec.placement = None;
        "/model/small.json".clone_into(&mut model.spec.model_url);
        assert_eq!(warning(&model), None);
    }
}
