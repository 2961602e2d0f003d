//! What runs between the demo's controller and its nodes, and the flags that connect them to it.

use std::path::Path;

use clap::ValueEnum;
use neptune_e2e::KubeEdge;
use neptune_harness::{Broker, free_port, programs};

/// The namespace of the Rules.
const RULES: &str = "default";

/// The value of `--transport`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Transport {
    /// One MQTT broker, a rumqttd, for the controller and the nodes
    Mqtt,
    /// An emulator of KubeEdge's router and EventBus, and a mosquitto on each node
    Eventbus,
}

/// A transport that runs.
pub enum RunningTransport {
    /// The broker, and the ports of the brokers that the agents embed for their workers.
    Mqtt(Box<Broker>, [u16; 2]),
    /// The emulator, and the brokers of the edge node and of the cloud node.
    EventBus(KubeEdge, Box<[Broker; 2]>),
}

impl RunningTransport {
    /// Starts what the agents do not bring themselves. For `KubeEdge` its CRDs must exist.
    pub async fn start(
        transport: Transport,
        dir: &Path,
        kubeconfig: &Path,
        [edge, cloud]: [&str; 2],
    ) -> Self {
        match transport {
            Transport::Mqtt => {
                Self::Mqtt(Box::new(Broker::rumqttd().await), [free_port(), free_port()])
            }
            Transport::Eventbus => {
                let brokers = Box::new([Broker::start().await, Broker::start().await]);
                let nodes = [(edge, &brokers[0]), (cloud, &brokers[1])];
                Self::EventBus(KubeEdge::start(dir, kubeconfig, &nodes).await, brokers)
            }
        }
    }

    /// Flags of the controller.
    pub fn controller_flags(&self) -> Vec<String> {
        match self {
            Self::Mqtt(broker, _) => programs::mqtt(&broker.url()),
            Self::EventBus(kubeedge, _) => kubeedge.controller(RULES),
        }
    }

    /// Flags of the edge node's agent and of the cloud node's agent.
    pub fn agent_flags(&self) -> [Vec<String>; 2] {
        match self {
            Self::Mqtt(broker, ports) => ports.map(|port| {
                let listen = format!("127.0.0.1:{port}");
                let embedded = ["--local-broker", "embedded", "--local-listen", &listen];
                [programs::mqtt(&broker.url()), strings(embedded)].concat()
            }),
            Self::EventBus(_, brokers) => brokers.each_ref().map(|broker| {
                [KubeEdge::agent(RULES), strings(["--local-broker", &broker.url()])].concat()
            }),
        }
    }

    /// The port and the topic filter on which a user can observe the edge node's messages.
    pub fn upstream(&self) -> (u16, String) {
        match self {
            Self::Mqtt(broker, _) => (broker.port(), "neptune/+/upstream/#".to_owned()),
            Self::EventBus(_, brokers) => {
                (brokers[0].port(), format!("{RULES}/user/neptune/upstream"))
            }
        }
    }
}

fn strings<const N: usize>(values: [&str; N]) -> Vec<String> {
    values.map(str::to_owned).to_vec()
}
