//! Decides at each turn which downloads may run: reads the local time, and the facts of the windows.

use std::{collections::BTreeSet, time::Instant};

use jiff::{Timestamp, Zoned};
use neptune_agent_core::{
    desired::WantedWorker,
    domain::artifact::ArtifactSource,
    downloads::{DownloadGate, NodeInUse, urgent_sources},
};

use super::Agent;

/// The earliest time at which this program can have been built without `SOURCE_DATE_EPOCH`
/// (2026-01-01).
const EARLIEST_BUILD: i64 = 1_767_225_600;

impl Agent {
    /// Lets the downloads run that may run now, and stops the others. Returns when to decide again.
    pub(super) fn gate_downloads(&mut self, now: Instant) -> Option<Instant> {
        let windows = &self.config.download_windows;
        if windows.is_empty() {
            return None;
        }
        let (local, is_clock_set) = local_time();
        let (state, next) = windows.at(local.time(), is_clock_set);
        let gate = DownloadGate::new(state, || self.urgent_sources());
        if self.artifacts.downloads.set_gate(gate) {
            self.refresh_artifacts();
        }
        Some(now + next)
    }

    fn urgent_sources(&self) -> BTreeSet<ArtifactSource> {
        let is_running = |worker: &WantedWorker| {
            let mut containers = self.containers.observed_of(&worker.worker.name);
            containers.any(|it| it.is_alive() && it.identity.uid == worker.uid)
        };
        let node = NodeInUse {
            models: self.artifacts.models.availability(),
            datasets: self.artifacts.datasets.availability(),
            rollouts: self.servers.rollouts().collect(),
            is_running: &is_running,
        };
        urgent_sources(&self.desired.desired, &node)
    }
}

/// The local time of the node (`TZ`, `/etc/localtime`), and whether it can be right.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn local_time() -> (Zoned, bool) {
    let local = Zoned::now();
    let is_set = local.timestamp() >= built();
    (local, is_set)
}

/// A time before which this program was not built.
fn built() -> Timestamp {
    let seconds = option_env!("SOURCE_DATE_EPOCH").and_then(|seconds| seconds.parse().ok());
    Timestamp::from_second(seconds.unwrap_or(EARLIEST_BUILD)).unwrap_or(Timestamp::UNIX_EPOCH)
}
