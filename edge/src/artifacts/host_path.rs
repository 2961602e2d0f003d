//! Checks a path of the node that a user named, as written and with all symbolic links resolved.

use std::path::{Path, PathBuf};

use crate::{
    domain::{allowed_dirs::PathUse, node_context::NodeContext},
    engine::mounts::may_be_mounted,
};

/// Checks whether a worker may use this path. The same rule holds for models, scripts and datasets.
///
/// A path outside the allowed directories is not accessed, so that the result does not reveal which
/// files exist there. A path that does not exist is allowed: its use reports what is missing.
///
/// # Errors
/// The reason as text, to follow the path in a message.
pub async fn check(path: &Path, path_use: PathUse, context: &NodeContext) -> Result<(), String> {
    may_be_mounted(path, context)?;
    let dirs = context.allowed.of(path_use);
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
        return Ok(());
    }
    real_dirs.extend(resolve(&others).await);
    let all: Vec<PathBuf> = dirs.iter().chain(&real_dirs).cloned().collect();
    context.allowed.check(path_use, path, &all)?;
    let Ok(real) = tokio::fs::canonicalize(path).await else { return Ok(()) };
    may_be_mounted(&real, context)
        .and_then(|()| context.allowed.check(path_use, &real, &real_dirs))
        .map_err(|why| if real == path { why } else { format!("leads to a path that {why}") })
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

    use super::*;
    use crate::{domain::allowed_dirs::AllowedDirs, fixtures::node_context};

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
                captures: Vec::new(),
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
            assert_eq!(check(path, path_use).await, Ok(()), "{path}");
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
}
