//! Decides which volumes of the engine no worker uses any more.

use std::collections::BTreeSet;

use neptune_wire::WorkerName;

use crate::domain::{
    container::ContainerSpec,
    observed_container::ContainerIdentity,
    volume::{ObservedVolume, VolumeSource},
};

/// The names of the volumes of a worker that its container does not mount, and that may be removed.
/// `spec` is absent for a worker that left the node. A volume of another object of the same name is
/// recreated when the container starts.
pub fn unused_volumes(
    observed: &[ObservedVolume],
    worker: &WorkerName,
    spec: Option<&ContainerSpec>,
    may_remove: impl Fn(&ContainerIdentity) -> bool,
) -> Vec<String> {
    let mounts = spec.into_iter().flat_map(|spec| &spec.volumes);
    let used: BTreeSet<&str> = mounts
        .filter_map(|mount| match &mount.source {
            VolumeSource::Engine(name) => Some(name.as_str()),
            VolumeSource::Memory(_)
            | VolumeSource::Host { .. }
            | VolumeSource::Files(_)
            | VolumeSource::Unknown => None,
        })
        .collect();
    let unused = observed.iter().filter(|volume| {
        volume.identity.worker == *worker
            && !used.contains(volume.name.as_str())
            && may_remove(&volume.identity)
    });
    unused.map(|volume| volume.name.clone()).collect()
}
