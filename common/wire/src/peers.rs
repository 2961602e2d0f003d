//! The peers of a node: other nodes with which it exchanges content directly.

use serde::{Deserialize, Serialize};

use crate::{KeyPin, Namespace, NodeName, ObjectKey, Resource, unknown};

/// The namespace in the keys of rosters. No object of the API has such a key.
const NAMESPACE: &str = "neptune-system";

/// Where the agent of a node listens for its peers, and what it is permitted to share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerEndpoint {
    /// Addresses as `IP:PORT`, at most [`PeerEndpoint::MAX_ADDRESSES`]. Empty: the agent fetches
    /// from peers and does not listen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Whether the agent shares the contents of models with the nodes of its zone.
    #[serde(default)]
    pub shares_models: bool,
    /// Whether the agent lets the cloud copy the datasets of the node to other nodes.
    #[serde(default)]
    pub allows_replicas: bool,
}

impl PeerEndpoint {
    /// Maximum number of addresses.
    pub const MAX_ADDRESSES: usize = 4;
}

/// The peers of a node. Its agent connects to these nodes only, and accepts connections of these
/// nodes only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRoster {
    /// The other nodes, sorted by name.
    #[serde(default, deserialize_with = "unknown::list")]
    pub peers: Vec<RosterPeer>,
}

impl PeerRoster {
    /// Returns the key under which the controller sends the roster of a node.
    pub fn key(node: &NodeName) -> ObjectKey {
        ObjectKey {
            namespace: NAMESPACE.parse::<Namespace>().expect("it is a label of RFC 1123"),
            resource: Resource::Peers,
            name: node.as_str().parse().expect("a node name is a subdomain of RFC 1123"),
        }
    }
}

/// A peer of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RosterPeer {
    /// Name of the peer's node.
    pub node: NodeName,
    /// The key of its agent.
    pub pin: KeyPin,
    /// Addresses at which the peer's agent listens; see [`PeerEndpoint::addresses`].
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Whether the peer is in the same zone and shares contents of models. Other peers are listed
    /// because one of both nodes has a replica of a dataset of the other.
    #[serde(default)]
    pub shares_models: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn roster_round_trips_and_skips_a_peer_that_is_not_understood() {
        let node = "edge0.site".parse().unwrap();
        assert_eq!(PeerRoster::key(&node).to_string(), "neptune-system/peers/edge0.site");
        let peer = json!({
            "node": "edge1", "pin": "p", "addresses": ["10.0.0.2:8417"], "sharesModels": true,
        });
        let roster: PeerRoster = serde_json::from_value(json!({"peers": [peer]})).unwrap();
        assert_eq!(serde_json::to_value(&roster).unwrap(), json!({"peers": [peer]}));
        let newer = json!({"peers": [{"group": "all"}, peer], "relay": "r"});
        assert_eq!(serde_json::from_value::<PeerRoster>(newer).unwrap(), roster);
        assert_eq!(serde_json::from_value::<PeerRoster>(json!({})).unwrap(), PeerRoster::default());
    }

    #[test]
    fn endpoint_of_another_version_is_read() {
        let newer = json!({"addresses": ["10.0.0.2:8417"], "sharesModels": true, "relay": true});
        let endpoint: PeerEndpoint = serde_json::from_value(newer).unwrap();
        assert!(endpoint.shares_models && !endpoint.allows_replicas);
        assert_eq!(
            serde_json::from_value::<PeerEndpoint>(json!({})).unwrap(),
            PeerEndpoint::default()
        );
    }
}
