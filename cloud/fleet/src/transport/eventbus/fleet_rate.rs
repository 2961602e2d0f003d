//! Decides how many batches all nodes may send together per second: half as many while the router
//! answers slowly, and more again, step by step, when it does not. Pure.
//!
//! cloudcore's router answers in milliseconds. It answers in seconds when the requests to the API
//! server that each message causes queue up; the leases of the nodes wait in the same queue.

use std::time::{Duration, Instant};

/// The default batches per second of all nodes.
pub const DEFAULT_FLEET_RATE: u32 = 30;

/// An answer that takes longer is slow.
const SLOW_ANSWER: Duration = Duration::from_secs(1);

/// Slow answers in a row before the rate is halved: a single one may be a large message.
const SLOW_ANSWERS: u32 = 3;

/// The minimum time between two changes of the rate. Nodes follow a change within minutes.
const CHANGE_INTERVAL: Duration = Duration::from_mins(1);

/// The rate returns to its maximum in so many steps.
const STEPS_BACK: u32 = 10;

/// The rate of all nodes together.
#[derive(Debug)]
pub struct FleetRate {
    max: u32,
    rate: u32,
    slow_answers: u32,
    changed: Option<Instant>,
}

/// A change of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateChange {
    /// The rate is halved, because the router answers slowly.
    Slowed,
    /// The rate is raised by one step.
    Raised,
}

impl FleetRate {
    /// Starts with the maximum, which is at least 1.
    pub fn new(max: u32) -> Self {
        Self { max: max.max(1), rate: max.max(1), slow_answers: 0, changed: None }
    }

    /// Returns the present rate, in batches per second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Returns the highest rate, in batches per second.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Takes how long the router took to answer, or not to answer. Returns the change of the rate.
    pub fn observe(&mut self, answer: Duration, now: Instant) -> Option<RateChange> {
        let is_slow = answer > SLOW_ANSWER;
        self.slow_answers = if is_slow { self.slow_answers.saturating_add(1) } else { 0 };
        let is_recent = |at| now.saturating_duration_since(at) < CHANGE_INTERVAL;
        if self.changed.is_some_and(is_recent) {
            return None;
        }
        let (rate, change) = if self.slow_answers >= SLOW_ANSWERS {
            ((self.rate / 2).max(1), RateChange::Slowed)
        } else if !is_slow {
            let step = self.max.div_ceil(STEPS_BACK);
            (self.rate.saturating_add(step).min(self.max), RateChange::Raised)
        } else {
            return None;
        };
        if rate == self.rate {
            return None;
        }
        (self.rate, self.changed) = (rate, Some(now));
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    const FAST: Duration = Duration::from_millis(9);
    const SLOW: Duration = Duration::from_secs(2);

    /// The rates after answers of this duration, one per second.
    fn rates(rate: &mut FleetRate, answer: Duration, from: Instant, seconds: u64) -> Vec<u32> {
        let mut rates = Vec::new();
        for second in 0..seconds {
            if rate.observe(answer, from + Duration::from_secs(second)).is_some() {
                rates.push(rate.rate());
            }
        }
        rates
    }

    #[test]
    fn slow_answers_halve_the_rate_and_fast_ones_raise_it_step_by_step() {
        let (start, mut rate) = (Instant::now(), FleetRate::new(DEFAULT_FLEET_RATE));
        assert_eq!(rates(&mut rate, FAST, start, 100), [0; 0]);
        let slow_from = start + Duration::from_secs(100);
        assert_eq!(rates(&mut rate, SLOW, slow_from, 600), [15, 7, 3, 1]);
        let fast_from = start + Duration::from_secs(700);
        let raised = rates(&mut rate, FAST, fast_from, 1000);
        assert_eq!(raised, [4, 7, 10, 13, 16, 19, 22, 25, 28, 30]);
    }

    #[test]
    fn single_slow_answer_changes_nothing() {
        let (start, mut rate) = (Instant::now(), FleetRate::new(20));
        for second in 0..600 {
            let answer = if second % 3 == 0 { FAST } else { SLOW };
            assert_eq!(rate.observe(answer, start + Duration::from_secs(second)), None);
        }
    }

    #[test]
    fn rate_stays_above_zero() {
        let (start, mut rate) = (Instant::now(), FleetRate::new(0));
        assert_eq!(rates(&mut rate, SLOW, start, 600), [0; 0]);
        assert_eq!(rate.rate(), 1);
    }
}
