//! Inspects the Docker network of the node's containers.

use std::net::IpAddr;

use bollard::{models::NetworkInspect, query_parameters as query};
use ipnet::IpNet;
use neptune_agent_core::domain::problem::Problem;

use crate::docker::{Docker, status_code};

/// A Docker network on the node, as the engine describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub driver: String,
    /// The subnets, and the node's address in each of them, unless the engine does not state it.
    pub subnets: Vec<(IpNet, Option<IpAddr>)>,
}

impl Network {
    /// The node's addresses on the network.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().filter_map(|(_, gateway)| *gateway)
    }

    /// Whether this address of the node is its address on the network.
    pub fn has_gateway(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|(subnet, gateway)| match gateway {
            Some(gateway) => *gateway == address,
            // Docker does not always state it for its default network. The node has one address
            // in the subnet.
            None => subnet.contains(&address),
        })
    }
}

impl Docker {
    /// The network of this name; `None` if there is none.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn network(&self, name: &str) -> Result<Option<Network>, Problem> {
        let options = None::<query::InspectNetworkOptions>;
        let response = async { self.client()?.inspect_network(name, options).await };
        match response.await {
            Ok(details) => Ok(Some(network(details))),
            Err(error) if status_code(&error) == Some(404) => Ok(None),
            Err(error) => Err(self.problem(&error)),
        }
    }
}

fn network(details: NetworkInspect) -> Network {
    let subnets = details.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
    let subnets = subnets.into_iter().filter_map(|subnet| {
        let gateway = subnet.gateway.and_then(|gateway| gateway.parse().ok());
        Some((subnet.subnet?.parse().ok()?, gateway))
    });
    Network { driver: details.driver.unwrap_or_default(), subnets: subnets.collect() }
}
