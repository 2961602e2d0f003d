//! The connection of one node's edgecore to cloudcore, and whether its messages arrive, arrive late
//! or are lost. Pure: the clock is an argument, and `node.rs` publishes the messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::pace::Pace;
use crate::random::Random;

/// A message of cloudcore to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Publish { topic: String, payload: Bytes },
    Subscribe(String),
    Unsubscribe(String),
}

impl Item {
    fn publications(&self) -> u64 {
        u64::from(matches!(self, Self::Publish { .. }))
    }
}

/// The next event of a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The item is due now.
    Now(T),
    /// Nothing is due before this time.
    At(Instant),
    /// Nothing is due before the next change.
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
    /// Packets are lost, and neither side notices.
    Silent {
        since: Instant,
    },
    /// Failed; edgehub reconnects by itself.
    Returning {
        at: Instant,
    },
}

/// The fate of an upstream message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// The message is in a socket's buffer on the node until [`Session::heal`].
    Stuck,
    Lost,
}

/// The effect of [`Session::heal`] on upstream messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Healed {
    /// The session survived: some of the stuck messages arrive late.
    Late,
    /// A new session: stuck and queued messages are lost.
    New,
    /// The session was up already.
    Already,
}

#[derive(Debug)]
struct Moving {
    item: Item,
    sent: Instant,
    due: Instant,
}

/// The session of one node with cloudcore.
#[derive(Debug)]
pub struct Session {
    pace: Pace,
    state: State,
    /// The number of this session. Messages of earlier sessions are lost.
    number: u64,
    moving: VecDeque<Moving>,
    lost: u64,
}

impl Session {
    /// Returns a session that is not connected.
    pub fn new(pace: Pace) -> Self {
        Self { pace, state: State::Down, number: 0, moving: VecDeque::new(), lost: 0 }
    }

    /// Whether the node is really connected.
    pub fn is_up(&mut self, now: Instant) -> bool {
        if let State::Returning { at } = self.state
            && at <= now
        {
            self.state = State::Up;
        }
        self.state == State::Up
    }

    /// When the node reconnects by itself; `None` if it does not.
    pub fn returns_at(&self) -> Option<Instant> {
        if let State::Returning { at } = self.state { Some(at) } else { None }
    }

    /// Whether the session appears up to cloudcore, which decides about POSTs.
    pub fn appears_up(&mut self, now: Instant) -> bool {
        match self.state {
            State::Silent { since } => {
                now.saturating_duration_since(since) < self.pace.session_timeout()
            }
            _ => self.is_up(now),
        }
    }

    /// The number of this session, for [`Session::fate`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The fate of a message that left the node in the session with this number and is due now.
    pub fn fate(&mut self, number: u64, now: Instant) -> Fate {
        if number != self.number {
            Fate::Lost
        } else if self.is_up(now) {
            Fate::Arrives
        } else if matches!(self.state, State::Silent { .. }) {
            Fate::Stuck
        } else {
            Fate::Lost
        }
    }

    /// Queues an item. Returns `false` if cloudcore knows no session.
    pub fn send(&mut self, item: Item, now: Instant, random: &mut Random) -> bool {
        if !self.appears_up(now) {
            return false;
        }
        let due = now + random.time(self.pace.transit());
        // Messages stay in order.
        let due = self.moving.back().map_or(due, |before| due.max(before.due));
        self.moving.push_back(Moving { item, sent: now, due });
        true
    }

    /// The next item that arrives at the node.
    pub fn next(&mut self, now: Instant) -> Next<Item> {
        if !self.is_up(now) {
            return self.returns_at().map_or(Next::Idle, Next::At);
        }
        // No message was measured to be later than this.
        let max_delay = self.pace.max_delay();
        while self.moving.front().is_some_and(|moving| moving.sent + max_delay < now) {
            let too_late = self.moving.pop_front();
            self.lost += too_late.map_or(0, |moving| moving.item.publications());
        }
        match self.moving.front() {
            None => Next::Idle,
            Some(moving) if moving.due > now => Next::At(moving.due),
            Some(_) => Next::Now(self.moving.pop_front().expect("it has a front").item),
        }
    }

