//! The ports that model servers, gateways and cloud workers use on nodes: one allocation that knows
//! all of them. Of two objects with one port, the older one keeps it.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use neptune_api::{Gateway, InferenceModel, JointInferenceService};
use sha2::{Digest as _, Sha256};

/// The range of cloud workers, which an agent runs in the host network of its node: above
/// well-known services, below the ephemeral ports of Linux.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// The range of model servers behind a transformer, below the ports of cloud workers.
const FIRST_BEHIND: u16 = 12_000;
const COUNT_BEHIND: u16 = 8_000;
/// Ports per model: of the server, of two transformers, and one for another of these that is the
/// port of the endpoint.
const STEP_BEHIND: u16 = 4;

/// The port of a gateway whose spec names none.
const DEFAULT_GATEWAY_PORT: u16 = 8080;

/// The age of an object; a smaller one is older. Objects of one second are ordered by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age(Option<Timestamp>, Option<String>);

impl Age {
    /// Takes the age from the metadata of an object.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.as_ref();
        Self(created.map(|time| time.0), metadata.uid.clone())
    }
}

/// The program that uses a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortUse {
    /// The server of an `InferenceModel`.
    ModelServer,
    /// The gateway of a service.
    Gateway,
    /// The cloud worker of a service.
    CloudWorker,
}

/// A port of a node, and the object that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePort {
    /// Name of the node.
    pub node: String,
    /// The TCP port on the node.
    pub port: u16,
    /// The program that uses the port.
    pub used_for: PortUse,
    /// Namespace and name of the object.
    pub object: String,
    /// The age of the object.
    pub age: Age,
    /// The uid of the controller that owns the object.
    pub owner: Option<String>,
    /// Namespace and name of the `InferenceModel` that the gateway's service names.
    pub server: Option<String>,
}

impl NodePort {
    fn new(metadata: &ObjectMeta, used_for: PortUse, node: &str, port: u16) -> Self {
        let owners = metadata.owner_references.iter().flatten();
        let mut controllers = owners.filter(|owner| owner.controller == Some(true));
        Self {
            node: node.to_owned(),
            port,
            used_for,
            object: object(metadata),
            age: Age::from_metadata(metadata),
            owner: controllers.next().map(|owner| owner.uid.clone()),
            server: None,
        }
    }
}

/// Formats the object as kind and name, for messages.
impl fmt::Display for NodePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.used_for {
            PortUse::ModelServer => "InferenceModel",
            PortUse::Gateway | PortUse::CloudWorker => "JointInferenceService",
        };
        write!(f, "{kind} {}", self.object)
    }
}

/// Namespace and name of an object.
pub fn object(metadata: &ObjectMeta) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&metadata.namespace), text(&metadata.name))
}

/// Converts a number to a port; `None` if it is not between 1 and 65535.
pub fn valid(number: Option<i32>) -> Option<u16> {
    number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0)
}

/// The port of a gateway; the default if the spec has none or an invalid one.
pub fn gateway_port(gateway: &Gateway) -> u16 {
    valid(gateway.port).unwrap_or(DEFAULT_GATEWAY_PORT)
}

/// The ports of a gateway: for REST, and for gRPC if it has one.
pub fn gateway_ports(gateway: &Gateway) -> impl Iterator<Item = u16> {
    [Some(gateway_port(gateway)), valid(gateway.grpc_port)].into_iter().flatten()
}

/// The ports of a model server: of its endpoint, for gRPC if it has one, and behind a transformer
/// its own and those of the transformers.
pub fn model_ports(model: &InferenceModel) -> impl Iterator<Item = u16> {
    let spec = &model.spec;
    let own = [valid(spec.serving_port), valid(spec.grpc_port), port_behind(model)];
    own.into_iter().flatten().chain(transformer_ports(model).into_iter().flatten())
}

/// The two ports on which transformers listen behind their proxy, one after the other: those after
/// the port of the server. `None` without a transformer, or if that port is invalid.
pub fn transformer_ports(model: &InferenceModel) -> Option<[u16; 2]> {
    let behind = port_behind(model)?;
    let endpoint = valid(model.spec.serving_port);
    let after = (behind..=u16::MAX).skip(1);
    let mut ports = after.chain((1..behind).rev()).filter(|port| Some(*port) != endpoint);
    Some([ports.next()?, ports.next()?])
}

/// The port of a model server behind a transformer; `None` without a transformer, or if the given
/// port is invalid. Without a given port it is a hash of the object's name, so that it never
/// changes.
pub fn port_behind(model: &InferenceModel) -> Option<u16> {
    let number = model.spec.transformer.as_ref()?.port.unwrap_or_default();
    if number != 0 {
        return valid(Some(number));
    }
    let hash = name_hash(&model.metadata) % u64::from(COUNT_BEHIND / STEP_BEHIND);
    let chosen = FIRST_BEHIND + STEP_BEHIND * u16::try_from(hash).expect("COUNT_BEHIND fits");
    let is_taken = valid(model.spec.serving_port) == Some(chosen);
    Some(if is_taken { chosen + 1 } else { chosen })
}

