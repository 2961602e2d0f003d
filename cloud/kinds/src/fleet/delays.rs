//! How late the batches of nodes arrive over `KubeEdge`'s `EventBus`, which delivers 30 messages
//! per second and node, shared with every other program that publishes there.
//!
//! A batch states the node's uptime when it was sent. The difference between arrival and uptime is
//! the delay plus a constant of the two clocks, and the smallest difference of an agent's start is
//! that of its fastest batch. What a batch is later than that one is its delay. So no clock needs to
//! be right, and what delays every batch since the agent or this controller started is not seen.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_wire::{AgentInstance, Batch, NodeName};

/// A batch with more delay is late: far above the delays of a slow link.
const LATE: SignedDuration = SignedDuration::from_secs(10);

/// A node whose batch has less is no longer late.
const TIMELY: SignedDuration = SignedDuration::from_secs(5);

/// How long the batches of a node are late before it counts: after a silent partition some arrive
/// up to a minute late, together.
const PERSISTENT: SignedDuration = SignedDuration::from_secs(10);

/// The rate by which the clocks of both sides may diverge, in millionths. The smallest difference
/// grows by that much, so a constant delay of 40 s is seen for eight hours.
const MAX_DRIFT: i64 = 1000;

/// The delays that are distinguished, in seconds. A status is not written for each second.
const STEPS: [u32; 6] = [600, 300, 120, 60, 30, 10];

/// The nodes that send batches with their uptime.
#[derive(Debug, Clone, Default)]
pub struct Delays {
    nodes: BTreeMap<NodeName, NodeDelay>,
    /// The nodes whose batches are late, with the delay in seconds.
    late: BTreeMap<NodeName, u32>,
}

#[derive(Debug, Clone)]
struct NodeDelay {
    start: (AgentInstance, u64),
    /// The smallest difference between arrival and uptime in milliseconds, at the last batch.
    smallest: i64,
    at: Timestamp,
    late_since: Option<Timestamp>,
}

impl Delays {
    /// Processes a batch that arrived at this time of the fleet's clock, and is not older than the
    /// node's newest. Returns whether [`Delays::of`] the node changed.
    pub fn on_batch(&mut self, node: &NodeName, batch: &Batch, arrived: Timestamp) -> bool {
        let Some(uptime) = batch.uptime_ms.and_then(|uptime| i64::try_from(uptime).ok()) else {
            return self.forget(node);
        };
        let difference = arrived.as_millisecond().saturating_sub(uptime);
        let start = (batch.instance.clone(), batch.epoch);
        let known = self.nodes.entry(node.clone()).or_insert_with(|| NodeDelay {
            start: start.clone(),
            smallest: difference,
            at: arrived,
            late_since: None,
        });
        if known.start != start {
            // After a boot the uptime starts again.
            (known.start, known.smallest) = (start, difference);
        }
        let elapsed = arrived.duration_since(known.at).as_millis().max(0);
        let drift =
            i64::try_from(elapsed).unwrap_or(i64::MAX).saturating_mul(MAX_DRIFT) / 1_000_000;
        known.smallest = known.smallest.saturating_add(drift).min(difference);
        known.at = arrived;
        let delay = SignedDuration::from_millis(difference.saturating_sub(known.smallest));
        let is_late = delay >= if known.late_since.is_some() { TIMELY } else { LATE };
        known.late_since = is_late.then(|| known.late_since.unwrap_or(arrived));
        let is_persistent = |since: Timestamp| arrived.duration_since(since) >= PERSISTENT;
        if known.late_since.is_some_and(is_persistent) {
            let step = step(delay);
            self.late.insert(node.clone(), step) != Some(step)
        } else {
            self.late.remove(node).is_some()
        }
    }

    /// The node is offline, or its agent does not state its uptime. Returns whether it was late.
    pub fn forget(&mut self, node: &NodeName) -> bool {
        self.nodes.remove(node);
        self.late.remove(node).is_some()
    }

