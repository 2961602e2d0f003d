//! The connection of one node's edgecore with cloudcore, and the fate of what goes down it: arrives, arrives late, or
//! never. Pure: the clock is an argument, and who publishes what arrives is left to `node.rs`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::pace::Pace;
use crate::random::Random;

/// What cloudcore sends to a node.
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

/// What happens next on the way.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Now.
    Now(T),
    /// Not before then.
    At(Instant),
    /// Not before something changes.
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
    /// Packets vanish, nobody is told.
    Silent {
        since: Instant,
    },
    /// Dead; edgehub will be back by itself.
    Returning {
        at: Instant,
    },
}

/// How a way up ended that began in an earlier state of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// It stands in a socket's buffer on the node, until [`Session::heal`] tells.
    Stuck,
    Lost,
}

/// What a [`Session::heal`] means for the way up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Healed {
    /// The session lived through it: some of what is stuck arrives late.
    Late,
    /// A new session: what is stuck or waits is lost.
    New,
    /// There was nothing to heal.
    Already,
}

#[derive(Debug)]
struct Moving {
    item: Item,
    sent: Instant,
    due: Instant,
}

/// One node's session.
#[derive(Debug)]
pub struct Session {
    pace: Pace,
    state: State,
    /// Counts the sessions: what was on the way in an earlier one is lost.
    number: u64,
    moving: VecDeque<Moving>,
    lost: u64,
}

impl Session {
    /// Not connected.
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

    /// When it will be up by itself, if nobody touches it.
    pub fn returns_at(&self) -> Option<Instant> {
        if let State::Returning { at } = self.state { Some(at) } else { None }
    }

    /// Whether cloudcore believes that the node is connected: that is what a POST asks.
    pub fn looks_up(&mut self, now: Instant) -> bool {
        match self.state {
            State::Silent { since } => now.saturating_duration_since(since) < self.pace.blind(),
            _ => self.is_up(now),
        }
    }

    /// The number of this session, for [`Session::fate`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What becomes of a message that left the node in the session with this number, and would arrive now.
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

    /// Sends; `false` if cloudcore knows no session. `true` means queued, nothing more.
    pub fn send(&mut self, item: Item, now: Instant, random: &mut Random) -> bool {
        if !self.looks_up(now) {
            return false;
        }
        let due = now + random.time(self.pace.transit());
        // Nothing overtakes.
        let due = self.moving.back().map_or(due, |before| due.max(before.due));
        self.moving.push_back(Moving { item, sent: now, due });
        true
    }

