//! Which nodes replicate datasets with each other.
//!
//! A node has a limited number of partners. A pair counts only if both nodes have room for it, which
//! both sides of a connection need. Older Datasets come first, so a new one takes no partner away.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{NodeName, ObjectKey};

/// Partners of a node because of datasets. The agent keeps no more peers than these and its
/// neighbours.
pub const MAX_PARTNERS: usize = 64;

/// Two nodes that need a connection because of a dataset.
pub type PeerPair = (NodeName, NodeName);

/// The partners of all nodes.
#[derive(Debug)]
pub struct Partners {
    limit: usize,
    objects: BTreeMap<ObjectKey, Wanted>,
    /// The partners that each node needs, with the number of objects that need them.
    needed: BTreeMap<NodeName, BTreeMap<NodeName, usize>>,
    /// The pairs for which a node has no room.
    excluded: BTreeSet<PeerPair>,
    /// Whether `excluded` has to be computed again.
    is_outdated: bool,
}

/// The pairs that an object needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    created: Option<Timestamp>,
    pairs: BTreeSet<PeerPair>,
}

/// The pairs that changed in [`Partners::update`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Exclusions {
    /// The nodes that got or lost a partner.
    pub nodes: BTreeSet<NodeName>,
    /// The objects whose pairs are excluded now, or no longer.
    pub objects: BTreeSet<ObjectKey>,
}

impl Default for Partners {
    fn default() -> Self {
        Self {
            limit: MAX_PARTNERS,
            objects: BTreeMap::new(),
            needed: BTreeMap::new(),
            excluded: BTreeSet::new(),
            is_outdated: false,
        }
    }
}

impl Partners {
    /// Sets the pairs that an object of this age needs. Returns the nodes of pairs that are new or
    /// that it needs no longer.
    pub fn set(
        &mut self,
        object: &ObjectKey,
        created: Option<Timestamp>,
        pairs: BTreeSet<PeerPair>,
    ) -> BTreeSet<NodeName> {
        let pairs = pairs.into_iter().filter(|(a, b)| a != b).map(|(a, b)| ordered(a, b));
        let wanted = Wanted { created, pairs: pairs.collect() };
        let before = self.objects.remove(object).unwrap_or_default();
        self.is_outdated |= before != wanted;
        let mut touched = BTreeSet::new();
        for (a, b) in before.pairs.difference(&wanted.pairs) {
            self.count(a, b, |count| count.saturating_sub(1));
            touched.extend([a.clone(), b.clone()]);
        }
        for (a, b) in wanted.pairs.difference(&before.pairs) {
            self.count(a, b, |count| count + 1);
            touched.extend([a.clone(), b.clone()]);
        }
        if !wanted.pairs.is_empty() {
            self.objects.insert(object.clone(), wanted);
        }
        touched
    }

    /// The partners of a node, of the pairs that count.
    pub fn partners(&self, node: &NodeName) -> impl Iterator<Item = &NodeName> {
        let needed = self.needed.get(node).into_iter().flatten().map(|(partner, _)| partner);
        needed
            .filter(|partner| !self.excluded.contains(&ordered(node.clone(), (*partner).clone())))
            .take(self.limit)
    }

    /// The node that has no room for this pair; `None` if the pair counts.
    pub fn crowded(&self, a: &NodeName, b: &NodeName) -> Option<&NodeName> {
        self.excluded
            .get(&ordered(a.clone(), b.clone()))
            .map(|(a, b)| if self.needs(a) >= self.needs(b) { a } else { b })
    }

    /// Decides which pairs count. Costs nothing unless a node needs more partners than it may have.
    pub fn update(&mut self) -> Exclusions {
        if !std::mem::take(&mut self.is_outdated) {
            return Exclusions::default();
        }
        let excluded = self.excluded();
        let before = std::mem::replace(&mut self.excluded, excluded);
        let changed: BTreeSet<_> = before.symmetric_difference(&self.excluded).collect();
        if changed.is_empty() {
            return Exclusions::default();
        }
        let nodes = changed.iter().flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
        let is_affected = |wanted: &Wanted| wanted.pairs.iter().any(|it| changed.contains(it));
        let affected = self.objects.iter().filter(|(_, wanted)| is_affected(wanted));
        Exclusions { nodes, objects: affected.map(|(object, _)| object.clone()).collect() }
    }

    fn excluded(&self) -> BTreeSet<PeerPair> {
        let mut excluded = BTreeSet::new();
        if self.needed.values().all(|partners| partners.len() <= self.limit) {
            return excluded;
        }
        let mut by_age: Vec<_> = self.objects.iter().collect();
        by_age.sort_by_key(|(object, wanted)| (wanted.created, *object));
        let mut taken: BTreeMap<&NodeName, BTreeSet<&NodeName>> = BTreeMap::new();
        for (a, b) in by_age.into_iter().flat_map(|(_, wanted)| &wanted.pairs) {
            let has_room = |node: &NodeName, partner: &NodeName| {
                taken
                    .get(node)
                    .is_none_or(|taken| taken.len() < self.limit || taken.contains(partner))
            };
            if has_room(a, b) && has_room(b, a) {
                taken.entry(a).or_default().insert(b);
                taken.entry(b).or_default().insert(a);
            } else {
                excluded.insert((a.clone(), b.clone()));
            }
        }
        excluded
    }

