//! Images and containers of the tests, by the `docker` command.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{unique, workspace::run};

/// A script for a container that does nothing and exits on SIGTERM at once.
pub const IDLE: &str = "trap 'exit 0' TERM; echo ready; while :; do sleep 1 & wait $!; done";

/// Runs `docker` and returns its trimmed output.
///
/// # Panics
/// If it fails.
pub fn docker(args: &[&str]) -> String {
    try_docker(args).unwrap_or_else(|error| panic!("docker {args:?}: {error}"))
}

/// Like [`docker`].
///
/// # Errors
/// With what it wrote to standard error.
pub fn try_docker(args: &[&str]) -> io::Result<String> {
    run_docker(Command::new("docker").args(args))
}

/// Runs a command of `docker`, also of another engine, and returns its trimmed output.
pub(crate) fn run_docker(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The engine's socket: Docker's, or that of `DOCKER_HOST`, which the `docker` command uses as
/// well.
pub fn host() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned())
}

/// The engine's name as the agent reports it.
///
/// # Panics
/// If no engine answers.
pub fn engine() -> &'static str {
    let parts = docker(&["version", "--format", "{{json .Server.Components}}"]);
    if parts.contains("Podman") { "podman" } else { "docker" }
}

/// Fails with a clear message if an image is missing that `hack/test.sh` builds.
///
/// # Panics
/// If it is missing.
pub fn require_image(image: &str, script: &str) {
    let inspected = try_docker(&["image", "inspect", image]);
    assert!(inspected.is_ok(), "image {image} is missing: run {script} first (hack/test.sh does)");
}

/// The IDs of all containers of a node, also of stopped ones.
///
/// # Errors
/// If `docker` fails.
pub fn try_node_containers(node: &str) -> io::Result<Vec<String>> {
    let ids = try_docker(&["ps", "-aq", "--no-trunc", "--filter", &node_filter(node)])?;
    Ok(ids.lines().map(str::to_owned).collect())
}

/// Like [`try_node_containers`].
///
/// # Panics
/// If `docker` fails.
pub fn node_containers(node: &str) -> Vec<String> {
    try_node_containers(node).unwrap_or_else(|error| panic!("containers of {node}: {error}"))
}

/// The IDs of the running containers of a node.
///
/// # Panics
/// If `docker` fails.
pub fn running_node_containers(node: &str) -> Vec<String> {
    let ids = docker(&["ps", "-q", "--no-trunc", "--filter", &node_filter(node)]);
    ids.lines().map(str::to_owned).collect()
}

/// The ID of a training container of a node that runs now. Training containers are not among the
/// node's other containers.
///
/// # Panics
/// If `docker` fails.
pub fn running_training_container(node: &str) -> Option<String> {
    let ids = docker(&["ps", "-q", "--no-trunc", "--filter", &training_filter(node)]);
    ids.lines().next().map(str::to_owned)
}

/// Removes all containers of a node, also of trainings and aggregators, and the volumes of its
/// workers, as far as possible.
pub fn remove_node_containers(node: &str) {
    for filter in [node_filter(node), training_filter(node), aggregator_filter(node)] {
        let ids = try_docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]);
        for id in ids.unwrap_or_default().lines() {
            let _ = try_docker(&["rm", "-f", id]);
        }
    }
    for volume in try_node_volumes(node).unwrap_or_default() {
        let _ = try_docker(&["volume", "rm", &volume]);
    }
}