    /// Publications that were answered with 200 and lost, since the start.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Breaks the connection; both sides notice.
    pub fn cut(&mut self) {
        self.drop_moving(0);
        self.number += 1;
        self.state = State::Down;
    }

    /// Silences the connection; neither side notices. Has no effect on a session that is not up.
    pub fn partition(&mut self, now: Instant) {
        if self.is_up(now) {
            self.state = State::Silent { since: now };
        }
    }

    /// Repairs the network. After a cut the node reconnects at once. After silence the session
    /// survives if it still appears up to cloudcore, else edgehub needs up to 30 s to reconnect. Of
    /// the messages that were sent into the silence, a random number of the oldest arrives at most
    /// 56 s late; the rest is lost.
    pub fn heal(&mut self, now: Instant, random: &mut Random) -> Healed {
        let State::Silent { since } = self.state else {
            if self.is_up(now) {
                return Healed::Already;
            }
            self.state = State::Up;
            return Healed::New;
        };
        let kept = random.up_to(self.moving.len());
        self.drop_moving(kept);
        self.delay_moving(now, now.saturating_duration_since(since), random);
        if self.appears_up(now) {
            self.state = State::Up;
            return Healed::Late;
        }
        self.number += 1;
        self.state = State::Returning { at: now + random.time(self.pace.reconnect()) };
        Healed::New
    }

    /// Restarts cloudcore: messages in transit are lost, and edgehub reconnects by itself unless
    /// the node is cut.
    pub fn cloudcore_restarted(&mut self, now: Instant, random: &mut Random) {
        let was_up = self.is_up(now) || self.returns_at().is_some();
        let was_silent = matches!(self.state, State::Silent { .. });
        self.cut();
        if was_up {
            let away = self.pace.cloudcore_down() + random.time(self.pace.reconnect());
            self.state = State::Returning { at: now + away };
        } else if was_silent {
            // Still silent, and the new cloudcore knows no session.
            let since = now.checked_sub(self.pace.session_timeout()).unwrap_or(now);
            self.state = State::Silent { since };
        }
    }

    /// TCP retransmits with backoff: messages arrive up to as long after the silence as it lasted.
    fn delay_moving(&mut self, now: Instant, silence: Duration, random: &mut Random) {
        let due = now + random.time(Duration::ZERO..=silence.min(self.pace.session_timeout()));
        for moving in &mut self.moving {
            moving.due = moving.due.max(due);
        }
    }