    /// What arrives at the node.
    pub fn next(&mut self, now: Instant) -> Next<Item> {
        if !self.is_up(now) {
            return self.returns_at().map_or(Next::Idle, Next::At);
        }
        // Nothing was ever seen to come later than this.
        let latest = self.pace.latest();
        while self.moving.front().is_some_and(|moving| moving.sent + latest < now) {
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

    /// The connection breaks, and both sides know.
    pub fn cut(&mut self) {
        self.drop_moving(0);
        self.number += 1;
        self.state = State::Down;
    }

    /// The connection falls silent: nobody knows. Nothing happens to a session that is not up.
    pub fn partition(&mut self, now: Instant) {
        if self.is_up(now) {
            self.state = State::Silent { since: now };
        }
    }

    /// The network works again. After a cut the node is back at once. After silence it depends: while the cloud still
    /// believed in the session, it lives on, else edgehub needs up to 30 s to notice and come back. Of what was sent
    /// into the silence, as many of the oldest as chance has it come late, at most 56 s; the rest never.
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
        if self.looks_up(now) {
            self.state = State::Up;
            return Healed::Late;
        }
        self.number += 1;
        self.state = State::Returning { at: now + random.time(self.pace.reconnect()) };
        Healed::New
    }

    /// Cloudcore is restarted: what was on the way is lost, and edgehub comes back by itself, if it can.
    pub fn cloudcore_restarted(&mut self, now: Instant, random: &mut Random) {
        let was_up = self.is_up(now) || self.returns_at().is_some();
        let was_silent = matches!(self.state, State::Silent { .. });
        self.cut();
        if was_up {
            let away = self.pace.cloudcore_down() + random.time(self.pace.reconnect());
            self.state = State::Returning { at: now + away };
        } else if was_silent {
            // Still silent, but the new cloudcore does not believe in it.
            let since = now.checked_sub(self.pace.blind()).unwrap_or(now);
            self.state = State::Silent { since };
        }
    }

    /// TCP sends again ever more slowly: up to as long after the silence as it lasted.
    fn delay_moving(&mut self, now: Instant, silence: Duration, random: &mut Random) {
        let due = now + random.time(Duration::ZERO..=silence.min(self.pace.blind()));
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

    struct Bed {
        session: Session,
        random: Random,
        start: Instant,
    }

    impl Bed {
        fn up(seed: u64) -> Self {
            let (mut session, mut random) =
                (Session::new(Pace::new(1.0).unwrap()), Random::new(seed, ""));
            let start = Instant::now() + 1000 * SECOND;
            assert_eq!(session.heal(start, &mut random), Healed::New);
            Self { session, random, start }
        }

        /// Sends the number of the second.
        fn send(&mut self, second: u32) -> bool {
            let item = Item::Publish { topic: second.to_string(), payload: Bytes::new() };
            self.session.send(item, self.start + second * SECOND, &mut self.random)
        }

        fn heal(&mut self, second: u32) -> Healed {
            self.session.heal(self.start + second * SECOND, &mut self.random)
        }

        /// What arrives until then, and at which second.
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
        let mut bed = Bed::up(1);
        for _ in 0..300 {
            assert!(bed.send(0));
        }
        assert_eq!(bed.arrivals(1).len(), 300);
        assert_eq!(bed.session.lost(), 0);
    }

    #[test]
    fn a_cut_loses_what_is_on_the_way_and_ends_the_session() {
        let mut bed = Bed::up(1);
        assert!(bed.send(0));
        let number = bed.session.number();
        bed.session.cut();
        assert!(!bed.send(1));
        assert_eq!(bed.heal(2), Healed::New);
        assert_eq!(bed.arrivals(100), []);
        assert_eq!(bed.session.lost(), 1);
        assert_eq!(bed.session.fate(number, bed.start + 3 * SECOND), Fate::Lost);
        assert!(bed.send(3));
    }

    #[test]
    fn a_silent_session_takes_messages_for_thirty_seconds() {
        let mut bed = Bed::up(1);
        bed.session.partition(bed.start);
        let taken: Vec<_> = (0..60).filter(|second| bed.send(*second)).collect();
        assert_eq!(taken, (0..30).collect::<Vec<_>>());
        assert_eq!(bed.arrivals(60), []);
    }

    #[test]
    fn after_a_silence_messages_come_up_to_56_s_late_or_never() {
        let (mut most, mut fewest, mut latest) = (0, usize::MAX, 0);
        for seed in 0..200 {
            let mut bed = Bed::up(seed);
            bed.session.partition(bed.start);
            let taken = (0..60).filter(|second| bed.send(*second)).count();
            assert_eq!(bed.heal(60), Healed::New);
            let arrived = bed.arrivals(200);
            let numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
            assert!(numbers.is_sorted());
            assert_eq!(numbers.len() as u64 + bed.session.lost(), taken as u64);
            most = most.max(numbers.len());
            fewest = fewest.min(numbers.len());
            latest = arrived
                .iter()
                .map(|(sent, at)| at - u64::from(*sent))
                .max()
                .unwrap_or(0)
                .max(latest);
        }
        assert!(most > 10 && fewest == 0, "{fewest} to {most}");
        assert!((50..=56).contains(&latest), "{latest}");
    }

    #[test]
    fn a_short_silence_does_not_end_the_session() {
        let mut bed = Bed::up(3);
        let number = bed.session.number();
        bed.session.partition(bed.start);
        assert_eq!(bed.session.fate(number, bed.start + SECOND), Fate::Stuck);
        assert_eq!(bed.heal(10), Healed::Late);
        assert_eq!(bed.session.fate(number, bed.start + 10 * SECOND), Fate::Arrives);
    }

    #[test]
    fn a_session_that_died_in_silence_comes_back_within_thirty_seconds() {
        for seed in 0..50 {
            let mut bed = Bed::up(seed);
            bed.session.partition(bed.start);
            assert_eq!(bed.heal(40), Healed::New);
            assert!(bed.session.is_up(bed.start + 70 * SECOND));
        }
    }

    #[test]
    fn a_restart_of_cloudcore_brings_back_what_was_up_and_nothing_else() {
        let mut bed = Bed::up(1);
        assert!(bed.send(0));
        bed.session.cloudcore_restarted(bed.start, &mut bed.random);
        assert!(!bed.send(1));
        assert!(bed.session.is_up(bed.start + 32 * SECOND));
        assert_eq!(bed.arrivals(100), []);
        bed.session.cut();
        bed.session.cloudcore_restarted(bed.start, &mut bed.random);
        assert!(!bed.session.is_up(bed.start + 100 * SECOND));
    }
}
