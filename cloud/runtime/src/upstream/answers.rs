//! The answers of the nodes to requests. Shared by the listener and the controller of `LogRequests`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use neptune_wire::{NodeAnswer, NodeName, RequestId};
use tokio::sync::Notify;

/// The answers that arrived and were not taken. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct NodeAnswers(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The open requests, and the node that is asked.
    expected: BTreeMap<RequestId, NodeName>,
    arrived: Vec<(NodeName, NodeAnswer)>,
}

impl NodeAnswers {
    /// Accepts the next answer of this node to this request.
    pub fn expect(&self, id: &RequestId, node: &NodeName) {
        self.lock().expected.insert(id.clone(), node.clone());
    }

    /// Accepts only answers to these requests from now on.
    pub fn expect_only(&self, is_open: impl Fn(&RequestId) -> bool) {
        self.lock().expected.retain(|id, _| is_open(id));
    }

    /// Keeps the answer of a node until it is taken, if it is expected. Others cost no memory.
    pub fn on_answer(&self, node: &NodeName, answer: NodeAnswer) {
        let mut state = self.lock();
        if state.expected.get(&answer.id) == Some(node) {
            state.expected.remove(&answer.id);
            state.arrived.push((node.clone(), answer));
            drop(state);
            self.0.arrived.notify_one();
        }
    }

    /// Takes the answers that arrived.
    pub fn take(&self) -> Vec<(NodeName, NodeAnswer)> {
        std::mem::take(&mut self.lock().arrived)
    }

    /// Waits until an answer arrives.
    pub async fn arrived(&self) {
        self.0.arrived.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_first_expected_answer_of_the_asked_node_is_kept() {
        let answers = NodeAnswers::default();
        let nodes: [NodeName; 2] = ["edge0", "edge1"].map(|name| name.parse().unwrap());
        let id: RequestId = "r".parse().unwrap();
        let answer = || NodeAnswer {
            id: id.clone(),
            text: "a\n".to_owned(),
            truncated: false,
            next: None,
            problem: None,
        };
        answers.on_answer(&nodes[0], answer());
        assert!(answers.take().is_empty(), "not expected");
        answers.expect(&id, &nodes[0]);
        answers.on_answer(&nodes[1], answer());
        assert!(answers.take().is_empty(), "of another node");
        answers.on_answer(&nodes[0], answer());
        answers.on_answer(&nodes[0], answer());
        assert_eq!(answers.take(), [(nodes[0].clone(), answer())]);
        answers.expect(&id, &nodes[0]);
        answers.expect_only(|_| false);
        answers.on_answer(&nodes[0], answer());
        assert!(answers.take().is_empty(), "it ended");
    }
}
