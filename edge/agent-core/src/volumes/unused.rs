//! Decides which volumes of the engine no worker and no model server uses any more.

use std::collections::BTreeSet;

use neptune_wire::WorkerName;

use crate::domain::{observed_container::ContainerIdentity, volume::ObservedVolume};

/// The names of the volumes of a worker or a model server that are not among the used ones, and that
/// may be removed. None is used after it left the node. A volume of another object of the same name is
/// recreated when the container starts.
pub fn unused_volumes(
    observed: &[ObservedVolume],
    worker: &WorkerName,
    used: &BTreeSet<&str>,
    may_remove: impl Fn(&ContainerIdentity) -> bool,
) -> Vec<String> {
    let unused = observed.iter().filter(|volume| {
        volume.identity.worker == *worker
            && !used.contains(volume.name.as_str())
            && may_remove(&volume.identity)
    });
    unused.map(|volume| volume.name.clone()).collect()
}
