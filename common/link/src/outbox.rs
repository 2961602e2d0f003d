//! Decides which message is sent next and which are unacknowledged: messages wait, are in flight on
//! the current connection, and are settled by the acknowledgement of the broker. The connection
//! sends them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::Message;

/// Maximum number of messages in flight on a connection. Brokers acknowledge within a round trip,
/// so this allows 1,000 messages per second with a round-trip time of 100 ms.
pub const WINDOW: usize = 100;

/// Sequence number of a message: increases with each publish and, unlike packet identifiers, is
/// valid across connections.
pub type Seq = u64;

/// The messages that the broker has not acknowledged yet.
///
/// At most one message per topic waits, and at most [`WINDOW`] are in flight.
#[derive(Debug, Default)]
pub struct Outbox {
    newest: Seq,
    waiting: BTreeMap<Seq, Waiting>,
    /// The sequence number of the waiting message of a topic.
    waiting_on: HashMap<String, Seq>,
    /// In the order in which they were handed to the connection, which assigns packet identifiers
    /// in the same order. Acknowledged messages stay until all before them are acknowledged: this
    /// is a sliding window, in which a packet identifier is not reused before it is free.
    in_flight: VecDeque<InFlight>,
    /// For each message here, the oldest publish call whose message it replaces, or its own.
    unsettled: BTreeSet<Seq>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    /// The oldest publish call whose message this one replaces, or its own.
    since: Seq,
}

#[derive(Debug)]
struct InFlight {
    seq: Seq,
    since: Seq,
    message: Message,
    packet_id: Option<u16>,
    acknowledged: bool,
}

impl Outbox {
    /// Adds a message at the end. It replaces a waiting message on the same topic.
    pub fn push(&mut self, message: Message) {
        self.newest += 1;
        let seq = self.newest;
        let replaced = self
            .waiting_on
            .insert(message.topic.clone(), seq)
            .and_then(|old| self.waiting.remove(&old));
        let since = replaced.map_or(seq, |old| old.since);
        self.unsettled.insert(since);
        self.waiting.insert(seq, Waiting { message, since });
    }

    /// Returns the next message for the connection, if the window has room. It is in flight from
    /// now on.
    pub fn hand_over(&mut self) -> Option<Message> {
        if self.in_flight.len() >= WINDOW {
            return None;
        }
        let (seq, Waiting { message, since }) = self.waiting.pop_first()?;
        self.waiting_on.remove(&message.topic);
        let handed = message.clone();
        self.in_flight.push_back(InFlight {
            seq,
            since,
            message,
            packet_id: None,
            acknowledged: false,
        });
        Some(handed)
    }

    /// The connection assigned this packet identifier to the oldest message in flight without one.
    pub fn numbered(&mut self, packet_id: u16) {
        let first = self.in_flight.partition_point(|sent| sent.packet_id.is_some());
        if let Some(sent) = self.in_flight.get_mut(first) {
            sent.packet_id = Some(packet_id);
        }
    }

    /// The broker acknowledged this packet.
    pub fn acknowledged(&mut self, packet_id: u16) {
        let sent = self
            .in_flight
            .iter_mut()
            .find(|sent| sent.packet_id == Some(packet_id) && !sent.acknowledged);
        if let Some(sent) = sent {
            sent.acknowledged = true;
            self.unsettled.remove(&sent.since);
        }
        while self.in_flight.front().is_some_and(|sent| sent.acknowledged) {
            self.in_flight.pop_front();
        }
    }

    /// The connection is lost: messages in flight wait again at their old position, unless a newer
    /// message on the topic waits.
    pub fn connection_lost(&mut self) {
        // Newest first, so that of two messages on one topic the newer is seen first.
        for lost in
            std::mem::take(&mut self.in_flight).into_iter().rev().filter(|sent| !sent.acknowledged)
        {
            if let Some(newer) = self.waiting_on.get(&lost.message.topic) {
                let newer =
                    self.waiting.get_mut(newer).expect("waiting_on names only waiting messages");
                self.unsettled.remove(&newer.since);
                newer.since = lost.since;
            } else {
                self.waiting_on.insert(lost.message.topic.clone(), lost.seq);
                self.waiting.insert(lost.seq, Waiting { message: lost.message, since: lost.since });
            }
        }
    }

    /// Returns the sequence number of the latest message.
    pub fn newest(&self) -> Seq {
        self.newest
    }

