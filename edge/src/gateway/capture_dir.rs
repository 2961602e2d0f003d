//! Creates the directory that takes the samples that a gateway captures, below a directory that the
//! operator allows. I/O.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use neptune_agent_core::domain::{
    allowed_dirs::PathUse, mounts::may_be_mounted, node_context::NodeContext,
};

use crate::artifacts::access::{READ, SEARCH, WRITE, permits};

/// Creates the directory if it is absent. It belongs to the agent until a gateway gets it. Returns its
/// path with all links resolved.
///
/// # Errors
/// The reason as text, to follow the path in a message.
pub fn prepare(path: &Path, context: &NodeContext) -> Result<PathBuf, String> {
    may_be_mounted(path, context)?;
    let dirs = context.allowed.for_use(PathUse::Capture);
    context.allowed.check(PathUse::Capture, path, dirs)?;
    let mut problem = "is outside the allowed directories".to_owned();
    // Of several allowed ones, one may be on a disk that is absent now.
    for dir in dirs {
        let Ok(below) = path.strip_prefix(dir) else { continue };
        match create(dir, below) {
            Ok(real) => {
                may_be_mounted(&real, context)?;
                is_writable(&real, context)?;
                return Ok(real);
            }
            Err(why) => problem = why,
        }
    }
    Err(problem)
}

/// Creates the directories below an allowed one, one after the other, so that no link leads out.
fn create(dir: &Path, below: &Path) -> Result<PathBuf, String> {
    let root = fs::canonicalize(dir).map_err(|error| {
        format!("is below {} of --allow-capture-dir, which cannot be used: {error}; create that directory on the node", dir.display())
    })?;
    let mut real = root.clone();
    for name in below {
        let next = real.join(name);
        let created = DirBuilder::new().mode(0o700).create(&next);
        let failed = |error: io::Error| format!("cannot be created: {error}");
        created.or_else(unless_exists).map_err(failed)?;
        real = fs::canonicalize(&next).map_err(failed)?;
        if !real.starts_with(&root) {
            return Err(format!("leads out of {}; remove the link", dir.display()));
        }
    }
    if real.is_dir() { Ok(real) } else { Err("is not a directory; remove the file".to_owned()) }
}

/// Whether the gateway can write the directory, or gets it from the agent.
fn is_writable(dir: &Path, context: &NodeContext) -> Result<(), String> {
    let user = context.gateway_user;
    let metadata = fs::metadata(dir).map_err(|error| format!("cannot be used: {error}"))?;
    if permits(dir, &metadata, user, READ | WRITE | SEARCH) {
        return Ok(());
    }
    let is_read_only = rustix::fs::statvfs(dir)
        .is_ok_and(|state| state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    if metadata.uid() == context.agent_user && !is_read_only {
        return Ok(());
    }
    Err(format!(
        "belongs to user {}, and the gateway runs as user {user}, which cannot write it; make {user} its owner, or remove it",
        metadata.uid()
    ))
}

fn unless_exists(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use neptune_agent_core::{domain::allowed_dirs::AllowedDirs, fixtures::node_context};

    use super::*;

    #[test]
    fn directory_is_created_only_below_an_allowed_one() {
        let node = tempfile::tempdir().unwrap();
        let root = node.path().canonicalize().unwrap();
        for dir in ["hard", "other"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        fs::write(root.join("hard/file"), "").unwrap();
        symlink(root.join("other"), root.join("hard/link")).unwrap();
        let captures = vec![root.join("absent"), root.join("hard")];
        let allowed = AllowedDirs { captures, ..AllowedDirs::default() };
        let own = fs::metadata(&root).unwrap().uid();
        let context = NodeContext { allowed, agent_user: own, gateway_user: own, ..node_context() };

        let created = prepare(&root.join("hard/a/b"), &context).unwrap();
        assert_eq!(created, root.join("hard/a/b"));
        let metadata = fs::metadata(&created).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o700, own));
        assert!(
            prepare(&created, &context).is_ok() && prepare(&root.join("hard"), &context).is_ok()
        );

        for (path, problem) in [
            ("other", "is outside the allowed directories ("),
            ("hard/../other", "is not an absolute path without"),
            ("hard/link/a", "leads out of"),
            ("hard/file", "is not a directory"),
            ("hard/file/a", "cannot be created: Not a directory"),
            ("absent/a", "create that directory on the node"),
        ] {
            let why = prepare(&root.join(path), &context).unwrap_err();
            assert!(why.contains(problem), "{path}: {why}");
        }
        assert_eq!(fs::read_dir(root.join("other")).unwrap().count(), 0);
        let (agent, gateway) = (own + 1, own + 2);
        let foreign = NodeContext { agent_user: agent, gateway_user: gateway, ..context };
        let why = prepare(&created, &foreign).unwrap_err();
        assert_eq!(
            why,
            format!(
                "belongs to user {own}, and the gateway runs as user {gateway}, which cannot write it; make {gateway} its owner, or remove it"
            )
        );
        let why = prepare(&root.join("hard"), &node_context()).unwrap_err();
        assert!(
            why.contains("(none)") && why.contains("--allow-capture-dir of neptune-edge"),
            "{why}"
        );
    }
}
