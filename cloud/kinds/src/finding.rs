//! A problem of an object as a value. Conditions, Events and admission warnings report it.

use neptune_api::JisConditionType;
use neptune_wire::Resource;

use crate::reason::Reason;

/// A problem of an object, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The reason of the condition.
    pub reason: Reason,
    /// The message of the condition: field, problem and remedy.
    pub message: String,
    /// The object that does not exist; `None` for other problems.
    pub missing: Option<Missing>,
}

/// An object that a spec names and that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The kind of the missing object.
    pub referent: Referent,
    /// The name in the spec.
    pub name: String,
}

/// A kind of object that specs refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referent {
    /// An object of the same namespace.
    Object(Resource),
    /// A node of the cluster.
    Node,
}

impl Finding {
    /// A finding without a missing object.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), missing: None }
    }

    /// Joins findings. The reason is that of the first finding that needs a change of the spec, or
    /// else of the first.
    pub fn join(findings: &[Self]) -> Option<Self> {
        let needs_change = |finding: &&Self| finding.reason.condition() == JisConditionType::Failed;
        let first = findings.iter().find(needs_change).or(findings.first())?;
        let rest = findings.iter().filter(|finding| *finding != first);
        let messages: Vec<_> =
            std::iter::once(first).chain(rest).map(|finding| finding.message.as_str()).collect();
        Some(Self::new(first.reason, messages.join("; ")))
    }

    /// Reports that `field` names a node that does not exist.
    pub fn missing_node(name: &str, field: &str) -> Self {
        let message = format!(
            "node {name:?} not found: there is neither a Node nor an EdgeNode of that name; correct {field}, create the EdgeNode, or join the machine with keadm"
        );
        let missing = Missing { referent: Referent::Node, name: name.to_owned() };
        Self { missing: Some(missing), ..Self::new(Reason::NodeNotFound, message) }
    }

    /// Replaces the message about a node that does not exist by one about a node that is revoked.
    #[must_use]
    pub fn revoked_node(self) -> Self {
        let name = self.missing.as_ref().map_or("", |missing| &*missing.name);
        let message = format!(
            "node {name:?} is revoked; name another node, or set spec.revoked of EdgeNode {name} to false"
        );
        Self { message, ..self }
    }

    /// Adds that the missing object cannot exist, because its CRD is missing.
    #[must_use]
    pub fn without_crd(self, crd: &str) -> Self {
        let message =
            format!("CRD {crd} is missing, apply it (kubectl apply -f crds/): {}", self.message);
        Self { message, ..self }
    }

    /// Reports that `field` names an object that does not exist.
    pub fn missing_object(
        reason: Reason,
        resource: Resource,
        namespace: &str,
        name: &str,
        field: &str,
    ) -> Self {
        let kind = match resource {
            Resource::JointInferenceServices => "JointInferenceService",
            Resource::Models => "Model",
            Resource::Datasets => "Dataset",
            Resource::InferenceModels => "InferenceModel",
            Resource::TrainingModels => "TrainingModel",
            Resource::Peers => "PeerRoster",
        };
        let message = format!(
            "{kind} {name:?} not found in namespace {namespace:?}; create it or correct {field}"
        );
        let missing = Missing { referent: Referent::Object(resource), name: name.to_owned() };
        Self { missing: Some(missing), ..Self::new(reason, message) }
    }
}