/// The nodes whose agents serve a model, by its status, or else by its spec.
pub fn model_nodes(model: &InferenceModel) -> Vec<String> {
    let status = model.status.iter();
    let nodes: Vec<String> = status
        .flat_map(|status| {
            let servers = status.servers.iter().map(|server| &server.node);
            status.node.iter().chain(servers).cloned()
        })
        .collect();
    // The status may not be written yet; then the spec has the node.
    let named = model.spec.node_name.iter().filter(|name| !name.is_empty()).cloned();
    if nodes.is_empty() && model.spec.deploy_to_layer == "edge" { named.collect() } else { nodes }
}

/// The ports of a model server on its nodes.
pub fn of_model(model: &InferenceModel) -> Vec<NodePort> {
    let nodes = model_nodes(model);
    nodes.iter().flat_map(|node| of_model_on(model, node)).collect()
}

/// The ports of a model server on one of its nodes, also if there are more than the status lists.
pub fn of_model_on(model: &InferenceModel, node: &str) -> Vec<NodePort> {
    let node_port = |port| NodePort::new(&model.metadata, PortUse::ModelServer, node, port);
    model_ports(model).map(node_port).collect()
}

/// The ports of a gateway on its nodes, as far as the status has them; none for a service without
/// one.
pub fn of_gateway(service: &JointInferenceService) -> Vec<NodePort> {
    let placed = service.status.iter().flat_map(|status| &status.edge_workers);
    let named = &service.spec.edge_worker.node_name;
    of_gateway_on(service, placed.map(|worker| &worker.node).chain(named))
}

/// The ports of a gateway on these nodes; none for a service without one.
pub fn of_gateway_on<'a>(
    service: &JointInferenceService,
    nodes: impl Iterator<Item = &'a String>,
) -> Vec<NodePort> {
    let edge = &service.spec.edge_worker;
    if edge.worker_spec.is_some() || (edge.server.is_none() && edge.inference_model.is_none()) {
        return Vec::new();
    }
    let settings = service.spec.gateway.as_deref().cloned().unwrap_or_default();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let server = edge.inference_model.as_ref().map(|model| format!("{namespace}/{}", model.name));
    let on = |node: &String| {
        let node_port = |port| NodePort {
            server: server.clone(),
            ..NodePort::new(&service.metadata, PortUse::Gateway, node, port)
        };
        gateway_ports(&settings).map(node_port).collect::<Vec<_>>()
    };
    nodes.flat_map(on).collect()
}

/// The ports of all cloud workers on a node, the oldest first. `used` are the other ports of this
/// node.
///
/// A port is a hash of the service's name, increased past the ports of older objects. Older
/// services choose first, so a new object never changes the port of another one.
pub fn of_cloud_workers(
    node: &str,
    services: &[&JointInferenceService],
    used: &[NodePort],
) -> Vec<NodePort> {
    let mut services: Vec<_> =
        services.iter().map(|service| (Age::from_metadata(&service.metadata), *service)).collect();
    services.sort_by(|(a, _), (b, _)| a.cmp(b));
    services.dedup_by(|(a, _), (b, _)| a == b);
    let mut used: Vec<_> = used.iter().filter(|used| used.node == node).collect();
    used.sort_by(|a, b| a.age.cmp(&b.age));
    let mut used = used.into_iter().peekable();
    let mut taken = BTreeSet::new();
    let allocate = |(age, service): (Age, &JointInferenceService)| {
        // The service's own gateway is as old as its cloud worker.
        while let Some(older) = used.next_if(|used| used.age <= age) {
            taken.insert(older.port);
        }
        let port = choose(service, &taken);
        taken.insert(port);
        NodePort::new(&service.metadata, PortUse::CloudWorker, node, port)
    };
    services.into_iter().map(allocate).collect()
}

/// Whether a port may be that of a cloud worker.
pub fn may_be_of_cloud_worker(port: u16) -> bool {
    (FIRST..FIRST + COUNT).contains(&port)
}

