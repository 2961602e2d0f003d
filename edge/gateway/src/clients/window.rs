//! Counts the requests of the last minute, and refuses those above a limit. Pure.

use std::time::{Duration, Instant};

/// Seconds of which requests count: the present one, and those of a whole minute before it.
const SECONDS: usize = 61;

/// The requests of the last 60 to 61 seconds. The times are of a clock that no one sets.
#[derive(Debug, Clone)]
pub struct Window {
    start: Instant,
    /// The second of the last request, from `start`.
    newest: u64,
    counts: [u32; SECONDS],
}

impl Window {
    /// Nothing was requested yet.
    pub const fn new(now: Instant) -> Self {
        Self { start: now, newest: 0, counts: [0; SECONDS] }
    }

    /// Counts a request, unless there were as many as `limit` in the last minute.
    ///
    /// # Errors
    /// When to ask again. The request does not count.
    pub fn take(&mut self, limit: u32, now: Instant) -> Result<(), Duration> {
        self.advance(now.saturating_duration_since(self.start).as_secs());
        let all: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let limit = u64::from(limit);
        if all < limit {
            self.counts[Self::place(self.newest)] += 1;
            return Ok(());
        }
        let mut rest = all;
        let mut wait = 0;
        // From the oldest second on, until there is room for one.
        for age in 0..SECONDS as u64 {
            rest -= u64::from(self.counts[Self::place(self.newest + 1 + age)]);
            wait = age + 1;
            if rest < limit {
                break;
            }
        }
        Err(Duration::from_secs(wait))
    }

    /// Forgets the seconds that are over.
    fn advance(&mut self, second: u64) {
        let passed = second.saturating_sub(self.newest).min(SECONDS as u64);
        self.newest = self.newest.max(second);
        for age in 0..passed {
            self.counts[Self::place(self.newest - age)] = 0;
        }
    }

    fn place(second: u64) -> usize {
        usize::try_from(second % SECONDS as u64).expect("below the number of seconds")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start() -> Instant {
        crate::clock::now()
    }

    #[test]
    fn limit_holds_for_a_minute_and_the_wait_is_long_enough() {
        let start = start();
        let mut window = Window::new(start);
        for second in 0..3 {
            assert_eq!(window.take(3, start + Duration::from_secs(second)), Ok(()));
        }
        let now = start + Duration::from_secs(3);
        let wait = window.take(3, now).expect_err("the limit is reached");
        assert_eq!(wait, Duration::from_secs(58));
        assert!(window.take(3, now + Duration::from_secs(57)).is_err());
        assert_eq!(window.take(3, now + wait), Ok(()));
        assert!(window.take(3, now + wait).is_err(), "one second of the minute became free");
    }

    #[test]
    fn long_pause_and_a_lower_limit_do_not_confuse_it() {
        let start = start();
        let mut window = Window::new(start);
        for _ in 0..100 {
            assert_eq!(window.take(100, start), Ok(()));
        }
        assert_eq!(window.take(5, start), Err(Duration::from_secs(61)));
        assert_eq!(window.take(5, start + Duration::from_hours(1_000)), Ok(()));
    }

    #[test]
    fn time_before_the_start_is_the_start() {
        let now = start();
        let mut window = Window::new(now + Duration::from_secs(100));
        assert_eq!(window.take(1, now), Ok(()));
        assert!(window.take(1, now).is_err());
    }

    proptest! {
        #[test]
        fn no_minute_has_more_than_the_limit(
            limit in 1..20_u32,
            steps in prop::collection::vec(0..8_000_u64, 1..400),
        ) {
            let start = start();
            let mut window = Window::new(start);
            let (mut at, mut taken) = (0, Vec::new());
            for step in steps {
                at += step;
                match window.take(limit, start + Duration::from_millis(at)) {
                    Ok(()) => taken.push(at),
                    Err(wait) => {
                        prop_assert!((1..=61).contains(&wait.as_secs()));
                        let mut later = window.clone();
                        let then = start + Duration::from_millis(at) + wait;
                        prop_assert_eq!(later.take(limit, then), Ok(()));
                    }
                }
            }
            for (index, first) in taken.iter().enumerate() {
                let within = taken[index..].iter().filter(|time| **time < first + 60_000);
                prop_assert!(within.count() <= limit as usize);
            }
        }
    }
}