    /// Returns the number of messages that are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unsettled.len()
    }

    /// Returns whether each message up to this number is acknowledged, itself or its replacement.
    pub fn is_settled_up_to(&self, seq: Seq) -> bool {
        self.unsettled.first().is_none_or(|oldest| *oldest > seq)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn message(topic: &str, payload: &'static str) -> Message {
        Message { topic: topic.into(), payload: payload.into(), retain: false }
    }

    fn outbox(messages: &[(&str, &'static str)]) -> Outbox {
        let mut outbox = Outbox::default();
        for (topic, payload) in messages {
            outbox.push(message(topic, payload));
        }
        outbox
    }

    fn hand_over_all(outbox: &mut Outbox) -> Vec<String> {
        std::iter::from_fn(|| outbox.hand_over())
            .map(|m| format!("{}={}", m.topic, String::from_utf8(m.payload.to_vec()).unwrap()))
            .collect()
    }

    #[test]
    fn newer_message_replaces_a_waiting_one_and_is_sent_last() {
        let mut outbox = outbox(&[("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")]);
        assert_eq!(hand_over_all(&mut outbox), ["b=1", "a=2", "c=1"]);
    }

    #[test]
    fn message_in_flight_is_not_replaced() {
        let mut outbox = outbox(&[("a", "1")]);
        assert_eq!(hand_over_all(&mut outbox), ["a=1"]);
        outbox.push(message("a", "2"));
        assert_eq!(hand_over_all(&mut outbox), ["a=2"]);
    }

    #[test]
    fn messages_in_flight_are_resent_first_and_in_order_after_a_loss() {
        let mut outbox = outbox(&[("a", "1"), ("b", "1"), ("c", "1")]);
        hand_over_all(&mut outbox);
        for packet_id in 1..=2 {
            outbox.numbered(packet_id);
        }
        outbox.push(message("d", "1"));
        outbox.acknowledged(2);
        outbox.connection_lost();
        assert_eq!(hand_over_all(&mut outbox), ["a=1", "c=1", "d=1"]);
    }

    #[test]
    fn newer_message_replaces_an_unacknowledged_one_after_a_loss() {
        let mut outbox = outbox(&[("a", "1"), ("b", "1")]);
        hand_over_all(&mut outbox);
        outbox.push(message("a", "2"));
        assert_eq!(hand_over_all(&mut outbox), ["a=2"]);
        outbox.push(message("b", "2"));
        outbox.connection_lost();
        assert_eq!(hand_over_all(&mut outbox), ["a=2", "b=2"]);
    }

    #[test]
    fn window_is_limited_by_the_oldest_unacknowledged_message() {
        let mut outbox = Outbox::default();
        for n in 0..=WINDOW {
            outbox.push(message(&format!("topic/{n}"), ""));
        }
        assert_eq!(hand_over_all(&mut outbox).len(), WINDOW);
        (1..=100).for_each(|packet_id| outbox.numbered(packet_id));
        outbox.acknowledged(2);
        assert_eq!(hand_over_all(&mut outbox).len(), 0, "packet 1 still holds the window");
        outbox.acknowledged(1);
        assert_eq!(hand_over_all(&mut outbox).len(), 1);
    }

    #[test]
    fn reused_packet_id_settles_its_current_message() {
        let mut outbox = outbox(&[("a", "1")]);
        hand_over_all(&mut outbox);
        outbox.numbered(1);
        outbox.acknowledged(1);
        outbox.push(message("b", "1"));
        hand_over_all(&mut outbox);
        outbox.acknowledged(1);
        assert!(!outbox.is_settled_up_to(2), "b has no packet identifier yet");
        outbox.numbered(1);
        outbox.acknowledged(1);
        assert!(outbox.is_settled_up_to(2));
    }

    #[test]
    fn unacknowledged_messages_are_counted_once_per_topic_that_waits() {
        let mut outbox = outbox(&[("a", "1"), ("b", "1"), ("a", "2")]);
        assert_eq!(outbox.unacknowledged(), 2, "the second message on a replaces the first");
        hand_over_all(&mut outbox);
        outbox.push(message("a", "3"));
        assert_eq!(outbox.unacknowledged(), 3, "a message in flight is not replaced");
        outbox.numbered(1);
        outbox.numbered(2);
        outbox.acknowledged(2);
        assert_eq!(outbox.unacknowledged(), 2, "b is in flight, and one on a waits");
        outbox.connection_lost();
        hand_over_all(&mut outbox);
        outbox.numbered(1);
        outbox.acknowledged(1);
        outbox.numbered(2);
        outbox.acknowledged(2);
        assert_eq!(outbox.unacknowledged(), 0);
    }

    #[test]
    fn replaced_message_is_settled_by_its_replacement() {
        let mut outbox = outbox(&[("a", "1"), ("b", "1")]);
        let before = outbox.newest();
        outbox.push(message("a", "2"));
        assert_eq!(hand_over_all(&mut outbox), ["b=1", "a=2"]);
        outbox.numbered(1);
        outbox.acknowledged(1);
        assert!(!outbox.is_settled_up_to(before));
        outbox.connection_lost();
        outbox.push(message("a", "3"));
        hand_over_all(&mut outbox);
        outbox.numbered(1);
        assert!(!outbox.is_settled_up_to(before));
        outbox.acknowledged(1);
        assert!(outbox.is_settled_up_to(before));
        assert!(outbox.is_settled_up_to(outbox.newest()));
        assert!(outbox.unsettled.is_empty() && outbox.waiting_on.is_empty());
    }
}