/// The names of the volumes of a node's workers.
///
/// # Errors
/// If `docker` fails.
pub fn try_node_volumes(node: &str) -> io::Result<Vec<String>> {
    let names = try_docker(&["volume", "ls", "-q", "--filter", &node_filter(node)])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Like [`try_node_volumes`].
///
/// # Panics
/// If `docker` fails.
pub fn node_volumes(node: &str) -> Vec<String> {
    try_node_volumes(node).unwrap_or_else(|error| panic!("volumes of {node}: {error}"))
}

/// The IDs of the running containers of an object on a node. The object is named as in topics, such
/// as `default/jointinferenceservices/digits`.
///
/// # Errors
/// If `docker` fails.
pub fn try_running_object_containers(node: &str, object: &str) -> io::Result<Vec<String>> {
    let object = format!("label=io.neptune.object={object}");
    let filters = ["--filter", &node_filter(node), "--filter", &object];
    let ids = try_docker(&[&["ps", "-q", "--no-trunc"], &filters[..]].concat())?;
    Ok(ids.lines().map(str::to_owned).collect())
}

/// The IDs of the containers of an object that were started on this engine in the last minutes, also
/// of removed ones. It takes a second, because the engine compares whole seconds.
///
/// # Panics
/// If `docker` fails.
pub fn started_object_containers(object: &str) -> BTreeSet<String> {
    let object = format!("label=io.neptune.object={object}");
    let window = ["--since", "10m", "--until", "-1s", "--format", "{{.ID}}"];
    let filters = ["--filter", "type=container", "--filter", "event=start", "--filter", &object];
    let ids = docker(&[&["events"], &window[..], &filters].concat());
    ids.lines().map(str::to_owned).collect()
}

/// The starts and the ends of the containers of a node on this engine in the last minutes, in their
/// order: whether it started, its ID, and one of its labels. It takes a second, because the engine
/// compares whole seconds.
///
/// # Panics
/// If `docker` fails, or writes something else.
pub fn starts_and_ends(node: &str, label: &str) -> Vec<(bool, String, String)> {
    let format = format!("{{{{.Action}}}} {{{{.ID}}}} {{{{index .Actor.Attributes {label:?}}}}}");
    let window = ["events", "--since", "10m", "--until", "-1s", "--format", &format];
    let filter = node_filter(node);
    let filters = ["--filter", "event=start", "--filter", "event=die", "--filter", &filter];
    let events = docker(&[&window[..], &filters].concat());
    let event = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_else(|| panic!("no event: {line}"));
        (word() == "start", word(), word())
    };
    events.lines().map(event).collect()
}

/// Runs a command of the shell in a container, and returns its trimmed output.
///
/// # Errors
/// If the container does not run, or the command fails.
pub fn shell(container: &str, command: &str) -> io::Result<String> {
    try_docker(&["exec", container, "busybox", "sh", "-c", command])
}

/// The filter of `docker ps` for a node's containers.
pub fn node_filter(node: &str) -> String {
    format!("label=io.neptune.node={node}")
}

/// The filter of `docker ps` for a node's training containers.
pub fn training_filter(node: &str) -> String {
    format!("label=io.neptune.training-node={node}")
}

/// The filter of `docker ps` for the aggregators on a node.
pub fn aggregator_filter(node: &str) -> String {
    format!("label=io.neptune.aggregator-node={node}")
}

/// An image of a static busybox, made without a registry. It is removed when dropped.
pub struct BusyboxImage(pub String);

impl BusyboxImage {
    /// Without an entry point: containers name their command.
    ///
    /// # Panics
    /// If the machine has no static busybox and cannot install it, or `docker` fails.
    pub fn import() -> Self {
        Self::import_with(&[], &[])
    }

    /// With dynamically linked programs of this machine in `/bin`, and their libraries. The static
    /// busybox cannot resolve names with the C library.
    ///
    /// # Panics
    /// As [`BusyboxImage::import`].
    pub fn with_programs(programs: &[PathBuf]) -> Self {
        Self::import_with(&[], programs)
    }

