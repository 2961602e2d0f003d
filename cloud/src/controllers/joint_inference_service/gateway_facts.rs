//! Collects what a gateway needs of the cluster: the model servers of both sides, their addresses,
//! the ports of the edge nodes, and the service that answers in the cloud's place.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, ServerProtocol, TierAddress};
use neptune_wire::{NodeName, Resource, Role};

use crate::{
    cache::{Cached as _, Caches, IndexKey},
    controllers::{
        joint_inference_service::{
            chain::{MAX_FOLLOWED, follow_chain, loop_text},
            gateway::{gateway_grpc_url, gateway_settings, gateway_url},
            halves::service_host,
            hard_example::{total_upload_goal, upload_goal},
            place::placed_nodes,
            served_file,
            server::owned_name,
            shape::{CloudForm, EdgeForm, cloud_form, edge_form, has_gateway},
            total_upload::{Held, Tier, next_total, set_counters, unreachable_total},
            validate::{CloudService, GatewayFacts, OtherService, TotalUpload},
        },
        runtime::Context,
    },
    kubernetes::nodes::{internal_address, is_agent_node},
    worker::{
        names::{server_name, worker_name},
        ports::{NodePort, model_nodes},
    },
};

/// What the gateway of the service needs; nothing if it has none.
/// `edge_nodes` are the nodes that may get the edge worker.
pub fn gateway_facts<'a>(
    service: &JointInferenceService,
    edge_nodes: impl Iterator<Item = &'a Arc<Node>> + Clone,
    context: &Context,
) -> GatewayFacts {
    if !has_gateway(service) {
        return GatewayFacts::default();
    }
    let caches = context.caches();
    let namespace = service.namespace().unwrap_or_default();
    let get = |name: String| caches.get::<InferenceModel>(&namespace, &name);
    let cloud_name = cloud_model_name(service);
    let cloud_server = cloud_name.clone().and_then(get);
    let node = cloud_server.as_deref().and_then(|model| agent_node(model, caches));
    let services = cloud_name.and_then(|name| {
        let name = server_name(&namespace, &name);
        caches.services.get(&ObjectRef::new(name.as_str()).within(&namespace))
    });
    GatewayFacts {
        image: context.gateway_image().to_owned(),
        edge_addresses: reported_addresses(edge_nodes.clone(), context),
        edge_server: edge_model_name(service).and_then(get),
        cloud_server_node_address: node.and_then(|node| address(&node, context)),
        cloud_server_service: services.map(|found| {
            let cluster_ip = found.spec.as_ref().and_then(|spec| spec.cluster_ip.as_ref());
            CloudService { cluster_ip: cluster_ip.and_then(|ip| ip.parse().ok()) }
        }),
        cloud_server,
        other: other(service, context),
        total: total_upload(service, context),
        capture_dataset: gateway_settings(service)
            .capture
            .and_then(|capture| caches.get::<Dataset>(&namespace, &capture.dataset)),
        ports: ports(service, edge_nodes, caches),
    }
}

fn reported_addresses<'a>(
    nodes: impl Iterator<Item = &'a Arc<Node>>,
    context: &Context,
) -> BTreeMap<String, String> {
    let fleet = context.fleet();
    let address = |node: &Arc<Node>| {
        let name: NodeName = node.metadata.name.as_deref()?.parse().ok()?;
        fleet.address(&name).map(|address| (name.to_string(), address.to_owned()))
    };
    nodes.filter_map(address).collect()
}

/// The `InferenceModel` of the edge side.
pub fn edge_model_name(service: &JointInferenceService) -> Option<String> {
    match edge_form(&service.spec.edge_worker)? {
        EdgeForm::Worker(_) => None,
        EdgeForm::Server(_) => Some(owned_name(service, Role::Edge)),
        EdgeForm::InferenceModel(name) => Some(name.to_owned()),
    }
}

