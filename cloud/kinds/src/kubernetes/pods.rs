//! Explains why a Deployment does not become available, from its Pods' and its own status.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ContainerStateTerminated, ContainerStatus, Pod},
};

/// Maximum length of a termination message, in characters. The end is kept.
const MAX_TERMINATION_MESSAGE: usize = 600;

/// The problem of a Pod that waiting alone does not solve, from its status.
pub fn pod_problem(pod: &Pod) -> Option<String> {
    // The containers of a Pod that is being deleted end with an exit code.
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Failed") {
        let why = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("failed");
        return Some(format!("Pod {name}: {why}"));
    }
    let init = status.init_container_statuses.iter().flatten().find_map(init_problem);
    let stopped = || status.container_statuses.iter().flatten().find_map(stopped);
    let why = init.or_else(stopped).or_else(|| slow_start(pod));
    why.map(|why| format!("Pod {name}: {why}"))
}

/// What a Pod that is not ready yet is waiting for.
pub fn pod_pending(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let unplaced = status.conditions.iter().flatten().find_map(|condition| {
        let is_unplaced = condition.type_ == "PodScheduled" && condition.status == "False";
        condition.message.clone().filter(|_| is_unplaced)
    });
    let running = |list: &Option<Vec<ContainerStatus>>| {
        let mut running = list.iter().flatten().filter(|container| {
            container.state.as_ref().is_some_and(|state| state.running.is_some())
        });
        running.find(|container| !container.ready).map(|container| container.name.clone())
    };
    let what = unplaced
        .or_else(|| Some(format!("{} is running", running(&status.init_container_statuses)?)))
        .or_else(|| Some(format!("{} is not ready yet", running(&status.container_statuses)?)))?;
    Some(format!("Pod {name}: {what}"))
}

/// An init container that failed and runs again has a problem until it succeeds: it usually fails
/// for the same reason. A sidecar, which never ends, has none once it is ready.
fn init_problem(container: &ContainerStatus) -> Option<String> {
    let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
    let is_restarted = is_running && !container.ready;
    stopped(container).or_else(|| termination_message(container).filter(|_| is_restarted))
}

/// The problem of a container that is started again because it did not pass its startup probe in
/// time. It fails again for the same reason unless something else changes.
fn slow_start(pod: &Pod) -> Option<String> {
    slow_starts(pod).next().map(|(_, why)| why)
}

/// Whether this container of a Pod has ended or started too slowly.
pub fn container_has_failed(pod: &Pod, name: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let has_stopped = statuses.filter(|status| status.name == name).any(|it| stopped(it).is_some());
    has_stopped || slow_starts(pod).any(|(container, _)| container == name)
}

/// The containers that started too slowly, and the problem of each.
fn slow_starts(pod: &Pod) -> impl Iterator<Item = (&str, String)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let statuses = statuses.unwrap_or_default();
    containers.filter_map(|container| {
        let probe = container.startup_probe.as_ref()?;
        let status = statuses.iter().find(|status| status.name == container.name)?;
        let ended = status.last_state.as_ref()?.terminated.as_ref()?;
        let period = i64::from(probe.period_seconds.unwrap_or(10));
        let within = i64::from(probe.failure_threshold.unwrap_or(3)) * period;
        let (started, finished) = (ended.started_at.as_ref()?, ended.finished_at.as_ref()?);
        let ran = finished.0.duration_since(started.0).as_secs();
        // The first check is made at the start, and the times are whole seconds.
        let is_late = status.started != Some(true) && ran + period + 1 >= within;
        is_late.then(|| {
            let why = format!(
                "{} did not pass its health check within {within} s of its start and is restarted; correct the model (an archive has its files at the top, not in a directory) or the server, or allow more time (spec.health.startWithinSeconds)",
                container.name
            );
            (container.name.as_str(), why)
        })
    })
}

fn stopped(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(terminated) = &state.terminated {
        return exit_message(&container.name, terminated);
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    match (reason.as_str(), &waiting.message) {
        ("ContainerCreating" | "PodInitializing" | "", _) => None,
        // The message of a crash loop contains the backoff time, which changes without meaning.
        ("CrashLoopBackOff", _) => termination_message(container).or(Some(reason)),
        (_, None) => Some(reason),
        (_, Some(message)) => Some(format!("{reason}: {message}")),
    }
}

fn termination_message(container: &ContainerStatus) -> Option<String> {
    exit_message(&container.name, container.last_state.as_ref()?.terminated.as_ref()?)
}

fn exit_message(name: &str, terminated: &ContainerStateTerminated) -> Option<String> {
    if terminated.exit_code == 0 {
        return None;
    }
    let message = terminated.message.as_deref().unwrap_or_default().split_whitespace();
    let message = message.collect::<Vec<_>>().join(" ");
    let message: String = match message.char_indices().rev().nth(MAX_TERMINATION_MESSAGE - 1) {
        // The end of a message is the most specific part.
        Some((start, _)) if start > 0 => format!("...{}", &message[start..]),
        _ => message,
    };
    let reason = terminated.reason.as_deref().filter(|reason| *reason != "Error");
    let why = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    let detail = if message.is_empty() { String::new() } else { format!(": {message}") };
    Some(format!("{name} exited with code {}{why}{detail}", terminated.exit_code))
}

/// Whether a Deployment's status is of its current spec.
pub fn is_current(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.observed_generation) >= deployment.metadata.generation
}

