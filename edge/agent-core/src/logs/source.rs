//! Finds the container whose log a request means, and decides whether the log may leave the node.

use std::collections::BTreeSet;

use neptune_wire::{
    AnswerReason, LogKind, LogSource, NodeName, NodeRequest, ObjectKey, Role, WorkerName,
};

use crate::{
    desired::Desired,
    domain::{
        observed_container::ObservedContainer,
        server_part::{ServerPart, Slot, part_name},
    },
};

/// What the agent knows of the node's containers.
#[derive(Debug)]
pub struct LogFacts<'a> {
    /// The node of this agent.
    pub node: &'a NodeName,
    /// What the node should run.
    pub desired: &'a Desired,
    /// The observed containers; or why the engine does not list them.
    pub containers: Result<&'a [ObservedContainer], &'a str>,
    /// The kinds of containers whose logs may leave the node.
    pub allowed: &'a BTreeSet<LogKind>,
}

/// A refusal: its reason and its message.
pub type Refusal = (AnswerReason, String);

/// The ID of the container of a request: of several the one that runs, or that was started last.
///
/// # Errors
/// The refusal of the request.
pub fn container_of<'a>(
    request: &NodeRequest,
    facts: &LogFacts<'a>,
) -> Result<&'a ObservedContainer, Refusal> {
    let NodeRequest { object, uid, worker, .. } = request;
    let (node, part) = (facts.node, worker.as_str());
    let (kind, names) = named(object, uid, *worker, facts.desired).ok_or_else(|| {
        let message = format!("node {node} runs no {part} worker of {}", object.name);
        (AnswerReason::WorkerNotFound, message)
    })?;
    if !facts.allowed.contains(&kind) {
        let (plural, flag) = texts_of_kind(kind);
        let message = format!(
            "node {node} does not send logs of {plural}; its operator can allow it with --remote-logs {flag}"
        );
        return Err((AnswerReason::LogsNotAllowed, message));
    }
    let containers = facts.containers.map_err(|problem| {
        let message = format!("node {node} does not know its containers: {problem}");
        (AnswerReason::LogUnavailable, message)
    })?;
    let is_meant = |container: &&ObservedContainer| {
        let identity = &container.identity;
        identity.owner == *object && identity.uid == *uid && names.contains(&identity.worker)
    };
    let containers = containers.iter().filter(is_meant);
    containers.max_by_key(|it| (it.is_alive(), &it.started_at)).ok_or_else(|| {
        let message = format!(
            "the {part} worker of {} has no container on node {node}; the conditions of the object name the reason",
            object.name
        );
        (AnswerReason::NoContainer, message)
    })
}

/// The kind of a worker, and the names that its containers can have. `None` if the node should not
/// run it.
fn named(
    object: &ObjectKey,
    uid: &str,
    worker: LogSource,
    desired: &Desired,
) -> Option<(LogKind, Vec<WorkerName>)> {
    let of_role = |role: Role| {
        let mut workers = desired.workers.values();
        let wanted =
            workers.find(|it| it.owner == *object && it.uid == uid && it.worker.role == role)?;
        let is_gateway = wanted.worker.gateway.is_some();
        let kind = if is_gateway { LogKind::Gateway } else { LogKind::Worker };
        Some((kind, vec![wanted.worker.name.clone()]))
    };
    let of_parts = |parts: &[ServerPart]| {
        let server = desired.servers.get(object).filter(|server| server.uid == uid)?;
        let names = parts.iter().map(|part| part_name(&server.serving.name, *part));
        Some((LogKind::Server, names.collect()))
    };
    match worker {
        LogSource::Edge => of_role(Role::Edge),
        LogSource::Cloud => of_role(Role::Cloud),
        LogSource::Server => of_parts(&[ServerPart::Server]),
        LogSource::Transformer => of_parts(&Slot::ALL.map(ServerPart::Transformer)),
        LogSource::Unknown => None,
    }
}

