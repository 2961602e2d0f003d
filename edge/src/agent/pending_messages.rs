//! Keeps messages of workers whose containers were not observed yet, until an observation includes
//! them. Otherwise the only message of a short-lived worker would be lost.

use std::collections::VecDeque;

use neptune_link::Message;

/// Maximum number of kept messages, since any client of the broker can publish.
const MAX_PENDING: usize = 64;

/// The messages in the order of arrival.
#[derive(Debug, Default)]
pub struct PendingMessages(VecDeque<Message>);

impl PendingMessages {
    /// Adds a message. Returns the oldest one if it was removed to make room.
    pub fn push(&mut self, message: Message) -> Option<Message> {
        self.0.push_back(message);
        (self.0.len() > MAX_PENDING).then(|| self.0.pop_front()).flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all messages.
    pub fn drain(&mut self) -> VecDeque<Message> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_messages_beyond_the_limit_are_returned() {
        let message =
            |n: usize| Message { topic: n.to_string(), payload: "".into(), retain: false };
        let mut pending = PendingMessages::default();
        let removed: Vec<_> =
            (0..MAX_PENDING + 2).filter_map(|n| pending.push(message(n))).collect();
        assert_eq!(removed, [message(0), message(1)]);
        assert!(pending.drain().into_iter().eq((2..MAX_PENDING + 2).map(message)));
        assert_eq!(pending.drain().len(), 0);
    }
}
