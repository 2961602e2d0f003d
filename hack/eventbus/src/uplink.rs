//! The queue of a node's upstream messages and its rate limit: 30 per second, bursts of 60, in no
//! strict order. Pure: the clock is an argument, and `node.rs` posts the messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::pace::{BURST, Pace};
use crate::random::Random;
use crate::session::Next;

/// The next message is one of the first in the queue, up to this number. With it, about 200 of 600
/// messages arrive after one that was published later; 190 were measured.
const WINDOW: usize = 3;

/// A message that EventBus received from the node's broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Bytes,
}

/// One node's queue and rate limit.
#[derive(Debug)]
pub struct Uplink {
    /// Maximum rate in messages per second.
    rate: f64,
    tokens: f64,
    counted: Instant,
    waiting: VecDeque<Message>,
    /// Sent into a silent connection.
    stuck: Vec<Message>,
    lost: u64,
}

impl Uplink {
    /// Empty, with a whole burst available.
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self {
            rate: pace.rate(),
            tokens: BURST,
            counted: now,
            waiting: VecDeque::new(),
            stuck: Vec::new(),
            lost: 0,
        }
    }

    /// Adds a message of EventBus. Without a session it is lost.
    pub fn push(&mut self, message: Message, is_connected: bool) {
        if is_connected {
            self.waiting.push_back(message);
        } else {
            self.lost += 1;
        }
    }

    /// The next message that leaves the node.
    pub fn next(&mut self, now: Instant, random: &mut Random) -> Next<Message> {
        let elapsed = now.saturating_duration_since(self.counted).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.rate).min(BURST);
        self.counted = now;
        if self.waiting.is_empty() {
            return Next::Idle;
        }
        if self.tokens < 1.0 {
            // Rounded up: a wait of zero for a tiny remainder would loop indefinitely.
            let wait = Duration::from_secs_f64((1.0 - self.tokens) / self.rate);
            return Next::At(now + wait + Duration::from_micros(1));
        }
        self.tokens -= 1.0;
        let chosen = random.up_to((self.waiting.len() - 1).min(WINDOW - 1));
        Next::Now(self.waiting.remove(chosen).expect("the index is in the queue"))
    }

    /// Adds a message that left the node into silence.
    pub fn stuck(&mut self, message: Message) {
        self.stuck.push(message);
    }

    /// Counts a message that left the node and is lost.
    pub fn count_lost(&mut self) {
        self.lost += 1;
    }

    /// The session survived the silence: returns a random number of the oldest stuck messages; the
    /// rest is lost.
    pub fn release_stuck(&mut self, random: &mut Random) -> Vec<Message> {
        let kept = random.up_to(self.stuck.len());
        self.lost += (self.stuck.len() - kept) as u64;
        let mut stuck = std::mem::take(&mut self.stuck);
        stuck.truncate(kept);
        stuck
    }

    /// The session or edgecore has ended: loses all messages.
    pub fn clear(&mut self) {
        self.lost += (self.waiting.len() + self.stuck.len()) as u64;
        self.waiting.clear();
        self.stuck.clear();
    }

    /// Number of lost messages since the start.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn message(n: usize) -> Message {
        Message { topic: n.to_string(), payload: Bytes::new() }
    }

    fn filled(messages: usize, now: Instant) -> Uplink {
        let mut uplink = Uplink::new(Pace::new(1.0).unwrap(), now);
        (0..messages).for_each(|n| uplink.push(message(n), true));
        uplink
    }

    /// The numbers of the messages in the order in which they leave, and the time of the last.
    fn drain(uplink: &mut Uplink, start: Instant) -> (Vec<usize>, Duration) {
        let (mut random, mut now, mut left) = (Random::new(1, ""), start, Vec::new());
        loop {
            match uplink.next(now, &mut random) {
                Next::Now(message) => left.push(message.topic.parse().unwrap()),
                Next::At(at) => now = at,
                Next::Idle => return (left, now - start),
            }
        }
    }

    #[test]
    fn six_hundred_messages_take_eighteen_seconds_and_leave_out_of_order() {
        let start = Instant::now();
        let (left, took) = drain(&mut filled(600, start), start);
        assert!((17.9..18.1).contains(&took.as_secs_f64()), "{took:?}");
        let inversions = left.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((160..=230).contains(&inversions), "{inversions}");
        let mut sorted = left.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..600).collect::<Vec<_>>());
    }

    #[test]
    fn burst_is_sixty_after_any_pause() {
        let start = Instant::now();
        let mut uplink = filled(100, start);
        let later = start + Duration::from_secs(1000);
        let mut random = Random::new(1, "");
        let at_once = std::iter::from_fn(|| {
            matches!(uplink.next(later, &mut random), Next::Now(_)).then_some(())
        });
        assert_eq!(at_once.count(), 60);
    }

    #[test]
    fn queued_and_stuck_messages_are_lost_with_the_session() {
        let start = Instant::now();
        let mut uplink = filled(5, start);
        uplink.stuck(message(9));
        uplink.push(message(10), false);
        uplink.clear();
        assert_eq!(uplink.lost(), 7);
        assert_eq!(uplink.next(start, &mut Random::new(1, "")), Next::Idle);
    }

    #[test]
    fn oldest_stuck_messages_arrive_and_the_rest_is_lost() {
        let (mut most, mut random) = (0, Random::new(1, ""));
        for _ in 0..100 {
            let mut uplink = filled(0, Instant::now());
            (0..10).for_each(|n| uplink.stuck(message(n)));
            let late = uplink.release_stuck(&mut random);
            assert_eq!(late, (0..late.len()).map(message).collect::<Vec<_>>());
            assert_eq!(late.len() as u64 + uplink.lost(), 10);
            most = most.max(late.len());
        }
        assert_eq!(most, 10);
    }
}
