//! Decides whether the last lines of a log may be in the message of a worker that failed: they leave
//! the node as the log does that a person requests.

use std::collections::BTreeSet;

use neptune_wire::{LogKind, Resource};

use super::source::texts_of_kind;
use crate::{
    desired::Desired,
    domain::observed_container::{ContainerState, ObservedContainer},
};

/// Replaces the lines of containers whose logs may not leave the node.
pub fn withhold<'a>(
    containers: impl Iterator<Item = &'a mut ObservedContainer>,
    desired: &Desired,
    allowed: &BTreeSet<LogKind>,
) {
    for container in containers {
        let kind = kind_of(container, desired);
        if let ContainerState::Exited(exit) = &mut container.state
            && !allowed.contains(&kind)
        {
            exit.log_tail = withheld(kind, &container.id);
        }
    }
}

/// The text in place of the last lines.
pub fn withheld(kind: LogKind, id: &str) -> String {
    let (_, flag) = texts_of_kind(kind);
    let id: String = id.chars().take(12).collect();
    format!(
        "not reported (--remote-logs {flag} of the agent allows it); run docker logs {id} on the node"
    )
}

fn kind_of(container: &ObservedContainer, desired: &Desired) -> LogKind {
    let identity = &container.identity;
    match (identity.owner.resource, desired.workers.get(&identity.worker)) {
        (Resource::InferenceModels, _) => LogKind::Server,
        (Resource::TrainingModels, _) => LogKind::Training,
        (_, Some(wanted)) if wanted.worker.gateway.is_some() => LogKind::Gateway,
        _ => LogKind::Worker,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        domain::observed_container::ContainerExit,
        fixtures::{observed_container, wanted_gateway, wanted_worker},
    };

    fn tail(owner: &str, desired: &Desired, allowed: &[LogKind]) -> String {
        let mut container = observed_container("0123456789abcdef");
        container.identity.owner = owner.parse().unwrap();
        let log_tail = "secret".to_owned();
        container.state =
            ContainerState::Exited(ContainerExit { exit_code: 1, out_of_memory: false, log_tail });
        let mut containers = [container, observed_container("it runs")];
        let allowed = allowed.iter().copied().collect();
        withhold(containers.iter_mut(), desired, &allowed);
        assert_eq!(containers[1], observed_container("it runs"));
        let ContainerState::Exited(exit) = &containers[0].state else { unreachable!() };
        exit.log_tail.clone()
    }

    #[test]
    fn lines_leave_the_node_only_of_allowed_kinds() {
        let with = |wanted: crate::desired::WantedWorker| Desired {
            workers: [(wanted.worker.name.clone(), wanted)].into(),
            ..Desired::default()
        };
        let (service, model) = ("default/jointinferenceservices/s", "default/inferencemodels/m");
        for (owner, desired, kind, flag) in [
            (service, with(wanted_worker()), LogKind::Worker, "worker"),
            (service, Desired::default(), LogKind::Worker, "worker"),
            (service, with(wanted_gateway()), LogKind::Gateway, "gateway"),
            (model, Desired::default(), LogKind::Server, "server"),
        ] {
            assert_eq!(tail(owner, &desired, &[kind]), "secret");
            let expected = format!(
                "not reported (--remote-logs {flag} of the agent allows it); run docker logs 0123456789ab on the node"
            );
            assert_eq!(tail(owner, &desired, &[LogKind::Training]), expected);
        }
    }
}
