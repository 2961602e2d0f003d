//! What was read last of the Secrets and `ConfigMap`s of an object, without their contents, and when
//! they are read again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_cloud_kinds::worker::config::{
    objects::{ConfigObjects, ReadVersion},
    references::ConfigName,
};
use neptune_program::random::random;

/// The pause after the API server did not answer.
const RETRY: Duration = Duration::from_secs(5);

/// What was read last, without contents.
#[derive(Debug, Clone)]
pub struct ConfigReads {
    /// The versions, which decide whether a plan is made again.
    pub versions: BTreeMap<ConfigName, ReadVersion>,
    /// When to read them again.
    pub due: Instant,
}

impl ConfigReads {
    /// What was read now, which is read again after the interval, or soon if something is missing
    /// because the API server did not answer.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(objects: &ConfigObjects, interval: Duration) -> Self {
        let versions = objects.versions();
        let is_incomplete = versions.values().any(|version| *version == ReadVersion::Unknown);
        let pause = if is_incomplete { RETRY.min(interval) } else { interval };
        Self { versions, due: Instant::now() + spread(pause, random()) }
    }
}

/// Three quarters of an interval up to all of it, so that the reads of many objects are spread.
fn spread(interval: Duration, random: u64) -> Duration {
    let part = u32::try_from(random % 256).expect("it is below 256");
    interval * (768 + part) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_read_within_the_interval_and_reads_are_spread() {
        let interval = Duration::from_mins(1);
        assert_eq!(spread(interval, 0), Duration::from_secs(45));
        assert!(spread(interval, 255) < interval);
        assert!(spread(interval, 255) > Duration::from_secs(59));
    }
}
