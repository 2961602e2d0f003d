//! Keeps the peers of each node up to date, and publishes those that changed. What they are is
//! decided by `fleet::rosters`.

use std::{collections::BTreeSet, time::Duration};

use neptune_cloud_kinds::{
    fleet::{Generations, PeerFacts, PendingPlan, Retained, encode_contents},
    kubernetes::labels::ZONE_LABEL,
    with_kind,
};
use neptune_wire::{NodeName, ObjectContent, ObjectKey, ObjectMetadata, PeerEndpoint, PeerRoster};
use serde_json::Value;

use super::context::Context;

/// Changes are collected for this time. After a restart of the controller, the nodes of a zone
/// report one after the other, and each report changes the rosters of its neighbours.
const COLLECT: Duration = Duration::from_secs(1);

impl Context {
    /// A report or a label of this node changed.
    pub fn update_peer(&self, node: &NodeName) {
        let cached = self.caches().node(node.as_str());
        let facts = cached.and_then(|cached| {
            let fleet = self.fleet();
            let endpoint = fleet.peers(node)?;
            Some(PeerFacts {
                zone: cached.label(ZONE_LABEL).filter(|it| !it.is_empty()).map(str::to_owned),
                pin: fleet.trusted_pin(node)?,
                endpoint: valid(endpoint),
            })
        });
        self.rosters().change(|rosters| rosters.set_node(node, facts));
    }

    /// Any node may have been changed or deleted.
    pub fn update_peers(&self) {
        let known: BTreeSet<_> = self.rosters().lock().nodes().cloned().collect();
        let existing = self.caches().nodes.names();
        let existing = existing.iter().filter_map(|name| name.parse().ok());
        for node in known.into_iter().chain(existing).collect::<BTreeSet<NodeName>>() {
            self.update_peer(&node);
        }
    }
}

/// Publishes changed rosters, indefinitely.
pub async fn publish_rosters(context: &Context) {
    loop {
        context.rosters().changed.notified().await;
        tokio::time::sleep(COLLECT).await;
        let (changed, objects) = {
            let mut rosters = context.rosters().lock();
            (rosters.take_changed(), rosters.take_changed_objects())
        };
        for key in objects {
            with_kind!(key.resource, K => context.enqueue_status::<K>(&key));
        }
        for node in changed {
            // Not one lock for all: reports of nodes must not wait for it.
            let roster = context.rosters().lock().roster(&node);
            publish(context, &node, roster);
        }
    }
}

fn publish(context: &Context, node: &NodeName, roster: Option<PeerRoster>) {
    let key = PeerRoster::key(node);
    let uid = key.to_string();
    let Some(roster) = roster else {
        context.publisher().remove(&key, &uid);
        return;
    };
    let contents = encode_contents([(key.clone(), content(&key, roster))].into());
    let requirements = [(node.clone(), contents)].into();
    let plan = PendingPlan::new(key.clone(), requirements, Generations::new(), Retained::new());
    if let Some(problem) = context.publisher().set(&key, &uid, plan) {
        tracing::error!(%node, problem, "the roster of the node is not published");
    }
}

fn content(key: &ObjectKey, roster: PeerRoster) -> ObjectContent {
    ObjectContent {
        api_version: "neptune.io/v1alpha1".to_owned(),
        kind: "PeerRoster".to_owned(),
        metadata: ObjectMetadata {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: key.to_string(),
            created: None,
        },
        spec: Value::Null,
        model: None,
        dataset: None,
        workers: Vec::new(),
        serving: None,
        training: None,
        aggregator: None,
        peers: Some(Box::new(roster)),
    }
}

/// The endpoint without more addresses than an agent may have.
fn valid(endpoint: &PeerEndpoint) -> PeerEndpoint {
    let addresses =
        endpoint.addresses.iter().filter(|it| it.parse::<std::net::SocketAddr>().is_ok());
    let addresses = addresses.take(PeerEndpoint::MAX_ADDRESSES).cloned().collect();
    PeerEndpoint { addresses, ..endpoint.clone() }
}
