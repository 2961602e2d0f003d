//! Rendezvous hashing: ranks nodes for a digest, so that all of them agree on its owner without a
//! message. Pure.

use neptune_transfer::Digest;
use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};

/// Returns `nodes` without duplicates, the owner of `digest` first.
///
/// # Guarantees
/// - The order depends on the digest and on the set of nodes alone.
/// - Removing a node does not change the order of the others.
pub fn ranked<'a>(
    digest: &Digest,
    nodes: impl IntoIterator<Item = &'a NodeName>,
) -> Vec<&'a NodeName> {
    let mut ranked: Vec<_> = nodes.into_iter().map(|node| (weight(digest, node), node)).collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    ranked.dedup();
    ranked.into_iter().map(|(_, node)| node).collect()
}

fn weight(digest: &Digest, node: &NodeName) -> [u8; 32] {
    let hash = Sha256::new().chain_update(digest).chain_update(node.as_str());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> NodeName {
        format!("edge{number}").parse().unwrap()
    }

    proptest! {
        #[test]
        fn nodes_in_any_order_agree_on_the_rank(
            content in any::<u64>(),
            numbers in prop::collection::btree_set(any::<u8>(), 1..64),
            seed in any::<u64>(),
            without in any::<prop::sample::Index>(),
        ) {
            let digest = Digest::of_bytes(&content.to_be_bytes());
            let nodes: Vec<NodeName> = numbers.into_iter().map(node).collect();
            let mut shuffled = nodes.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
            let expected = ranked(&digest, &nodes);
            prop_assert_eq!(&ranked(&digest, shuffled.iter().chain(&nodes)), &expected);
            prop_assert_eq!(expected.iter().collect::<BTreeSet<_>>().len(), nodes.len());

            let gone = without.get(&nodes);
            let left = ranked(&digest, nodes.iter().filter(|it| *it != gone));
            let expected: Vec<_> = expected.into_iter().filter(|it| *it != gone).collect();
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn owners_of_many_digests_are_spread_evenly() {
        let nodes: Vec<NodeName> = (0..8).map(node).collect();
        let mut owned = BTreeMap::new();
        for content in 0..4000_u32 {
            let digest = Digest::of_bytes(&content.to_be_bytes());
            *owned.entry(ranked(&digest, &nodes)[0]).or_insert(0) += 1;
        }
        assert!(owned.len() == 8 && owned.values().all(|it| (400..600).contains(it)), "{owned:?}");
    }
}
