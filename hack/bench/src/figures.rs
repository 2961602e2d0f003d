//! Percentiles, and memory and CPU time of a process as the kernel reports them.

use std::{fmt, fs, time::Duration};

/// A sorted set of durations.
pub struct Spread(Vec<Duration>);

impl FromIterator<Duration> for Spread {
    fn from_iter<I: IntoIterator<Item = Duration>>(all: I) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable();
        Self(all)
    }
}

impl Spread {
    /// The nearest-rank percentile; zero for an empty set.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |percent| self.percentile(percent).as_secs_f64() * 1e3;
        write!(f, "p50 {:.1} ms, p99 {:.1} ms, n {}", at(50), at(99), self.0.len())
    }
}

/// The median; of an even number, the lower one. Zero for an empty set.
pub fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Proportional set size of a process in bytes: its private memory, and its part of shared memory.
pub fn pss(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line =
        text.lines().find(|line| line.starts_with("Pss:")).expect("smaps_rollup contains Pss");
    let kib = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kib.expect("a number of kB") << 10
}

/// User and system time of a process, with a resolution of 10 ms (`USER_HZ` is 100 on Linux).
pub fn cpu(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number of ticks");
    // Fields 14 and 15 in proc(5); the first two are cut off.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// Bytes in MiB, with one decimal place.
pub fn mib(bytes: u64) -> String {
    let mib = bytes >> 10;
    format!("{}.{} MiB", mib >> 10, (mib % 1024) * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_a_measured_duration() {
        let spread: Spread = (1..=200).rev().map(Duration::from_millis).collect();
        let at = |percent| spread.percentile(percent).as_millis();
        assert_eq!((at(50), at(99), at(100)), (100, 198, 200));
        assert_eq!(Spread(Vec::new()).percentile(99), Duration::ZERO);
    }
}
