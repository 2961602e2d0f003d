//! Every time in the emulator, measured or read, and the one factor that compresses them all. Who waits is left to others.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Error;

/// Between a POST and its 200 (seen).
const ANSWER: RangeInclusive<Duration> = Duration::from_millis(3)..=Duration::from_millis(9);

/// How often the router looks for a session before it answers 500 (seen: 500 after 2.0 s).
pub const TRIES: usize = 3;

/// Between two such looks (seen).
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// On the way between cloudcore and edgecore, in either direction: our guess for a local network. What is on the way
/// when the connection is cut is lost.
const TRANSIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(6);

/// For so long a silent session looks alive to the cloud (seen: about 30 s).
const BLIND: Duration = Duration::from_secs(30);

/// No message was later than this after a silent partition (seen).
const LATEST: Duration = Duration::from_secs(56);

/// Until edgehub is back by itself after its session died: it sleeps two heartbeats between attempts (read). A partition
/// of 60 s cost 83 s of messages (seen: 416 at 5 a second).
const RECONNECT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(30);

/// For so long a restarted cloudcore answers nobody: our guess.
const CLOUDCORE_DOWN: Duration = Duration::from_secs(2);

/// Between EventBus's attempts to reach its broker (read).
const BROKER_AGAIN: Duration = Duration::from_secs(5);

/// Waits before the attempts to put a Rule in force whose `RuleEndpoint` is missing (read).
const RULE_AGAIN: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(15)];

/// Messages a second from a node, and how many may go at once after a rest (seen: `messageQPS`, `messageBurst`).
const RATE: f64 = 30.0;
pub const BURST: f64 = 60.0;

/// All times, multiplied by one factor.
#[derive(Debug, Clone, Copy)]
pub struct Pace(f64);

impl Pace {
    /// 1 is real time, 0.01 turns 30 s into 300 ms.
    ///
    /// # Errors
    /// [`Error::Scale`] unless it is above 0 and at most 100.
    pub fn new(scale: f64) -> Result<Self, Error> {
        if scale > 0.0 && scale <= 100.0 { Ok(Self(scale)) } else { Err(Error::Scale(scale)) }
    }

    fn of(self, time: Duration) -> Duration {
        time.mul_f64(self.0)
    }

    fn of_range(self, range: &RangeInclusive<Duration>) -> RangeInclusive<Duration> {
        self.of(*range.start())..=self.of(*range.end())
    }

    pub fn answer(self) -> RangeInclusive<Duration> {
        self.of_range(&ANSWER)
    }

    pub fn try_again(self) -> Duration {
        self.of(TRY_AGAIN)
    }

    pub fn transit(self) -> RangeInclusive<Duration> {
        self.of_range(&TRANSIT)
    }

    pub fn blind(self) -> Duration {
        self.of(BLIND)
    }

    pub fn latest(self) -> Duration {
        self.of(LATEST)
    }

    pub fn reconnect(self) -> RangeInclusive<Duration> {
        self.of_range(&RECONNECT)
    }

    pub fn cloudcore_down(self) -> Duration {
        self.of(CLOUDCORE_DOWN)
    }

    pub fn broker_again(self) -> Duration {
        self.of(BROKER_AGAIN)
    }

    pub fn rule_again(self) -> [Duration; 3] {
        RULE_AGAIN.map(|time| self.of(time))
    }

    /// Messages a second of our clock.
    pub fn rate(self) -> f64 {
        RATE / self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_factor_compresses_times_and_multiplies_the_rate() {
        let pace = Pace::new(0.01).unwrap();
        assert_eq!(pace.blind(), Duration::from_millis(300));
        assert_eq!(pace.try_again(), Duration::from_millis(10));
        assert!((pace.rate() - 3000.0).abs() < 1e-6);
    }

    #[test]
    fn a_factor_that_would_stop_or_turn_time_is_refused() {
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 101.0] {
            assert!(matches!(Pace::new(scale), Err(Error::Scale(_))), "{scale}");
        }
    }
}
