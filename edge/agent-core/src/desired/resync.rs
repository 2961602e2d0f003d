//! Decides when to send a sync, which lists the node's objects so that the cloud sends the missing
//! ones.

use std::time::{Duration, Instant};

use crate::backoff::RESYNC;

/// How long messages in transit may take before a missing object is requested.
const DELIVERY_TIME: Duration = Duration::from_secs(1);
/// Interval between regular syncs of a complete node. Jitter shortens it by up to a quarter.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Interval between the syncs that request an index after a reconnect.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How many syncs request an index after the one at the reconnect. `EventBus` tries to connect to a
/// restarted broker every 5 s, and what is published before is lost.
const MAX_PROBES: u32 = 15;

/// Schedules the syncs: the regular ones, those for missing objects, and those that request an
/// index after a reconnect.
#[derive(Debug, Default)]
pub struct Resync {
    regular_at: Option<Instant>,
    urgent_at: Option<Instant>,
    urgent_sent: u32,
    is_requested: bool,
    /// When the next sync that requests an index is due, while none has arrived.
    probe_at: Option<Instant>,
    probes_sent: u32,
}

impl Resync {
    /// Starts the schedule after a reconnect, at which a sync is sent. `is_lossy`: the transport may
    /// not be connected yet and lose that sync, which is repeated until an index arrives.
    pub fn on_connected(&mut self, is_lossy: bool, now: Instant, random: u64) {
        *self = Self {
            regular_at: Some(regular(now, random)),
            probe_at: is_lossy.then_some(now + PROBE_INTERVAL),
            ..Self::default()
        };
    }

    /// An index arrived: the transport works in both directions.
    pub fn on_index(&mut self) {
        self.probe_at = None;
    }

    /// Whether a sync that is sent now requests an index.
    pub fn requests_index(&self) -> bool {
        self.probe_at.is_some()
    }

    /// Stops the schedule while disconnected.
    pub fn on_disconnected(&mut self) {
        *self = Self::default();
    }

    /// Requests a sync, because the cloud has older state than this node.
    pub fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether a sync is requested and not sent yet.
    pub fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Whether to send a sync now, which then counts as sent. Nothing is due while disconnected.
    pub fn is_due(&mut self, is_complete: bool, now: Instant, random: u64) -> bool {
        let Some(regular_at) = self.regular_at else { return false };
        if is_complete && !self.is_requested {
            self.urgent_at = None;
            self.urgent_sent = 0;
        } else if self.urgent_at.is_none() {
            self.urgent_at = Some(now + DELIVERY_TIME);
        }
        let is_urgent = self.urgent_at.is_some_and(|at| at <= now);
        let is_probe = self.is_probe_due(now);
        if !is_urgent && !is_probe && regular_at > now {
            return false;
        }
        if is_urgent {
            self.urgent_sent = self.urgent_sent.saturating_add(1);
            // The first repetition comes later than the answer can.
            self.urgent_at = Some(now + RESYNC.delay(self.urgent_sent.saturating_add(1), random));
            self.is_requested = false;
        }
        self.regular_at = Some(regular(now, random));
        true
    }

    /// Whether another sync requests an index now.
    fn is_probe_due(&mut self, now: Instant) -> bool {
        if self.probe_at.is_none_or(|at| at > now) {
            return false;
        }
        let is_due = self.probes_sent < MAX_PROBES;
        self.probes_sent += 1;
        self.probe_at = is_due.then_some(now + PROBE_INTERVAL);
        is_due
    }

    /// Returns the earliest time at which [`Resync::is_due`] may return true; `None` if no sync is
    /// scheduled.
    pub fn next_at(&self) -> Option<Instant> {
        [self.urgent_at, self.regular_at, self.probe_at].into_iter().flatten().min()
    }
}

fn regular(now: Instant, random: u64) -> Instant {
    let quarter = u64::try_from(INTERVAL.as_millis() / 4).unwrap_or(u64::MAX);
    now + INTERVAL * 3 / 4 + Duration::from_millis(random % quarter.max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn missing_objects_are_requested_again_with_backoff() {
        let (mut resync, start) = (Resync::default(), Instant::now());
        resync.on_connected(false, start, 0);
        assert!(!resync.is_due(false, start, 0), "messages may be in transit");
        let mut sent = Vec::new();
        while let Some(at) = resync.next_at().filter(|at| *at < start + Duration::from_secs(4 * 60))
        {
            if resync.is_due(false, at, u64::MAX) {
                sent.push(at.duration_since(start).as_secs());
            }
        }
        assert_eq!(sent.first(), Some(&1));
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] <= 60), "{sent:?}");
        assert!((6..=12).contains(&sent.len()), "{sent:?}");
        assert!(!resync.is_due(true, start + Duration::from_secs(4 * 60), 0), "complete");
    }

    #[test]
    fn complete_node_syncs_every_few_minutes() {
        let (mut resync, start) = (Resync::default(), Instant::now());
        assert!(!resync.is_due(true, start, 0), "the link is down");
        resync.on_connected(false, start, 12_345);
        let at = resync.next_at().unwrap_or(start);
        assert!((start + INTERVAL * 3 / 4..=start + INTERVAL).contains(&at));
        assert!(resync.is_due(true, at, 0));
        assert!(!resync.is_due(true, at, 0));
    }

    #[test]
    fn reconnected_node_syncs_every_second_until_an_index_arrives() {
        let (mut resync, start) = (Resync::default(), Instant::now());
        let second = |n| start + Duration::from_secs(n);
        resync.on_connected(true, start, 0);
        assert!(resync.requests_index(), "the sync at the reconnect, too");
        for n in 1..=6 {
            assert_eq!(resync.next_at(), Some(second(n)));
            assert!(resync.is_due(true, second(n), 0) && resync.requests_index());
        }
        resync.on_index();
        assert!(!resync.requests_index() && resync.next_at() > Some(second(200)));

        resync.on_connected(true, start, 0);
        let probes = (1..60).filter(|n| resync.is_due(true, second(*n), 0));
        assert_eq!(probes.count(), 15, "an earlier controller does not answer");
        assert!(!resync.requests_index());
    }

    #[test]
    fn requested_sync_is_sent_once() {
        let (mut resync, start) = (Resync::default(), Instant::now());
        resync.on_connected(false, start, 0);
        assert!(!resync.is_requested());
        resync.request();
        assert!(!resync.is_due(true, start, 0) && resync.is_requested());
        assert!(resync.is_due(true, start + DELIVERY_TIME, 0) && !resync.is_requested());
        assert!(!resync.is_due(true, start + DELIVERY_TIME * 10, 0));
        resync.on_disconnected();
        assert_eq!(resync.next_at(), None);
    }
}
