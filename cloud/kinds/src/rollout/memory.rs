//! What a controller remembers of a rollout. A restarted one begins without it: then it grants
//! nothing beyond the frontier of the status, and deadlines start again.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_wire::NodeName;

use super::{
    node::Grant,
    planned::{ExpectedContent, GrantedNodes, PlannedRollout},
};

/// Since when a node is ready with the revision.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Readiness {
    since: Timestamp,
    /// Whether it was online and ready for long enough. Then it may be offline.
    is_done: bool,
}

/// The memory of the rollout of one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutMemory {
    revision: String,
    grants: BTreeMap<NodeName, Grant>,
    ready: BTreeMap<NodeName, Readiness>,
    /// The nodes whose deadline did not run when they were observed last.
    waiting: BTreeSet<NodeName>,
    expected: BTreeMap<NodeName, ExpectedContent>,
}

impl RolloutMemory {
    /// The rollout is now one of this revision. What is known of another one is dropped.
    pub fn begin(&mut self, revision: &str) {
        if self.revision != revision {
            *self = Self { revision: revision.to_owned(), ..Self::default() };
        }
    }

    /// The plan was made with this rollout.
    pub fn planned(&mut self, planned: PlannedRollout) {
        self.begin(&planned.revision);
        self.expected = planned.expected;
    }

    /// Forgets the nodes that are no longer among these.
    pub fn retain(&mut self, nodes: &[&NodeName]) {
        let nodes: BTreeSet<_> = nodes.iter().copied().collect();
        self.grants.retain(|node, _| nodes.contains(node));
        self.ready.retain(|node, _| nodes.contains(node));
        self.waiting.retain(|node| nodes.contains(node));
    }

    /// The content of the revision for a node; `None` before it is planned.
    pub fn expected(&self, node: &NodeName) -> Option<&ExpectedContent> {
        self.expected.get(node)
    }

    /// The grant of a node.
    pub fn grant(&self, node: &NodeName) -> Option<Grant> {
        self.grants.get(node).copied()
    }

    /// The nodes that may have the revision.
    pub fn granted(&self) -> GrantedNodes {
        GrantedNodes {
            revision: self.revision.clone(),
            nodes: self.grants.keys().cloned().collect(),
        }
    }

    /// Grants the revision to these nodes, if the rollout is still one of it. Returns whether one did
    /// not have the grant.
    pub fn add_grants(&mut self, revision: &str, grants: Vec<(NodeName, Grant)>) -> bool {
        if self.revision != revision {
            return false;
        }
        let before = self.grants.len();
        for (node, grant) in grants {
            self.grants.entry(node).or_insert(grant);
        }
        self.grants.len() > before
    }

    /// Records whether a node waits for something for which it is not responsible. Returns its grant,
    /// whose time begins again after that.
    pub fn observe_wait(&mut self, node: &NodeName, waits: bool, now: Timestamp) -> Option<Grant> {
        let grant = self.grants.get_mut(node)?;
        if waits {
            self.waiting.insert(node.clone());
        } else if self.waiting.remove(node) {
            grant.since = now;
        }
        Some(*grant)
    }

    /// Withdraws the grants of these nodes. Returns whether one had a grant.
    pub fn withdraw(&mut self, nodes: &[&NodeName]) -> bool {
        let before = self.grants.len();
        self.grants.retain(|node, _| !nodes.contains(&node));
        self.grants.len() < before
    }

