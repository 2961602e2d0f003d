//! The peers of this node, from the roster that the cloud sent. Pure.

use neptune_share::peers::{Peer, Roster};
use neptune_wire::{NodeName, PeerRoster, RosterPeer};

/// The peers of a node.
#[derive(Debug, PartialEq)]
pub struct NodePeers {
    pub all: Roster,
    /// The peers that share contents of models.
    pub sharing: Roster,
}

/// The peers of node `me`. An address that this version does not understand is left out.
pub fn node_peers(me: &NodeName, roster: &PeerRoster) -> NodePeers {
    let peer = |it: &RosterPeer| Peer {
        node: it.node.clone(),
        addresses: it.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
        pin: it.pin.clone(),
    };
    let sharing = roster.peers.iter().filter(|it| it.shares_models);
    NodePeers {
        all: Roster::new(me, roster.peers.iter().map(peer)),
        sharing: Roster::new(me, sharing.map(peer)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::KeyPin;

    use super::*;

    #[test]
    fn replication_partner_is_no_peer_for_models() {
        let me = "edge0".parse().unwrap();
        let peer = |node: &str, shares_models| RosterPeer {
            node: node.parse().unwrap(),
            pin: KeyPin(node.to_owned()),
            addresses: vec!["10.0.0.1:8417".to_owned(), "unix:///run/peer".to_owned()],
            shares_models,
        };
        let roster = PeerRoster { peers: vec![peer("edge1", true), peer("edge2", false)] };
        let NodePeers { all, sharing } = node_peers(&me, &roster);
        let names =
            |roster: &Roster| roster.nodes().map(|it| it.as_str().to_owned()).collect::<Vec<_>>();
        assert_eq!(
            (names(&all), names(&sharing)),
            (vec!["edge1".into(), "edge2".into()], vec!["edge1".to_owned()])
        );
        let edge1 = all.get(&"edge1".parse().unwrap()).unwrap();
        assert_eq!(edge1.addresses, ["10.0.0.1:8417".parse().unwrap()]);
    }
}
