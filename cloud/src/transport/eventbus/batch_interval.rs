//! Decides how often a node may send batches with reports, by the size of the fleet. Pure.
//!
//! Each batch costs cloudcore three requests to the API server: it reads the Rule, patches it
//! without a change, and reads the Node.

/// Batches per second that the nodes of a fleet may send together.
const MAX_FLEET_RATE: usize = 100;

/// The intervals in seconds, few, so that a growing fleet seldom gets another one. The last one is
/// below the 45 s after which a node counts as offline whose agent announces no longer heartbeat.
const INTERVALS: [u32; 6] = [1, 2, 5, 10, 20, 30];

/// The seconds between two batches of a node with reports, in a fleet of this many nodes.
pub fn batch_seconds(nodes: usize) -> u32 {
    let longest = INTERVALS[INTERVALS.len() - 1];
    let needed = nodes.div_ceil(MAX_FLEET_RATE);
    let suffices = |interval: &u32| usize::try_from(*interval).is_ok_and(|it| it >= needed);
    INTERVALS.into_iter().find(suffices).unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_of_up_to_3000_nodes_sends_at_most_100_batches_per_second() {
        for nodes in 0..=3000 {
            let interval = batch_seconds(nodes);
            assert!(nodes <= MAX_FLEET_RATE * usize::try_from(interval).unwrap_or(0), "{nodes}");
        }
        let of = [0, 1, 100, 101, 500, 1000, 2000, 3000, 100_000].map(batch_seconds);
        assert_eq!(of, [1, 1, 1, 2, 5, 10, 20, 30, 30]);
    }
}