    fn needs(&self, node: &NodeName) -> usize {
        self.needed.get(node).map_or(0, BTreeMap::len)
    }

    fn count(&mut self, a: &NodeName, b: &NodeName, change: fn(usize) -> usize) {
        for (node, partner) in [(a, b), (b, a)] {
            let partners = self.needed.entry(node.clone()).or_default();
            let count = partners.entry(partner.clone()).or_default();
            *count = change(*count);
            if *count == 0 {
                partners.remove(partner);
            }
            if partners.is_empty() {
                self.needed.remove(node);
            }
        }
    }
}

fn ordered(a: NodeName, b: NodeName) -> PeerPair {
    if a < b { (a, b) } else { (b, a) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn dataset(name: &str) -> ObjectKey {
        format!("d/datasets/{name}").parse().unwrap()
    }

    /// A Dataset of that age on a site, with a replica on the hub.
    fn add(partners: &mut Partners, site: &str, age: i64) {
        let created = Some(Timestamp::from_second(age).unwrap());
        let _ = partners.set(&dataset(site), created, [(node(site), node("hub"))].into());
    }

    fn names(partners: &Partners, name: &str) -> Vec<String> {
        partners.partners(&node(name)).map(ToString::to_string).collect()
    }

    #[test]
    fn pair_of_an_older_dataset_counts_and_a_newer_one_waits_for_room() {
        let mut partners = Partners { limit: 2, ..Partners::default() };
        for (site, age) in [("c", 1), ("b", 2), ("a", 3)] {
            add(&mut partners, site, age);
        }
        let full = partners.update();
        assert_eq!(
            (full.nodes, full.objects),
            ([node("a"), node("hub")].into(), [dataset("a")].into())
        );
        assert_eq!(names(&partners, "hub"), ["b", "c"]);
        assert!(names(&partners, "a").is_empty(), "the pair counts for neither");
        assert_eq!(partners.crowded(&node("hub"), &node("a")), Some(&node("hub")));
        assert_eq!(partners.crowded(&node("b"), &node("hub")), None);
        assert_eq!(partners.update(), Exclusions::default(), "nothing is new");

        let _ = partners.set(&dataset("c"), None, BTreeSet::new());
        let free = partners.update();
        assert_eq!(free.objects, [dataset("a")].into());
        assert_eq!(names(&partners, "hub"), ["a", "b"]);
        for site in ["a", "b"] {
            let _ = partners.set(&dataset(site), None, BTreeSet::new());
        }
        assert!(partners.objects.is_empty() && partners.needed.is_empty());
    }

    #[test]
    fn second_dataset_of_a_pair_needs_no_more_room() {
        let mut partners = Partners { limit: 1, ..Partners::default() };
        add(&mut partners, "a", 1);
        add(&mut partners, "b", 2);
        let pair = [(node("hub"), node("a"))].into();
        let _ = partners.set(&dataset("other"), Some(Timestamp::MAX), pair);
        assert_eq!(partners.update().objects, [dataset("b")].into());
        assert_eq!(names(&partners, "hub"), ["a"]);
    }

    proptest! {
        #[test]
        fn partners_are_mutual_bounded_and_only_missing_without_room(
            objects in prop::collection::vec(
                (0..4_i64, prop::collection::btree_set((0..7_u8, 0..7_u8), 0..5)), 1..12,
            ),
        ) {
            let mut partners = Partners { limit: 2, ..Partners::default() };
            let name = |n: u8| node(&format!("n{n}"));
            for (n, (age, pairs)) in objects.iter().enumerate() {
                let pairs = pairs.iter().map(|(a, b)| (name(*a), name(*b))).collect();
                let created = Some(Timestamp::from_second(*age).unwrap());
                let _ = partners.set(&dataset(&format!("d{}", n % 5)), created, pairs);
                partners.update();
            }
            for a in (0..7).map(name) {
                let of_a: Vec<_> = partners.partners(&a).collect();
                prop_assert!(of_a.len() <= 2);
                for b in (0..7).map(name).filter(|b| *b != a) {
                    let counts = of_a.contains(&&b);
                    prop_assert_eq!(counts, partners.partners(&b).any(|it| *it == a));
                    let is_needed = partners.needed.get(&a).is_some_and(|it| it.contains_key(&b));
                    prop_assert_eq!(is_needed && !counts, partners.crowded(&a, &b).is_some());
                    if is_needed && !counts {
                        let is_full = of_a.len() == 2 || partners.partners(&b).count() == 2;
                        prop_assert!(is_full);
                    }
                }
            }
        }
    }
}
