//! How many batches a node may send: as many as `EventBus` itself lets through. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_wire::NodeName;

/// Batches a second, on the average.
const RATE: f64 = 30.0;

/// Batches at once, after a rest.
const BURST: f64 = 60.0;

/// What each node may send still. Ask only for nodes that there are: each is remembered until it has rested.
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
    /// Whether the node may send one more.
    pub fn take(&mut self, node: &NodeName, now: Instant) -> bool {
        self.sweep(now);
        let bucket = self.nodes.entry(node.clone()).or_insert(Bucket { tokens: BURST, at: now });
        let rested = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + rested * RATE).min(BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Forgets, now and then, those that are full again: they are as nodes that never sent anything.
    fn sweep(&mut self, now: Instant) {
        const EVERY: Duration = Duration::from_secs(60);
        if self.swept.is_some_and(|at| now < at + EVERY) {
            return;
        }
        self.swept = Some(now);
        let full = Duration::from_secs_f64(BURST / RATE);
        self.nodes.retain(|_, bucket| now.saturating_duration_since(bucket.at) < full);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sixty_at_once_and_thirty_a_second_each_node_for_itself() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let (one, two): (NodeName, NodeName) = ("edge0".parse().unwrap(), "edge1".parse().unwrap());
        let mut taken = |node, ms| rates.take(node, start + Duration::from_millis(ms));
        assert_eq!((0..100).filter(|_| taken(&one, 0)).count(), 60);
        assert!(taken(&two, 0));
        assert_eq!((0..100).filter(|_| taken(&one, 1000)).count(), 30);
        assert_eq!((0..100).filter(|_| taken(&one, 59_000)).count(), 60);
    }

    #[test]
    fn a_node_that_rested_is_forgotten() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        for n in 0..100 {
            assert!(rates.take(&format!("n{n}").parse().unwrap(), start));
        }
        assert!(rates.take(&"edge0".parse().unwrap(), start + Duration::from_secs(61)));
        assert_eq!(rates.nodes.len(), 1);
    }
}
