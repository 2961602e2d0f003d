//! Chooses the ports of a model server that a service owns, on the nodes of agents. A part of
//! `validate`.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, JointInferenceService};
use neptune_wire::Role;
use sha2::{Digest as _, Sha256};

use crate::{
    joint_inference_service::facts::ServiceFacts,
    worker::{
        ports::{self, Age, NodePort},
        serving_runtimes::ServerPorts,
    },
};

/// The range of the ports of owned servers: above well-known services, below the ephemeral ports of
/// Linux.
const FIRST: u16 = 21_000;

const COUNT: u16 = 9_000;

/// The `InferenceModel` of the owned server's name, if it exists.
pub fn existing(role: Role, facts: &ServiceFacts) -> Option<&InferenceModel> {
    match role {
        Role::Edge => facts.gateway.edge_server.as_deref(),
        Role::Cloud => facts.gateway.cloud_server.as_deref(),
    }
}

/// The ports of an owned server on these nodes: those of the existing server, unless an older object
/// has them, or free ones, by a hash of the uid.
pub fn node_ports(
    service: &JointInferenceService,
    role: Role,
    nodes: &[&str],
    facts: &ServiceFacts,
) -> ServerPorts {
    let used = facts.gateway.ports.iter();
    let used: Vec<&NodePort> = used.filter(|used| nodes.contains(&used.node.as_str())).collect();
    let other = if role == Role::Edge { Role::Cloud } else { Role::Edge };
    let of_other: Vec<u16> =
        existing(other, facts).into_iter().flat_map(ports::model_ports).collect();
    let existing = existing(role, facts);
    let age = existing.map(|existing| Age::from_metadata(&existing.metadata)).unwrap_or_default();
    let is_lost = |port: &u16| {
        used.iter().any(|used| used.port == *port && used.age < age)
            || (role == Role::Cloud && of_other.contains(port))
    };
    let kept = |port: Option<i32>| ports::valid(port).filter(|port| !is_lost(port));
    let mut taken: BTreeSet<u16> = used.iter().map(|used| used.port).collect();
    taken.extend(&of_other);
    // Each port of a service begins in another quarter of the range.
    let quarter = |number: u16| number * (COUNT / 4);
    let first = if role == Role::Edge { 0 } else { 2 };
    let rest = kept(existing.and_then(|existing| existing.spec.serving_port))
        .unwrap_or_else(|| free(service, quarter(first), &taken));
    taken.insert(rest);
    let grpc = kept(existing.and_then(|existing| existing.spec.grpc_port))
        .filter(|port| *port != rest)
        .unwrap_or_else(|| free(service, quarter(first + 1), &taken));
    ServerPorts { rest, grpc: Some(grpc) }
}

/// A free port, by a hash of the uid.
fn free(service: &JointInferenceService, offset: u16, taken: &BTreeSet<u16>) -> u16 {
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let digest = Sha256::digest(uid);
    let hash = u32::from_be_bytes(digest[..4].try_into().expect("a digest has 32 bytes"));
    let preferred = u16::try_from(hash % u32::from(COUNT)).expect("COUNT fits") + offset;
    (0..COUNT)
        .map(|step| FIRST + (preferred + step) % COUNT)
        .find(|port| !taken.contains(port))
        .unwrap_or(FIRST + preferred % COUNT)
}
