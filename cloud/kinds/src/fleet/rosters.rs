//! The peers of each node: the nodes of its zone that share contents of models, and the nodes with
//! which it replicates datasets.
//!
//! A node of a zone with many members has only its neighbours in the order of the names as peers.
//! So the relation is symmetric, which both sides of a connection need, and a change of one node
//! affects at most [`MAX_NEIGHBOURS`] others: O(log n) lookups each, independent of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{KeyPin, NodeName, ObjectKey, PeerEndpoint, PeerRoster, RosterPeer};

use super::partners::{Partners, PeerPair};

/// Neighbours of a node in its zone, half of them on each side. More members would not make a
/// download faster, and each is asked before it.
pub const MAX_NEIGHBOURS: usize = 64;

/// A node whose agent has peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFacts {
    /// The label `topology.kubernetes.io/zone` of the Node.
    pub zone: Option<String>,
    /// The key of the agent.
    pub pin: KeyPin,
    /// Where the agent listens for its peers, and what it shares.
    pub endpoint: PeerEndpoint,
}

/// The rosters of all nodes.
#[derive(Debug, Default)]
pub struct Rosters {
    nodes: BTreeMap<NodeName, PeerFacts>,
    /// The nodes that share contents of models, by zone.
    zones: BTreeMap<String, BTreeSet<NodeName>>,
    partners: Partners,
    /// The objects that got or lost a pair since the last [`Rosters::take_changed_objects`].
    changed_objects: BTreeSet<ObjectKey>,
    /// The nodes whose rosters changed since the last [`Rosters::take_changed`].
    changed: BTreeSet<NodeName>,
}

impl Rosters {
    /// Sets what is known of a node; `None` if it has no peers, or does not exist.
    pub fn set_node(&mut self, node: &NodeName, facts: Option<PeerFacts>) {
        let before = self.nodes.get(node);
        if before == facts.as_ref() {
            return;
        }
        let zone_before = before.and_then(shared_zone).map(str::to_owned);
        let zone_after = facts.as_ref().and_then(shared_zone).map(str::to_owned);
        self.changed.insert(node.clone());
        self.changed.extend(self.partners.partners(node).cloned());
        if let Some(zone) = &zone_before {
            // Those that lose it, or see another address.
            self.changed.extend(self.neighbours(zone, node, MAX_NEIGHBOURS / 2));
            if zone_after.as_ref() != Some(zone) {
                self.leave_zone(zone, node);
            }
        }
        if let Some(zone) = zone_after {
            self.zones.entry(zone.clone()).or_default().insert(node.clone());
            self.changed.extend(self.neighbours(&zone, node, MAX_NEIGHBOURS / 2));
        }
        match facts {
            Some(facts) => drop(self.nodes.insert(node.clone(), facts)),
            None => drop(self.nodes.remove(node)),
        }
    }

    /// Sets the pairs of nodes that need a connection because of `object`, which has this age: the
    /// source and each replica of a Dataset. Empty if it needs none any more.
    pub fn set_pairs(
        &mut self,
        object: &ObjectKey,
        created: Option<Timestamp>,
        pairs: BTreeSet<PeerPair>,
    ) {
        self.changed.extend(self.partners.set(object, created, pairs));
    }

    /// The node that has no room for this pair, which therefore does not count.
    pub fn crowded(&self, a: &NodeName, b: &NodeName) -> Option<&NodeName> {
        self.partners.crowded(a, b)
    }

    /// The nodes with facts, sorted.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Whether the rosters of nodes changed since the last [`Rosters::take_changed`].
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes the nodes whose rosters changed. Some of them may be as before.
    #[must_use]
    pub fn take_changed(&mut self) -> BTreeSet<NodeName> {
        let exclusions = self.partners.update();
        self.changed_objects.extend(exclusions.objects);
        self.changed.extend(exclusions.nodes);
        std::mem::take(&mut self.changed)
    }

