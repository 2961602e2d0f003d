//! Converts the mounts of a task to the volumes of its container.

use std::{collections::BTreeSet, path::PathBuf};

use neptune_wire::{ContainerMount, MountSource};

use crate::domain::{
    node_context::NodeContext,
    node_program::NodeProgram,
    volume::{VolumeMount, VolumeSource, volume_name},
};

/// The volumes of the container of a program.
pub fn volumes_of(program: NodeProgram<'_>, context: &NodeContext) -> Vec<VolumeMount> {
    let volumes = program.program.mounts.iter().map(|mount| {
        let (source, is_of_agent) = match mount.source() {
            Some(MountSource::Disk) => {
                (VolumeSource::Engine(volume_name(&context.node, program.name, &mount.name)), false)
            }
            Some(MountSource::Memory(bytes)) => (VolumeSource::Memory(bytes), false),
            Some(MountSource::Host(path, type_)) => {
                (VolumeSource::Host { path: path.into(), type_, real: None }, false)
            }
            Some(MountSource::Config(..) | MountSource::Secret(..)) => {
                (VolumeSource::Files(files_dir(program, mount, context)), true)
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
pub fn files_dir(
    NodeProgram { uid, name, .. }: NodeProgram<'_>,
    mount: &ContainerMount,
    context: &NodeContext,
) -> PathBuf {
    context.node_files_dir().join(uid).join(name.as_str()).join(&mount.name)
}

/// The names of the volumes of the engine among these volumes, each once.
pub fn engine_volumes(volumes: &[VolumeMount]) -> BTreeSet<&str> {
    let names = volumes.iter().filter_map(|mount| match &mount.source {
        VolumeSource::Engine(name) => Some(name.as_str()),
        VolumeSource::Memory(_)
        | VolumeSource::Host { .. }
        | VolumeSource::Files(_)
        | VolumeSource::Unknown => None,
    });
    names.collect()
}
