//! Decides whether a worker may mount a path of the node, and the message if not.

use std::path::Path;

use neptune_wire::{HostPathType, WorkerReason};

use crate::domain::problem::Problem;

/// What is at a path of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    Directory,
    File,
    /// A device, a socket or a pipe.
    Special,
    /// The path does not exist.
    Missing,
}

/// The problem of a path that may not be mounted, for this reason.
pub fn not_allowed(volume: &str, path: &Path, why: &str) -> Problem {
    problem(WorkerReason::VolumeNotAllowed, volume, path, why)
}

/// Checks what is at the path of a volume.
///
/// # Errors
/// Nothing is there, or something that the worker does not want or may not have.
pub fn check_kind(
    volume: &str,
    path: &Path,
    kind: PathKind,
    wanted: Option<HostPathType>,
) -> Result<(), Problem> {
    let missing = |why: &str| Err(problem(WorkerReason::VolumeMissing, volume, path, why));
    match (kind, wanted) {
        (PathKind::Directory, None | Some(HostPathType::Directory))
        | (PathKind::File, None | Some(HostPathType::File)) => Ok(()),
        (PathKind::Special, _) => Err(not_allowed(
            volume,
            path,
            "is a device, socket or pipe; use resources.limits for devices",
        )),
        (PathKind::Missing, _) => missing(
            "does not exist on the node; create it, or correct the path; the worker starts when it exists",
        ),
        (_, Some(HostPathType::Unknown)) => {
            missing("has a type in the spec that this agent does not support; upgrade the agent")
        }
        (PathKind::Directory, Some(HostPathType::File)) => {
            missing("is a directory, and type is File; correct path or type")
        }
        (PathKind::File, Some(HostPathType::Directory)) => {
            missing("is a file, and type is Directory; correct path or type")
        }
    }
}

fn problem(reason: WorkerReason, volume: &str, path: &Path, why: &str) -> Problem {
    let message = format!("hostPath {} of volume {volume} {why}", path.display());
    Problem { reason, message }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_directories_and_files_of_the_wanted_type_are_mounted() {
        let directory = Some(HostPathType::Directory);
        let (file, newer) = (Some(HostPathType::File), Some(HostPathType::Unknown));
        let not_allowed = Some(WorkerReason::VolumeNotAllowed);
        let missing = Some(WorkerReason::VolumeMissing);
        for (kind, wanted, reason) in [
            (PathKind::Directory, None, None),
            (PathKind::Directory, directory, None),
            (PathKind::Directory, file, missing),
            (PathKind::Directory, newer, missing),
            (PathKind::File, None, None),
            (PathKind::File, file, None),
            (PathKind::File, directory, missing),
            (PathKind::File, newer, missing),
            (PathKind::Special, None, not_allowed),
            (PathKind::Special, file, not_allowed),
            (PathKind::Missing, None, missing),
            (PathKind::Missing, directory, missing),
        ] {
            let checked = check_kind("archive", Path::new("/srv/a"), kind, wanted);
            let found_reason = checked.as_ref().err().map(|problem| problem.reason);
            assert_eq!(found_reason, reason, "{kind:?} {wanted:?}");
            if let Err(Problem { message, .. }) = checked {
                assert!(message.starts_with("hostPath /srv/a of volume archive "), "{message}");
            }
        }
        let device = check_kind("a", Path::new("/srv/a"), PathKind::Special, None).unwrap_err();
        assert!(device.message.ends_with("use resources.limits for devices"), "{}", device.message);
    }
}