    /// The seconds by which the node's batches are late, at least; `None` if they are not.
    pub fn delay(&self, node: &NodeName) -> Option<u32> {
        self.late.get(node).copied()
    }

    /// How many nodes' batches are late.
    pub fn count(&self) -> usize {
        self.late.len()
    }
}

fn step(delay: SignedDuration) -> u32 {
    let reached = STEPS.into_iter().find(|step| delay.as_secs() >= i64::from(*step));
    reached.unwrap_or(STEPS[STEPS.len() - 1])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A node whose clock and the fleet's have nothing in common.
    struct Node {
        delays: Delays,
        epoch: u64,
        booted_ms: i64,
    }

    impl Node {
        fn new() -> Self {
            Self { delays: Delays::default(), epoch: 1, booted_ms: -7_000_000 }
        }

        /// A batch of this second that arrives after `delay_ms`. Returns the seconds of delay.
        fn batch(&mut self, second: i64, delay_ms: i64) -> Option<u32> {
            let node: NodeName = "edge0".parse().unwrap();
            let batch = Batch {
                instance: AgentInstance("i".to_owned()),
                epoch: self.epoch,
                seq: 1,
                uptime_ms: u64::try_from(second * 1000 - self.booted_ms).ok(),
                messages: Vec::new(),
            };
            let arrived = Timestamp::from_millisecond(second * 1000 + delay_ms).unwrap();
            self.delays.on_batch(&node, &batch, arrived);
            self.delays.delay(&node)
        }
    }

    #[test]
    fn status_that_arrives_40_s_late_is_detected_and_its_end_too() {
        let mut node = Node::new();
        assert!((0..20).all(|second| node.batch(second, 100 + second % 3).is_none()));
        // Another program publishes 100 messages per second: 30 of 101 are delivered.
        let late: Vec<_> = (20..77).filter_map(|s| node.batch(s, 100 + (s - 20) * 700)).collect();
        assert_eq!(late.first(), Some(&10));
        assert_eq!(late.last(), Some(&30));
        assert!((77..200).all(|second| node.batch(second, 40_000) == Some(30)), "it is constant");
        assert_eq!(node.batch(200, 6_000), Some(10));
        assert_eq!(node.batch(201, 200), None);
        assert_eq!(node.delays.count(), 0);
    }

    #[test]
    fn late_batches_after_a_partition_are_no_lasting_delay() {
        let mut node = Node::new();
        assert_eq!(node.batch(0, 5), None);
        for second in 10..40 {
            assert_eq!(node.batch(second, (66 - second) * 1000), None, "all arrive at 66 s");
        }
        assert_eq!(node.batch(67, 5), None);
    }

    #[test]
    fn reboot_suspension_of_the_controller_and_drift_are_no_delay() {
        let mut node = Node::new();
        assert_eq!(node.batch(0, 5), None);
        (node.epoch, node.booted_ms) = (2, 500_000);
        assert!((600..700).all(|second| node.batch(second, 5).is_none()), "the node has rebooted");
        assert!(
            (700..800).all(|second| node.batch(second, -50_000).is_none()),
            "fleet's clock stood"
        );
        let mut node = Node::new();
        // A month, with clocks that diverge by 500 millionths.
        let day = 24 * 3600;
        assert!((0..30 * day).step_by(1800).all(|second| node.batch(second, second / 2).is_none()));
    }

    #[test]
    fn agent_without_uptime_has_no_delay() {
        let mut node = Node::new();
        assert_eq!(node.batch(0, 5), None);
        for second in 1..30 {
            node.batch(second, 60_000);
        }
        assert_eq!(node.delays.count(), 1);
        node.booted_ms = i64::MAX / 2;
        assert_eq!(node.batch(31, 60_000), None);
        assert!(node.delays.nodes.is_empty());
    }
}
