//! All durations of the emulator, and the factor that scales them. "Measured" is on a live
//! KubeEdge, "source" is its code.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Error;

/// Delay between a POST and its 200 (measured).
const ANSWER: RangeInclusive<Duration> = Duration::from_millis(3)..=Duration::from_millis(9);

/// Number of attempts of the router to find a session before it answers 500 (measured: 500 after
/// 2.0 s).
pub const ATTEMPTS: usize = 3;

/// Pause between two such attempts (measured).
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Transit time between cloudcore and edgecore in either direction: an assumption for a local
/// network. A cut loses messages in transit.
const TRANSIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(6);

/// Time after which the cloud takes a silent session for dead (measured: about 30 s).
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum delay of a message after a silent partition (measured).
const MAX_DELAY: Duration = Duration::from_secs(56);

/// Time until edgehub reconnects after its session died: it sleeps two heartbeats between attempts
/// (source). A partition of 60 s lost the messages of 83 s (measured: 416 at 5 per second).
const RECONNECT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(30);

/// Downtime of a restarted cloudcore: an assumption.
const CLOUDCORE_DOWN: Duration = Duration::from_secs(2);

/// Pause between EventBus's attempts to connect to its broker (source).
const BROKER_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Delays before the attempts to activate a Rule without its `RuleEndpoint` (source).
const RULE_RETRY_DELAYS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(15)];

/// Rate of a node's messages per second, and maximum burst (measured: `messageQPS`,
/// `messageBurst`).
const RATE: f64 = 30.0;
pub const BURST: f64 = 60.0;

/// All durations, multiplied by one factor.
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

    fn scaled(self, time: Duration) -> Duration {
        time.mul_f64(self.0)
    }

    fn of_range(self, range: &RangeInclusive<Duration>) -> RangeInclusive<Duration> {
        self.scaled(*range.start())..=self.scaled(*range.end())
    }

    pub fn answer(self) -> RangeInclusive<Duration> {
        self.of_range(&ANSWER)
    }

    pub fn retry_interval(self) -> Duration {
        self.scaled(RETRY_INTERVAL)
    }

    pub fn transit(self) -> RangeInclusive<Duration> {
        self.of_range(&TRANSIT)
    }

    pub fn session_timeout(self) -> Duration {
        self.scaled(SESSION_TIMEOUT)
    }

    pub fn max_delay(self) -> Duration {
        self.scaled(MAX_DELAY)
    }

    pub fn reconnect(self) -> RangeInclusive<Duration> {
        self.of_range(&RECONNECT)
    }

    pub fn cloudcore_down(self) -> Duration {
        self.scaled(CLOUDCORE_DOWN)
    }

    pub fn broker_retry_interval(self) -> Duration {
        self.scaled(BROKER_RETRY_INTERVAL)
    }

    pub fn rule_retry_delays(self) -> [Duration; 3] {
        RULE_RETRY_DELAYS.map(|time| self.scaled(time))
    }

    /// Messages per second of real time.
    pub fn rate(self) -> f64 {
        RATE / self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn factor_scales_durations_and_the_rate() {
        let pace = Pace::new(0.01).unwrap();
        assert_eq!(pace.session_timeout(), Duration::from_millis(300));
        assert_eq!(pace.retry_interval(), Duration::from_millis(10));
        assert!((pace.rate() - 3000.0).abs() < 1e-6);
    }

    #[test]
    fn invalid_factors_are_refused() {
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 101.0] {
            assert!(matches!(Pace::new(scale), Err(Error::Scale(_))), "{scale}");
        }
    }
}