    /// Takes the objects for whose pairs a node has no room now, or has room again.
    #[must_use]
    pub fn take_changed_objects(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.changed_objects)
    }

    /// The roster of a node; `None` if its agent has no peers.
    pub fn roster(&self, node: &NodeName) -> Option<PeerRoster> {
        let facts = self.nodes.get(node)?;
        let neighbours = match shared_zone(facts) {
            Some(zone) => self.neighbours(zone, node, MAX_NEIGHBOURS / 2),
            None => BTreeSet::new(),
        };
        let partners: BTreeSet<_> = self.partners.partners(node).cloned().collect();
        let peers = neighbours.union(&partners).filter_map(|peer| {
            let PeerFacts { pin, endpoint, .. } = self.nodes.get(peer)?;
            Some(RosterPeer {
                node: peer.clone(),
                pin: pin.clone(),
                addresses: endpoint.addresses.clone(),
                shares_models: neighbours.contains(peer),
            })
        });
        Some(PeerRoster { peers: peers.collect() })
    }

    fn leave_zone(&mut self, zone: &str, node: &NodeName) {
        if let Some(members) = self.zones.get_mut(zone) {
            members.remove(node);
            if members.is_empty() {
                self.zones.remove(zone);
            }
        }
    }

    /// The members next to `node` in the circle of the names, at most `reach` on each side.
    fn neighbours(&self, zone: &str, node: &NodeName, reach: usize) -> BTreeSet<NodeName> {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some(members) = self.zones.get(zone) else { return BTreeSet::new() };
        let after = members.range::<NodeName, _>((Excluded(node), Unbounded));
        let next = after.chain(members.range::<NodeName, _>(..node)).take(reach);
        let before = members.range::<NodeName, _>(..node).rev();
        let last = members.range::<NodeName, _>((Excluded(node), Unbounded)).rev();
        next.chain(before.chain(last).take(reach)).cloned().collect()
    }
}

