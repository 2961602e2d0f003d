//! The queue of messages for one node. A later message replaces a queued one on its topic, so the
//! memory is bounded by the number of topics. The index is the last one, because it lists the
//! others. The order of the others is kept. Pure.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use neptune_wire::Revision;

/// A message for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMessage {
    /// The topic, with the prefix.
    pub topic: String,
    /// The payload of the message, as it is posted.
    pub payload: Bytes,
    /// The revision, if it is an index.
    pub index: Option<Revision>,
}

/// Messages in the order in which they are posted.
#[derive(Debug, Default)]
pub struct NodeOutbox {
    queued: BTreeMap<i64, QueuedMessage>,
    positions: HashMap<String, i64>,
    last: i64,
    /// Messages that were put back have negative positions.
    first: i64,
}

impl NodeOutbox {
    /// Appends a message. Drops a queued one on the same topic.
    pub fn push(&mut self, message: QueuedMessage) {
        self.last += 1;
        if let Some(before) = self.positions.insert(message.topic.clone(), self.last) {
            self.queued.remove(&before);
        }
        self.queued.insert(self.last, message);
    }

    /// Returns the message to post next; `None` if the queue is empty.
    pub fn next(&self) -> Option<&QueuedMessage> {
        self.queued.get(&self.next_position()?)
    }

    /// Removes the next message.
    pub fn pop(&mut self) -> Option<QueuedMessage> {
        let message = self.queued.remove(&self.next_position()?)?;
        self.positions.remove(&message.topic);
        Some(message)
    }

    fn next_position(&self) -> Option<i64> {
        // At most one message is an index.
        let object = self.queued.iter().find(|(_, message)| message.index.is_none());
        object.or_else(|| self.queued.first_key_value()).map(|(position, _)| *position)
    }

    /// Puts a message that was not posted back to the front, unless a newer one on its topic is
    /// queued.
    pub fn put_back(&mut self, message: QueuedMessage) {
        if self.positions.contains_key(&message.topic) {
            return;
        }
        self.first -= 1;
        self.positions.insert(message.topic.clone(), self.first);
        self.queued.insert(self.first, message);
    }

    /// Drops all queued messages.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str, payload: &'static str) -> QueuedMessage {
        QueuedMessage { topic: topic.to_owned(), payload: payload.into(), index: None }
    }

    fn all(outbox: &mut NodeOutbox) -> Vec<String> {
        std::iter::from_fn(|| outbox.pop())
            .map(|message| {
                format!("{}={}", message.topic, String::from_utf8_lossy(&message.payload))
            })
            .collect()
    }

    #[test]
    fn newer_message_replaces_a_queued_one_and_is_last() {
        let mut outbox = NodeOutbox::default();
        for (topic, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")] {
            outbox.push(message(topic, payload));
        }
        assert_eq!(all(&mut outbox), ["b=1", "a=2", "c=1"]);
        assert!(outbox.is_empty() && outbox.positions.is_empty());
    }

    #[test]
    fn index_is_last() {
        let mut outbox = NodeOutbox::default();
        outbox.push(message("a", "1"));
        outbox.push(QueuedMessage { index: Some(Revision(1)), ..message("index", "1") });
        outbox.push(message("b", "1"));
        assert_eq!(all(&mut outbox), ["a=1", "b=1", "index=1"]);
    }

    #[test]
    fn unsent_message_is_first_again_unless_a_newer_one_exists() {
        let mut outbox = NodeOutbox::default();
        outbox.push(message("a", "1"));
        outbox.push(message("b", "1"));
        let a = outbox.pop().into_iter().next();
        outbox.put_back(a.clone().unwrap_or_else(|| message("none", "")));
        assert_eq!(all(&mut outbox), ["a=1", "b=1"]);
        outbox.push(message("a", "2"));
        outbox.put_back(message("a", "1"));
        assert_eq!(all(&mut outbox), ["a=2"]);
    }

    #[test]
    fn outbox_holds_one_message_per_topic() {
        let mut outbox = NodeOutbox::default();
        for n in 0..10_000 {
            outbox.push(message(["a", "b", "c"][n % 3], "x"));
        }
        assert_eq!((outbox.queued.len(), outbox.positions.len()), (3, 3));
    }
}
