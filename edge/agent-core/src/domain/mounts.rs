//! Decides which paths of the node a container may mount.

use std::path::{Component, Path, PathBuf};

use crate::domain::{
    node_context::{DOWNLOADS_DIR, NodeContext, REPLICAS_DIR, WORKERS_DIR},
    served_version::VERSIONS_DIR,
};

/// Checks whether a worker may mount this path of the node.
///
/// # Errors
/// The reason as text. Paths that would give a worker the machine or other workers' data are
/// refused: the root, the kernel's file systems, every path that contains the Docker socket, and
/// every path that contains the data or runtime directory or is in it.
pub fn may_be_mounted(path: &Path, context: &NodeContext) -> Result<(), String> {
    let plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if !plain {
        return Err(
            "is not an absolute path without '.', '..', '//' and a '/' at its end".to_owned()
        );
    }
    let refused = |what: &str| Err(format!("would give the worker {what}"));
    if path == Path::new("/") {
        return refused("the whole machine");
    }
    if ["/proc", "/sys", "/dev"].iter().any(|tree| path.starts_with(tree)) {
        return refused("the kernel's files");
    }
    // A worker can use a socket in a read-only mount. Removable media are mounted below /run/media
    // and are allowed.
    let is_run = ["/run", "/var/run"].iter().any(|dir| {
        path.strip_prefix(dir)
            .is_ok_and(|below| !below.starts_with("media") || below == Path::new("media"))
    });
    if is_run || path == Path::new("/var") || context.docker_socket.starts_with(path) {
        return refused("the sockets of the machine's services");
    }
    let dirs = [&context.data_dir, &context.runtime_dir];
    if dirs.iter().any(|dir| dir.starts_with(path) || path.starts_with(dir)) {
        return refused("the agent's data");
    }
    Ok(())
}

/// Whether the agent itself placed this path below its data directory: a download, a directory with
/// versions of a model, or the copy of a dataset.
pub fn is_of_agent(path: &Path, context: &NodeContext) -> bool {
    let plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    let below = |dir: &str| {
        let dir = context.data_dir.join(dir);
        path.starts_with(&dir) && path != dir
    };
    plain && [DOWNLOADS_DIR, WORKERS_DIR, VERSIONS_DIR, REPLICAS_DIR].into_iter().any(below)
}

/// Whether the boot file is a plain path below the script directory.
pub fn is_below(boot_file: &str) -> bool {
    !boot_file.is_empty()
        && Path::new(boot_file).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::node_context;

    #[test]
    fn paths_that_expose_the_machine_are_refused() {
        for good in ["/code", "/opt/scripts/a", "/var/lib/neptune-scripts", "/run/media/usb"] {
            assert_eq!(may_be_mounted(Path::new(good), &node_context()), Ok(()), "{good}");
        }
        for bad in [
            "",
            "code",
            "./code",
            "/code/",
            "/code/..",
            "/code/../etc",
            "//code",
            "/code/./x",
            "/",
            "/proc",
            "/proc/1",
            "/sys",
            "/dev",
            "/dev/shm",
            "/run",
            "/run/containerd",
            "/run/mediators",
            "/var/run/docker",
            "/var/run",
            "/var",
            "/var/lib",
            "/var/lib/neptune",
            "/var/lib/neptune/neptune.db",
            "/var/lib/neptune/models/x",
        ] {
            assert!(
                may_be_mounted(Path::new(bad), &node_context()).is_err(),
                "{bad:?} was accepted"
            );
        }
        let elsewhere =
            NodeContext { docker_socket: "/tmp/x/docker.sock".into(), ..node_context() };
        assert!(may_be_mounted(Path::new("/tmp"), &elsewhere).is_err());
        assert!(may_be_mounted(Path::new("/tmp/x"), &elsewhere).is_err());
    }

    #[test]
    fn only_downloads_and_versions_of_the_data_directory_are_the_agents() {
        let is_of_agent = |path: &str| is_of_agent(Path::new(path), &node_context());
        for path in ["models/sha256/a/m", "workers/uid/w", "serving/uid/1", "replicas/uid/data"] {
            assert!(is_of_agent(&format!("/var/lib/neptune/{path}")), "{path}");
        }
        for path in
            ["", "/", "/neptune.db", "/models", "/workers", "/models/../neptune.db", "-x/models/a"]
        {
            assert!(!is_of_agent(&format!("/var/lib/neptune{path}")), "{path}");
        }
    }

    #[test]
    fn boot_file_outside_its_directory_is_refused() {
        assert!(is_below("a.py") && is_below("pkg/a.py"));
        for bad in ["", "/etc/passwd", "../a.py", "pkg/../../a.py", "."] {
            assert!(!is_below(bad), "{bad:?} was accepted");
        }
    }
}
