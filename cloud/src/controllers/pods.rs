//! What the Pods of a Deployment, and the Deployment itself, say of what does not come up. Pure.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ContainerStatus, Pod},
};

/// What a kubelet says when a Pod does not come up by waiting.
pub fn pod_trouble(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let why = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("it failed");
        return Some(format!("Pod {name}: {why}"));
    }
    let of = |list: &Option<Vec<ContainerStatus>>| list.clone().unwrap_or_default();
    let containers =
        of(&status.init_container_statuses).into_iter().chain(of(&status.container_statuses));
    containers.filter_map(|container| container.state?.waiting).find_map(|waiting| {
        let reason = waiting.reason.unwrap_or_default();
        if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing" | "") {
            return None;
        }
        // The back-off's pause is in the message of a crash loop and changes without meaning.
        let why = match (reason.as_str(), waiting.message) {
            ("CrashLoopBackOff", _) | (_, None) => reason,
            (_, Some(message)) => format!("{reason}: {message}"),
        };
        Some(format!("Pod {name}: {why}"))
    })
}

/// Whether what a Deployment's status says is of its present spec.
pub fn is_current(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.observed_generation) >= deployment.metadata.generation
}

/// What a Deployment of which the present spec is worked on says when it gets nowhere.
pub fn deployment_trouble(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.clone()?;
    let refused = conditions.into_iter().find(|condition| {
        condition.type_ == "ReplicaFailure" && condition.status == "True"
            || condition.type_ == "Progressing" && condition.status == "False"
    })?;
    let why = refused.message.or(refused.reason).unwrap_or(refused.type_);
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    is_current(deployment).then(|| format!("Deployment {name}: {why}"))
}