/// The number of available Pods of a Deployment, of any version.
pub fn available_replicas(deployment: &Deployment) -> i32 {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.available_replicas).unwrap_or_default()
}

/// Whether a Deployment has Pods of an earlier version of its template.
pub fn has_other_versions(deployment: &Deployment) -> bool {
    deployment.status.as_ref().is_some_and(|status| {
        status.replicas.unwrap_or_default() > status.updated_replicas.unwrap_or_default()
    })
}

/// The problem of a Deployment whose current spec makes no progress, from its conditions.
pub fn deployment_problem(deployment: &Deployment) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.clone()?;
    let failed = conditions.into_iter().find(|condition| {
        condition.type_ == "ReplicaFailure" && condition.status == "True"
            || condition.type_ == "Progressing" && condition.status == "False"
    })?;
    let why = failed.message.or(failed.reason).unwrap_or(failed.type_);
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    is_current(deployment).then(|| format!("Deployment {name}: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> Pod {
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: &Value, last: &Value) -> Value {
        json!({
            "name": "fetch-model", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
            "state": state, "lastState": last,
        })
    }

    fn init(state: &Value, last: &Value) -> Pod {
        pod(&json!({"initContainerStatuses": [container(state, last)]}))
    }

    #[test]
    fn termination_message_of_a_fetch_stays_until_it_succeeds() {
        let refused = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "http://h/m.tar: the server answers 404;\n correct the URL"}});
        let (running, none) = (json!({"running": {}}), json!({}));
        let back_off =
            json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}});
        let message = "Pod p: fetch-model exited with code 1: http://h/m.tar: the server answers 404; correct the URL";
        for (state, last) in [(&refused, &none), (&back_off, &refused), (&running, &refused)] {
            assert_eq!(pod_problem(&init(state, last)).as_deref(), Some(message), "{state}");
        }
        assert_eq!(pod_problem(&init(&running, &none)), None);
        assert_eq!(pod_pending(&init(&running, &none)).unwrap(), "Pod p: fetch-model is running");
        let succeeded = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        assert_eq!(pod_problem(&init(&succeeded, &refused)), None);
        // A restarted server that runs may become ready.
        let server = pod(&json!({"containerStatuses": [container(&running, &refused)]}));
        assert_eq!(pod_problem(&server), None);
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert_eq!(
            pod_problem(&init(&back_off, &killed)).unwrap(),
            "Pod p: fetch-model exited with code 137 (OOMKilled)"
        );
    }

    #[test]
    fn restarted_sidecar_has_a_problem_until_it_is_ready() {
        let ended = json!({"terminated": {"exitCode": 1, "message": "port in use"}});
        let pod = |ready: bool| {
            let mut sidecar = container(&json!({"running": {}}), &ended);
            sidecar["ready"] = ready.into();
            pod(&json!({"initContainerStatuses": [sidecar]}))
        };
        assert!(pod_problem(&pod(false)).unwrap().ends_with("port in use"));
        assert_eq!((pod_problem(&pod(true)), pod_pending(&pod(true))), (None, None));
    }

    #[test]
    fn server_that_exceeds_its_start_limit_has_a_problem() {
        let pod = |ran: u32, started: bool| -> Pod {
            let finished = format!("2026-01-01T00:00:{ran:02}Z");
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "server", "startupProbe": {"periodSeconds": 1, "failureThreshold": 20}}]},
                "status": {"containerStatuses": [{
                    "name": "server", "image": "i", "imageID": "", "ready": false, "started": started,
                    "restartCount": 1, "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished}},
                }]},
            }))
            .unwrap()
        };
        let message = pod_problem(&pod(20, false)).unwrap();
        assert!(
            message.starts_with("Pod p: server did not pass its health check within 20 s"),
            "{message}"
        );
        assert!(container_has_failed(&pod(20, false), "server"));
        assert_eq!(pod_problem(&pod(5, false)), None, "it crashed early and may become ready");
        assert_eq!(pod_problem(&pod(20, true)), None, "it is started now");
    }

    #[test]
    fn failed_container_is_the_one_that_stopped() {
        let crashed = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let mut other = container(&json!({"running": {}}), &json!({}));
        other["name"] = "server".into();
        let pod = pod(&json!({"containerStatuses": [other, container(&crashed, &json!({}))]}));
        let failed = ["server", "fetch-model", "none"].map(|name| container_has_failed(&pod, name));
        assert_eq!(failed, [false, true, false]);
    }

    #[test]
    fn deleted_pod_has_no_problem() {
        let mut pod = pod(&json!({"phase": "Failed", "message": "evicted"}));
        assert!(pod_problem(&pod).is_some());
        pod.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(pod_problem(&pod), None);
    }

    #[test]
    fn long_message_keeps_its_end_and_unscheduled_pod_has_a_message() {
        let long = json!({"terminated": {"exitCode": 1, "message": format!("{}\u{e9}nd", "x".repeat(5000))}});
        let message = pod_problem(&init(&long, &json!({}))).unwrap();
        assert!(message.ends_with("x\u{e9}nd") && message.chars().count() < 700, "{message}");
        let unplaced = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]});
        assert_eq!(pod_pending(&pod(&unplaced)).unwrap(), "Pod p: 0/3 nodes are available");
        assert_eq!(pod_problem(&pod(&unplaced)), None);
    }
}
