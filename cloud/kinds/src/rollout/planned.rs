//! The part of a plan that a rollout decides: nodes without a grant keep what they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_api::RolloutStatus;
use neptune_wire::{ContentHash, EncodedContent, NodeName, ObjectKey, Resource};

use crate::fleet::{NodeContents, Requirements, Retained};

/// The nodes that may have a revision, as a controller remembers them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantedNodes {
    /// The revision that they may have.
    pub revision: String,
    /// The nodes with a grant.
    pub nodes: BTreeSet<NodeName>,
}

/// The rollout of a valid object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidRollout {
    /// The revision of what the nodes should run.
    pub revision: String,
    /// The nodes that may have it.
    pub granted: BTreeSet<NodeName>,
    /// Whether the stored status is one of this revision. Until then everything stays as it is.
    pub is_stored: bool,
}

/// The content of the revision for a node, by which a report is recognized as one of it.
pub type ExpectedContent = Arc<[ExpectedObject]>;

/// An object that a node with the revision has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedObject {
    /// The key of the object.
    pub key: ObjectKey,
    /// The uid of the object.
    pub uid: String,
    /// The hash of its content.
    pub hash: ContentHash,
}

/// What a plan with a rollout means for the next steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRollout {
    /// The revision of the plan.
    pub revision: String,
    /// The content of the revision for each node, also for those that do not get it yet.
    pub expected: BTreeMap<NodeName, ExpectedContent>,
}

impl ValidRollout {
    /// The rollout of this revision.
    pub fn new(revision: String, granted: &GrantedNodes, stored: Option<&RolloutStatus>) -> Self {
        let is_known = granted.revision == revision;
        let is_stored = stored.is_some_and(|status| status.revision == revision);
        let granted = if is_known { granted.nodes.clone() } else { BTreeSet::new() };
        Self { revision, granted, is_stored }
    }

    /// Removes the requirements of the nodes without a grant, which keep what they have of these
    /// objects. `exempt` is a node that gets changes at once.
    pub fn keep_back(
        &self,
        nodes: &[NodeName],
        exempt: Option<&NodeName>,
        requirements: &mut Requirements,
        kept: &mut Retained,
    ) -> PlannedRollout {
        let mut expected = BTreeMap::new();
        // Most nodes share their contents, and then what is made of them.
        let mut before: Option<(NodeContents, ExpectedContent, Arc<BTreeSet<ObjectKey>>)> = None;
        for node in nodes {
            let Some(contents) = requirements.get(node).cloned() else { continue };
            let same = before.take().filter(|(other, ..)| Arc::ptr_eq(other, &contents));
            let (contents, content, keys) = same.unwrap_or_else(|| {
                let keys = Arc::new(contents.keys().cloned().collect());
                (Arc::clone(&contents), expected_content(&contents), keys)
            });
            expected.insert(node.clone(), Arc::clone(&content));
            if !self.granted.contains(node) && Some(node) != exempt {
                requirements.remove(node);
                kept.insert(node.clone(), Arc::clone(&keys));
            }
            before = Some((contents, content, keys));
        }
        PlannedRollout { revision: self.revision.clone(), expected }
    }
}

/// The task and the models of a node. Datasets are no part of a revision.
fn expected_content(contents: &NodeContents) -> ExpectedContent {
    let parts = contents.iter().filter(|(key, _)| key.resource != Resource::Datasets);
    let object = |(key, content): (&ObjectKey, &EncodedContent)| ExpectedObject {
        key: key.clone(),
        uid: content.content().metadata.uid.clone(),
        hash: content.hash().clone(),
    };
    parts.map(object).collect()
}

/// The revision of what an object's nodes run: the hash of a value without what differs per node and
/// without addresses.
pub fn revision(template: &impl serde::Serialize) -> String {
    const DIGITS: usize = 12;
    ContentHash::compute(template).as_str()[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::fleet::encode_contents;

    fn contents(task: u32, uid: &str) -> NodeContents {
        let content = |key: &str, spec: u32| {
            let key: ObjectKey = key.parse().unwrap();
            let content = json!({
                "apiVersion": "v", "kind": "k", "spec": spec,
                "metadata": {"namespace": "default", "name": key.name, "uid": uid},
            });
            (key, serde_json::from_value(content).unwrap())
        };
        let task = content("default/jointinferenceservices/s", task);
        encode_contents([task, content("default/datasets/d", 0)].into())
    }

    #[test]
    fn nodes_without_a_grant_keep_what_they_have() {
        let names = ["a", "b", "c", "cloud"].map(|name| name.parse::<NodeName>().unwrap());
        let granted = GrantedNodes { revision: "r".to_owned(), nodes: [names[0].clone()].into() };
        let stored = RolloutStatus { revision: "r".to_owned(), ..RolloutStatus::default() };
        let rollout = ValidRollout::new("r".to_owned(), &granted, Some(&stored));
        let mut requirements: Requirements =
            names.iter().map(|node| (node.clone(), contents(1, "u"))).collect();
        requirements.insert(names[1].clone(), contents(2, "u"));
        let mut kept = BTreeMap::new();
        let planned = rollout.keep_back(&names, Some(&names[3]), &mut requirements, &mut kept);
        assert!(rollout.is_stored);
        assert!(requirements.keys().eq([&names[0], &names[3]]));
        let keys: Arc<BTreeSet<_>> = Arc::new(contents(1, "u").keys().cloned().collect());
        let both = [(names[1].clone(), Arc::clone(&keys)), (names[2].clone(), keys)];
        assert_eq!(kept, both.into());
        let expected = &planned.expected;
        assert_eq!(expected.len(), 4, "also of the nodes that wait");
        let [task] = &*expected[&names[1]] else { unreachable!("a dataset is no part of it") };
        let hash = contents(2, "u")[&task.key].hash().clone();
        assert_eq!((task.uid.as_str(), &task.hash), ("u", &hash));
        assert_ne!(expected[&names[0]], expected[&names[1]]);
        assert_eq!(expected[&names[0]], expected[&names[2]]);
    }

    #[test]
    fn grants_of_another_revision_do_not_count() {
        let node: NodeName = "a".parse().unwrap();
        let granted = GrantedNodes { revision: "r".to_owned(), nodes: [node.clone()].into() };
        let stored = RolloutStatus { revision: "r".to_owned(), ..RolloutStatus::default() };
        let next = ValidRollout::new("next".to_owned(), &granted, Some(&stored));
        assert_eq!((next.granted.len(), next.is_stored), (0, false));
        assert!(ValidRollout::new("r".to_owned(), &granted, None).granted.contains(&node));
    }

    #[test]
    fn revision_has_twelve_digits_and_follows_the_template() {
        let first = revision(&json!({"a": 1, "b": 2}));
        assert_eq!((first.len(), &first), (12, &revision(&json!({"b": 2, "a": 1}))));
        assert_ne!(first, revision(&json!({"a": 1, "b": 3})));
    }
}
