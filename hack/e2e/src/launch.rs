//! How the programs of a fleet are started, by either transport.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{Broker, KubeEdge, Process, Proxy, free_port, program};

/// What every program of a fleet is told.
pub struct Launch {
    pub dir: TempDir,
    pub namespace: String,
    pub edge: String,
    pub kubeconfig: PathBuf,
    pub way: Way,
}

/// What is between the controller and the nodes.
pub enum Way {
    /// One broker, that of the edge node, which reaches it through this.
    Mqtt(Proxy),
    /// `KubeEdge`.
    EventBus(KubeEdge),
}

impl Launch {
    /// The controller. Without `KubeEdge` it is at this broker.
    pub fn controller(&self, broker: &Broker) -> Process {
        let way = match &self.way {
            Way::EventBus(kubeedge) => kubeedge.controller(&self.namespace),
            Way::Mqtt(_) => mqtt(broker.url()),
        };
        let mut command = Command::new(program("neptune-cloud"));
        command
            .arg("run")
            .args(way)
            .args(["--watch-namespace", &self.namespace])
            // The table of frameworks is the test's own too.
            .args(["--namespace", &self.namespace])
            .args(["--listen", &format!("127.0.0.1:{}", free_port()), "--kubeconfig"])
            .arg(&self.kubeconfig)
            .env_remove("KUBECONFIG");
        Process::start("neptune-cloud", self.dir.path(), &mut command)
    }

    /// The agent of a node whose local broker this is.
    pub fn agent(&self, node: &str, broker: &Broker) -> Process {
        let way = match &self.way {
            Way::EventBus(_) => KubeEdge::agent(&self.namespace),
            Way::Mqtt(proxy) if node == self.edge => mqtt(proxy.url()),
            Way::Mqtt(_) => mqtt(broker.url()),
        };
        let data = self.dir.path().join(node);
        let mut command = Command::new(program("neptune-edge"));
        command
            .args(["run", "--node-name", node])
            .args(way)
            .args(["--local-broker", &broker.url(), "--allow-address", "127.0.0.0/8", "--data-dir"])
            .arg(data)
            .arg("--allow-data-dir")
            .arg(data_dir(self.dir.path()));
        Process::start(node, self.dir.path(), &mut command)
    }
}

/// The folder in which the nodes' datasets may be.
pub fn data_dir(dir: &Path) -> PathBuf {
    dir.join("datasets")
}

fn mqtt(url: String) -> Vec<String> {
    vec!["--mqtt-url".to_owned(), url]
}
