//! Which changes of a model's status are Kubernetes Events: nodes that cannot get the model, once
//! per reason, and peers that sent other bytes.

use std::collections::BTreeSet;

use neptune_api::{ModelNode, ModelNodeState, ModelStatus};

use crate::steps::ObjectEvent;

const PEER_SERVED_WRONG_CONTENT: &str = "PeerServedWrongContent";

/// The Events when `previous` becomes `next`.
pub fn events(previous: &ModelStatus, next: &ModelStatus) -> Vec<ObjectEvent> {
    let has_failed = |node: &&ModelNode| node.state == ModelNodeState::Failed;
    let is_known = |node: &ModelNode| {
        let mut before = previous.nodes.iter().filter(has_failed);
        before.any(|before| before.node == node.node && before.reason == node.reason)
    };
    let failed = next.nodes.iter().filter(has_failed).filter(|node| !is_known(node));
    let failed = failed.map(|node| {
        let why = node.message.as_deref().unwrap_or_default();
        let reason = node.reason.as_deref().unwrap_or("ModelUnavailable");
        ObjectEvent::warning(reason, format!("node {}: {why}", node.node))
    });
    failed.chain(wrong_contents(previous, next)).collect()
}

/// The peers that sent other bytes, once the node has the model.
fn wrong_contents(previous: &ModelStatus, next: &ModelStatus) -> Vec<ObjectEvent> {
    let rejected = |status: &ModelStatus| -> BTreeSet<(String, String, String)> {
        let entries = status.nodes.iter().filter_map(|it| Some((it, it.sha256sum.clone()?)));
        let rejected = entries.flat_map(|(it, sum)| {
            let peers = it.rejected_peers.iter().cloned();
            peers.map(move |peer| (it.node.clone(), peer, sum.clone()))
        });
        rejected.collect()
    };
    let before = rejected(previous);
    let new = rejected(next).into_iter().filter(|entry| !before.contains(entry));
    new.map(|(node, peer, sum)| {
        let note = format!(
            "node {node}: peer {peer} sent other bytes than those of sha256 {sum}; they are not used; {peer} checks its copy, and {node} does not use it for 1 h or longer; if it happens again, check the disk of {peer}"
        );
        ObjectEvent::warning(PEER_SERVED_WRONG_CONTENT, note)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: &str) -> ModelStatus {
        let node = ModelNode {
            node: "a".to_owned(),
            state: ModelNodeState::Failed,
            sha256sum: None,
            bytes: None,
            source: None,
            rejected_peers: Vec::new(),
            reason: Some(reason.to_owned()),
            message: Some("why".to_owned()),
        };
        ModelStatus { nodes: vec![node], ..ModelStatus::default() }
    }

    #[test]
    fn node_that_cannot_get_the_model_is_one_event_per_reason() {
        let unavailable = failed("ModelUnavailable");
        let seen = |previous: &ModelStatus, next: &ModelStatus| -> Vec<(String, String)> {
            let events = events(previous, next).into_iter();
            events.map(|event| (event.reason, event.note)).collect()
        };
        let expected = [("ModelUnavailable".to_owned(), "node a: why".to_owned())];
        assert_eq!(seen(&ModelStatus::default(), &unavailable), expected);
        assert_eq!(seen(&unavailable, &unavailable), []);
        assert_eq!(seen(&unavailable, &failed("ModelDigestMismatch")).len(), 1);
    }

    #[test]
    fn wrong_content_of_a_peer_is_one_event_with_node_and_digest() {
        let status = |rejected: &[&str], sum: Option<&str>| {
            let mut status = failed("");
            status.nodes[0].state = ModelNodeState::Present;
            status.nodes[0].sha256sum = sum.map(str::to_owned);
            status.nodes[0].rejected_peers = rejected.iter().map(ToString::to_string).collect();
            status
        };
        let events_between = |previous: &ModelStatus, next: &ModelStatus| events(previous, next);
        let (none, one) = (status(&[], Some("ab")), status(&["b"], Some("ab")));
        let seen = events_between(&none, &one);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].reason, PEER_SERVED_WRONG_CONTENT);
        assert!(
            seen[0].note.starts_with("node a: peer b sent other bytes than those of sha256 ab")
        );
        assert_eq!(events_between(&one, &one).len(), 0);
        assert_eq!(events_between(&one, &status(&["b", "c"], Some("ab"))).len(), 1);
        let downloading = status(&["b"], None);
        assert_eq!(
            (events_between(&none, &downloading).len(), events_between(&downloading, &one).len()),
            (0, 1)
        );
    }
}
