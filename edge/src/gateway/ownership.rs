//! Gives the directories that a gateway writes to the user of its container. I/O.
//!
//! A gateway of an earlier version of an agent as root ran as root, and left files of root.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt as _, lchown},
    path::Path,
};

use neptune_agent_core::{
    domain::{container::ContainerSpec, node_context::NodeContext},
    gateway::directories::CAPTURE_DIR,
};
use tracing::warn;

/// Gives the writable directories of a gateway's container to its user. No container may have them
/// mounted: a gateway that ends writes its last counters.
///
/// # Errors
/// The problem with the directory of the state, as text. The gateway reports that it cannot write
/// captured samples.
pub fn give(spec: &ContainerSpec, context: &NodeContext) -> Result<(), String> {
    let Some(user) = spec.user.filter(|user| *user != context.agent_user) else { return Ok(()) };
    for dir in spec.directories.iter().filter(|dir| dir.writable) {
        let is_ours = |name: &str| dir.target != CAPTURE_DIR || is_of_capture(name);
        let given = give_dir(&dir.source, (context.agent_user, user), is_ours);
        let Err(error) = given else { continue };
        let path = dir.source.display();
        let problem =
            format!("cannot give {path} to user {user}, as whom the gateway runs: {error}");
        if dir.target == CAPTURE_DIR {
            warn!("{problem}");
        } else {
            return Err(format!("{problem}; retrying"));
        }
    }
    Ok(())
}

/// Whether a gateway creates files of this name in a directory for captured samples. Others are
/// the operator's.
fn is_of_capture(name: &str) -> bool {
    name.starts_with(".neptune-capture")
        || name.strip_prefix("samples-").is_some_and(|name| name.strip_suffix(".jsonl").is_some())
}

/// The directory last: when it has its owner, the files have theirs, also after a kill.
fn give_dir(dir: &Path, (from, to): (u32, u32), is_ours: impl Fn(&str) -> bool) -> io::Result<()> {
    if fs::symlink_metadata(dir)?.uid() != from {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_ours) {
            give_file(&entry.path(), (from, to))?;
        }
    }
    lchown(dir, Some(to), Some(to))
}

/// A file with another name elsewhere is left: it may be one of somebody else.
fn give_file(path: &Path, (from, to): (u32, u32)) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    if metadata.is_file() && metadata.uid() == from && metadata.nlink() == 1 {
        lchown(path, Some(to), Some(to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use neptune_agent_core::{
        domain::{container::DirectoryMount, node_context::NONROOT},
        fixtures::{node_context, wanted_gateway},
        gateway::directories::STATE_DIR,
        worker::container::{WorkerInputs, resolve_worker},
    };

    use super::*;

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    fn spec(dirs: &[(&Path, &str)]) -> ContainerSpec {
        let inputs = WorkerInputs::default();
        let spec = resolve_worker(&wanted_gateway(), inputs, &node_context()).container.spec;
        let mounts = dirs.iter().map(|(source, target)| DirectoryMount {
            source: source.to_path_buf(),
            target: (*target).to_owned(),
            writable: true,
        });
        ContainerSpec { directories: mounts.collect(), ..spec }
    }

    /// The user of the tests: another one cannot be given anything.
    fn give_as_agent(spec: &ContainerSpec) -> u32 {
        let agent = rustix::process::geteuid().as_raw();
        let own = if agent == 0 { NONROOT } else { agent };
        let context = NodeContext { agent_user: agent, gateway_user: own, ..node_context() };
        give(&ContainerSpec { user: Some(own), ..spec.clone() }, &context).unwrap();
        own
    }

    #[test]
    fn files_of_an_earlier_gateway_become_those_of_its_user() {
        let node = tempfile::tempdir().unwrap();
        let (state, capture) = (node.path().join("state"), node.path().join("hard"));
        let elsewhere = node.path().join("elsewhere");
        fs::write(&elsewhere, "").unwrap();
        for dir in [&state, &capture] {
            fs::create_dir(dir).unwrap();
            symlink(&elsewhere, dir.join("samples-1.jsonl")).unwrap();
            fs::hard_link(&elsewhere, dir.join("samples-2.jsonl")).unwrap();
        }
        let ours = ["samples-3.jsonl", ".neptune-capture.lock"].map(|name| capture.join(name));
        let ours = [state.join("state.json"), ours[0].clone(), ours[1].clone()];
        let other = capture.join("notes.txt");
        for path in ours.iter().chain([&other]) {
            fs::write(path, "").unwrap();
        }
        let spec = spec(&[(&state, STATE_DIR), (&capture, CAPTURE_DIR)]);
        let before = owner(&other);
        // Also what a kill left.
        for _ in 0..2 {
            let user = give_as_agent(&spec);
            for path in ours.iter().chain([&state, &capture]) {
                assert_eq!(owner(path), user, "{}", path.display());
            }
        }
        for path in [&elsewhere, &other, &capture.join("samples-1.jsonl")] {
            assert_eq!(owner(path), before, "{}", path.display());
        }
    }

    #[test]
    fn directory_of_somebody_else_is_left_alone() {
        let node = tempfile::tempdir().unwrap();
        let (dir, file) = (node.path().join("hard"), node.path().join("hard/samples-1.jsonl"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "").unwrap();
        let (own, before) = (owner(&dir), owner(&file));
        give_dir(&dir, (own + 1, NONROOT), |_| true).unwrap();
        assert_eq!((owner(&dir), owner(&file)), (own, before));
        let absent = node.path().join("absent");
        let given = |target| give(&spec(&[(&absent, target)]), &node_context());
        assert_eq!(given(CAPTURE_DIR), Ok(()), "the gateway runs without its samples");
        assert!(given(STATE_DIR).unwrap_err().contains("absent to user 65532, as whom"));
    }
}
