//! Decides when a status may be written: a token bucket that all objects share, in which changes of
//! state precede counters, and a pace per object. Pure.
//!
//! | change | waits for |
//! |---|---|
//! | state: a condition, or a new spec | a token of the bucket, down to the last one |
//! | counters: everything else | one second per 4 KiB since the last write, and a token above the reserve |
//! | presence of nodes, in `EdgeNodes` | three quarters of the tokens are there, and no other write waits |
//!
//! etcd stores the whole object at each write, so a write takes a token per 4 KiB of the object. It
//! may take more than there are: then the next one waits longer.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use neptune_cloud_metrics::StatusClass as WriteClass;

/// Writes that may happen at once, in seconds of the rate.
const BURST_SECONDS: f64 = 2.0;

/// The share of the burst that counters leave to changes of state.
const RESERVE: f64 = 0.5;

/// The share of the burst that the statuses of nodes leave to the other writes.
const SPARE: f64 = 0.75;

/// The bytes of an object that a token pays for.
const TOKEN_BYTES: usize = 4096;

/// The minimum interval between two writes of an object of at most [`TOKEN_BYTES`] that change only
/// counters. It grows with the object: the counters of one object cause at most 4 KiB per second.
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval between two such writes, for the largest objects.
const MAX_COUNTERS_INTERVAL: Duration = Duration::from_mins(1);

/// Changes of state of one object that are written at once. Then it has one per second, so that an
/// object whose state alternates does not use the tokens of the others.
const STATE_BURST: u32 = 5;

/// The token bucket of all status writes. Deferred writes have numbers and are admitted in their
/// order, so each has its turn.
#[derive(Debug)]
pub struct WriteBudget {
    /// Number of tokens that are added per second.
    rate: f64,
    tokens: f64,
    at: Instant,
    states: Line,
    counters: Line,
}

/// The deferred writes of a class.
#[derive(Debug, Default)]
struct Line {
    /// The tokens of all deferred writes so far.
    issued: u64,
    /// The tokens of those that were admitted.
    admitted: u64,
    /// The tokens of each of the others, in their order.
    waiting: VecDeque<u64>,
}

/// The place of a deferred write in its line: the tokens until it is admitted, with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(WriteClass, u64);

/// The tokens that a write of an object of this size takes.
fn cost(bytes: usize) -> u64 {
    bytes.div_ceil(TOKEN_BYTES).max(1).try_into().unwrap_or(u64::MAX)
}

/// The interval between two writes of the counters of an object of this size.
fn counters_interval(bytes: usize) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "a size of at most some MB")]
    let factor = (bytes as f64 / TOKEN_BYTES as f64).max(1.0);
    let most = MAX_COUNTERS_INTERVAL.as_secs_f64();
    Duration::from_secs_f64((COUNTERS_INTERVAL.as_secs_f64() * factor).min(most))
}

