//! What waits to be posted to one node. Of two messages on one topic only the later waits, so the memory
//! is bounded by the number of topics; the order of the rest stays. Pure.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use neptune_wire::Revision;

/// A message for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMessage {
    /// The whole topic, prefix included.
    pub topic: String,
    /// Its payload.
    pub payload: Bytes,
    /// The revision, if it is an index.
    pub index: Option<Revision>,
}

/// Letters in the order in which they are to leave.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: BTreeMap<i64, QueuedMessage>,
    places: HashMap<String, i64>,
    last: i64,
    /// Places below zero are of those that were put back.
    first: i64,
}

impl Outbox {
    /// Adds a letter at the end. One that waits on the same topic is dropped.
    pub fn push(&mut self, message: QueuedMessage) {
        self.last += 1;
        if let Some(before) = self.places.insert(message.topic.clone(), self.last) {
            self.waiting.remove(&before);
        }
        self.waiting.insert(self.last, message);
    }

    /// The next letter.
    pub fn pop(&mut self) -> Option<QueuedMessage> {
        let (_, message) = self.waiting.pop_first()?;
        self.places.remove(&message.topic);
        Some(message)
    }

    /// Puts a letter that did not leave back to its place, unless a newer one on its topic has come.
    pub fn put_back(&mut self, message: QueuedMessage) {
        if self.places.contains_key(&message.topic) {
            return;
        }
        self.first -= 1;
        self.places.insert(message.topic.clone(), self.first);
        self.waiting.insert(self.first, message);
    }

    /// Drops all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str, payload: &'static str) -> QueuedMessage {
        QueuedMessage { topic: topic.to_owned(), payload: payload.into(), index: None }
    }

    fn all(outbox: &mut Outbox) -> Vec<String> {
        std::iter::from_fn(|| outbox.pop())
            .map(|l| format!("{}={}", l.topic, String::from_utf8_lossy(&l.payload)))
            .collect()
    }

    #[test]
    fn newer_message_replaces_a_queued_one_and_is_last() {
        let mut outbox = Outbox::default();
        for (topic, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")] {
            outbox.push(message(topic, payload));
        }
        assert_eq!(all(&mut outbox), ["b=1", "a=2", "c=1"]);
        assert!(outbox.is_empty() && outbox.places.is_empty());
    }

    #[test]
    fn unsent_message_is_first_again_unless_a_newer_one_exists() {
        let mut outbox = Outbox::default();
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
    fn it_holds_one_letter_a_topic_whatever_is_said() {
        let mut outbox = Outbox::default();
        for n in 0..10_000 {
            outbox.push(message(["a", "b", "c"][n % 3], "x"));
        }
        assert_eq!((outbox.waiting.len(), outbox.places.len()), (3, 3));
    }
}
