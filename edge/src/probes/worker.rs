//! Runs one probe of a worker.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use neptune_agent_core::{
    domain::probe::{ProbeAnswer, ProbeResult},
    probes::DueProbe,
};
use neptune_edge_engine::docker::Docker;
use neptune_wire::ProbeAction;

use super::http::{self, Request};

/// Runs a probe, within its timeout. `on_network`: the container is not in the network of the node,
/// so that a worker cannot let the agent connect to the loopback addresses of the node.
pub async fn run(docker: &Docker, due: &DueProbe, on_network: bool) -> ProbeAnswer {
    let within = Duration::from_millis(due.probe.timeout_ms.max(1));
    let (port, request) = match due.probe.action() {
        Some(ProbeAction::Exec(command)) => {
            let running = due.running_exec.clone();
            return docker.probe_exec(&due.container, command, running, within).await;
        }
        Some(ProbeAction::Http(get)) if get.https => (get.port, Request::GetTls(&get.path)),
        Some(ProbeAction::Http(get)) => (get.port, Request::Get(&get.path)),
        Some(ProbeAction::Tcp(port)) => (port, Request::Connect),
        None => return unknown(),
    };
    let host = match due.address {
        Some(address) if on_network => address,
        None if on_network => return unknown(),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    http::probe(SocketAddr::from((host, port)), request, within).await.into()
}

fn unknown() -> ProbeAnswer {
    ProbeAnswer { result: ProbeResult::Unknown, running_exec: None }
}
