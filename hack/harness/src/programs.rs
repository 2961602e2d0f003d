//! Command lines of the controller and of the agent. Callers add the transport and what is special
//! to them.

use std::{path::Path, process::Command};

/// `neptune-cloud run`: a cluster, and an HTTP port of loopback for metrics and health. The
/// environment's `KUBECONFIG` is ignored.
pub fn controller(program: &Path, kubeconfig: &Path, http_port: u16) -> Command {
    let mut command = Command::new(program);
    command.arg("run").arg("--kubeconfig").arg(kubeconfig).env_remove("KUBECONFIG");
    command.args(["--listen", &format!("127.0.0.1:{http_port}")]);
    command
}

/// `neptune-edge run` on a node, which may download from loopback.
pub fn agent(program: &Path, node: &str, data_dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--node-name", node, "--allow-address", "127.0.0.0/8"]);
    command.arg("--data-dir").arg(data_dir);
    command
}

/// The flags of both programs for an MQTT broker.
pub fn mqtt(url: &str) -> Vec<String> {
    vec!["--mqtt-url".to_owned(), url.to_owned()]
}
