//! Kills and restarts the parts of a fleet.

use neptune_harness::docker::docker;

use super::Fleet;
use crate::launch::RunningTransport;

/// A process that a test can kill.
#[derive(Debug, Clone, Copy)]
pub enum KillTarget {
    /// The whole of the emulated `KubeEdge`, if the fleet uses it.
    KubeEdge,
    /// cloudcore, if the fleet uses a real `KubeEdge`.
    Cloudcore,
    /// The edge node's edgecore, if the fleet uses a real `KubeEdge`.
    Edgecore,
    /// The edge node's agent.
    Agent,
    /// The controller in the cloud.
    Controller,
    /// The broker, which loses retained messages and sessions.
    Broker,
    /// The edge worker's container.
    Worker,
}

impl Fleet {
    /// Kills one part and starts it again. The agent restarts a killed worker.
    pub async fn kill(&mut self, target: KillTarget) {
        match target {
            KillTarget::Agent => {
                self.stop_agent();
                self.start_agent();
            }
            KillTarget::Controller => {
                self.stop_controller();
                self.start_controller();
            }
            KillTarget::Broker => self.broker.restart().await,
            KillTarget::KubeEdge => {
                if let RunningTransport::EventBus(kubeedge) = &mut self.launcher.transport {
                    kubeedge.kill_and_restart().await;
                }
            }
            KillTarget::Cloudcore => {
                if let RunningTransport::KubeEdge(kubeedge) = &mut self.launcher.transport {
                    kubeedge.restart_cloudcore();
                }
            }
            KillTarget::Edgecore => {
                if let RunningTransport::KubeEdge(kubeedge) = &mut self.launcher.transport {
                    kubeedge.restart_edgecore(&self.edge);
                }
            }
            KillTarget::Worker => {
                docker(&["kill", &self.container(&self.edge)]);
            }
        }
    }

    /// Kills the controller, as a failure of its machine does.
    pub fn stop_controller(&mut self) {
        self.controller.kill();
    }

    /// Starts the controller after [`Fleet::stop_controller`].
    pub fn start_controller(&mut self) {
        self.controller = self.launcher.controller(&self.broker);
    }

    /// Kills the edge node's agent. Its containers keep running.
    pub fn stop_agent(&mut self) {
        self.nodes[0].agent.kill();
    }

    /// Starts the edge node's agent.
    pub fn start_agent(&mut self) {
        let name = self.edge.clone();
        self.restart_agent(&name);
    }

    /// Kills the agent of a node. Its containers keep running.
    ///
    /// # Panics
    /// If the fleet has no node of that name.
    pub fn kill_agent(&mut self, name: &str) {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        node.unwrap_or_else(|| panic!("no node {name}")).agent.kill();
    }

    /// Kills the agent of a node and starts it again. Its containers keep running.
    ///
    /// # Panics
    /// If the fleet has no node of that name.
    pub fn restart_agent(&mut self, name: &str) {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        let node = node.unwrap_or_else(|| panic!("no node {name}"));
        node.agent.kill();
        let broker = node.broker.as_ref().unwrap_or(&self.broker);
        node.agent = self.launcher.agent(name, broker);
    }
}
