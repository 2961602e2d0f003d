//! The rows of a service's page: its edge workers, and what answers hard samples in the cloud. Pure.

use kube::ResourceExt as _;
use neptune_api::{
    CloudWorker, EdgeWorkerStatus, InferenceModel, JisCondition, JointInferenceService,
    JointInferenceServiceStatus, Model, ModelNodeState,
};
use neptune_cloud_kinds::worker::names::owned_model_name;
use neptune_wire::Role;

use super::{
    build::{RelatedObjects, pods_of},
    fleet::NodeNumbers,
    format::or_none,
    page::Worker,
};

/// The current condition of a service.
pub fn current(service: &JointInferenceService) -> Option<&JisCondition> {
    service.status.as_ref()?.conditions.last()
}

/// The rows of the edge workers, and that of the cloud.
pub fn rows(service: &JointInferenceService, related: &RelatedObjects) -> Vec<Worker> {
    let mut rows = edge_rows(service, related);
    rows.push(cloud_row(service, related));
    rows
}

/// The edge workers in the status, and of many nodes only those that need attention.
pub fn listed(service: &JointInferenceService) -> impl Iterator<Item = &EdgeWorkerStatus> {
    let status = service.status.as_ref();
    let are_many = status.is_some_and(are_on_many_nodes);
    let needs_attention = |row: &EdgeWorkerStatus| {
        row.reason.is_some() || !matches!(&*row.state, "Running" | "Completed")
    };
    let rows = status.into_iter().flat_map(|status| &status.edge_workers);
    rows.filter(move |row| !are_many || needs_attention(row))
}

fn are_on_many_nodes(status: &JointInferenceServiceStatus) -> bool {
    let counts = status.node_counts.as_ref();
    counts.is_some_and(|counts| NodeNumbers::from_service(counts).are_many())
}

/// The state of a worker that has no row of its own in the status: that of the service.
fn state_of_service(service: &JointInferenceService) -> String {
    let is_running = |condition: &&JisCondition| {
        condition.type_ == neptune_api::JisConditionType::Running && condition.status == "True"
    };
    let running = current(service).filter(is_running);
    running.map_or("-", |_| "Running").to_owned()
}

fn edge_rows(service: &JointInferenceService, related: &RelatedObjects) -> Vec<Worker> {
    let edge = &service.spec.edge_worker;
    let status = service.status.as_ref();
    let chosen = status.and_then(|status| Some(status.model.as_deref()?.name.as_str()));
    let row = |node: &str| {
        let (model, version) = match (&edge.inference_model, &edge.model) {
            (Some(server), _) => {
                (server.name.as_str(), served_version(inference_model(&server.name, related)))
            }
            (None, Some(model)) => match model.name.as_deref().or(chosen) {
                Some(model) => (model, digest(related, model, node)),
                None => ("-", "-".to_owned()),
            },
            (None, None) => ("-", "-".to_owned()),
        };
        Worker {
            role: "edge",
            name: edge.name.clone(),
            node: node.to_owned(),
            run_by: "agent",
            state: state_of_service(service),
            model: model.to_owned(),
            version,
        }
    };
    let of_status = |of_node: &EdgeWorkerStatus| Worker {
        state: match &of_node.reason {
            Some(reason) => format!("{} ({reason})", of_node.state),
            None => of_node.state.clone(),
        },
        ..row(&of_node.node)
    };
    if status.is_none_or(|it| it.edge_workers.is_empty() && !are_on_many_nodes(it)) {
        return vec![row(edge.node_name.as_deref().unwrap_or("-"))];
    }
    listed(service).map(of_status).collect()
}