/// The services whose cloud worker has another port with `service` than without it: younger ones
/// whose preferred port it takes, directly or by moving others.
pub fn moved_by<'a>(
    node: &str,
    service: &JointInferenceService,
    services: &[&'a JointInferenceService],
    used: &[NodePort],
) -> Vec<&'a JointInferenceService> {
    let own = Age::from_metadata(&service.metadata);
    let others: Vec<&JointInferenceService> = services
        .iter()
        .copied()
        .filter(|other| Age::from_metadata(&other.metadata) != own)
        .collect();
    let of_others: Vec<NodePort> = used.iter().filter(|used| used.age != own).cloned().collect();
    let without = of_cloud_workers(node, &others, &of_others);
    let is_own_worker = has_cloud_worker_on(service, node);
    let all: Vec<&JointInferenceService> =
        others.iter().copied().chain(is_own_worker.then_some(service)).collect();
    let of_all: Vec<NodePort> = of_others.into_iter().chain(of_gateway(service)).collect();
    let with = of_cloud_workers(node, &all, &of_all);
    let port = |ports: &[NodePort], age: &Age| {
        ports.iter().find(|port| port.age == *age).map(|port| port.port)
    };
    let is_moved = |other: &&'a JointInferenceService| {
        let age = Age::from_metadata(&other.metadata);
        age != own && port(&with, &age) != port(&without, &age)
    };
    services.iter().copied().filter(is_moved).collect()
}

/// Whether the cloud worker of a service is a program on this node.
pub fn has_cloud_worker_on(service: &JointInferenceService, node: &str) -> bool {
    let worker = &service.spec.cloud_worker;
    worker.worker_spec.is_some() && worker.node_name.as_deref() == Some(node)
}

