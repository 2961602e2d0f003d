//! Starts the programs of a fleet, with either transport.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use neptune_harness::{Broker, Process, Proxy, free_port, programs, workspace::program};
use tempfile::TempDir;

use crate::{KubeEdge, real_kubeedge::RealKubeEdge};

/// The image of aggregators on nodes, which `hack/build-aggregator-image.sh` builds.
const AGGREGATOR_IMAGE: &str = "neptune/aggregator:dev";
/// The image of gateways, which `hack/build-gateway-image.sh` builds.
pub const GATEWAY_IMAGE: &str = "neptune/gateway:dev";

/// What all programs of a fleet have in common.
pub struct Launcher {
    pub namespace: String,
    pub edge: String,
    pub kubeconfig: PathBuf,
    pub transport: RunningTransport,
    pub dir: TempDir,
    /// Further flags of the agents, by node.
    pub agent_flags: BTreeMap<String, Vec<String>>,
}

/// What runs between the controller and the nodes.
pub enum RunningTransport {
    /// The broker of the edge node, which the edge node's agent reaches by this proxy.
    Mqtt(Proxy),
    /// The emulator of `KubeEdge`.
    EventBus(KubeEdge),
    /// A real installation of `KubeEdge`.
    KubeEdge(RealKubeEdge),
}

impl Launcher {
    /// Starts the controller. Without `KubeEdge` it uses this broker.
    pub fn controller(&self, broker: &Broker) -> Process {
        let program = program("neptune-cloud");
        let mut command = programs::controller(&program, &self.kubeconfig, free_port());
        command.args(match &self.transport {
            RunningTransport::EventBus(kubeedge) => kubeedge.controller(&self.namespace),
            RunningTransport::KubeEdge(kubeedge) => kubeedge.controller(&self.namespace),
            RunningTransport::Mqtt(_) => programs::mqtt(&broker.url()),
        });
        command.args(["--watch-namespace", &self.namespace]);
        // The table of frameworks is in the test's namespace, too.
        command.args(["--namespace", &self.namespace]);
        command.args(["--gateway-image", GATEWAY_IMAGE, "--aggregator-image", AGGREGATOR_IMAGE]);
        Process::start("neptune-cloud", self.dir.path(), &mut command)
    }

    /// Starts the agent of a node with this local broker.
    pub fn agent(&self, node: &str, broker: &Broker) -> Process {
        let data = self.dir.path().join(node);
        let mut command = programs::agent(&program("neptune-edge"), node, &data);
        command.args(match &self.transport {
            RunningTransport::EventBus(_) | RunningTransport::KubeEdge(_) => {
                KubeEdge::agent(&self.namespace)
            }
            RunningTransport::Mqtt(proxy) if node == self.edge => programs::mqtt(&proxy.url()),
            RunningTransport::Mqtt(_) => programs::mqtt(&broker.url()),
        });
        command.args(["--local-broker", &self.local_broker(node, broker), "--allow-data-dir"]);
        command.arg(data_dir(self.dir.path()));
        command.arg("--allow-script-dir").arg(script_dir(self.dir.path()));
        command.args(self.agent_flags.get(node).into_iter().flatten());
        command.arg("--allow-capture-dir").arg(data_dir(self.dir.path()));
        Process::start(node, self.dir.path(), &mut command)
    }

    /// The URL of a node's local broker, which is this one unless edgecore has its own.
    pub fn local_broker(&self, node: &str, broker: &Broker) -> String {
        match &self.transport {
            RunningTransport::KubeEdge(kubeedge) => kubeedge.broker_of_edgecore(node),
            RunningTransport::EventBus(_) | RunningTransport::Mqtt(_) => None,
        }
        .unwrap_or_else(|| broker.url())
    }
}

/// The folder of the nodes' datasets.
pub fn data_dir(dir: &Path) -> PathBuf {
    dir.join("datasets")
}

/// The folder of the nodes' scripts.
pub fn script_dir(dir: &Path) -> PathBuf {
    dir.join("scripts")
}
