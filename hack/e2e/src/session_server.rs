//! The server of an engine as a container: what a kubelet does with the second container of the
//! aggregator's Pod, on this machine.

use std::{path::Path, process::Command};

use k8s_openapi::api::core::v1::{Container, PodSpec, VolumeMount};
use neptune_harness::{
    docker::{docker, try_docker},
    expansion, unique,
    workspace::{program, run},
};

/// The init container that makes the key of the aggregator.
pub const KEY_CONTAINER: &str = "key";

/// A running server. It is removed when it is dropped.
pub struct SessionServer {
    name: String,
}

impl SessionServer {
    /// Runs the init containers and the container `server` of a Pod whose volumes are directories of
    /// `dir`. It uses the network of the host. `None` if the Pod has none.
    ///
    /// # Panics
    /// If the Pod needs what a kubelet would not find.
    pub fn start(pod: &PodSpec, dir: &Path) -> Option<Self> {
        let server = pod.containers.iter().find(|container| container.name == "server")?;
        let init = pod.init_containers.iter().flatten();
        for init in init.filter(|init| init.name != KEY_CONTAINER) {
            let arg = |arg: &String| on_host(init, dir, arg);
            let name = init.command.iter().flatten().next().expect("it names its program");
            let args = init.args.iter().flatten().map(arg);
            // The file exists in containers only.
            let args = args.filter(|arg| arg != "--error-file" && arg != "/dev/termination-log");
            // The test serves on loopback.
            run(Command::new(program(name)).args(args).args(["--allow-address", "127.0.0.1"]));
        }
        let name = unique("session");
        let mut args: Vec<String> =
            ["run", "--detach", "--name", &name, "--network", "host", "--read-only", "--user", "0"]
                .map(str::to_owned)
                .into();
        for mount in server.volume_mounts.iter().flatten() {
            let source = local(dir, mount);
            std::fs::create_dir_all(&source).unwrap();
            let mode = if mount.read_only == Some(true) { "ro" } else { "rw" };
            args.extend([
                "--volume".to_owned(),
                format!("{}:{}:{mode}", source.display(), mount.mount_path),
            ]);
        }
        let variables = server.env.iter().flatten();
        let variables = variables.map(|it| (it.name.as_str(), it.value.as_deref()));
        let env = expansion::environment(variables, |_| String::new());
        for (name, value) in &env {
            args.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        let command = server.command.iter().flatten();
        let mut command = command.map(|text| expansion::expand(text, &env));
        args.extend(["--entrypoint".to_owned(), command.next().expect("it has a command")]);
        args.push(server.image.clone().expect("it has an image"));
        args.extend(command);
        docker(&args.iter().map(String::as_str).collect::<Vec<_>>());
        Some(Self { name })
    }

    /// Kills the container, and starts it again as a kubelet does.
    pub fn restart(&self) {
        docker(&["kill", &self.name]);
        docker(&["start", &self.name]);
    }

    /// Kills the process whose command line contains this text. Returns whether there was one.
    pub fn kill(&self, text: &str) -> bool {
        let processes = docker(&["top", &self.name, "-eo", "pid,args"]);
        let process = processes.lines().find(|line| line.contains(text));
        let Some(pid) = process.and_then(|line| line.split_whitespace().next()) else {
            return false;
        };
        run(Command::new("kill").args(["-9", pid]));
        true
    }

    /// The log of the container so far; empty without a container.
    pub fn log(&self) -> String {
        try_docker(&["logs", &self.name]).unwrap_or_default()
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        let _ = try_docker(&["rm", "--force", &self.name]);
    }
}

/// The directory of a mount.
fn local(dir: &Path, mount: &VolumeMount) -> std::path::PathBuf {
    let volume = dir.join(&mount.name);
    mount.sub_path.as_ref().map_or_else(|| volume.clone(), |path| volume.join(path))
}

/// A path of the container as one of this machine.
fn on_host(container: &Container, dir: &Path, path: &str) -> String {
    for mount in container.volume_mounts.iter().flatten() {
        if Path::new(path).starts_with(&mount.mount_path) {
            return path.replacen(&mount.mount_path, local(dir, mount).to_str().unwrap(), 1);
        }
    }
    path.to_owned()
}
