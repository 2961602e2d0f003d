//! How long the last answers of the cloud took.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Calls that are remembered.
const WINDOW: usize = 64;
/// Calls from which on the median is known.
const LEAST: usize = 8;
/// Age of the last call from which on the median is not known: otherwise a slow time would keep all
/// later samples from the cloud.
const MAX_AGE: Duration = Duration::from_secs(30);

/// The times of the last calls.
#[derive(Debug, Default)]
pub(super) struct Latency {
    times: VecDeque<Time>,
    last: Option<Instant>,
}

/// How long a call took. In order of time, and an answer before a call that was cut then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Time {
    time: Duration,
    /// Whether the client's deadline cut it: the answer would have taken longer.
    is_cut: bool,
}

impl Latency {
    /// An answer took this time.
    pub(super) fn push(&mut self, time: Duration, now: Instant) {
        self.add(Time { time, is_cut: false }, now);
    }

    /// An answer would have taken more than this time.
    pub(super) fn push_cut(&mut self, time: Duration, now: Instant) {
        self.add(Time { time, is_cut: true }, now);
    }

    fn add(&mut self, time: Time, now: Instant) {
        if self.is_old(now) {
            self.times.clear();
        }
        if self.times.len() == WINDOW {
            self.times.pop_front();
        }
        self.times.push_back(time);
        self.last = Some(now);
    }

    fn is_old(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) > MAX_AGE)
    }

    /// The median, if it is known. Calls that were cut count as longer than their time (the
    /// estimator of Kaplan and Meier, 1958); without them, slow answers would be missing. If most
    /// calls were cut, it is at least the longest time.
    pub(super) fn median(&self, now: Instant) -> Option<Duration> {
        if self.times.len() < LEAST || self.is_old(now) {
            return None;
        }
        let mut times: Vec<Time> = self.times.iter().copied().collect();
        times.sort_unstable();
        // The share of answers that take longer.
        let mut longer = 1.0;
        for (index, one) in times.iter().enumerate() {
            let at_risk = u32::try_from(times.len() - index).unwrap_or(u32::MAX);
            if !one.is_cut {
                longer *= 1.0 - 1.0 / f64::from(at_risk);
            }
            if longer < 0.5 - 1e-9 {
                return Some(one.time);
            }
        }
        times.last().map(|longest| longest.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn median_of_the_last_answers_is_known_for_a_while() {
        let start = crate::clock::now();
        let mut latency = Latency::default();
        for time in 1..u64::try_from(LEAST).unwrap_or_default() {
            latency.push(ms(time), start);
        }
        assert_eq!(latency.median(start), None, "too few");
        latency.push(Duration::from_secs(9), start);
        assert_eq!(latency.median(start), Some(ms(5)));
        for _ in 0..WINDOW {
            latency.push(ms(70), start);
        }
        assert_eq!(latency.median(start + MAX_AGE), Some(ms(70)));
        let later = start + MAX_AGE * 2;
        assert_eq!(latency.median(later), None, "too old");
        latency.push(ms(10), later);
        assert_eq!(latency.median(later), None, "the old times do not count again");
    }

    #[test]
    fn cut_calls_count_as_longer_than_their_time() {
        let now = crate::clock::now();
        let (mut few, mut most, mut all) =
            (Latency::default(), Latency::default(), Latency::default());
        for _ in 0..20 {
            few.push(ms(200), now);
            all.push_cut(ms(50), now);
        }
        for _ in 0..10 {
            few.push_cut(ms(50), now);
            few.push(ms(100), now);
        }
        // As if the ten had not been asked: two thirds of the others take 200 ms.
        assert_eq!(few.median(now), Some(ms(200)));
        assert_eq!(all.median(now), Some(ms(50)), "at least");
        for _ in 0..10 {
            most.push(ms(40), now);
            most.push_cut(ms(50), now);
            most.push_cut(ms(60), now);
        }
        assert_eq!(most.median(now), Some(ms(60)), "at least");
    }
}
