//! Notices that the workers' broker refuses many connections.

use std::time::{Duration, Instant};

use neptune_wire::{NodeProblem, NodeProblemReason};

/// Refused connections per minute from which they are a problem.
const MIN_PER_MINUTE: u64 = 1000;
/// How long refused connections are counted before they are compared.
const WINDOW: Duration = Duration::from_secs(60);
/// How long a flood is reported after it ended.
const REPORTED_FOR: Duration = Duration::from_mins(5);

/// Counts the connections that the broker refused.
#[derive(Debug, Default)]
pub struct FloodWatch {
    /// When the window began, and the number of refused connections then.
    window: Option<(Instant, u64)>,
    /// The time until which a flood is reported, and its connections per minute.
    flood: Option<(Instant, u64)>,
}

impl FloodWatch {
    /// The problem that the broker is flooded. `refused`: connections since the start of the agent.
    pub fn observe(&mut self, refused: u64, now: Instant) -> Option<NodeProblem> {
        let (began, before) = *self.window.get_or_insert((now, refused));
        let passed = now.saturating_duration_since(began);
        if passed >= WINDOW {
            self.window = Some((now, refused));
            let rate = refused.saturating_sub(before) * 60 / passed.as_secs().max(1);
            if rate >= MIN_PER_MINUTE {
                // A power of ten, so that a flood changes the report seldom.
                let most = self.flood.map_or(0, |(_, most)| most);
                self.flood = Some((now + REPORTED_FOR, most.max(10_u64.pow(rate.ilog10()))));
            }
        }
        self.flood = self.flood.filter(|(until, _)| now < *until);
        self.flood.map(|(_, rate)| NodeProblem {
            reason: NodeProblemReason::BrokerFlooded,
            message: format!(
                "the workers' broker refuses more than {rate} connections per minute; workers that log in keep their connection; find the program on this node that connects (ss -tnp), counts by cause are in the metric refused_connections"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn flood_is_reported_from_a_minute_on_until_it_is_over_for_a_while() {
        let start = Instant::now();
        let mut watch = FloodWatch::default();
        let mut at = |seconds: u64, refused| {
            watch.observe(refused, start + Duration::from_secs(seconds)).map(|it| it.message)
        };
        assert_eq!(at(0, 7_000_000), None, "of an earlier time");
        assert_eq!(at(30, 7_400_000), None);
        let first = at(60, 7_480_000).unwrap();
        assert!(first.contains("more than 100000 connections per minute"), "{first}");
        assert_eq!(at(120, 7_490_000), Some(first.clone()), "the text stays");
        assert_eq!(at(400, 7_490_000), Some(first));
        assert_eq!(at(420, 7_490_000), None);
    }

    #[test]
    fn some_refused_connections_are_no_flood() {
        let start = Instant::now();
        let mut watch = FloodWatch::default();
        for minute in 0..60 {
            let now = start + Duration::from_mins(minute);
            assert_eq!(watch.observe(minute * (MIN_PER_MINUTE - 1), now), None);
        }
    }
}
