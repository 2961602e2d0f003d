//! A Docker engine of the test, beside that of the machine, whose power can fail.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{Process, docker::run_docker, unique, wait::eventually, workspace::run};

/// Where Linux mounts the hierarchies of cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// An engine with a directory, a socket and a cgroup of its own, beside that of the machine, whose
/// network it leaves alone. Its containers use the network of the host, or none.
pub struct Engine {
    /// The parent of its containers' cgroups, which names its processes.
    name: String,
    /// The name of its network interface.
    bridge: String,
    /// Absent while the power is off.
    daemon: Option<Process>,
    dir: TempDir,
}

impl Engine {
    /// Starts it, and waits until it answers. Needs root.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        // Paths of sockets are short.
        let dir = tempfile::Builder::new().prefix("ne-").tempdir_in("/tmp").unwrap();
        // Without the settings of the machine's engine.
        fs::write(dir.path().join("engine.json"), "{}").unwrap();
        let name = unique("neptune-engine");
        // At most 15 bytes.
        let bridge = unique("ne");
        let mut engine = Self { name, bridge, daemon: None, dir };
        engine.power_on().await;
        engine
    }

    /// The URL of its socket.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("socket").display())
    }

    /// Runs `docker` with this engine, and returns its trimmed output.
    ///
    /// # Errors
    /// With what it wrote to standard error.
    pub fn docker(&self, args: &[&str]) -> io::Result<String> {
        run_docker(Command::new("docker").args(["-H", &self.host()]).args(args))
    }

    /// Copies an image from the engine of the machine.
    ///
    /// # Panics
    /// If `docker` fails.
    pub fn load(&self, image: &str) {
        let file = self.dir.path().join("image.tar");
        let file = file.to_str().unwrap();
        run(Command::new("docker").args(["save", "-o", file, image]));
        self.docker(&["load", "-i", file]).unwrap();
    }

    /// Kills the engine and everything that it started, and loses what it kept in memory.
    ///
    /// # Panics
    /// If a process survives.
    pub fn power_off(&mut self) {
        self.daemon = None;
        // One that was just forked is seen the next time.
        let is_left = |_: &i32| kill_all(&self.name, &self.runtime_dir());
        let rounds = (0..1000).take_while(is_left).count();
        assert!(rounds < 1000, "processes of the engine survive SIGKILL");
        unmount_below(self.dir.path());
        self.remove_bridge();
        let _ = fs::remove_dir_all(self.runtime_dir());
        let _ = fs::remove_file(self.dir.path().join("pid"));
    }

    /// Starts the engine again, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn power_on(&mut self) {
        let dir = self.dir.path();
        let path = |name: &str| dir.join(name).display().to_string();
        let mut command = Command::new("dockerd");
        command.args(["--host", &self.host(), "--config-file", &path("engine.json")]);
        command.args(["--data-root", &path("data"), "--exec-root", &path("run")]);
        command.args(["--pidfile", &path("pid"), "--cgroup-parent", &self.name]);
        // `--bridge none` would delete docker0 of the machine, so the engine gets a bridge of its own,
        // which no container uses.
        let bridge = &self.bridge;
        run(Command::new("ip").args(["link", "add", "name", bridge, "type", "bridge"]));
        run(Command::new("ip").args(["address", "add", "10.231.255.1/24", "dev", bridge]));
        command.args(["--bridge", bridge, "--iptables=false", "--ip-forward=false"]);
        command.args(["--ip-masq=false"]);
        let mut daemon = Process::start("dockerd", dir, &mut command);
        eventually("the engine to answer", || {
            if let Some(status) = daemon.exit_status() {
                panic!("dockerd exited with {status}:\n{}", daemon.tail(20));
            }
            self.docker(&["version"]).is_ok()
        })
        .await;
        self.daemon = Some(daemon);
    }

    /// Removes its bridge, as a power failure does.
    fn remove_bridge(&self) {
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).output();
    }

    /// What would be in memory of the machine: `/run`.
    fn runtime_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.power_off();
        for hierarchy in fs::read_dir(CGROUPS).into_iter().flatten().flatten() {
            remove_cgroup(&hierarchy.path().join(&self.name));
        }
        remove_cgroup(&Path::new(CGROUPS).join(&self.name));
    }
}

/// Sends SIGKILL to the processes of an engine: those in its cgroups, and those whose command line
/// has its runtime directory, which are containerd and its shims. Returns whether there was one.
fn kill_all(name: &str, runtime_dir: &Path) -> bool {
    let runtime_dir = runtime_dir.to_str().unwrap();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_pid = entry.file_name().to_str().is_some_and(|it| it.parse::<u32>().is_ok());
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let is_of_engine = || {
            read("cgroup").contains(&format!("/{name}/")) || read("cmdline").contains(runtime_dir)
        };
        let is_dead = || read("stat").contains(") Z ");
        if is_pid && is_of_engine() && !is_dead() {
            pids.push(entry.file_name());
        }
    }
    if !pids.is_empty() {
        // One may have exited meanwhile.
        let _ = Command::new("kill").arg("-9").args(&pids).output();
    }
    !pids.is_empty()
}

/// Removes the mounts below a directory, the newest first.
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(dir)) {
        let _ = Command::new("umount").args(["-l", place]).output();
    }
}

/// Removes a cgroup and those below it, which have no processes any more.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