/// The `InferenceModel` of the cloud side.
pub fn cloud_model_name(service: &JointInferenceService) -> Option<String> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Server(_) => Some(owned_name(service, Role::Cloud)),
        CloudForm::InferenceModel(name) => Some(name.to_owned()),
        CloudForm::Worker(_) | CloudForm::Endpoint(_) | CloudForm::Service(_) => None,
    }
}

/// The service whose gateway answers in the cloud's place.
pub fn other_name(service: &JointInferenceService) -> Option<&str> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Service(name) => Some(name),
        _ => None,
    }
}

/// The service that each service of the namespace names. This one may be newer than the cached one.
fn next_of<'a>(
    service: &'a JointInferenceService,
    caches: &'a Caches,
) -> impl Fn(&str) -> Option<String> + 'a {
    let namespace = service.namespace().unwrap_or_default();
    move |name| {
        if name == service.name_any() {
            return other_name(service).map(str::to_owned);
        }
        let found = caches.get::<JointInferenceService>(&namespace, name)?;
        other_name(&found).map(str::to_owned)
    }
}

/// The services that name this one.
pub fn callers(
    service: &JointInferenceService,
    caches: &Caches,
) -> Vec<Arc<JointInferenceService>> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let key = IndexKey::Uses(Resource::JointInferenceServices, namespace, name);
    JointInferenceService::cache(caches).with_key(&key)
}

/// The services that name this one, or one that names it, and so on. Each once.
pub fn all_callers(
    service: &JointInferenceService,
    caches: &Caches,
) -> Vec<Arc<JointInferenceService>> {
    let mut found = callers(service, caches);
    let mut known: HashSet<String> = found.iter().map(|caller| caller.name_any()).collect();
    let mut at = 0;
    while let Some(caller) = found.get(at).cloned() {
        found.extend(callers(&caller, caches).into_iter().filter(|it| known.insert(it.name_any())));
        at += 1;
    }
    found
}

/// The text of a loop that the service is part of.
fn returns_here(service: &JointInferenceService, caches: &Caches) -> Option<String> {
    let next = next_of(service, caches);
    let names = follow_chain(&service.name_any(), &next);
    loop_text(&names, names.last().and_then(|last| next(last)).as_deref())
}

/// The names of the tiers of the chain that begins with the service: services, and what answers the
/// hard samples of the last one. Empty for a service that names no other one.
pub fn tier_names(service: &JointInferenceService, caches: &Caches) -> Vec<String> {
    if other_name(service).is_none() {
        return Vec::new();
    }
    let mut names = follow_chain(&service.name_any(), next_of(service, caches));
    names.extend(names.last().map(|last| format!("{last}/cloud")));
    names
}

/// The last service of the chain that begins with this one.
pub fn last_of_chain(
    service: &JointInferenceService,
    caches: &Caches,
) -> Option<Arc<JointInferenceService>> {
    let names = follow_chain(&service.name_any(), next_of(service, caches));
    caches.get(&service.namespace().unwrap_or_default(), names.last()?)
}

/// What holds `goal.totalUploadRatio`. It reads all services below.
fn total_upload(service: &JointInferenceService, context: &Context) -> Option<TotalUpload> {
    let mut seen = HashSet::from([service.name_any()]);
    total_upload_goal(service)?;
    let tiers = tiers_below(service, context.caches(), &mut seen, MAX_FOLLOWED);
    with_tiers(service, Arc::new(tiers))
}

/// The same with these services below.
fn with_tiers(service: &JointInferenceService, tiers: Arc<Vec<Tier>>) -> Option<TotalUpload> {
    let total = total_upload_goal(service)?;
    let held = service.status.as_ref().and_then(|status| {
        let held = status.total_upload.as_deref()?;
        let (total, ratio) = (held.goal.parse().ok()?, held.upload_ratio.parse().ok()?);
        Some(Held { total, ratio, since: held.since.0 })
    });
    let held = next_total(total, &tiers, held, Context::wall_now());
    Some(TotalUpload { held, unreachable: unreachable_total(total, &tiers), tiers })
}

