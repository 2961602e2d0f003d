//! What is wrong with an object, as a value: a condition, an Event or a warning reports it. Pure.

use neptune_api::JisConditionType;
use neptune_wire::Resource;

use crate::reason::Reason;

/// Something that is wrong with an object, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// For programs.
    pub reason: Reason,
    /// For people: the field and the remedy.
    pub message: String,
    /// The object that is missing in the cluster, if that is the finding.
    pub missing: Option<Missing>,
}

/// An object that a spec names and that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its kind.
    pub referent: Referent,
    /// The name that was given.
    pub name: String,
}

/// A kind of object that specs name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referent {
    /// An object of the same namespace.
    Object(Resource),
    /// A node of the cluster.
    Node,
}

impl Finding {
    /// A finding.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), missing: None }
    }

    /// All findings in one, with the reason of the first that a user has to correct, or else of the first.
    pub fn join(findings: &[Self]) -> Option<Self> {
        let needs_change = |finding: &&Self| finding.reason.condition() == JisConditionType::Failed;
        let first = findings.iter().find(needs_change).or(findings.first())?;
        let rest = findings.iter().filter(|finding| *finding != first);
        let messages: Vec<_> =
            std::iter::once(first).chain(rest).map(|finding| finding.message.as_str()).collect();
        Some(Self::new(first.reason, messages.join("; ")))
    }

    /// The field `field` names a node that does not exist.
    pub fn missing_node(name: &str, field: &str) -> Self {
        let message = format!("node {name:?} not found: correct {field}, or let the node join");
        let missing = Missing { referent: Referent::Node, name: name.to_owned() };
        Self { missing: Some(missing), ..Self::new(Reason::NodeNotFound, message) }
    }

    /// The field `field` names an object that does not exist.
    pub fn missing_object(
        reason: Reason,
        resource: Resource,
        namespace: &str,
        name: &str,
        field: &str,
    ) -> Self {
        let kind = resource.plural().trim_end_matches('s');
        let message = format!(
            "{kind} {name:?} not found in namespace {namespace:?}: apply it, or correct {field}"
        );
        let missing = Missing { referent: Referent::Object(resource), name: name.to_owned() };
        Self { missing: Some(missing), ..Self::new(reason, message) }
    }
}
