//! Checks a path of the node that a user named, as written and with all symbolic links resolved.

use std::path::{Path, PathBuf};

use neptune_agent_core::domain::{
    allowed_dirs::PathUse,
    container::ContainerSpec,
    mounts::{is_of_agent, may_be_mounted},
    node_context::NodeContext,
    problem::Problem,
    volume::{VolumeMount, VolumeSource},
};
use neptune_agent_core::volumes::host_path::{PathKind, check_kind, not_allowed};
use neptune_wire::WorkerReason;

/// Checks whether a worker may use this path. The same rule applies to models, scripts and
/// datasets. Returns the path without links; `None` if it does not exist.
///
/// A path outside the allowed directories is not accessed, so that the result does not reveal which
/// files exist there. A path that does not exist is allowed: its use reports what is missing.
///
/// # Errors
/// The reason as text, to follow the path in a message.
pub async fn check(
    path: &Path,
    path_use: PathUse,
    context: &NodeContext,
) -> Result<Option<PathBuf>, String> {
    may_be_mounted(path, context)?;
    let dirs = context.allowed.for_use(path_use);
    // The directories above the path come first, so that a file system that does not answer blocks
    // only the paths in it.
    let (above, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        dirs.iter().partition(|dir| path.starts_with(dir));
    let mut real_dirs = resolve(&above).await;
    if !above.is_empty()
        && let Ok(real) = tokio::fs::canonicalize(path).await
        && may_be_mounted(&real, context).is_ok()
        && context.allowed.check(path_use, &real, &real_dirs).is_ok()
    {
        return Ok(Some(real));
    }
    real_dirs.extend(resolve(&others).await);
    let all: Vec<PathBuf> = dirs.iter().chain(&real_dirs).cloned().collect();
    context.allowed.check(path_use, path, &all)?;
    let Ok(real) = tokio::fs::canonicalize(path).await else { return Ok(None) };
    let checked = may_be_mounted(&real, context)
        .and_then(|()| context.allowed.check(path_use, &real, &real_dirs));
    match checked {
        Ok(()) => Ok(Some(real)),
        Err(why) if real == path => Err(why),
        Err(why) => Err(format!("leads to a path that {why}")),
    }
}

/// The spec of a container that mounts the paths that users named without links. Called directly
/// before the container is created: who may write into an allowed directory may have replaced a part
/// of a path by a link since the path was checked, and the engine would resolve it again.
///
/// # Errors
/// The use of a path that may not be mounted now, and the path with the reason.
pub async fn resolved(
    spec: &ContainerSpec,
    context: &NodeContext,
) -> Result<ContainerSpec, (PathUse, String)> {
    let mut resolved = spec.clone();
    if let Some(scripts) = &mut resolved.scripts {
        scripts.source = real(&scripts.dir, PathUse::Scripts, context).await?;
    }
    let mounts = [(&mut resolved.model, PathUse::Model), (&mut resolved.dataset, PathUse::Dataset)];
    for (mount, path_use) in mounts {
        if let Some(mount) = mount
            && !is_of_agent(&mount.source, context)
            && let Some(real) = real(&mount.source, path_use, context).await?
        {
            mount.source = real;
        }
    }
    for volume in &mut resolved.volumes {
        if let VolumeSource::Host { path, real: resolved, .. } = &mut volume.source {
            let checked = check(path, PathUse::Volume, context).await;
            // Without it the engine would resolve the path itself, which may be a link by then.
            let real = checked.and_then(|real| {
                real.ok_or_else(|| "no longer exists on the node; retrying".to_owned())
            });
            let problem = |why: String| not_allowed(&volume.name, path, &why).message;
            *resolved = Some(real.map_err(|why| (PathUse::Volume, problem(why)))?);
        }
    }
    Ok(resolved)
}

/// Checks the paths of the node that a container mounts as volumes.
///
/// # Errors
/// The problem of the first volume that cannot be mounted.
pub async fn check_volumes(volumes: &[VolumeMount], context: &NodeContext) -> Result<(), Problem> {
    for VolumeMount { name, source, .. } in volumes {
        match source {
            VolumeSource::Engine(_) | VolumeSource::Memory(_) | VolumeSource::Files(_) => {}
            VolumeSource::Host { path, type_, .. } => {
                let checked = check(path, PathUse::Volume, context).await;
                let real = checked.map_err(|why| not_allowed(name, path, &why))?;
                let kind = match &real {
                    Some(real) => kind(real).await,
                    None => PathKind::Missing,
                };
                check_kind(name, path, kind, *type_)?;
            }
            VolumeSource::Unknown => {
                let message = format!(
                    "volume {name} has a source that this agent does not support; upgrade the agent"
                );
                return Err(Problem { reason: WorkerReason::ContainerRefused, message });
            }
        }
    }
    Ok(())
}

async fn kind(path: &Path) -> PathKind {
    match tokio::fs::metadata(path).await {
        Ok(metadata) if metadata.is_dir() => PathKind::Directory,
        Ok(metadata) if metadata.is_file() => PathKind::File,
        Ok(_) => PathKind::Special,
        Err(_) => PathKind::Missing,
    }
}

async fn real(
    path: &Path,
    path_use: PathUse,
    context: &NodeContext,
) -> Result<Option<PathBuf>, (PathUse, String)> {
    let checked = check(path, path_use, context).await;
    checked.map_err(|why| (path_use, format!("path {} {why}", path.display())))
}

/// The directories with all links resolved; those that do not exist are left out.
async fn resolve(dirs: &[&PathBuf]) -> Vec<PathBuf> {
    let mut real = Vec::with_capacity(dirs.len());
    for dir in dirs {
        real.extend(tokio::fs::canonicalize(dir).await.ok());
    }
    real
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, os::unix::fs::symlink};

    use neptune_agent_core::{
        domain::{
            allowed_dirs::AllowedDirs,
            container::{BindMount, ScriptMount},
        },
        fixtures::{node_context, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
    };
    use neptune_wire::ContainerMount;

    use super::*;

    #[tokio::test]
    async fn path_is_used_only_below_an_allowed_directory_of_its_use() {
        let node = tempfile::tempdir().unwrap();
        let root = node.path().canonicalize().unwrap();
        for dir in ["models", "code", "data/store", "secret"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for file in ["models/m", "code/a.py", "data/neptune.db", "secret/key"] {
            fs::write(root.join(file), "x").unwrap();
        }
        symlink(root.join("secret"), root.join("code/link")).unwrap();
        symlink(root.join("data/neptune.db"), root.join("models/db")).unwrap();
        symlink(root.join("models"), root.join("code/models")).unwrap();
        let context = NodeContext {
            data_dir: root.join("data"),
            allowed: AllowedDirs {
                models: vec![root.join("models")],
                scripts: vec![root.join("code")],
                data: vec![root.clone()],
                ..AllowedDirs::default()
            },
            ..node_context()
        };
        let check = async |path: &str, path_use| {
            check(&root.join(path), path_use, &context).await.map_err(|why| {
                assert!(!why.contains("secret") && !why.contains("/key"), "{why}");
                why
            })
        };
        for (path, path_use) in [
            ("models/m", PathUse::Model),
            ("models/later", PathUse::Model),
            ("code", PathUse::Scripts),
            ("secret/key", PathUse::Dataset),
        ] {
            let real = root.join(path).canonicalize().ok();
            assert_eq!(check(path, path_use).await, Ok(real), "{path}");
        }
        for (path, path_use, text) in [
            ("code/a.py", PathUse::Model, "--allow-model-dir"),
            ("models", PathUse::Scripts, "--allow-script-dir"),
            ("code/link", PathUse::Scripts, "leads to a path that is outside"),
            ("code/models", PathUse::Scripts, "leads to a path that is outside"),
            ("secret/no-such-file", PathUse::Model, "outside the allowed directories"),
            ("models/db", PathUse::Model, "leads to a path that would give the worker the agent"),
            ("data", PathUse::Dataset, "the agent's data"),
            ("data/neptune.db", PathUse::Dataset, "the agent's data"),
            ("data/store", PathUse::Dataset, "the agent's data"),
            ("", PathUse::Dataset, "the agent's data"),
        ] {
            let why = check(path.trim_end_matches('/'), path_use).await.unwrap_err();
            assert!(why.contains(text) || path.is_empty(), "{path}: {why}");
        }
    }

    #[tokio::test]
    async fn volume_that_became_a_link_outside_or_vanished_is_not_mounted() {
        let node = tempfile::tempdir().unwrap();
        let root = node.path().canonicalize().unwrap();
        for dir in ["volumes/hall", "secret"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let volumes = vec![root.join("volumes")];
        let context = NodeContext {
            allowed: AllowedDirs { volumes, ..AllowedDirs::default() },
            ..node_context()
        };
        let path = root.join("volumes/hall");
        let mut wanted = wanted_worker();
        wanted.worker.scripts = None;
        wanted.worker.program.mounts = vec![ContainerMount {
            name: "archive".to_owned(),
            path: "/archive".to_owned(),
            host_path: Some(path.display().to_string()),
            ..ContainerMount::default()
        }];
        let inputs = WorkerInputs::default();
        let spec = resolve_worker(&wanted, inputs, &context).container.spec;
        assert_eq!(check_volumes(&spec.volumes, &context).await, Ok(()));
        let mounted = resolved(&spec, &context).await.unwrap();
        let VolumeSource::Host { real, .. } = &mounted.volumes[0].source else { unreachable!() };
        assert_eq!(real.as_ref(), Some(&path));
        assert_eq!(mounted.hash(), spec.hash(), "the container is not replaced");

        fs::remove_dir(&path).unwrap();
        let problem = check_volumes(&spec.volumes, &context).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::VolumeMissing);
        let (path_use, why) = resolved(&spec, &context).await.unwrap_err();
        assert_eq!(path_use, PathUse::Volume);
        assert!(why.ends_with("of volume archive no longer exists on the node; retrying"), "{why}");
        symlink(root.join("secret"), &path).unwrap();
        let (_, why) = resolved(&spec, &context).await.unwrap_err();
        assert!(why.contains("leads to a path that is outside"), "{why}");
        let problem = check_volumes(&spec.volumes, &context).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::VolumeNotAllowed);

        let newer = VolumeMount { source: VolumeSource::Unknown, ..spec.volumes[0].clone() };
        let problem = check_volumes(&[newer], &context).await.unwrap_err();
        assert!(problem.message.ends_with("upgrade the agent"), "{}", problem.message);
    }

    #[tokio::test]
    async fn path_that_became_a_link_outside_is_not_mounted() {
        let node = tempfile::tempdir().unwrap();
        let root = node.path().canonicalize().unwrap();
        for dir in ["code/v1", "data/set", "secret/set"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        symlink("v1", root.join("code/current")).unwrap();
        let context = NodeContext {
            allowed: AllowedDirs {
                scripts: vec![root.join("code")],
                data: vec![root.join("data")],
                ..AllowedDirs::default()
            },
            ..node_context()
        };
        let wanted = wanted_worker();
        let inputs = WorkerInputs::default();
        let spec = resolve_worker(&wanted, inputs, &context).container.spec;
        let spec = ContainerSpec {
            model: None,
            scripts: Some(ScriptMount {
                dir: root.join("code/current"),
                boot_file: "a.py".into(),
                source: None,
            }),
            dataset: Some(BindMount { source: root.join("data/set"), target: "/d".into() }),
            ..spec
        };
        let mounted = resolved(&spec, &context).await.unwrap();
        assert_eq!(mounted.scripts.as_ref().unwrap().source, Some(root.join("code/v1")));
        assert_eq!(mounted.hash(), spec.hash(), "the container is not replaced");
        // Between the check and the start.
        fs::remove_dir(root.join("data/set")).unwrap();
        symlink(root.join("secret/set"), root.join("data/set")).unwrap();
        let (path_use, why) = resolved(&spec, &context).await.unwrap_err();
        assert_eq!(path_use, PathUse::Dataset);
        assert!(why.contains("data/set leads to a path that is outside"), "{why}");
    }
}