    fn drop_moving(&mut self, kept: usize) {
        for moving in self.moving.drain(kept..) {
            self.lost += moving.item.publications();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Fixture {
        session: Session,
        random: Random,
        start: Instant,
    }

    impl Fixture {
        fn up(seed: u64) -> Self {
            let (mut session, mut random) =
                (Session::new(Pace::new(1.0).unwrap()), Random::new(seed, ""));
            let start = Instant::now() + 1000 * SECOND;
            assert_eq!(session.heal(start, &mut random), Healed::New);
            Self { session, random, start }
        }

        /// Sends a message with the number of the second.
        fn send(&mut self, second: u32) -> bool {
            let item = Item::Publish { topic: second.to_string(), payload: Bytes::new() };
            self.session.send(item, self.start + second * SECOND, &mut self.random)
        }

        fn heal(&mut self, second: u32) -> Healed {
            self.session.heal(self.start + second * SECOND, &mut self.random)
        }

        /// The messages that arrive until a second, and the second of each.
        fn arrivals(&mut self, until: u32) -> Vec<(u32, u64)> {
            let (mut now, mut arrivals) = (self.start, Vec::new());
            loop {
                match self.session.next(now) {
                    Next::Now(Item::Publish { topic, .. }) => {
                        arrivals.push((topic.parse().unwrap(), (now - self.start).as_secs()));
                    }
                    Next::Now(_) => {}
                    Next::At(at) if at <= self.start + until * SECOND => now = at,
                    _ => return arrivals,
                }
            }
        }
    }

    #[test]
    fn messages_arrive_in_order_while_connected() {
        let mut fixture = Fixture::up(1);
        for _ in 0..300 {
            assert!(fixture.send(0));
        }
        assert_eq!(fixture.arrivals(1).len(), 300);
        assert_eq!(fixture.session.lost(), 0);
    }

    #[test]
    fn cut_loses_messages_in_transit_and_ends_the_session() {
        let mut fixture = Fixture::up(1);
        assert!(fixture.send(0));
        let number = fixture.session.number();
        fixture.session.cut();
        assert!(!fixture.send(1));
        assert_eq!(fixture.heal(2), Healed::New);
        assert_eq!(fixture.arrivals(100), []);
        assert_eq!(fixture.session.lost(), 1);
        assert_eq!(fixture.session.fate(number, fixture.start + 3 * SECOND), Fate::Lost);
        assert!(fixture.send(3));
    }

    #[test]
    fn silent_session_accepts_messages_for_thirty_seconds() {
        let mut fixture = Fixture::up(1);
        fixture.session.partition(fixture.start);
        let taken: Vec<_> = (0..60).filter(|second| fixture.send(*second)).collect();
        assert_eq!(taken, (0..30).collect::<Vec<_>>());
        assert_eq!(fixture.arrivals(60), []);
    }

    #[test]
    fn messages_after_a_silence_are_up_to_56_s_late_or_lost() {
        let (mut most, mut fewest, mut max_delay) = (0, usize::MAX, 0);
        for seed in 0..200 {
            let mut fixture = Fixture::up(seed);
            fixture.session.partition(fixture.start);
            let taken = (0..60).filter(|second| fixture.send(*second)).count();
            assert_eq!(fixture.heal(60), Healed::New);
            let arrived = fixture.arrivals(200);
            let numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
            assert!(numbers.is_sorted());
            assert_eq!(numbers.len() as u64 + fixture.session.lost(), taken as u64);
            most = most.max(numbers.len());
            fewest = fewest.min(numbers.len());
            max_delay = arrived
                .iter()
                .map(|(sent, at)| at - u64::from(*sent))
                .max()
                .unwrap_or(0)
                .max(max_delay);
        }
        assert!(most > 10 && fewest == 0, "{fewest} to {most}");
        assert!((50..=56).contains(&max_delay), "{max_delay}");
    }

    #[test]
    fn short_silence_does_not_end_the_session() {
        let mut fixture = Fixture::up(3);
        let number = fixture.session.number();
        fixture.session.partition(fixture.start);
        assert_eq!(fixture.session.fate(number, fixture.start + SECOND), Fate::Stuck);
        assert_eq!(fixture.heal(10), Healed::Late);
        assert_eq!(fixture.session.fate(number, fixture.start + 10 * SECOND), Fate::Arrives);
    }

    #[test]
    fn session_that_died_in_silence_reconnects_within_thirty_seconds() {
        for seed in 0..50 {
            let mut fixture = Fixture::up(seed);
            fixture.session.partition(fixture.start);
            assert_eq!(fixture.heal(40), Healed::New);
            assert!(fixture.session.is_up(fixture.start + 70 * SECOND));
        }
    }

    #[test]
    fn restarted_cloudcore_reconnects_only_sessions_that_were_up() {
        let mut fixture = Fixture::up(1);
        assert!(fixture.send(0));
        fixture.session.cloudcore_restarted(fixture.start, &mut fixture.random);
        assert!(!fixture.send(1));
        assert!(fixture.session.is_up(fixture.start + 32 * SECOND));
        assert_eq!(fixture.arrivals(100), []);
        fixture.session.cut();
        fixture.session.cloudcore_restarted(fixture.start, &mut fixture.random);
        assert!(!fixture.session.is_up(fixture.start + 100 * SECOND));
    }
}
