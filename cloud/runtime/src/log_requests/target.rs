//! The object of a `LogRequest`, and the nodes that run its worker.

use kube::{Resource as _, ResourceExt as _};
use neptune_api::LogRequest;
use neptune_cloud_kinds::{
    fleet::Presence,
    log_requests::target::{LogAgent, LogTarget, resource, role},
    with_kind,
};
use neptune_wire::{AgentFeature, ObjectKey, StatusReport};

use crate::controllers::runtime::Context;

/// The object of a request; `None` if it does not exist.
pub fn target(request: &LogRequest, context: &Context) -> Option<LogTarget> {
    let (namespace, name) = (request.namespace()?, &request.spec.object_ref.name);
    let resource = resource(request.spec.object_ref.kind);
    let uid: Option<String> = with_kind!(resource, K => {
        context.caches().get::<K>(&namespace, name).and_then(|object| object.meta().uid.clone())
    });
    let key = ObjectKey { namespace: namespace.parse().ok()?, resource, name: name.parse().ok()? };
    let (uid, role) = (uid?, role(request.spec.worker));
    let planned = context.publisher().nodes(&key);
    let now = context.fleet_now();
    let fleet = context.fleet();
    let has_worker = |report: &StatusReport| {
        role.is_none_or(|role| report.workers.iter().any(|worker| worker.role == role))
    };
    let runs = planned.into_iter().filter(|node| {
        // One that has not reported may run it.
        fleet.report(node, &key, &uid).is_none_or(has_worker)
    });
    let nodes = runs.map(|node| {
        let offer = fleet.details(&node).map(|details| &details.offer);
        let supports = offer.map(|offer| offer.supports.contains(&AgentFeature::Logs));
        let agent = match (fleet.presence(&node), supports) {
            (Presence::Online, Some(true)) => LogAgent::Ready,
            (Presence::Online, Some(false)) => LogAgent::TooOld,
            (Presence::Online, None) => LogAgent::Awaited,
            (Presence::NeverSeen, _) if now < fleet.settled_at() => LogAgent::Awaited,
            (Presence::NeverSeen | Presence::Offline { .. }, _) => LogAgent::Offline,
        };
        (node, agent)
    });
    let nodes = nodes.collect();
    Some(LogTarget { key, uid, nodes })
}