/// A hash of the namespace and the name of an object.
fn name_hash(metadata: &ObjectMeta) -> u64 {
    let digest = Sha256::digest(object(metadata));
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

fn choose(service: &JointInferenceService, taken: &BTreeSet<u16>) -> u16 {
    let hash = name_hash(&service.metadata);
    let preferred = u16::try_from(hash % u64::from(COUNT)).expect("COUNT fits");
    (0..COUNT)
        .map(|step| FIRST + (preferred + step) % COUNT)
        .find(|port| !taken.contains(port))
        .unwrap_or(FIRST + preferred)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use neptune_api::{InferenceModelSpec, JointInferenceServiceSpec, ModelServer, WorkerSpec};

    use super::*;

    const NODE: &str = "cloud0";

    fn created(metadata: &mut ObjectMeta, second: i64) {
        metadata.uid = Some(format!("uid-{}", metadata.name.as_deref().unwrap()));
        metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
    }

    fn service(name: &str, second: i64) -> JointInferenceService {
        let mut service = JointInferenceService::new(name, JointInferenceServiceSpec::default());
        created(&mut service.metadata, second);
        service.spec.cloud_worker.worker_spec = Some(WorkerSpec::default());
        service.spec.cloud_worker.node_name = Some(NODE.to_owned());
        service
    }

    fn model(name: &str, second: i64, ports: (i32, Option<i32>)) -> InferenceModel {
        let spec = InferenceModelSpec {
            deploy_to_layer: "edge".to_owned(),
            node_name: Some(NODE.to_owned()),
            serving_port: Some(ports.0),
            grpc_port: ports.1,
            ..InferenceModelSpec::default()
        };
        let mut model = InferenceModel::new(name, spec);
        created(&mut model.metadata, second);
        model
    }

    fn ports(services: &[&JointInferenceService], used: &[NodePort]) -> Vec<u16> {
        of_cloud_workers(NODE, services, used).iter().map(|port| port.port).collect()
    }

    #[test]
    fn port_is_independent_of_younger_services() {
        let all: Vec<_> = (0..200).map(|n| service(&n.to_string(), n)).collect();
        let all: Vec<_> = all.iter().collect();
        let whole = ports(&all, &[]);
        for number in [1, 7, 100, 199] {
            assert_eq!(ports(&all[..number], &[]), whole[..number]);
        }
    }

    #[test]
    fn server_behind_a_transformer_has_a_port_of_its_own() {
        let mut model = model("m", 1, (8501, None));
        assert_eq!(model_ports(&model).collect::<Vec<_>>(), [8501]);
        model.spec.transformer = Some(Box::default());
        let chosen = port_behind(&model).unwrap();
        assert!((FIRST_BEHIND..FIRST).contains(&chosen));
        let all = [8501, chosen, chosen + 1, chosen + 2];
        assert_eq!(of_model(&model).iter().map(|it| it.port).collect::<Vec<_>>(), all);
        model.spec.serving_port = Some((chosen + 1).into());
        assert_eq!(transformer_ports(&model), Some([chosen + 2, chosen + 3]));
        model.spec.serving_port = Some(chosen.into());
        let other = port_behind(&model).unwrap();
        assert!(other != chosen && (FIRST_BEHIND..FIRST).contains(&other));
        assert_eq!(transformer_ports(&model), Some([chosen + 2, chosen + 3]));
        for (given, expected) in [(0, Some(other)), (9000, Some(9000)), (-1, None), (70_000, None)]
        {
            model.spec.transformer.as_mut().unwrap().port = Some(given);
            assert_eq!(port_behind(&model), expected, "{given}");
        }
        for (given, expected) in [(65_535, [65_534, 65_533]), (65_534, [65_535, 65_533])] {
            model.spec.transformer.as_mut().unwrap().port = Some(given);
            assert_eq!(transformer_ports(&model), Some(expected), "{given}");
        }
    }

    #[test]
    fn cloud_worker_yields_to_older_servers_and_gateways_only() {
        let worker = service("a", 10);
        let [preferred] = ports(&[&worker], &[])[..] else { unreachable!("one") };
        let serving = i32::from(preferred);
        let port = |used: &[NodePort]| ports(&[&worker], used)[0];
        assert_eq!(port(&of_model(&model("m", 20, (serving, None)))), preferred, "it is younger");
        assert_eq!(port(&of_model(&model("m", 5, (serving, None)))), preferred + 1);
        assert_eq!(port(&of_model(&model("m", 5, (9001, Some(serving))))), preferred + 1);
        let mut elsewhere = model("m", 5, (serving, None));
        elsewhere.spec.node_name = Some("edge0".to_owned());
        assert_eq!(port(&of_model(&elsewhere)), preferred, "another node");

        let mut gateway = service("b", 5);
        gateway.spec.cloud_worker.worker_spec = None;
        gateway.spec.edge_worker.node_name = Some(NODE.to_owned());
        gateway.spec.edge_worker.server = Some(Box::new(ModelServer::default()));
        gateway.spec.gateway =
            Some(Box::new(Gateway { grpc_port: Some(serving), ..Gateway::default() }));
        assert_eq!(port(&of_gateway(&gateway)), preferred + 1);
        let mut own = service("a", 10);
        own.spec.edge_worker = gateway.spec.edge_worker.clone();
        own.spec.gateway = Some(Box::new(Gateway { port: Some(serving), ..Gateway::default() }));
        assert_eq!(ports(&[&own], &of_gateway(&own)), [preferred + 1], "its own gateway");
    }

    #[test]
    fn only_younger_services_with_a_taken_port_are_moved() {
        let all: Vec<_> = (0..400).map(|n| service(&n.to_string(), n)).collect();
        let all: Vec<_> = all.iter().collect();
        let moved = |service| moved_by(NODE, service, &all, &[]);
        let (oldest, youngest) = (all[0], all[399]);
        assert!(moved(youngest).is_empty(), "a new service enqueues no other");
        for removed in [oldest, all[100]] {
            let rest: Vec<_> = all
                .iter()
                .copied()
                .filter(|other| other.metadata.uid != removed.metadata.uid)
                .collect();
            let (with, without) =
                (of_cloud_workers(NODE, &all, &[]), of_cloud_workers(NODE, &rest, &[]));
            let expected: Vec<_> = without
                .iter()
                .filter(|other| with.iter().any(|it| it.age == other.age && it.port != other.port))
                .map(|other| other.object.clone())
                .collect();
            let moved: Vec<_> = moved(removed).iter().map(|it| object(&it.metadata)).collect();
            assert_eq!(moved, expected);
        }
    }

    #[test]
    fn gateway_on_a_preferred_port_moves_a_younger_cloud_worker() {
        let worker = service("a", 10);
        let preferred = ports(&[&worker], &[])[0];
        let mut gateway = service("b", 5);
        gateway.spec.cloud_worker.worker_spec = None;
        gateway.spec.edge_worker.node_name = Some(NODE.to_owned());
        gateway.spec.edge_worker.server = Some(Box::new(ModelServer::default()));
        gateway.spec.gateway =
            Some(Box::new(Gateway { port: Some(preferred.into()), ..Gateway::default() }));
        let moved = moved_by(NODE, &gateway, &[&worker], &[]);
        assert_eq!(moved, [&worker]);
    }

    #[test]
    fn no_two_services_of_a_node_share_a_port() {
        // More than a hundred of 2,000 names collide in 10,000 ports.
        let all: Vec<_> = (0..2_000).map(|n| service(&n.to_string(), n)).collect();
        let all: Vec<_> = all.iter().collect();
        let chosen = ports(&all, &[]);
        let preferred: Vec<_> = all.iter().map(|one| choose(one, &BTreeSet::new())).collect();
        let moved = chosen.iter().zip(&preferred).filter(|(a, b)| a != b).count();
        assert!(moved > 100, "{moved}");
        assert!(chosen.iter().all(|port| may_be_of_cloud_worker(*port)));
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn services_of_one_second_are_ordered_by_uid() {
        let (a, b) = (service("a", 1), service("b", 1));
        assert!(Age::from_metadata(&a.metadata) < Age::from_metadata(&b.metadata));
    }
}
