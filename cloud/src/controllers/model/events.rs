//! Which changes of a model's status are Kubernetes Events: nodes that cannot get the model, once
//! per reason. Pure.

use neptune_api::{ModelNode, ModelNodeState, ModelStatus};

use crate::controllers::runtime::ObjectEvent;

/// The Events when `previous` becomes `next`.
pub fn events(previous: &ModelStatus, next: &ModelStatus) -> Vec<ObjectEvent> {
    let has_failed = |node: &&ModelNode| node.state == ModelNodeState::Failed;
    let is_known = |node: &ModelNode| {
        let mut before = previous.nodes.iter().filter(has_failed);
        before.any(|before| before.node == node.node && before.reason == node.reason)
    };
    let failed = next.nodes.iter().filter(has_failed).filter(|node| !is_known(node));
    failed
        .map(|node| {
            let why = node.message.as_deref().unwrap_or_default();
            let reason = node.reason.as_deref().unwrap_or("ModelUnavailable");
            ObjectEvent::warning(reason, format!("node {}: {why}", node.node))
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
}