/// What holds `goal.totalUploadRatio` with the counters of now. `planned` has the services below as
/// they were when the plan was made. It reads only those that were marked since.
pub fn current_total(
    service: &JointInferenceService,
    planned: &TotalUpload,
    context: &Context,
) -> Option<TotalUpload> {
    let (tiers, changed) = context.object_state(service, |state| state.memory.take());
    let mut tiers = tiers.unwrap_or_else(|| Arc::clone(&planned.tiers));
    let (caches, namespace) = (context.caches(), service.namespace().unwrap_or_default());
    for name in changed {
        let Some(below) = caches.get::<JointInferenceService>(&namespace, &name) else { continue };
        let mut path = follow_chain(&name, next_of(&below, caches));
        if path.pop() == Some(service.name_any()) {
            path.reverse();
            let tiers = Arc::<Vec<Tier>>::make_mut(&mut tiers);
            set_counters(tiers, &path, counters(&below));
        }
    }
    context.object_state(service, |state| state.memory.put(Arc::clone(&tiers)));
    with_tiers(service, tiers)
}

/// The last service of a chain reads this one again, if it holds `goal.totalUploadRatio`: only its
/// counters if nothing else differs.
pub fn enqueue_total(
    before: Option<&JointInferenceService>,
    now: &JointInferenceService,
    context: &Context,
) {
    let is_same_tier = |before: &&JointInferenceService| {
        let tier = |of| (other_name(of).map(str::to_owned), upload_goal(of));
        tier(before) == tier(now)
    };
    let caches = context.caches();
    let last = |of: &JointInferenceService| {
        other_name(of)?;
        last_of_chain(of, caches).filter(|last| total_upload_goal(last).is_some())
    };
    if let Some(before) = before.filter(is_same_tier) {
        if counters(before) != counters(now)
            && let Some(last) = last(now)
        {
            context.object_state(&*last, |state| state.memory.mark(&now.name_any()));
            context.enqueue_unchanged(&*last);
        }
        return;
    }
    for last in before.into_iter().chain([now]).filter_map(last) {
        context.enqueue(&*last);
    }
}

/// The samples of a service, and those of them that a tier above answered.
fn counters(service: &JointInferenceService) -> (u64, u64) {
    let Some(status) = &service.status else { return (0, 0) };
    let samples = status.metrics.iter().find(|metric| metric.key == "inferenceNumber");
    let samples = samples.and_then(|metric| metric.value.parse().ok()).unwrap_or(0);
    (samples, status.tiers.iter().skip(1).map(|tier| tier.answered).sum())
}

/// The services below, down to this many tiers, each once: a loop ends there. Sorted by name.
fn tiers_below(
    service: &JointInferenceService,
    caches: &Caches,
    seen: &mut HashSet<String>,
    depth: usize,
) -> Vec<Tier> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let mut tiers = Vec::new();
    for caller in callers(service, caches) {
        let name = caller.name_any();
        if !seen.insert(name.clone()) {
            continue;
        }
        let (samples, sent_up) = counters(&caller);
        let goal = upload_goal(&caller);
        let below = tiers_below(&caller, caches, seen, depth);
        tiers.push(Tier { name, goal, samples, sent_up, below });
    }
    tiers
}

/// The node whose agent serves a model, if an agent does.
fn agent_node(model: &InferenceModel, caches: &Caches) -> Option<String> {
    let named = model
        .spec
        .node_name
        .clone()
        .filter(|name| caches.node(name).as_deref().is_some_and(is_agent_node));
    model_nodes(model).into_iter().next().or(named)
}

/// The address of a node: that in its status, or else that which its agent reports.
fn address(node: &str, context: &Context) -> Option<String> {
    let found = context.caches().node(node);
    let internal = found.as_deref().and_then(internal_address).map(str::to_owned);
    internal.or_else(|| {
        let name: NodeName = node.parse().ok()?;
        context.fleet().address(&name).map(str::to_owned)
    })
}

