//! Decides when the status of an `EdgeNode` is written: keys at once, everything else after it
//! lasted, and not often. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use neptune_api::EdgeNodeStatus;
use neptune_cloud_kinds::nodes::status::{Difference, difference};
use neptune_wire::NodeName;

/// How long a status has to last until it is written. A node that returns earlier writes nothing.
const LASTS: Duration = Duration::from_secs(10);

/// The minimum interval between two writes of a node.
const INTERVAL: Duration = Duration::from_mins(1);

/// The minimum interval between two writes of the keys of a node. Two agents of one name would write
/// without end.
const KEYS_INTERVAL: Duration = Duration::from_secs(1);

/// The statuses that are not written yet.
#[derive(Debug, Default)]
pub struct StatusPace {
    waiting: HashMap<NodeName, Waiting>,
    /// The nodes whose keys changed, by the time at which they may be written.
    keys: BTreeSet<(Instant, NodeName)>,
    /// The nodes of which only the rest changed, likewise.
    rest: BTreeSet<(Instant, NodeName)>,
    /// Until when other writes precede those without keys.
    rest_after: Option<Instant>,
    written: HashMap<NodeName, Instant>,
}

#[derive(Debug)]
struct Waiting {
    kind: Difference,
    status: EdgeNodeStatus,
    since: Instant,
    due: Instant,
}

impl StatusPace {
    /// What a node's status should be, and how it differs from the written one; `None` if it does
    /// not.
    pub fn observe(
        &mut self,
        node: &NodeName,
        next: Option<(Difference, EdgeNodeStatus)>,
        now: Instant,
    ) {
        let before = self.remove(node);
        let Some((kind, status)) = next else { return };
        let is_same = |before: &Waiting| difference(&before.status, &status).is_none();
        let since = before.filter(is_same).map_or(now, |before| before.since);
        let (lasts, interval) = match kind {
            Difference::Keys => (Duration::ZERO, KEYS_INTERVAL),
            Difference::Rest => (LASTS, INTERVAL),
        };
        let next_write = self.written.get(node).map(|written| *written + interval);
        let due = next_write.map_or(since + lasts, |at| at.max(since + lasts));
        self.line(kind).insert((due, node.clone()));
        self.waiting.insert(node.clone(), Waiting { kind, status, since, due });
    }

    /// Returns a node whose status is due, keys first. It waits until [`StatusPace::written`],
    /// [`StatusPace::defer`] or the next observation.
    pub fn pop(&mut self, now: Instant) -> Option<(NodeName, Difference)> {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let kind = if is_due(first(&self.keys)) {
            Difference::Keys
        } else if is_due(self.first_rest()) {
            Difference::Rest
        } else {
            return None;
        };
        self.line(kind).pop_first().map(|(_, node)| (node, kind))
    }

    /// When the next status is due.
    pub fn next_due(&self) -> Option<Instant> {
        first(&self.keys).into_iter().chain(self.first_rest()).min()
    }

    /// The status of a node cannot be written before this time.
    pub fn defer(&mut self, node: &NodeName, until: Instant) {
        if let Some(waiting) = self.remove(node) {
            self.line(waiting.kind).insert((until, node.clone()));
            self.waiting.insert(node.clone(), Waiting { due: until, ..waiting });
        }
    }

    /// Until this time, only keys are written.
    pub fn defer_rest(&mut self, until: Instant) {
        self.rest_after = Some(until);
    }

    fn first_rest(&self) -> Option<Instant> {
        let due = first(&self.rest)?;
        Some(self.rest_after.map_or(due, |after| after.max(due)))
    }

    fn line(&mut self, kind: Difference) -> &mut BTreeSet<(Instant, NodeName)> {
        match kind {
            Difference::Keys => &mut self.keys,
            Difference::Rest => &mut self.rest,
        }
    }

    /// The status of a node was written.
    pub fn written(&mut self, node: &NodeName, now: Instant) {
        self.remove(node);
        self.written.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        self.written.insert(node.clone(), now);
    }

