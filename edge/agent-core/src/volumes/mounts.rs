//! Converts the mounts of a task to the volumes of its container.

use neptune_wire::{ContainerMount, MountSource, NodeName, WorkerName};

use crate::domain::volume::{VolumeMount, VolumeSource, volume_name};

/// The volumes of the container of a worker.
pub fn volumes_of(
    node: &NodeName,
    worker: &WorkerName,
    mounts: &[ContainerMount],
) -> Vec<VolumeMount> {
    let volumes = mounts.iter().map(|mount| VolumeMount {
        name: mount.name.clone(),
        target: mount.path.clone(),
        source: match mount.source() {
            Some(MountSource::Disk) => VolumeSource::Engine(volume_name(node, worker, &mount.name)),
            Some(MountSource::Memory(bytes)) => VolumeSource::Memory(bytes),
            Some(MountSource::Host(path, type_)) => {
                VolumeSource::Host { path: path.into(), type_, real: None }
            }
            Some(MountSource::Config(..) | MountSource::Secret(..)) | None => VolumeSource::Unknown,
        },
        read_only: mount.read_only,
    });
    volumes.collect()
}
