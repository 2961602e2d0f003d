//! Follows the path from this node to one cloud: its name, its address, a call.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use super::{
    CHECK_TIMEOUT, PendingChecks, blocking,
    call::Call,
    cloud_hosts::CloudHost,
    facts::{CallError, CallFacts, Checked, CloudWorkerFacts, NameAnswer},
    inspect, name_server,
};
use crate::gateway::secrets;

const NAME: &str = "cloud workers";
pub const DNS_PORT: u16 = 53;

/// The name servers of this node.
#[derive(Debug)]
pub struct NameServers {
    /// The name servers that containers use in place of this machine's resolver, in their order.
    pub containers: Vec<SocketAddr>,
    /// `EdgeMesh`'s; `None` if this machine does not have its address.
    pub edge_mesh: Option<SocketAddr>,
}

impl NameServers {
    pub fn new(containers: &[IpAddr], edge_mesh: SocketAddr) -> Self {
        let containers = containers.iter().map(|address| SocketAddr::new(*address, DNS_PORT));
        Self {
            containers: containers.collect(),
            edge_mesh: Some(edge_mesh).filter(|address| name_server::has_interface(*address)),
        }
    }
}

/// Resolves the host of a cloud, unless it has a host entry, and calls it.
pub async fn follow(
    cloud: CloudHost,
    servers: &NameServers,
    secret_dir: &Path,
    pending: &PendingChecks,
) -> CloudWorkerFacts {
    let (addresses, name) = tokio::join!(
        pending.check(NAME, addresses(&cloud, servers)),
        name_of_entry(&cloud, servers),
    );
    let first = addresses.as_ref().ok().and_then(|addresses| addresses.first());
    let call = match first.zip(cloud.port) {
        Some((address, port)) => {
            let address = SocketAddr::new(*address, port);
            let called = async { Ok(call(&cloud, address, secret_dir).await) };
            let silent =
                |_| CallFacts { address, result: Err(CallError::Silent), took: CHECK_TIMEOUT };
            Some(pending.check(NAME, called).await.unwrap_or_else(silent))
        }
        None => None,
    };
    let is_service = cloud.entry.is_some() || cloud.host.ends_with(".svc.cluster.local");
    CloudWorkerFacts { host: cloud.host, used_by: cloud.used_by, addresses, is_service, name, call }
}

async fn call(cloud: &CloudHost, address: SocketAddr, secret_dir: &Path) -> CallFacts {
    let authorities = match cloud.ca_file.clone() {
        Some(name) => {
            let dir = secret_dir.to_owned();
            blocking(move || secrets::read(&dir, &name)).await.map(Some)
        }
        None => Ok(None),
    };
    match authorities {
        Ok(authorities) => {
            let (host, protocol) = (&cloud.host, cloud.protocol);
            Call { host, address, protocol, authorities }.run().await
        }
        Err(why) => CallFacts { address, result: Err(CallError::Other(why)), took: Duration::ZERO },
    }
}

/// The addresses as the container sees them: its host entry, its name servers, or this machine's
/// resolver.
async fn addresses(cloud: &CloudHost, servers: &NameServers) -> Checked<Vec<IpAddr>> {
    if let Some(address) = cloud.entry {
        return Ok(vec![address]);
    }
    if let Ok(address) = cloud.host.parse() {
        return Ok(vec![address]);
    }
    if servers.containers.is_empty() {
        return inspect::addresses(&cloud.host).await;
    }
    // As a resolver does: the first that answers decides, also if it does not know the name.
    let mut problems = Vec::new();
    for server in &servers.containers {
        let address = server.ip();
        match name_server::ask(*server, &cloud.host).await {
            NameAnswer::Addresses(addresses) => return Ok(addresses),
            NameAnswer::Unknown => return Err(format!("{address} does not know the name")),
            other => problems.push(format!("{address} {other}")),
        }
    }
    Err(problems.join(", "))
}

/// What `EdgeMesh`'s name server answers for the name of a host entry.
async fn name_of_entry(cloud: &CloudHost, servers: &NameServers) -> Option<NameAnswer> {
    let server = servers.edge_mesh.filter(|_| cloud.entry.is_some())?;
    Some(name_server::ask(server, &cloud.host).await)
}

#[cfg(test)]
mod tests;