    fn remove(&mut self, node: &NodeName) -> Option<Waiting> {
        let waiting = self.waiting.remove(node)?;
        self.line(waiting.kind).remove(&(waiting.due, node.clone()));
        Some(waiting)
    }
}

fn first(line: &BTreeSet<(Instant, NodeName)>) -> Option<Instant> {
    line.first().map(|(due, _)| *due)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node() -> NodeName {
        "edge0".parse().unwrap()
    }

    fn status(online: bool) -> EdgeNodeStatus {
        EdgeNodeStatus { online: Some(online), ..EdgeNodeStatus::default() }
    }

    fn rest(online: bool) -> (Difference, EdgeNodeStatus) {
        (Difference::Rest, status(online))
    }

    #[test]
    fn status_is_due_after_it_lasted_and_a_node_that_returns_writes_nothing() {
        let (mut pace, start) = (StatusPace::default(), Instant::now());
        pace.observe(&node(), Some(rest(false)), start);
        pace.observe(&node(), Some(rest(false)), start + 9 * SECOND);
        assert_eq!(pace.pop(start + 9 * SECOND), None);
        assert_eq!(pace.pop(start + 10 * SECOND), Some((node(), Difference::Rest)));
        pace.observe(&node(), Some(rest(false)), start);
        pace.observe(&node(), None, start + 9 * SECOND);
        assert_eq!(pace.next_due(), None);
    }

    #[test]
    fn status_that_changes_again_starts_to_last_again() {
        let (mut pace, start) = (StatusPace::default(), Instant::now());
        pace.observe(&node(), Some(rest(false)), start);
        pace.observe(&node(), Some(rest(true)), start + 9 * SECOND);
        assert_eq!(pace.next_due(), Some(start + 19 * SECOND));
    }

    #[test]
    fn node_writes_once_a_minute_and_its_keys_once_a_second() {
        let (mut pace, start) = (StatusPace::default(), Instant::now());
        pace.written(&node(), start);
        pace.observe(&node(), Some(rest(false)), start + SECOND);
        assert_eq!(pace.next_due(), Some(start + INTERVAL));
        pace.observe(&node(), Some((Difference::Keys, status(true))), start + SECOND / 2);
        assert_eq!(pace.next_due(), Some(start + SECOND));
        let mut other = StatusPace::default();
        other.observe(&node(), Some((Difference::Keys, status(true))), start);
        assert_eq!(other.pop(start), Some((node(), Difference::Keys)));
    }

    #[test]
    fn keys_do_not_wait_for_the_rest() {
        let (mut pace, start) = (StatusPace::default(), Instant::now());
        let other: NodeName = "edge1".parse().unwrap();
        pace.observe(&other, Some(rest(false)), start);
        let now = start + 20 * SECOND;
        pace.observe(&node(), Some((Difference::Keys, status(true))), now);
        assert_eq!(pace.pop(now), Some((node(), Difference::Keys)));
        pace.defer_rest(now + SECOND);
        assert_eq!((pace.pop(now), pace.next_due()), (None, Some(now + SECOND)));
        assert_eq!(pace.pop(now + SECOND), Some((other, Difference::Rest)));
    }

    #[test]
    fn deferred_status_stays_and_a_written_one_goes() {
        let (mut pace, start) = (StatusPace::default(), Instant::now());
        pace.observe(&node(), Some((Difference::Keys, status(true))), start);
        assert_eq!(pace.pop(start), Some((node(), Difference::Keys)));
        pace.defer(&node(), start + SECOND);
        assert_eq!((pace.pop(start), pace.next_due()), (None, Some(start + SECOND)));
        pace.written(&node(), start);
        assert_eq!(pace.next_due(), None);
        assert!(pace.waiting.is_empty() && pace.keys.is_empty());
        pace.written(&"edge1".parse().unwrap(), start + 2 * INTERVAL);
        assert_eq!(pace.written.len(), 1, "an old time is forgotten");
    }
}