fn other(service: &JointInferenceService, context: &Context) -> Option<OtherService> {
    let caches = context.caches();
    let namespace = service.namespace().unwrap_or_default();
    let get = |name: &str| caches.get::<JointInferenceService>(&namespace, name);
    let other = get(other_name(service)?)?;
    let settings = gateway_settings(&other);
    let named = service.spec.cloud_worker.service.as_ref();
    let entry = match named.and_then(|named| named.address).unwrap_or_default() {
        TierAddress::Node => None,
        TierAddress::Service => Some(gateway_service(&other, context)),
    };
    let address = if let Some(entry) = &entry {
        entry.as_ref().map(|(host, _)| host.clone())
    } else {
        let placed = placed_nodes(&other).next();
        let node = placed.or(other.spec.edge_worker.node_name.as_deref());
        node.and_then(|node| address(node, context))
    };
    let (model_name, protocol) = edge_model(&other, caches);
    Some(OtherService {
        is_exposed: has_gateway(&other) && settings.expose == Some(true),
        returns_here: returns_here(service, caches),
        url: address.as_ref().and_then(|it| gateway_url(&settings, Some(it))),
        addresses: entry.flatten().into_iter().collect(),
        has_grpc: settings.grpc_port.is_some(),
        grpc_url: address.and_then(|it| gateway_grpc_url(&settings, Some(&it))),
        model_name,
        protocol,
    })
}

/// The host and the `ClusterIP` of the Service of a gateway, if it exists.
fn gateway_service(service: &JointInferenceService, context: &Context) -> Option<(String, IpAddr)> {
    let namespace = service.namespace().unwrap_or_default();
    let edge = &service.spec.edge_worker.name;
    let name = worker_name(&namespace, &service.name_any(), Role::Edge, edge);
    let reference = ObjectRef::new(name.as_str()).within(&namespace);
    let found = context.caches().services.get(&reference)?;
    let address = found.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok()?;
    Some((service_host(name.as_str(), &namespace, context.cluster_domain()), address))
}

/// The name of the edge's model, and the protocol of its server.
fn edge_model(
    service: &JointInferenceService,
    caches: &Caches,
) -> (Option<String>, Option<ServerProtocol>) {
    let table = caches.framework_table().ok();
    let of = |framework: &str| table.as_ref()?.server(framework)?.protocol;
    let namespace = service.namespace().unwrap_or_default();
    match edge_form(&service.spec.edge_worker) {
        Some(EdgeForm::Server(server)) => {
            let model = served_file::served_name(service);
            (model, server.protocol.or_else(|| of(&server.framework_type)))
        }
        Some(EdgeForm::InferenceModel(name)) => {
            let model = caches.get::<InferenceModel>(&namespace, name);
            let framework = model.as_deref().map(|model| model.spec.framework_type.as_str());
            let protocol = framework.and_then(of);
            (model.map(|model| model.spec.model_name.clone()), protocol)
        }
        Some(EdgeForm::Worker(_)) | None => (None, None),
    }
}

/// The ports on the nodes that may get one of the service's servers, but for those of the servers
/// that it owns.
fn ports<'a>(
    service: &JointInferenceService,
    edge_nodes: impl Iterator<Item = &'a Arc<Node>>,
    caches: &Caches,
) -> Vec<NodePort> {
    let edge = &service.spec.edge_worker;
    let named = edge.node_name.iter().chain(&service.spec.cloud_worker.node_name).cloned();
    let placed = placed_nodes(service).map(str::to_owned);
    let mut nodes: BTreeSet<String> = named.chain(placed).collect();
    nodes.extend(edge_nodes.map(|node| node.name_any()));
    let mut ports = caches.node_ports(&nodes);
    ports.retain(|port| port.owner.is_none() || port.owner != service.metadata.uid);
    ports
}
