//! What waits on a node for the cloud, and when it may go: 30 a second, 60 at once, in no strict order. Pure: the clock is
//! an argument, and who posts what leaves is left to `node.rs`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::pace::{BURST, Pace};
use crate::random::Random;
use crate::session::Next;

/// The next to go is any of the first so many. It makes about 200 of 600 messages arrive after one that was published
/// later; 190 were seen.
const WINDOW: usize = 3;

/// What EventBus took from the node's broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Bytes,
}

/// One node's queue and its rate.
#[derive(Debug)]
pub struct Uplink {
    /// Messages a second.
    rate: f64,
    tokens: f64,
    counted: Instant,
    waiting: VecDeque<Message>,
    /// Written into a connection that has fallen silent.
    stuck: Vec<Message>,
    lost: u64,
}

impl Uplink {
    /// Rested: a whole burst may go.
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

    /// EventBus took a message; with no session it is lost.
    pub fn push(&mut self, message: Message, is_connected: bool) {
        if is_connected {
            self.waiting.push_back(message);
        } else {
            self.lost += 1;
        }
    }

    /// What leaves the node.
    pub fn next(&mut self, now: Instant, random: &mut Random) -> Next<Message> {
        let rested = now.saturating_duration_since(self.counted).as_secs_f64();
        self.tokens = (self.tokens + rested * self.rate).min(BURST);
        self.counted = now;
        if self.waiting.is_empty() {
            return Next::Idle;
        }
        if self.tokens < 1.0 {
            // Rounded up, or the last billionth of a message would be waited for in no time, for ever.
            let wait = Duration::from_secs_f64((1.0 - self.tokens) / self.rate);
            return Next::At(now + wait + Duration::from_micros(1));
        }
        self.tokens -= 1.0;
        let chosen = random.up_to((self.waiting.len() - 1).min(WINDOW - 1));
        Next::Now(self.waiting.remove(chosen).expect("chosen among those that wait"))
    }

    /// It left, but nobody knows that nothing passes.
    pub fn stuck(&mut self, message: Message) {
        self.stuck.push(message);
    }

    /// Left, and will never arrive.
    pub fn count_lost(&mut self) {
        self.lost += 1;
    }

    /// The session lived through the silence: the oldest of what is stuck arrive now, the rest never, as many as
    /// chance has it.
    pub fn unstick(&mut self, random: &mut Random) -> Vec<Message> {
        let kept = random.up_to(self.stuck.len());
        self.lost += (self.stuck.len() - kept) as u64;
        let mut stuck = std::mem::take(&mut self.stuck);
        stuck.truncate(kept);
        stuck
    }

    /// The session is over, or edgecore: everything is lost.
    pub fn clear(&mut self) {
        self.lost += (self.waiting.len() + self.stuck.len()) as u64;
        self.waiting.clear();
        self.stuck.clear();
    }

    /// Messages that EventBus took and nobody will get, since the start.
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

    /// Numbers in the order in which they leave, and when the last one leaves.
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
    fn sixty_go_at_once_after_a_rest_however_long() {
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
    fn what_waits_or_is_stuck_is_lost_with_the_session() {
        let start = Instant::now();
        let mut uplink = filled(5, start);
        uplink.stuck(message(9));
        uplink.push(message(10), false);
        uplink.clear();
        assert_eq!(uplink.lost(), 7);
        assert_eq!(uplink.next(start, &mut Random::new(1, "")), Next::Idle);
    }

    #[test]
    fn of_what_is_stuck_the_oldest_arrive_and_the_rest_are_lost() {
        let (mut most, mut random) = (0, Random::new(1, ""));
        for _ in 0..100 {
            let mut uplink = filled(0, Instant::now());
            (0..10).for_each(|n| uplink.stuck(message(n)));
            let late = uplink.unstick(&mut random);
            assert_eq!(late, (0..late.len()).map(message).collect::<Vec<_>>());
            assert_eq!(late.len() as u64 + uplink.lost(), 10);
            most = most.max(late.len());
        }
        assert_eq!(most, 10);
    }
}
