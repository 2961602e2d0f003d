//! Converts the mounts of a task to the volumes of its container.

use std::path::PathBuf;

use neptune_wire::{ContainerMount, MountSource};

use crate::{
    desired::WantedWorker,
    domain::{
        node_context::NodeContext,
        volume::{VolumeMount, VolumeSource, volume_name},
    },
};

/// The volumes of the container of a worker.
pub fn volumes_of(wanted: &WantedWorker, context: &NodeContext) -> Vec<VolumeMount> {
    let (node, worker) = (&context.node, &wanted.worker.name);
    let volumes = wanted.worker.program.mounts.iter().map(|mount| {
        let (source, is_of_agent) = match mount.source() {
            Some(MountSource::Disk) => {
                (VolumeSource::Engine(volume_name(node, worker, &mount.name)), false)
            }
            Some(MountSource::Memory(bytes)) => (VolumeSource::Memory(bytes), false),
            Some(MountSource::Host(path, type_)) => {
                (VolumeSource::Host { path: path.into(), type_, real: None }, false)
            }
            Some(MountSource::Config(..) | MountSource::Secret(..)) => {
                (VolumeSource::Files(files_dir(wanted, mount, context)), true)
            }
            None => (VolumeSource::Unknown, false),
        };
        VolumeMount {
            name: mount.name.clone(),
            target: mount.path.clone(),
            source,
            read_only: mount.read_only || is_of_agent,
        }
    });
    volumes.collect()
}

/// The directory of the node with the files of a volume.
pub fn files_dir(wanted: &WantedWorker, mount: &ContainerMount, context: &NodeContext) -> PathBuf {
    let worker = context.node_files_dir().join(&wanted.uid).join(wanted.worker.name.as_str());
    worker.join(&mount.name)
}
