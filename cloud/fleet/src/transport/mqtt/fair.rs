//! The messages of the nodes in fair order: one per node in turn, so that a node that sends many or
//! large messages delays only itself. While many messages of a node wait, a newer one on a topic
//! replaces the older: each is complete in itself. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};

use neptune_link::Message;
use neptune_wire::TopicPrefix;

/// Bytes that may wait per node. Further messages of the node are dropped; its agent repeats what
/// the controller lacks.
const MAX_NODE_BYTES: usize = 4 << 20;

/// Bytes that may wait in total. While there are more, nothing is read from the broker.
const MAX_BYTES: usize = 32 << 20;

/// Messages that may wait per node before newer ones replace older ones.
const MAX_UNREPLACED: usize = 64;

/// The bookkeeping of a message, as its share of the limits.
const OVERHEAD: usize = 256;

/// The received messages that wait to be processed.
#[derive(Debug, Default)]
pub struct FairQueue {
    prefix: TopicPrefix,
    nodes: BTreeMap<String, Inbox>,
    /// The nodes with messages, the next one first.
    turns: VecDeque<String>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inbox {
    /// The oldest messages, all of them. Further ones are below.
    unreplaced: VecDeque<Message>,
    order: VecDeque<String>,
    messages: HashMap<String, Message>,
    bytes: usize,
}

impl FairQueue {
    /// An empty queue of the messages under this prefix.
    pub fn new(prefix: TopicPrefix) -> Self {
        Self { prefix, ..Self::default() }
    }

    /// Adds a message. Returns whether there was room for it.
    pub fn push(&mut self, message: Message) -> bool {
        // Topics of other forms, which the subscription does not match, share an inbox.
        let sender = self.prefix.sender_of(&message.topic).unwrap_or_default();
        if !self.nodes.contains_key(sender) {
            self.turns.push_back(sender.to_owned());
            self.nodes.insert(sender.to_owned(), Inbox::default());
        }
        let inbox = self.nodes.get_mut(sender).expect("it was inserted");
        if inbox.order.is_empty() && inbox.unreplaced.len() < MAX_UNREPLACED {
            let new = size(&message);
            if inbox.bytes + new > MAX_NODE_BYTES && !inbox.is_empty() {
                return false;
            }
            inbox.bytes += new;
            self.bytes += new;
            inbox.unreplaced.push_back(message);
            return true;
        }
        let replaced = inbox.messages.get(&message.topic).map_or(0, size);
        let new = size(&message);
        if inbox.bytes - replaced + new > MAX_NODE_BYTES {
            return false;
        }
        inbox.bytes = inbox.bytes - replaced + new;
        self.bytes = self.bytes - replaced + new;
        if let Some(held) = inbox.messages.get_mut(&message.topic) {
            // A message that was sent just now is a sign of life, also if a replay follows it.
            *held = Message { retain: held.retain && message.retain, ..message };
        } else {
            inbox.order.push_back(message.topic.clone());
            inbox.messages.insert(message.topic.clone(), message);
        }
        true
    }

    /// Removes the next message. The nodes take turns.
    pub fn pop(&mut self) -> Option<Message> {
        let node = self.turns.pop_front()?;
        let inbox = self.nodes.get_mut(&node)?;
        let message = inbox.pop()?;
        inbox.bytes -= size(&message);
        self.bytes -= size(&message);
        if inbox.is_empty() {
            self.nodes.remove(&node);
        } else {
            self.turns.push_back(node);
        }
        Some(message)
    }

    /// Whether another message may be read from the broker.
    pub fn has_room(&self) -> bool {
        self.bytes < MAX_BYTES
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.unreplaced.is_empty() && self.order.is_empty()
    }

    fn pop(&mut self) -> Option<Message> {
        let oldest = self.unreplaced.pop_front();
        oldest.or_else(|| self.order.pop_front().and_then(|topic| self.messages.remove(&topic)))
    }
}

fn size(message: &Message) -> usize {
    2 * message.topic.len() + message.payload.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(node: &str, rest: &str, bytes: usize) -> Message {
        let topic = format!("neptune/{node}/upstream/{rest}");
        Message { topic, payload: vec![0; bytes].into(), retain: false }
    }

    #[test]
    fn noisy_node_delays_only_itself() {
        let mut queue = FairQueue::default();
        for n in 0..1000 {
            queue.push(message("noisy", &format!("a/models/m{n}/status"), 10));
        }
        queue.push(message("quiet", "sync", 10));
        let topics: Vec<_> =
            (0..2).filter_map(|_| queue.pop()).map(|message| message.topic).collect();
        assert_eq!(
            topics,
            ["neptune/noisy/upstream/a/models/m0/status", "neptune/quiet/upstream/sync"]
        );
    }

    #[test]
    fn each_node_has_its_own_inbox_for_any_name() {
        for prefix in ["neptune", "fleet/upstream-eu"] {
            let mut queue = FairQueue::new(prefix.parse().expect("a prefix"));
            let nodes = ["upstream-a", "upstream-b", "edge-upstream", "upstream"];
            for (node, rest) in nodes.into_iter().flat_map(|node| [(node, "sync"), (node, "node")])
            {
                let topic = format!("{prefix}/{node}/upstream/{rest}");
                let message = Message { topic, payload: Vec::new().into(), retain: false };
                assert!(queue.push(message));
            }
            let turns: Vec<_> = queue.turns.iter().map(String::as_str).collect();
            assert_eq!(turns, nodes, "{prefix}");
        }
    }

    #[test]
    fn newer_message_replaces_a_waiting_one_and_bytes_are_bounded() {
        let mut queue = FairQueue::default();
        for n in 0..100 {
            assert!(queue.push(message("edge0", "sync", n)));
        }
        let sizes: Vec<_> =
            std::iter::from_fn(|| queue.pop()).map(|message| message.payload.len()).collect();
        let (few, last) = sizes.split_at(MAX_UNREPLACED);
        assert!(few.iter().copied().eq(0..MAX_UNREPLACED), "few messages are all delivered");
        assert_eq!(last, [99]);
        assert!(queue.turns.is_empty() && queue.bytes == 0 && queue.nodes.is_empty());
        let invented =
            (0..100).map(|n| message("edge0", &format!("a/models/m{n}/status"), 1 << 20));
        let taken = invented.filter(|message| queue.push(message.clone())).count();
        assert_eq!(taken, 3, "of 1 MiB each");
        assert!(queue.push(message("edge1", "sync", 1 << 20)), "another node has its own room");
        assert!(queue.has_room());
        while queue.pop().is_some() {}
        assert_eq!(queue.bytes, 0);
    }
}
