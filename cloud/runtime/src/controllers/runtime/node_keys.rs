//! Uses the keys that `EdgeNodes` have, and publishes nothing to nodes that are revoked. Which key
//! is used is decided by `nodes::keys`.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use neptune_wire::NodeName;

use super::{context::Context, controller::AgentChange};

impl Context {
    /// Uses the recorded keys of all nodes. The list of `EdgeNodes` may have skipped any change.
    pub fn load_node_keys(&self) {
        let objects = self.caches().nodes.edge_nodes();
        let existing = objects.iter().map(|object| object.name_any());
        let known = self.fleet().recorded_nodes();
        let known = known.iter().map(ToString::to_string);
        for name in known.chain(existing).collect::<BTreeSet<_>>() {
            self.load_node_key(&name);
        }
    }

    /// Uses the recorded keys of a node, and updates its roster and objects if they changed.
    pub fn load_node_key(&self, name: &str) {
        let Ok(node) = name.parse::<NodeName>() else { return };
        let nodes = &self.caches().nodes;
        self.publisher().set_revoked(&node, nodes.is_revoked(name));
        let record = nodes.keys(name);
        if self.fleet().set_key_record(&node, record) {
            self.update_peer(&node);
            self.enqueue_node(&node, AgentChange::Facts);
            self.key_reports().notify_one();
        }
    }
}
