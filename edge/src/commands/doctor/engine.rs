//! Decides the findings about the container engine: its answer, the credentials for registries, and
//! the containers' network. Pure.

use std::net::SocketAddr;

use crate::commands::doctor::{
    facts::{EngineFacts, NetworkFacts, RegistryFacts},
    report::Finding,
};

/// Whether the engine answers.
pub fn engine(EngineFacts { socket, version }: &EngineFacts) -> Finding {
    const CHECK: &str = "engine";
    let socket = socket.display();
    match version {
        Ok(version) => Finding::ok(CHECK, format!("{version} on {socket}")),
        Err(why) => Finding::error(
            CHECK,
            why,
            "start it (systemctl start docker, or podman.socket), add the agent's user to the socket's group, or set --docker-host to the socket",
        ),
    }
}

/// Whether the credentials for registries can be used, and only by the agent.
pub fn registries(RegistryFacts { path, state }: &RegistryFacts) -> Finding {
    const CHECK: &str = "registries";
    /// The permission bit "read by others".
    const READ_BY_OTHERS: u32 = 0o004;
    let path = path.display();
    match state {
        Ok((_, mode)) if mode & READ_BY_OTHERS != 0 => Finding::warning(
            CHECK,
            format!("every user of the node can read {path} (mode {mode:o})"),
            "remove the permission (chmod o-r), and replace the passwords if others use the node",
        ),
        Ok((count, _)) => Finding::ok(CHECK, format!("{path} has {count} logins")),
        Err(why) => Finding::warning(
            CHECK,
            format!("--registry-config {path}: {why}; images are pulled without credentials"),
            "correct the file (docker login writes this format); the next pull reads it again",
        ),
    }
}

/// Whether containers on their network reach the workers' broker, and are reached.
pub fn network(NetworkFacts { name, listen, state }: &NetworkFacts) -> Finding {
    const CHECK: &str = "worker network";
    let network = match state {
        Ok(Some(network)) => network,
        Ok(None) => {
            return Finding::error(
                CHECK,
                format!("network {name} of --worker-network does not exist"),
                format!("create it (docker network create {name}), or use another one"),
            );
        }
        Err(why) => {
            return Finding::error(CHECK, why, "make the engine answer; see the check engine");
        }
    };
    if network.driver != "bridge" {
        return Finding::error(
            CHECK,
            format!("network {name} has the driver {}", network.driver),
            "use a network with the driver bridge: others publish no ports on the node",
        );
    }
    let Some(listen) = listen else {
        return Finding::ok(CHECK, format!("{name}; --local-broker must be reachable from it"));
    };
    if network.has_gateway(listen.ip()) {
        return Finding::ok(CHECK, format!("{name} reaches the embedded broker at {listen}"));
    }
    let gateways = network.gateways().map(|gateway| SocketAddr::new(gateway, listen.port()));
    let gateways: Vec<_> = gateways.map(|gateway| gateway.to_string()).collect();
    let remedy = match &gateways[..] {
        [] => "set --local-listen to the node's address on that network (ip address)".to_owned(),
        gateways => format!("set --local-listen to {}", gateways.join(" or ")),
    };
    Finding::warning(
        CHECK,
        format!("the embedded broker listens on {listen}, not on the gateway of network {name}"),
        remedy,
    )
}
