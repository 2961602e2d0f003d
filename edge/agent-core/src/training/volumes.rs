//! The volumes of the engine of training workers: their labels, and which of them are not used any
//! more. They have other labels than those of workers, which are removed by other rules.

use std::collections::{BTreeSet, HashMap};

use neptune_wire::{AgentInstance, ObjectKey};

use crate::{
    desired::WantedTask,
    domain::{node_context::NodeContext, observed_container::MANAGED, training::TASK_OBJECT},
    supervision::Claim,
};

use super::container::{INSTANCE, NODE};

/// Label with the UID of the object. Every volume of a training has it.
pub const UID: &str = "io.neptune.training-uid";

/// The trainings whose volumes stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptTrainings {
    /// The UIDs of the objects on the node.
    pub uids: BTreeSet<String>,
    /// Objects that the node keeps without knowing their content; `None` while it does not have every
    /// object of its index.
    pub keep: Option<BTreeSet<ObjectKey>>,
}

/// The labels of the volumes of a task.
pub fn volume_labels(
    wanted: &WantedTask,
    context: &NodeContext,
    instance: &AgentInstance,
) -> HashMap<String, String> {
    let labels = [
        (MANAGED.0, MANAGED.1.to_owned()),
        (NODE, context.node.to_string()),
        (INSTANCE, instance.0.clone()),
        (TASK_OBJECT, wanted.owner.to_string()),
        (UID, wanted.uid.clone()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether the volume with the labels `existing` is one of the object whose volumes have the labels
/// `own`, or one of another object that had the name before.
pub fn claim(existing: &HashMap<String, String>, own: &HashMap<String, String>) -> Claim {
    match existing.get(UID) {
        None => Claim::Foreign,
        Some(uid) if Some(uid) == own.get(UID) => Claim::Current,
        Some(_) => Claim::Outdated,
    }
}

impl KeptTrainings {
    /// Whether a volume with these labels is one of a training that left the node. One that an earlier
    /// data directory created stays until every object of the node is known, as its containers do.
    pub fn is_unused(
        &self,
        labels: &HashMap<String, String>,
        context: &NodeContext,
        instance: &AgentInstance,
    ) -> bool {
        let label = |name| labels.get(name).map(String::as_str).unwrap_or_default();
        let may_remove = label(INSTANCE) == instance.0
            || label(NODE) == context.node.as_str()
                && self.keep.as_ref().is_some_and(|keep| {
                    !keep.iter().any(|owner| owner.to_string() == label(TASK_OBJECT))
                });
        labels.contains_key(UID) && !self.uids.contains(label(UID)) && may_remove
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        desired::training::tests::wanted, domain::observed_container::ContainerIdentity,
        fixtures::node_context,
    };

    use super::*;

    fn this() -> AgentInstance {
        AgentInstance("this".to_owned())
    }

    fn labels() -> HashMap<String, String> {
        volume_labels(&wanted(|_| {}), &node_context(), &this())
    }

    fn with(name: &str, value: &str) -> HashMap<String, String> {
        let mut labels = labels();
        labels.insert(name.to_owned(), value.to_owned());
        labels
    }

    #[test]
    fn volume_stays_while_its_training_is_on_the_node() {
        let is_unused = |kept: &KeptTrainings, labels: &HashMap<String, String>| {
            kept.is_unused(labels, &node_context(), &this())
        };
        let nothing = KeptTrainings::default();
        assert!(is_unused(&nothing, &labels()));
        assert!(is_unused(&nothing, &with(NODE, "its-former-name")));
        assert!(!is_unused(&nothing, &HashMap::new()), "no volume of a training");
        let uids = KeptTrainings { uids: ["u".to_owned()].into(), ..KeptTrainings::default() };
        assert!(!is_unused(&uids, &labels()));
        assert!(is_unused(&uids, &with(UID, "of a deleted object")));

        let earlier = with(INSTANCE, "an earlier data directory");
        assert!(!is_unused(&nothing, &earlier));
        let keep = |keep: &[&str]| KeptTrainings {
            keep: Some(keep.iter().filter_map(|key| key.parse().ok()).collect()),
            ..KeptTrainings::default()
        };
        assert!(is_unused(&keep(&[]), &earlier));
        assert!(!is_unused(&keep(&["n/trainingmodels/m0"]), &earlier));
        let mut other = earlier;
        other.insert(NODE.to_owned(), "edge1".to_owned());
        assert!(!is_unused(&keep(&[]), &other), "one of another agent");
    }

    #[test]
    fn volume_of_a_deleted_object_is_replaced_and_one_of_others_is_not() {
        assert_eq!(claim(&labels(), &labels()), Claim::Current);
        assert_eq!(claim(&with(UID, "earlier"), &labels()), Claim::Outdated);
        assert_eq!(claim(&HashMap::new(), &labels()), Claim::Foreign);
        let node = &node_context().node;
        assert_eq!(ContainerIdentity::from_labels(&labels(), node), None, "no volume of a worker");
    }
}