fn cloud_row(service: &JointInferenceService, related: &RelatedObjects) -> Worker {
    let cloud = &service.spec.cloud_worker;
    let node = cloud.node_name.as_deref().unwrap_or("-");
    let row = |run_by, state: String, model: &str, version: String| Worker {
        role: "cloud",
        name: cloud.name.clone(),
        node: node.to_owned(),
        run_by,
        state,
        model: model.to_owned(),
        version,
    };
    if let Some(other) = &cloud.service {
        let state = related.cloud_service.as_ref().map_or_else(
            || "no such service".to_owned(),
            |other| current(other).map_or("-".to_owned(), |it| it.type_.to_string()),
        );
        return row("JointInferenceService", state, &other.name, "-".to_owned());
    }
    if let Some(endpoint) = &cloud.endpoint {
        let model = or_none(endpoint.model_name.as_deref());
        return row("endpoint", "-".to_owned(), &model, "-".to_owned());
    }
    if let Some(name) = server_name(service, cloud) {
        let server = inference_model(&name, related);
        let state =
            server.map_or("-", |server| if is_ready(server) { "Running" } else { "Pending" });
        return row("InferenceModel", state.to_owned(), &name, served_version(server));
    }
    let model = cloud.model.as_ref().map_or("-", |model| model.name.as_str());
    let version = digest(related, model, node);
    match related.deployments.first() {
        Some(deployment) => row("Deployment", pods_of(deployment), model, version),
        None => row("agent", state_of_service(service), model, version),
    }
}

/// The `InferenceModel` that answers in the cloud, if one does.
fn server_name(service: &JointInferenceService, cloud: &CloudWorker) -> Option<String> {
    let owned = cloud.server.as_ref().map(|_| {
        let namespace = service.namespace().unwrap_or_default();
        let is_ambiguous = cloud.name == service.spec.edge_worker.name;
        let name = service.name_any();
        owned_model_name(&namespace, &name, Role::Cloud, &cloud.name, is_ambiguous)
    });
    owned.or_else(|| Some(cloud.inference_model.as_ref()?.name.clone()))
}

fn inference_model<'a>(name: &str, related: &'a RelatedObjects) -> Option<&'a InferenceModel> {
    related.inference_models.iter().find(|model| model.name_any() == name)
}

fn is_ready(model: &InferenceModel) -> bool {
    let conditions = model.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn served_version(model: Option<&InferenceModel>) -> String {
    let Some(model) = model else { return "no such InferenceModel".to_owned() };
    or_none(model.status.as_ref().and_then(|status| status.serving_version.as_deref()))
}

/// Digest of the model file on the node, or else of the Model's spec.
fn digest(related: &RelatedObjects, model: &str, node: &str) -> String {
    let Some(model) = related.models.iter().find(|known: &&Model| known.name_any() == model) else {
        return "no such Model".to_owned();
    };
    let nodes = model.status.iter().flat_map(|status| &status.nodes);
    let entry = nodes.into_iter().find(|entry| entry.node == node);
    let digest = entry.and_then(|entry| entry.sha256sum.as_ref());
    let digest = digest.or(model.spec.sha256sum.as_ref());
    let digest = digest.map_or("no sha256sum".to_owned(), |all| {
        format!("sha256 {}", all.get(..12).unwrap_or(all))
    });
    match entry.map(|entry| entry.state) {
        None | Some(ModelNodeState::Present | ModelNodeState::Unknown) => digest,
        Some(state) => format!("{digest} ({state:?})"),
    }
}

/// The next step if the service in the cloud's place does not run.
pub fn advice_on_cloud_service(
    service: &JointInferenceService,
    related: &RelatedObjects,
) -> Option<String> {
    let name = &service.spec.cloud_worker.service.as_ref()?.name;
    let other = related.cloud_service.as_ref()?;
    let (state, message) = match current(other) {
        Some(current) if current.type_ == neptune_api::JisConditionType::Running => {
            let reason = current.reason.as_deref().unwrap_or_default();
            if current.status == "True" && reason == "WorkersRunning" {
                return None;
            }
            (format!("Running ({reason})"), current.message.as_deref())
        }
        Some(current) => (current.type_.to_string(), current.message.as_deref()),
        None => ("not reconciled".to_owned(), None),
    };
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    Some(format!(
        "JointInferenceService {name}, which answers hard samples, is {state}{message}; see kubectl neptune status jis/{name}"
    ))
}