/// A kind in a message, and as a value of `--remote-logs`.
pub(super) fn texts_of_kind(kind: LogKind) -> (&'static str, &'static str) {
    match kind {
        LogKind::Server => ("model servers", "server"),
        LogKind::Gateway => ("gateways", "gateway"),
        LogKind::Training => ("trainings", "training"),
        LogKind::Worker | LogKind::Unknown => ("workers", "worker"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::RequestKind;

    use super::*;
    use crate::{
        desired::WantedServer,
        domain::observed_container::{ContainerExit, ContainerIdentity, ContainerState},
        fixtures::{
            container_identity, observed_container, transformed, wanted_gateway, wanted_worker,
        },
    };

    type Containers<'a> = Result<&'a [ObservedContainer], &'a str>;
    type Case<'a> = (&'a NodeRequest, Containers<'a>, &'a [LogKind], AnswerReason, String);

    const SERVER: &str = "default/inferencemodels/m";

    fn request(object: &ObjectKey, uid: &str, worker: LogSource) -> NodeRequest {
        NodeRequest {
            id: "r-1".parse().unwrap(),
            kind: RequestKind::Log,
            object: object.clone(),
            uid: uid.to_owned(),
            worker,
            tail_lines: 10,
            since: None,
        }
    }

    fn desired() -> Desired {
        let mut desired = Desired::default();
        let worker = wanted_worker();
        desired.workers.insert(worker.worker.name.clone(), worker);
        let server = WantedServer {
            uid: "uid".to_owned(),
            serving: Box::new(transformed("4", "watch")),
            refusal: None,
        };
        desired.servers.insert(SERVER.parse().unwrap(), server);
        desired
    }

    fn container(id: &str, owner: &ObjectKey, worker: &str, started_at: &str) -> ObservedContainer {
        let worker = worker.parse().unwrap();
        let uid = if owner.to_string() == SERVER { "uid".into() } else { wanted_worker().uid };
        let identity =
            ContainerIdentity { owner: owner.clone(), uid, worker, ..container_identity() };
        ObservedContainer { identity, started_at: started_at.into(), ..observed_container(id) }
    }

    fn exited(container: ObservedContainer) -> ObservedContainer {
        let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail: String::new() };
        ObservedContainer { state: ContainerState::Exited(exit), ..container }
    }

    fn decide(
        request: &NodeRequest,
        desired: &Desired,
        containers: Result<&[ObservedContainer], &str>,
        allowed: &[LogKind],
    ) -> Result<String, Refusal> {
        let node = "edge0".parse().unwrap();
        let allowed = allowed.iter().copied().collect();
        let facts = LogFacts { node: &node, desired, containers, allowed: &allowed };
        container_of(request, &facts).map(|container| container.id.clone())
    }

    #[test]
    fn newest_container_of_the_worker_is_read() {
        let (desired, worker) = (desired(), wanted_worker());
        let name = worker.worker.name.as_str();
        let edge = request(&worker.owner, &worker.uid, LogSource::Edge);
        let server: ObjectKey = SERVER.parse().unwrap();
        let containers = [
            container("other", &worker.owner, "another", "2026-01-09"),
            exited(container("old", &worker.owner, name, "2026-01-02")),
            exited(container("new", &worker.owner, name, "2026-01-03")),
            container("server", &server, "m-server-1", "2026-01-01"),
            container("second", &server, "m-server-1-transformer-2", "2026-01-01"),
        ];
        let all = [LogKind::Worker, LogKind::Server];
        let decide = |request: &NodeRequest| decide(request, &desired, Ok(&containers), &all);
        assert_eq!(decide(&edge).as_deref(), Ok("new"));
        let server = |worker| request(&server, "uid", worker);
        assert_eq!(decide(&server(LogSource::Server)).as_deref(), Ok("server"));
        assert_eq!(decide(&server(LogSource::Transformer)).as_deref(), Ok("second"));
        let running = [containers[2].clone(), container("run", &worker.owner, name, "2026-01-01")];
        assert_eq!(super::tests::decide(&edge, &desired, Ok(&running), &all).as_deref(), Ok("run"));
    }

    #[test]
    fn each_refusal_names_the_node_and_the_remedy() {
        let (desired, worker) = (desired(), wanted_worker());
        let edge = request(&worker.owner, &worker.uid, LogSource::Edge);
        let earlier = NodeRequest { uid: "earlier".to_owned(), ..edge.clone() };
        let cloud = NodeRequest { worker: LogSource::Cloud, ..edge.clone() };
        let all = &[LogKind::Worker, LogKind::Server][..];
        let name = &worker.owner.name;
        let cases: [Case<'_>; 5] = [
            (&edge, Ok(&[]), &[LogKind::Server], AnswerReason::LogsNotAllowed, "node edge0 does not send logs of workers; its operator can allow it with --remote-logs worker".to_owned()),
            (&earlier, Ok(&[]), all, AnswerReason::WorkerNotFound, format!("node edge0 runs no edge worker of {name}")),
            (&cloud, Ok(&[]), all, AnswerReason::WorkerNotFound, format!("node edge0 runs no cloud worker of {name}")),
            (&edge, Ok(&[]), all, AnswerReason::NoContainer, format!("the edge worker of {name} has no container on node edge0; the conditions of the object name the reason")),
            (&edge, Err("Docker does not answer"), all, AnswerReason::LogUnavailable, "node edge0 does not know its containers: Docker does not answer".to_owned()),
        ];
        for (request, containers, allowed, reason, message) in cases {
            assert_eq!(decide(request, &desired, containers, allowed), Err((reason, message)));
        }
    }

    #[test]
    fn log_of_a_gateway_needs_its_own_permission() {
        let gateway = wanted_gateway();
        let mut desired = Desired::default();
        desired.workers.insert(gateway.worker.name.clone(), gateway.clone());
        let request = request(&gateway.owner, &gateway.uid, LogSource::Edge);
        let refusal = decide(&request, &desired, Ok(&[]), &[LogKind::Worker]).unwrap_err();
        assert_eq!(refusal.0, AnswerReason::LogsNotAllowed);
        assert!(refusal.1.ends_with("--remote-logs gateway"), "{}", refusal.1);
    }
}
