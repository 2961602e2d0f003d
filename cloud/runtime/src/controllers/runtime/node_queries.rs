//! What a reconcile reads of nodes, from the caches and the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_cloud_kinds::{
    fleet::Presence,
    kubernetes::{
        labels::{Labels, contains},
        node_selector::SelectedNodes,
        node_view::NodeView,
    },
    nodes::sealing::SealKeyState,
    worker::needs::NodeOffers,
};
use neptune_wire::NodeName;

use super::{Context, NODES_PER_LOCK};

impl Context {
    /// The nodes that match a selector, sorted by name. None without labels.
    pub fn matching_nodes(&self, selector: &Labels) -> Vec<Arc<NodeView>> {
        self.caches().nodes.matching(selector)
    }

    /// The address at which the cluster reaches a node.
    pub fn node_address(&self, node: &NodeName) -> Option<String> {
        let view = self.caches().node(node.as_str());
        let fleet = self.fleet();
        let reported = fleet.address(node);
        view.as_ref().map_or(reported, |view| view.address(reported)).map(str::to_owned)
    }

    /// The nodes that match a selector, and which of their agents are connected. Only the edge node
    /// `kept` if it still matches: then no other one is chosen.
    pub fn selected_nodes(&self, selector: &Labels, kept: Option<&str>) -> SelectedNodes {
        let kept = kept.and_then(|name| self.caches().node(name));
        let kept = kept.filter(|node| node.is_edge && contains(&node.labels, selector));
        let nodes = kept.map_or_else(|| self.matching_nodes(selector), |node| vec![node]);
        let names: Vec<_> = nodes.iter().map(|node| node.name.clone()).collect();
        let mut online = BTreeSet::new();
        // Not one lock for all: reports of nodes must not wait for it.
        for names in names.chunks(NODES_PER_LOCK) {
            let fleet = self.fleet();
            let is_online = |name: &&NodeName| fleet.presence(name) == Presence::Online;
            online.extend(names.iter().filter(is_online).map(ToString::to_string));
        }
        SelectedNodes { nodes, online }
    }

    /// Whether Secrets can be sealed for these nodes, of those that have reported.
    pub fn seal_keys<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeName>,
    ) -> BTreeMap<NodeName, SealKeyState> {
        let names: Vec<_> = nodes.collect();
        let mut keys = BTreeMap::new();
        // Not one lock for all: reports of nodes must not wait for it.
        for names in names.chunks(NODES_PER_LOCK) {
            let fleet = self.fleet();
            let key = |name: &&NodeName| Some(((*name).clone(), fleet.seal_key(name)?));
            keys.extend(names.iter().filter_map(key));
        }
        keys
    }

    /// What the agents of these nodes offer, of those that have reported.
    pub fn offers<'a>(&self, nodes: impl Iterator<Item = &'a NodeName>) -> NodeOffers {
        let names: Vec<_> = nodes.collect();
        let mut offers = NodeOffers::new();
        // Not one lock for all: reports of nodes must not wait for it.
        for names in names.chunks(NODES_PER_LOCK) {
            let fleet = self.fleet();
            let offer = |name: &&NodeName| {
                let details = fleet.details(name)?;
                Some(((*name).clone(), Arc::clone(&details.offer)))
            };
            offers.extend(names.iter().filter_map(offer));
        }
        offers
    }
}
