//! Collects the state of each object from the parts of the agent, for the reports.

use neptune_agent_core::{
    domain::health::WorkerHealth,
    report::reporter::{ObjectStatus, WorkerStatus},
};
use neptune_wire::{
    ObjectKey, Resource, WorkerName, WorkerReason, WorkerState, replica::StoredObject,
};

use super::{
    aggregators::Aggregators, desired_state::DesiredState, model_servers::ModelServers,
    node_artifacts::NodeArtifacts, training::Training, worker_pool::WorkerPool,
};

/// The reported objects with their state.
pub fn object_statuses<'a>(
    desired: &'a DesiredState,
    workers: &WorkerPool,
    servers: &ModelServers,
    artifacts: &NodeArtifacts,
    training: &Training,
    aggregators: &Aggregators,
) -> Vec<ObjectStatus<'a>> {
    let objects = desired.replica.objects().iter().filter(|(key, object)| is_reported(key, object));
    let status = |(key, object): (&'a ObjectKey, &'a StoredObject)| {
        let uid = &object.content.metadata.uid;
        let names = object.content.workers.iter().map(|worker| &worker.name);
        let health = names.map(|name| {
            let health = worker_health(key, name, desired, workers);
            WorkerStatus {
                status: worker_status(&health, workers.counts.status(uid, name)),
                health,
                rejected: workers.rejected(name).cloned(),
                cloud_unreachable: workers.counts.is_cloud_unreachable(uid, name),
                gateway: workers.gateways.get(uid, name).cloned(),
            }
        });
        ObjectStatus {
            key,
            object,
            workers: health.collect(),
            total: workers.counts.total(uid),
            server: servers.get(key).map(|server| server.report.clone()),
            outputs: workers.counts.models(uid),
            model: artifacts.models.presence(key, &artifacts.downloads),
            dataset: artifacts.datasets.status(key).cloned(),
            training: object
                .content
                .training
                .as_deref()
                .map(|content| training.report(key, content, &desired.desired.training)),
            aggregator: object.content.aggregator.is_some().then(|| aggregators.report(uid)),
        }
    };
    objects.map(status).collect()
}

/// The status as a worker reports it, or as it follows from its exit.
fn worker_status(health: &WorkerHealth, reported: &str) -> String {
    match health.reason {
        Some(WorkerReason::Completed) => "completed".to_owned(),
        Some(WorkerReason::WorkerFailed) => "failed".to_owned(),
        _ => reported.to_owned(),
    }
}

fn is_reported(key: &ObjectKey, object: &StoredObject) -> bool {
    matches!(key.resource, Resource::Models | Resource::Datasets)
        || object.content.serving.is_some()
        || object.content.training.is_some()
        || object.content.aggregator.is_some()
        || !object.content.workers.is_empty()
}

fn worker_health(
    owner: &ObjectKey,
    name: &WorkerName,
    desired: &DesiredState,
    workers: &WorkerPool,
) -> WorkerHealth {
    let mut clashes = desired.desired.clashes.iter();
    match clashes.find(|(clashing, worker, _)| clashing == owner && worker.name == *name) {
        Some((_, _, other)) => name_clash(name, other),
        None => workers.health().get(name).cloned().unwrap_or_else(not_planned_yet),
    }
}

fn name_clash(worker: &WorkerName, other: &ObjectKey) -> WorkerHealth {
    WorkerHealth {
        state: WorkerState::Failed,
        reason: Some(WorkerReason::ContainerRefused),
        message: format!(
            "worker name {worker} is already used by {other} on this node; delete or rename one of the two objects"
        ),
        restarts: 0,
    }
}

fn not_planned_yet() -> WorkerHealth {
    WorkerHealth {
        state: WorkerState::Pending,
        reason: Some(WorkerReason::Starting),
        message: String::new(),
        restarts: 0,
    }
}
