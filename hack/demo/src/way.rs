//! How the demo's controller and nodes reach each other, and what runs between them.

use std::path::Path;

use clap::ValueEnum;
use neptune_e2e::{Broker, KubeEdge, free_port};

/// The namespace of the Rules.
const RULES: &str = "default";

/// As the user chooses.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Transport {
    /// One broker.
    Mqtt,
    /// `KubeEdge`.
    Eventbus,
}

/// What runs between the controller and the nodes.
pub enum Way {
    /// The edge node's embedded broker, on this port, serves the whole demo.
    Mqtt(u16),
    /// An emulator, and the brokers of the edge node and of the cloud node.
    EventBus(KubeEdge, Box<[Broker; 2]>),
}

impl Way {
    /// Starts what is needed. Over `KubeEdge` its CRDs have to be there.
    pub async fn start(
        transport: Transport,
        dir: &Path,
        kubeconfig: &Path,
        [edge, cloud]: [&str; 2],
    ) -> Self {
        match transport {
            Transport::Mqtt => Self::Mqtt(free_port()),
            Transport::Eventbus => {
                let brokers = Box::new([Broker::start(dir).await, Broker::start(dir).await]);
                let nodes = [(edge, &brokers[0]), (cloud, &brokers[1])];
                Self::EventBus(KubeEdge::start(dir, kubeconfig, nodes).await, brokers)
            }
        }
    }

    /// How the controller is told of it.
    pub fn controller(&self) -> Vec<String> {
        match self {
            Self::Mqtt(port) => texts(["--mqtt-url", &url(*port)]),
            Self::EventBus(kubeedge, _) => kubeedge.controller(RULES),
        }
    }

    /// How the edge node's agent and the cloud node's are told of it.
    pub fn agents(&self) -> [Vec<String>; 2] {
        match self {
            Self::Mqtt(port) => {
                let (url, listen) = (url(*port), format!("127.0.0.1:{port}"));
                let embedded = ["--local-broker", "embedded", "--local-listen", &listen];
                [
                    [texts(["--mqtt-url", &url]), texts(embedded)].concat(),
                    texts(["--mqtt-url", &url, "--local-broker", &url]),
                ]
            }
            Self::EventBus(_, brokers) => brokers.each_ref().map(|broker| {
                [KubeEdge::agent(RULES), texts(["--local-broker", &broker.url()])].concat()
            }),
        }
    }

    /// Where the edge node can be overheard: port and topic.
    pub fn upstream(&self) -> (u16, String) {
        match self {
            Self::Mqtt(port) => (*port, "neptune/+/upstream/#".to_owned()),
            Self::EventBus(_, brokers) => {
                (brokers[0].port(), format!("{RULES}/user/neptune/upstream"))
            }
        }
    }
}

fn url(port: u16) -> String {
    format!("mqtt://127.0.0.1:{port}")
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}
