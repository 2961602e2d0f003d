//! Decides how often a node may send batches with reports, by the size of the fleet. Pure.
//!
//! Each batch costs cloudcore three requests to the API server: it reads the Rule, patches it
//! without a change, and reads the Node.

/// The intervals in seconds, few, so that a growing fleet seldom gets another one. The last one is
/// below the 45 s after which a node counts as offline whose agent announces no longer heartbeat.
const INTERVALS: [u32; 6] = [1, 2, 5, 10, 20, 30];

/// The seconds between two batches of a node with reports, in a fleet of this many nodes that may
/// send `rate` batches per second together.
pub fn batch_seconds(nodes: usize, rate: u32) -> u32 {
    let longest = INTERVALS[INTERVALS.len() - 1];
    let needed = nodes.div_ceil(usize::try_from(rate.max(1)).unwrap_or(usize::MAX));
    let suffices = |interval: &u32| usize::try_from(*interval).is_ok_and(|it| it >= needed);
    INTERVALS.into_iter().find(suffices).unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_sends_at_most_its_rate_until_the_longest_interval() {
        for (rate, nodes) in (1..=100_u32).flat_map(|rate| (0..=30 * rate).map(move |n| (rate, n)))
        {
            let interval = batch_seconds(nodes.try_into().unwrap_or(usize::MAX), rate);
            assert!(nodes <= rate * interval, "{nodes} nodes at {rate} per second");
        }
        let intervals =
            [0, 1, 30, 31, 150, 300, 600, 900, 100_000].map(|nodes| batch_seconds(nodes, 30));
        assert_eq!(intervals, [1, 1, 1, 2, 5, 10, 20, 30, 30]);
        assert_eq!(batch_seconds(30, 0), 30, "as at 1 per second");
    }
}
