//! Decides whether another client uses the client ID: the broker then closes the older connection
//! each time the other one connects. MQTT 3.1.1 has no reason code for that. Pure.

use std::time::Duration;

use neptune_backoff::Backoff;

/// Connections that the broker closed one after the other, without a failed attempt in between,
/// above which another client is assumed.
const ALLOWED: u32 = 3;
/// A connection that was up for longer was not closed by a client that reconnects at once.
const SHORT: Duration = Duration::from_secs(30);
/// How long to leave the client ID to the other client. Jitter breaks the symmetry of two.
const YIELD: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How long takeovers are reported after the last one: longer than two pauses.
pub const REPORTED_FOR: Duration = Duration::from_secs(5 * 60);

/// The end of a connection to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The broker closed it after this time.
    ClosedByBroker(Duration),
    /// The connection was never up, or ended for another reason.
    Other,
}

/// Counts the connections that the broker closed.
#[derive(Debug, Default)]
pub struct Takeovers {
    count: u32,
}

impl Takeovers {
    /// Records the end of a connection. Returns how long to leave the client ID to the other client;
    /// `None` if there seems to be none.
    pub fn record(&mut self, end: ConnectionEnd, random: u64) -> Option<Duration> {
        // While both clients pause, a connection lasts as long as the pause of the other one.
        let short = SHORT.max(YIELD.step(self.excess()) * 4);
        self.count = match end {
            ConnectionEnd::ClosedByBroker(after) if after < short => self.count.saturating_add(1),
            ConnectionEnd::ClosedByBroker(_) => 1,
            ConnectionEnd::Other => 0,
        };
        (self.excess() > 0).then(|| YIELD.delay(self.excess(), random))
    }

    fn excess(&self) -> u32 {
        self.count.saturating_sub(ALLOWED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KICKED: ConnectionEnd = ConnectionEnd::ClosedByBroker(Duration::from_millis(50));

    #[test]
    fn repeated_takeovers_pause_longer_each_time() {
        let mut takeovers = Takeovers::default();
        let pauses: Vec<_> = (0..11).map(|_| takeovers.record(KICKED, u64::MAX)).collect();
        assert_eq!(pauses[..3], [None; 3]);
        let bounds = [(1, 0.5), (2, 1.0), (4, 2.0), (8, 4.0), (16, 8.0), (32, 16.0), (60, 30.0)];
        for (pause, (most, least)) in pauses[3..].iter().flatten().zip(bounds) {
            assert!(pause.as_secs_f64() >= least && pause.as_secs() <= most, "{pauses:?}");
        }
        // The other client pauses, too.
        let long_lived = ConnectionEnd::ClosedByBroker(Duration::from_secs(100));
        assert!(takeovers.record(long_lived, 0).is_some_and(|pause| pause.as_secs() >= 30));
    }

    #[test]
    fn broker_that_restarts_is_no_takeover() {
        let mut takeovers = Takeovers::default();
        for _ in 0..10 {
            assert_eq!(takeovers.record(KICKED, 0), None);
            assert_eq!(takeovers.record(ConnectionEnd::Other, 0), None, "connection refused");
        }
        let long = ConnectionEnd::ClosedByBroker(Duration::from_secs(31));
        for _ in 0..10 {
            assert_eq!(takeovers.record(long, 0), None);
        }
    }
}