    /// Records whether a node that is online or not is ready with the revision. Returns since when it
    /// is. A node that leaves before it was ready for `min_ready` begins again.
    pub fn observe(
        &mut self,
        node: &NodeName,
        (is_online, is_ready): (bool, bool),
        (now, min_ready): (Timestamp, SignedDuration),
    ) -> Option<Timestamp> {
        let known = self.ready.get_mut(node).filter(|_| is_ready);
        match known {
            Some(ready) if is_online || ready.is_done => {
                ready.is_done |= ready.since + min_ready <= now;
                Some(ready.since)
            }
            None if is_ready && is_online => {
                let is_done = min_ready.is_zero();
                self.ready.insert(node.clone(), Readiness { since: now, is_done });
                Some(now)
            }
            Some(_) | None => {
                self.ready.remove(node);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rollout::node::GrantCause;

    #[test]
    fn another_revision_drops_grants_and_times() {
        let (node, at) = ("a".parse::<NodeName>().unwrap(), Timestamp::from_second);
        let mut memory = RolloutMemory::default();
        memory.begin("r1");
        let grant = Grant { since: at(1).unwrap(), cause: GrantCause::Wave };
        assert!(memory.add_grants("r1", vec![(node.clone(), grant)]));
        let later = Grant { since: at(2).unwrap(), cause: GrantCause::Join };
        assert!(!memory.add_grants("r1", vec![(node.clone(), later)]));
        assert_eq!(memory.grant(&node), Some(grant), "the first one stays");
        let granted = GrantedNodes { revision: "r1".to_owned(), nodes: [node.clone()].into() };
        assert_eq!(memory.granted(), granted);
        memory.begin("r1");
        assert_eq!(memory.grant(&node), Some(grant));
        memory.begin("r2");
        assert_eq!(memory, RolloutMemory { revision: "r2".to_owned(), ..Default::default() });
    }

    #[test]
    fn nodes_that_left_are_forgotten() {
        let [a, b]: [NodeName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let now = Timestamp::UNIX_EPOCH;
        let mut memory = RolloutMemory::default();
        memory.begin("r");
        let grant = Grant { since: now, cause: GrantCause::Wave };
        memory.add_grants("r", vec![(a.clone(), grant), (b.clone(), grant)]);
        memory.observe(&a, (true, true), (now, SignedDuration::ZERO));
        memory.retain(&[&b]);
        assert!(!memory.add_grants("other", vec![(a.clone(), grant)]));
        assert_eq!((memory.grant(&a), memory.grant(&b)), (None, Some(grant)));
        assert_eq!(memory.observe(&a, (false, true), (now, SignedDuration::ZERO)), None);
    }

    #[test]
    fn time_of_a_grant_begins_again_after_the_node_waited() {
        let [node, other]: [NodeName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut memory = RolloutMemory::default();
        memory.begin("r");
        let grant = Grant { since: at(0), cause: GrantCause::Wave };
        memory.add_grants("r", vec![(node.clone(), grant)]);
        let mut since = |waits, second| {
            memory.observe_wait(&node, waits, at(second)).unwrap().since.as_second()
        };
        assert_eq!([since(false, 1), since(true, 2), since(true, 900)], [0, 0, 0]);
        assert_eq!([since(false, 901), since(false, 902)], [901, 901]);
        assert_eq!(memory.observe_wait(&other, true, at(903)), None);
        assert!(memory.withdraw(&[&node]) && !memory.withdraw(&[&node, &other]));
    }

    #[test]
    fn node_that_leaves_before_it_was_ready_for_long_enough_begins_again() {
        let node: NodeName = "a".parse().unwrap();
        let mut memory = RolloutMemory::default();
        let mut observe = |second: i64, is_online: bool, is_ready: bool| {
            let times = (Timestamp::from_second(second).unwrap(), SignedDuration::from_secs(30));
            memory.observe(&node, (is_online, is_ready), times).map(Timestamp::as_second)
        };
        assert_eq!(observe(0, false, true), None);
        assert_eq!([observe(1, true, true), observe(2, true, true)], [Some(1), Some(1)]);
        assert_eq!([observe(3, true, false), observe(4, true, true)], [None, Some(4)]);
        assert_eq!([observe(33, false, true), observe(40, true, true)], [None, Some(40)]);
        assert_eq!([observe(70, true, true), observe(71, false, true)], [Some(40), Some(40)]);
        assert_eq!([observe(72, false, false), observe(73, false, true)], [None, None]);
    }
}
