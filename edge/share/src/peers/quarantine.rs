//! Peers that served wrong content and are left alone for a time. Pure: the caller passes the time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_backoff::Backoff;
use neptune_wire::NodeName;

/// How long a peer is left alone: an hour, doubled for each further time, at most a day.
const DURATION: Backoff = Backoff::new(Duration::from_hours(1), Duration::from_hours(24));

/// The peers that served wrong content. Kept in memory: a restart of the process forgets them.
#[derive(Debug, Default)]
pub struct Quarantine(BTreeMap<NodeName, Offences>);

#[derive(Debug)]
struct Offences {
    count: u32,
    until: Instant,
}

impl Quarantine {
    /// Excludes a peer. Returns for how long.
    pub fn add(&mut self, node: &NodeName, now: Instant) -> Duration {
        let offences = self.0.entry(node.clone()).or_insert(Offences { count: 0, until: now });
        offences.count = offences.count.saturating_add(1);
        let duration = DURATION.step(offences.count);
        offences.until = offences.until.max(now + duration);
        duration
    }

    /// Forgets a peer's offences after it served right content. An exclusion that has not ended
    /// stays: the content was requested before.
    pub fn on_right_content(&mut self, node: &NodeName, now: Instant) {
        if !self.contains(node, now) {
            self.0.remove(node);
        }
    }

    /// Whether a peer is excluded.
    pub fn contains(&self, node: &NodeName, now: Instant) -> bool {
        self.0.get(node).is_some_and(|offences| now < offences.until)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn exclusion_doubles_from_an_hour_to_a_day() {
        let node: NodeName = "edge1".parse().unwrap();
        let mut quarantine = Quarantine::default();
        let mut now = Instant::now();
        for hours in [1, 2, 4, 8, 16, 24, 24] {
            assert!(!quarantine.contains(&node, now));
            let duration = Duration::from_hours(hours);
            assert_eq!(quarantine.add(&node, now), duration);
            quarantine.on_right_content(&node, now);
            assert!(quarantine.contains(&node, now + Duration::from_secs(hours * 3600 - 1)));
            now += duration;
        }
        assert!(!quarantine.contains(&node, now));
        quarantine.on_right_content(&node, now);
        assert_eq!(quarantine.add(&node, now), Duration::from_hours(1));
    }
}
