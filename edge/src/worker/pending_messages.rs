//! Messages of workers whose containers no observation has shown yet, kept until one does. A worker
//! that publishes once and exits would otherwise be lost.

use std::collections::VecDeque;

use neptune_link::Message;

/// Messages that are kept at once. Whoever can publish could send any number.
const MAX_PENDING: usize = 64;

/// In the order in which they came.
#[derive(Debug, Default)]
pub struct PendingMessages(VecDeque<Message>);

impl PendingMessages {
    /// Keeps it. Returns the oldest if that has to go.
    pub fn push(&mut self, message: Message) -> Option<Message> {
        self.0.push_back(message);
        (self.0.len() > MAX_PENDING).then(|| self.0.pop_front()).flatten()
    }

    /// All of them, to be read again.
    pub fn drain(&mut self) -> VecDeque<Message> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_pending_messages_are_dropped_beyond_the_maximum() {
        let message =
            |n: usize| Message { topic: n.to_string(), payload: "".into(), retain: false };
        let mut pending = PendingMessages::default();
        let gone: Vec<_> = (0..MAX_PENDING + 2).filter_map(|n| pending.push(message(n))).collect();
        assert_eq!(gone, [message(0), message(1)]);
        assert!(pending.drain().into_iter().eq((2..MAX_PENDING + 2).map(message)));
        assert_eq!(pending.drain().len(), 0);
    }
}