    /// With a script that the shell runs as the entry point.
    ///
    /// # Panics
    /// As [`BusyboxImage::import`].
    pub fn with_entrypoint(script: &str) -> Self {
        Self::import_with(&["-c", &format!(r#"ENTRYPOINT ["/bin/sh", "-c", "{script}"]"#)], &[])
    }

    fn import_with(changes: &[&str], programs: &[PathBuf]) -> Self {
        require_static_busybox();
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        for name in ["sh", "sleep", "cat", "env"] {
            std::os::unix::fs::symlink("busybox", bin.join(name)).unwrap();
        }
        // For files that a worker writes: on Podman nobody but root may write into / itself.
        fs::create_dir(dir.path().join("cgi-bin")).unwrap();
        let tar = dir.path().join("image.tar");
        run(pack(dir.path(), programs).arg("-f").arg(&tar));
        let name = format!("{}:1", unique("neptune-test"));
        docker(&[&["import"], changes, &[tar.to_str().unwrap(), &name]].concat());
        Self(name)
    }
}

impl Drop for BusyboxImage {
    fn drop(&mut self) {
        let _ = try_docker(&["rmi", "-f", &self.0]);
    }
}

/// A `tar` that packs the folders `bin` and `cgi-bin` of a directory, and programs. Programs go to
/// `/bin`, because in a container file systems hide paths of this machine, such as those below
/// `/tmp`.
fn pack(dir: &Path, programs: &[PathBuf]) -> Command {
    let mut pack = Command::new("tar");
    pack.args(["-c", "--owner=0", "--group=0", "-C"]).arg(dir).args(["bin", "cgi-bin"]);
    if programs.is_empty() {
        return pack;
    }
    // Links of this machine such as /lib64 become plain directories.
    pack.args(["--dereference", "-C", "/"]);
    // Programs share libraries; tar would store the second one as a link.
    let libraries: BTreeSet<String> =
        programs.iter().flat_map(|program| libraries(program)).collect();
    pack.args(libraries.iter().map(|file| file.trim_start_matches('/')));
    for program in programs {
        let name = program.file_name().unwrap().to_str().unwrap();
        pack.arg(format!("--transform=s,^{name}$,bin/{name},"));
        pack.arg("-C").arg(program.parent().unwrap()).arg(name);
    }
    pack
}

/// The paths of the libraries that a program loads.
fn libraries(program: &Path) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    libraries.map(str::to_owned).collect()
}

fn require_static_busybox() {
    let succeeds = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    if Path::new("/bin/busybox").exists() && succeeds("dpkg", &["-s", "busybox-static"]) {
        return;
    }
    assert!(
        succeeds("apt-get", &["install", "-y", "-q", "busybox-static"]),
        "these tests need a static busybox: apt-get install busybox-static"
    );
}

/// A container that no agent created. It is removed when dropped.
pub struct UnmanagedContainer(pub String);

impl UnmanagedContainer {
    /// Runs one that does nothing.
    ///
    /// # Panics
    /// If `docker` fails.
    pub fn run(name: &str, image: &BusyboxImage) -> Self {
        docker(&[
            "run",
            "-d",
            "--network",
            "none",
            "--name",
            name,
            &image.0,
            "/bin/sh",
            "-c",
            IDLE,
        ]);
        Self(name.to_owned())
    }
}

impl Drop for UnmanagedContainer {
    fn drop(&mut self) {
        let _ = try_docker(&["rm", "-f", &self.0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_packed_where_no_mount_of_a_container_hides_them() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "cgi-bin"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let programs = ["one", "two"].map(|name| dir.path().join(name));
        for program in &programs {
            fs::copy(std::env::current_exe().unwrap(), program).unwrap();
        }
        let tar = dir.path().join("image.tar");
        run(pack(dir.path(), &programs).arg("-f").arg(&tar));
        let listed = run(Command::new("tar").arg("-tf").arg(&tar));
        let files: Vec<&str> = listed.lines().collect();
        assert!(files.contains(&"bin/one") && files.contains(&"bin/two"), "{listed}");
        assert!(files.iter().any(|file| file.contains("libc.so")), "{listed}");
        let here = dir.path().to_str().unwrap().trim_start_matches('/');
        assert!(!files.iter().any(|file| file.starts_with(here)), "{listed}");
    }
}
