//! How long the last answers of the cloud took.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Answers that are remembered.
const WINDOW: usize = 64;
/// Answers from which on the median is known.
const LEAST: usize = 8;
/// Without an answer for this time, the median is not known: otherwise a slow time would keep all
/// later samples from the cloud.
const MAX_AGE: Duration = Duration::from_secs(30);

/// The times of the last answers.
#[derive(Debug, Default)]
pub(super) struct Latency {
    times: VecDeque<Duration>,
    last: Option<Instant>,
}

impl Latency {
    pub(super) fn push(&mut self, time: Duration, now: Instant) {
        if self.times.len() == WINDOW {
            self.times.pop_front();
        }
        self.times.push_back(time);
        self.last = Some(now);
    }

    /// The median, if it is known.
    pub(super) fn median(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.last?);
        if self.times.len() < LEAST || age > MAX_AGE {
            return None;
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        let (_, median, _) = times.select_nth_unstable(self.times.len() / 2);
        Some(*median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_the_last_answers_is_known_for_a_while() {
        let start = crate::clock::now();
        let mut latency = Latency::default();
        for ms in 1..u64::try_from(LEAST).unwrap_or_default() {
            latency.push(Duration::from_millis(ms), start);
        }
        assert_eq!(latency.median(start), None, "too few");
        latency.push(Duration::from_secs(9), start);
        assert_eq!(latency.median(start), Some(Duration::from_millis(5)));
        for _ in 0..WINDOW {
            latency.push(Duration::from_millis(70), start);
        }
        assert_eq!(latency.median(start + MAX_AGE), Some(Duration::from_millis(70)));
        assert_eq!(latency.median(start + MAX_AGE * 2), None, "too old");
    }
}
