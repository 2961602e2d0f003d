//! The members of a site: which node has which key, and where it listens. Pure.

use std::{collections::BTreeMap, net::SocketAddr};

use neptune_transfer::Digest;
use neptune_wire::{KeyPin, NodeName};

use crate::peers::rendezvous::ranked;

/// Members that a node talks to at most: 64 of its site, and 64 with which it replicates datasets.
pub const MAX_MEMBERS: usize = 128;
/// Addresses of a member that are tried at most.
pub const MAX_ADDRESSES: usize = 4;

/// Another node of the site, with which this node exchanges contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Name of the node.
    pub node: NodeName,
    /// Addresses on which the node listens for peers. A client tries all of them.
    pub addresses: Vec<SocketAddr>,
    /// Pin of the node's key.
    pub pin: KeyPin,
}

/// The other nodes of the site, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster(BTreeMap<NodeName, Peer>);

impl Roster {
    /// Returns the roster of node `me`. It has neither `me` nor a second entry of a node or of a
    /// key, at most [`MAX_MEMBERS`] members, and at most [`MAX_ADDRESSES`] addresses of each.
    #[must_use]
    pub fn new(me: &NodeName, peers: impl IntoIterator<Item = Peer>) -> Self {
        let mut members = BTreeMap::new();
        for mut peer in peers {
            let is_known = members.values().any(|it: &Peer| it.pin == peer.pin);
            if peer.node != *me && !is_known {
                peer.addresses.truncate(MAX_ADDRESSES);
                members.entry(peer.node.clone()).or_insert(peer);
            }
        }
        if members.len() > MAX_MEMBERS {
            let own = Digest::of_bytes(me.as_str().as_bytes());
            let order = ranked(&own, members.keys());
            let extra: Vec<_> = order.into_iter().skip(MAX_MEMBERS).cloned().collect();
            members.retain(|node, _| !extra.contains(node));
        }
        Self(members)
    }

    /// Returns the member of this name.
    pub fn get(&self, node: &NodeName) -> Option<&Peer> {
        self.0.get(node)
    }

    /// Returns the member with this key.
    pub fn by_pin(&self, pin: &KeyPin) -> Option<&Peer> {
        self.0.values().find(|peer| peer.pin == *pin)
    }

    /// Returns the names of all members, sorted.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.0.keys()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn peer(node: &str, pin: &str) -> Peer {
        let addresses = (1..9).map(|port| SocketAddr::from(([10, 0, 0, 1], port))).collect();
        Peer { node: node.parse().unwrap(), addresses, pin: KeyPin(pin.to_owned()) }
    }

    #[test]
    fn roster_has_each_other_node_and_key_once() {
        let me = "a".parse().unwrap();
        let peers = [peer("a", "1"), peer("b", "2"), peer("b", "3"), peer("c", "2")];
        let roster = Roster::new(&me, peers);
        assert_eq!(roster.nodes().map(NodeName::as_str).collect::<Vec<_>>(), ["b"]);
        let member = roster.by_pin(&KeyPin("2".to_owned())).unwrap();
        assert_eq!((member.node.as_str(), member.addresses.len()), ("b", MAX_ADDRESSES));
        assert_eq!(roster.by_pin(&KeyPin("3".to_owned())), None);
    }

    #[test]
    fn larger_site_is_cut_to_the_same_members_each_time() {
        let me = "a".parse().unwrap();
        let peers: Vec<_> = (0..200).map(|it| peer(&format!("n{it}"), &it.to_string())).collect();
        let roster = Roster::new(&me, peers.clone());
        assert_eq!(roster.nodes().count(), MAX_MEMBERS);
        assert_eq!(Roster::new(&me, peers.into_iter().rev()), roster);
    }
}
