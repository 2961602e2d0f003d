//! Command lines of the controller and of the agent. Callers add the transport and what is special
//! to them.

use std::{path::Path, process::Command};

use crate::workspace::root;

/// `neptune-cloud run`: a cluster, and an HTTP port of loopback for metrics and health. The
/// environment's `KUBECONFIG` is ignored.
pub fn controller(program: &Path, kubeconfig: &Path, http_port: u16) -> Command {
    let mut command = Command::new(program);
    command.arg("run").arg("--kubeconfig").arg(kubeconfig).env_remove("KUBECONFIG");
    command.args(["--listen", &format!("127.0.0.1:{http_port}")]);
    // The sample's cloud worker mounts /code.
    command.args(["--allow-host-path", "/code"]);
    command
}

/// `neptune-edge run` on a node, which may download from loopback.
pub fn agent(program: &Path, node: &str, data_dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--node-name", node, "--allow-address", "127.0.0.0/8"]);
    command.arg("--data-dir").arg(data_dir);
    // The tests put models and scripts beside the data directory, and use those of the examples.
    let node_dir = data_dir.parent().unwrap_or(data_dir);
    command.arg("--runtime-dir").arg(node_dir.join("run"));
    for flag in ["--allow-model-dir", "--allow-script-dir"] {
        command.arg(flag).arg(node_dir).arg(flag).arg(root().join("examples"));
    }
    command
}

/// The flags of both programs for an MQTT broker.
pub fn mqtt(url: &str) -> Vec<String> {
    vec!["--mqtt-url".to_owned(), url.to_owned()]
}