impl WriteBudget {
    /// A full bucket with `rate` tokens per second.
    pub fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate.max(1));
        let (states, counters) = (Line::default(), Line::default());
        Self { rate, tokens: rate * BURST_SECONDS, at: now, states, counters }
    }

    /// Takes the tokens for an object of this size. `ticket` is that of an earlier attempt.
    ///
    /// # Errors
    /// The ticket of this write, and when to try again.
    pub fn take(
        &mut self,
        class: WriteClass,
        bytes: usize,
        ticket: Option<Ticket>,
        now: Instant,
    ) -> Result<(), (Ticket, Duration)> {
        self.refill(now);
        let (rate, has_token) = (self.rate, self.tokens >= self.needed(class));
        let line = self.line(class);
        let until = match ticket {
            Some(Ticket(earlier, until)) if earlier == class => until,
            _ if line.waiting.is_empty() && has_token => {
                self.tokens -= tokens(cost(bytes));
                return Ok(());
            }
            _ => {
                line.issued = line.issued.saturating_add(cost(bytes));
                line.waiting.push_back(cost(bytes));
                line.issued
            }
        };
        if until <= line.admitted {
            return Ok(());
        }
        let ahead = tokens(until - line.admitted);
        Err((Ticket(class, until), Duration::from_secs_f64(ahead / rate)))
    }

    /// Takes the tokens for an object of this size whose write nothing waits for. Returns whether
    /// there are more than the other classes may need.
    pub fn take_spare(&mut self, bytes: usize, now: Instant) -> bool {
        self.refill(now);
        let burst = self.rate * BURST_SECONDS;
        let is_idle = self.states.waiting.is_empty() && self.counters.waiting.is_empty();
        if !is_idle || self.tokens < (1.0 + burst * SPARE).min(burst) {
            return false;
        }
        self.tokens -= tokens(cost(bytes));
        true
    }

    /// Adds the tokens since the last call, and admits deferred writes: states first.
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.rate).min(self.rate * BURST_SECONDS);
        self.at = now;
        for class in [WriteClass::State, WriteClass::Counters] {
            while self.tokens >= self.needed(class) {
                let line = self.line(class);
                let Some(cost) = line.waiting.pop_front() else { break };
                line.admitted = line.admitted.saturating_add(cost);
                self.tokens -= tokens(cost);
            }
        }
    }

    /// The tokens that have to be there for a write of this class.
    fn needed(&self, class: WriteClass) -> f64 {
        match class {
            WriteClass::State => 1.0,
            WriteClass::Counters => 1.0 + self.rate * BURST_SECONDS * RESERVE,
        }
    }

    fn line(&mut self, class: WriteClass) -> &mut Line {
        match class {
            WriteClass::State => &mut self.states,
            WriteClass::Counters => &mut self.counters,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of tokens is small")]
fn tokens(count: u64) -> f64 {
    count as f64
}

/// The status writes of one object.
#[derive(Debug, Clone, Copy, Default)]
pub struct WritePace {
    last: Option<Instant>,
    /// When the state writes so far are used up, as in a leaky bucket.
    states_until: Option<Instant>,
    /// Since when a write of this object waits; `None` if none does.
    waiting_since: Option<Instant>,
    /// The place of the deferred write.
    ticket: Option<Ticket>,
}

impl WritePace {
    /// Whether the object, which has this size, may write now.
    ///
    /// # Errors
    /// The pause before the next attempt.
    pub fn take(
        &mut self,
        class: WriteClass,
        bytes: usize,
        budget: &mut WriteBudget,
        now: Instant,
    ) -> Result<(), Duration> {
        let pause = |until: Instant| {
            let pause = until.saturating_duration_since(now);
            if pause.is_zero() { Ok(()) } else { Err(pause) }
        };
        let result = match class {
            WriteClass::State => {
                let burst = Duration::from_secs(u64::from(STATE_BURST - 1));
                let full = self.states_until.and_then(|until| until.checked_sub(burst));
                full.map_or(Ok(()), pause)
            }
            WriteClass::Counters => {
                self.last.map_or(Ok(()), |last| pause(last + counters_interval(bytes)))
            }
        };
        let ticket = self.ticket;
        let result = result.and_then(|()| {
            budget.take(class, bytes, ticket, now).map_err(|(ticket, pause)| {
                self.ticket = Some(ticket);
                pause
            })
        });
        if result.is_err() {
            self.waiting_since.get_or_insert(now);
        }
        result
    }

    /// The object was written. Returns how long the write waited.
    pub fn written(&mut self, class: WriteClass, now: Instant) -> Duration {
        self.last = Some(now);
        self.ticket = None;
        if class == WriteClass::State {
            let from = self.states_until.map_or(now, |until| until.max(now));
            self.states_until = Some(from + Duration::from_secs(1));
        }
        let since = self.waiting_since.take();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// An object that takes one token.
    const SMALL: usize = 1000;

    #[test]
    fn running_is_written_directly_after_pending_and_counters_wait() {
        let start = Instant::now();
        let (mut budget, mut pace) = (WriteBudget::new(100, start), WritePace::default());
        for ms in [0, 140, 150] {
            let now = start + ms * MS;
            assert_eq!(pace.take(WriteClass::State, SMALL, &mut budget, now), Ok(()), "at {ms} ms");
            assert_eq!(pace.written(WriteClass::State, now), Duration::ZERO);
        }
        let now = start + 200 * MS;
        assert_eq!(pace.take(WriteClass::Counters, SMALL, &mut budget, now), Err(950 * MS));
        let later = start + 1150 * MS;
        assert_eq!(pace.take(WriteClass::Counters, SMALL, &mut budget, later), Ok(()));
        assert_eq!(pace.written(WriteClass::Counters, later), 950 * MS, "how long it waited");
    }

    #[test]
    fn object_whose_state_alternates_has_one_write_per_second() {
        let start = Instant::now();
        let (mut budget, mut pace) = (WriteBudget::new(1000, start), WritePace::default());
        let mut written = 0;
        for ms in 0..10_000 {
            let now = start + ms * MS;
            if pace.take(WriteClass::State, SMALL, &mut budget, now).is_ok() {
                pace.written(WriteClass::State, now);
                written += 1;
            }
        }
        assert!((14..=15).contains(&written), "{written}");
    }

    /// Many counting objects that retry after the returned pause, and a change of state every 100 ms.
    #[test]
    fn all_writes_share_the_rate_and_states_do_not_wait() {
        let start = Instant::now();
        let mut budget = WriteBudget::new(50, start);
        let mut objects = vec![(WritePace::default(), start, 0_u32); 2000];
        let mut states = vec![WritePace::default(); 600];
        let mut written = 0;
        for ms in 0..60_000 {
            let now = start + ms * MS;
            if ms % 100 == 0 {
                let state = &mut states[ms as usize / 100];
                assert_eq!(
                    state.take(WriteClass::State, SMALL, &mut budget, now),
                    Ok(()),
                    "at {ms} ms"
                );
                state.written(WriteClass::State, now);
                written += 1;
            }
            for (pace, at, count) in objects.iter_mut().filter(|(_, at, _)| *at <= now) {
                match pace.take(WriteClass::Counters, SMALL, &mut budget, now) {
                    Ok(()) => {
                        pace.written(WriteClass::Counters, now);
                        (written, *count) = (written + 1, *count + 1);
                        *at = now + Duration::from_secs(1);
                    }
                    Err(pause) => *at = now + pause,
                }
            }
        }
        assert!((2900..=3100).contains(&written), "{written} in a minute at 50 per second");
        let most = objects.iter().map(|(_, _, count)| *count).max();
        assert!(most <= Some(3), "every object has its turn: {most:?}");
        let none = objects.iter().filter(|(_, _, count)| *count == 0).count();
        assert_eq!(none, 0, "objects that were never written");
    }

    #[test]
    fn presence_of_nodes_is_written_only_while_no_other_write_waits() {
        let start = Instant::now();
        for rate in [1, 100] {
            let mut budget = WriteBudget::new(rate, start);
            let mut spare = 0;
            while budget.take_spare(SMALL, start) {
                spare += 1;
            }
            assert!((1..=rate).contains(&spare), "{spare} of {rate}");
            let mut pace = WritePace::default();
            assert_eq!(pace.take(WriteClass::State, SMALL, &mut budget, start), Ok(()));
        }
        let mut budget = WriteBudget::new(10, start);
        let counters = |budget: &mut WriteBudget| {
            WritePace::default().take(WriteClass::Counters, SMALL, budget, start)
        };
        while counters(&mut budget).is_ok() {}
        assert!(!budget.take_spare(SMALL, start), "counters wait");
        let later = start + Duration::from_mins(1);
        assert!(budget.take_spare(SMALL, later), "they had their turn");
    }

    #[test]
    fn counters_of_a_large_object_are_written_less_often() {
        let seconds = |bytes| counters_interval(bytes).as_secs_f64();
        for (bytes, expected) in [(0, 1.0), (4096, 1.0), (40 * 1024, 10.0), (1 << 20, 60.0)] {
            assert!((seconds(bytes) - expected).abs() < 1e-9, "{bytes}: {}", seconds(bytes));
        }
    }

    /// Objects of 40 KiB that all count, and small ones whose state changes.
    #[test]
    fn large_objects_leave_the_tokens_of_their_bytes() {
        const LARGE: usize = 40 * 1024;
        let start = Instant::now();
        let mut budget = WriteBudget::new(100, start);
        let mut objects = vec![(WritePace::default(), start); 500];
        let (mut large, mut longest) = (0_usize, Duration::ZERO);
        let mut state = None::<(WritePace, Instant)>;
        for ms in 0..60_000 {
            let now = start + ms * MS;
            if ms % 100 == 0 {
                state.get_or_insert((WritePace::default(), now));
            }
            if let Some((pace, since)) = &mut state
                && pace.take(WriteClass::State, SMALL, &mut budget, now).is_ok()
            {
                longest = longest.max(now - *since);
                state = None;
            }
            for (pace, at) in objects.iter_mut().filter(|(_, at)| *at <= now) {
                match pace.take(WriteClass::Counters, LARGE, &mut budget, now) {
                    Ok(()) => {
                        pace.written(WriteClass::Counters, now);
                        large += 1;
                    }
                    Err(pause) => *at = now + pause,
                }
            }
        }
        let per_second = large * LARGE / 60;
        assert!(per_second < 100 * TOKEN_BYTES, "{per_second} bytes per second");
        assert!(large > 500, "{large} writes: every object has its turn");
        assert!(longest <= 20 * MS, "a change of state waited for {longest:?}");
    }
}
