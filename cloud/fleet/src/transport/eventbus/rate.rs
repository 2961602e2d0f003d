//! Limits how much a node may send: as many batches as `EventBus` itself allows; a large one counts
//! as several. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_wire::NodeName;

/// Batches per second, on average.
const RATE: f64 = 30.0;

/// Batches at once, after a pause.
const BURST: f64 = 60.0;

/// Bytes of a batch that counts as one: agents fill batches up to this size. A larger one, with a
/// single message, counts as several, at most as [`BURST`].
const UNIT: usize = 64 * 1024;

/// The remaining tokens per node. Only for registered nodes: each is remembered until its bucket is
/// full.
#[derive(Debug, Default)]
pub struct Rates {
    nodes: BTreeMap<NodeName, Bucket>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Rates {
    /// Whether the node may send another batch of this size.
    pub fn take(&mut self, node: &NodeName, bytes: usize, now: Instant) -> bool {
        let units = u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX);
        let cost = f64::from(units).min(BURST);
        self.sweep(now);
        let bucket = self.nodes.entry(node.clone()).or_insert(Bucket { tokens: BURST, at: now });
        let elapsed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + elapsed * RATE).min(BURST);
        bucket.at = now;
        if bucket.tokens < cost {
            return false;
        }
        bucket.tokens -= cost;
        true
    }

    /// Removes full buckets, once per minute: they equal those of nodes that never sent anything.
    fn sweep(&mut self, now: Instant) {
        const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
        if self.swept.is_some_and(|at| now < at + SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        let full = Duration::from_secs_f64(BURST / RATE);
        self.nodes.retain(|_, bucket| now.saturating_duration_since(bucket.at) < full);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use super::*;

    #[test]
    fn burst_of_sixty_and_thirty_per_second_per_node() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let (one, two): (NodeName, NodeName) = ("edge0".parse().unwrap(), "edge1".parse().unwrap());
        let mut taken = |node, ms| rates.take(node, UNIT, start + Duration::from_millis(ms));
        assert_eq!((0..100).filter(|_| taken(&one, 0)).count(), 60);
        assert!(taken(&two, 0));
        assert_eq!((0..100).filter(|_| taken(&one, 1000)).count(), 30);
        assert_eq!((0..100).filter(|_| taken(&one, 59_000)).count(), 60);
    }

    #[test]
    fn large_batch_counts_as_several_up_to_the_burst() {
        let (start, node) = (Instant::now(), "edge0".parse().unwrap());
        for (bytes, at_once) in [(UNIT + 1, 30), (1 << 20, 3), (12 << 20, 1), (usize::MAX, 1)] {
            let mut rates = Rates::default();
            let taken = (0..100).filter(|_| rates.take(&node, bytes, start)).count();
            assert_eq!(taken, at_once, "{bytes}");
            let rested = start + Duration::from_secs(2);
            assert!(rates.take(&node, bytes, rested), "{bytes}");
        }
    }

    #[test]
    fn idle_node_is_removed() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        for n in 0..100 {
            assert!(rates.take(&format!("n{n}").parse().unwrap(), 0, start));
        }
        assert!(rates.take(&"edge0".parse().unwrap(), 0, start + Duration::from_secs(61)));
        assert_eq!(rates.nodes.len(), 1);
    }
}