/// The zone in which a node shares contents of models.
fn shared_zone(facts: &PeerFacts) -> Option<&str> {
    facts.zone.as_deref().filter(|_| facts.endpoint.shares_models)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn node(number: usize) -> NodeName {
        format!("edge{number:04}").parse().unwrap()
    }

    fn sharing(zone: &str, pin: &str) -> PeerFacts {
        PeerFacts {
            zone: Some(zone.to_owned()),
            pin: KeyPin(pin.to_owned()),
            endpoint: PeerEndpoint {
                addresses: vec!["10.0.0.1:8417".to_owned()],
                shares_models: true,
                allows_replicas: false,
            },
        }
    }

    fn peers(rosters: &Rosters, number: usize) -> Vec<(String, bool)> {
        let roster = rosters.roster(&node(number)).unwrap();
        roster.peers.iter().map(|it| (it.node.to_string(), it.shares_models)).collect()
    }

    #[test]
    fn roster_has_the_sharing_nodes_of_the_zone() {
        let mut rosters = Rosters::default();
        let without_zone = PeerFacts { zone: None, ..sharing("", "c") };
        let mut private = sharing("west", "d");
        private.endpoint.shares_models = false;
        let all = [sharing("west", "a"), sharing("west", "b"), without_zone, private];
        for (number, facts) in all.into_iter().enumerate() {
            rosters.set_node(&node(number), Some(facts));
        }
        rosters.set_node(&node(4), Some(sharing("east", "e")));
        assert_eq!(peers(&rosters, 0), [("edge0001".to_owned(), true)]);
        assert_eq!(peers(&rosters, 1), [("edge0000".to_owned(), true)]);
        for alone in [2, 3, 4] {
            assert_eq!(peers(&rosters, alone), [], "an empty roster is sent");
        }
        assert_eq!(rosters.roster(&node(9)), None);
    }

    #[test]
    fn replication_partners_are_peers_across_zones_until_no_dataset_needs_them() {
        let mut rosters = Rosters::default();
        rosters.set_node(&node(0), Some(sharing("west", "a")));
        rosters.set_node(&node(1), Some(sharing("east", "b")));
        let (one, two) = ("d/datasets/one".parse().unwrap(), "d/datasets/two".parse().unwrap());
        let pair = || BTreeSet::from([(node(0), node(1))]);
        rosters.set_pairs(&one, None, pair());
        rosters.set_pairs(&two, None, pair());
        let _ = rosters.take_changed();
        assert_eq!(peers(&rosters, 0), [("edge0001".to_owned(), false)]);
        assert_eq!(peers(&rosters, 1), [("edge0000".to_owned(), false)]);
        rosters.set_pairs(&one, None, BTreeSet::new());
        assert_eq!(peers(&rosters, 1).len(), 1, "another dataset needs it");
        let _ = rosters.take_changed();
        rosters.set_pairs(&two, None, BTreeSet::new());
        assert_eq!((peers(&rosters, 0), peers(&rosters, 1)), (vec![], vec![]));
        assert_eq!(rosters.take_changed(), [node(0), node(1)].into());
        rosters.set_node(&node(0), None);
        rosters.set_node(&node(1), None);
        assert!(rosters.nodes.is_empty() && rosters.zones.is_empty());
    }

    #[test]
    fn hub_with_too_many_partners_and_the_rest_do_not_know_each_other() {
        let mut rosters = Rosters::default();
        for number in 0..=100 {
            rosters.set_node(&node(number), Some(sharing(&format!("zone{number}"), "k")));
        }
        let dataset = |number: usize| format!("d/datasets/d{number}").parse().unwrap();
        // The names are in the opposite order of the ages.
        for number in 1..=100_usize {
            let created = Timestamp::from_second(1000 - i64::try_from(number).unwrap()).ok();
            rosters.set_pairs(&dataset(number), created, [(node(number), node(0))].into());
        }
        let _ = rosters.take_changed();
        let left_out: BTreeSet<ObjectKey> = (1..=36).map(dataset).collect();
        assert_eq!(rosters.take_changed_objects(), left_out, "the newest ones");
        assert_eq!(peers(&rosters, 0).len(), 64);
        assert_eq!((peers(&rosters, 36).len(), peers(&rosters, 37).len()), (0, 1));
        assert_eq!(rosters.crowded(&node(36), &node(0)), Some(&node(0)));
        assert_eq!(rosters.crowded(&node(37), &node(0)), None);
    }

    #[test]
    fn change_of_a_node_affects_only_its_neighbours() {
        let mut rosters = Rosters::default();
        for number in 0..1000 {
            rosters.set_node(&node(number), Some(sharing("west", &number.to_string())));
        }
        assert_eq!(rosters.take_changed().len(), 1000);
        rosters.set_node(&node(7), Some(sharing("west", "7")));
        assert!(!rosters.is_changed(), "nothing is new");
        rosters.set_node(&node(7), Some(sharing("west", "new")));
        let changed = rosters.take_changed();
        assert!((MAX_NEIGHBOURS..=MAX_NEIGHBOURS + 3).contains(&changed.len()), "{changed:?}");
        assert_eq!(peers(&rosters, 500).len(), MAX_NEIGHBOURS);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Set(usize, Option<(u8, bool, u8)>),
        Pairs(u8, Vec<(usize, usize)>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let facts = prop::option::weighted(0.8, (0..2_u8, prop::bool::weighted(0.9), 0..3_u8));
        prop_oneof![
            8 => (0..90_usize, facts).prop_map(|(node, facts)| Step::Set(node, facts)),
            1 => (0..3_u8, prop::collection::vec((0..90_usize, 0..90_usize), 0..4))
                .prop_map(|(object, pairs)| Step::Pairs(object, pairs)),
        ]
    }

    proptest! {
        // A case computes some thousands of rosters.
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn every_changed_roster_is_announced_and_peers_know_each_other(
            steps in prop::collection::vec(step(), 1..250),
        ) {
            let mut rosters = Rosters::default();
            let mut sent = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Set(number, facts) => {
                        let facts = facts.map(|(zone, shares, pin)| {
                            let mut facts = sharing(&zone.to_string(), &format!("{number}-{pin}"));
                            facts.endpoint.shares_models = shares;
                            facts
                        });
                        rosters.set_node(&node(number), facts);
                    }
                    Step::Pairs(object, pairs) => {
                        let key = format!("d/datasets/d{object}").parse().unwrap();
                        let pairs = pairs.into_iter().map(|(a, b)| (node(a), node(b))).collect();
                        rosters.set_pairs(&key, None, pairs);
                    }
                }
                for node in rosters.take_changed() {
                    sent.insert(node.clone(), rosters.roster(&node));
                }
            }
            let all: BTreeMap<_, _> =
                (0..90).map(node).map(|node| (node.clone(), rosters.roster(&node))).collect();
            for (me, roster) in &all {
                prop_assert_eq!(&sent.get(me).cloned().flatten(), roster);
                for peer in roster.iter().flat_map(|it| &it.peers) {
                    let theirs = all[&peer.node].as_ref().unwrap();
                    let known = theirs.peers.iter().find(|it| it.node == *me);
                    prop_assert_eq!(known.map(|it| it.shares_models), Some(peer.shares_models));
                    prop_assert_ne!(&peer.node, me);
                }
            }
        }
    }
}
