//! The state of a cloud worker from a Deployment and its Pods.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};

use crate::{
    finding::Finding,
    fleet::CloudWorkerReport,
    joint_inference_service::status::observed::ObservedWorker,
    kubernetes::pods::{
        available_replicas, deployment_problem, has_other_versions, is_current, pod_pending,
        pod_problem,
    },
    reason::Reason,
};

/// The state of a cloud worker of a Deployment. Without known Pods only the Deployment is
/// evaluated.
pub fn of_deployment(deployment: Option<&Deployment>, pods: &[&Pod]) -> ObservedWorker {
    let Some(deployment) = deployment else {
        return waiting("cloud worker: waiting for its Deployment to be created".to_owned());
    };
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let is_available = available_replicas(deployment) > 0;
    if is_available && is_current(deployment) && !has_other_versions(deployment) {
        return ObservedWorker::Running;
    }
    let problem = pods.iter().find_map(|pod| pod_problem(pod));
    let problem = problem.or_else(|| deployment_problem(deployment));
    let (reason, what) = if let Some(problem) = &problem {
        (Reason::CloudWorkerFailed, problem.clone())
    } else {
        let pending = pods.iter().find_map(|pod| pod_pending(pod));
        let pending = pending.map_or_else(String::new, |what| format!("; {what}"));
        let what = format!("waiting for the Pod of Deployment {name} to become ready{pending}");
        (Reason::CloudWorkerStarting, what)
    };
    if is_available {
        let message = format!("cloud worker: the previous version keeps running; {what}");
        return ObservedWorker::Updating(Finding::new(reason, message));
    }
    let finding = Finding::new(reason, format!("cloud worker: {what}"));
    match problem {
        Some(_) => ObservedWorker::Failed(finding),
        None => ObservedWorker::Waiting(finding),
    }
}

/// The state of a running cloud worker in a Pod, with the status that it reports itself.
pub fn with_report(
    observed: ObservedWorker,
    pods: &[&Pod],
    report: Option<&CloudWorkerReport>,
) -> ObservedWorker {
    let Some(report) = report.filter(|_| observed == ObservedWorker::Running) else {
        return observed;
    };
    let pod = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(&*report.pod));
    let Some(name) = pod.and_then(|pod| pod.metadata.name.as_deref()) else { return observed };
    let finding = |reason: Reason| {
        let message = format!("cloud worker in Pod {name}: reports status {}", report.status);
        Finding::new(reason, message)
    };
    match &*report.status {
        "failed" => ObservedWorker::Failed(finding(Reason::WorkerFailed)),
        "completed" => ObservedWorker::Completed(finding(Reason::Completed)),
        _ => observed,
    }
}

fn waiting(message: String) -> ObservedWorker {
    ObservedWorker::Waiting(Finding::new(Reason::CloudWorkerStarting, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::joint_inference_service::status::fixtures::brief_worker;

    fn deployment(status: &serde_json::Value) -> Deployment {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "w", "generation": 2}, "status": status,
        }))
        .unwrap()
    }

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-1"}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn deployment_runs_when_its_current_generation_is_available() {
        for (status, expected) in [
            (json!({}), "waiting"),
            (json!({"observedGeneration": 2, "availableReplicas": 1}), "running"),
            (json!({"observedGeneration": 1, "availableReplicas": 1}), "updating"),
            (
                json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1}),
                "updating",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [
        {"type": "Progressing", "status": "True"}]}),
                "waiting",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [
        {"type": "Progressing", "status": "False", "message": "deadline"}]}),
                "failed",
            ),
            (
                json!({"observedGeneration": 1, "conditions": [
        {"type": "Progressing", "status": "False", "message": "deadline"}]}),
                "waiting",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [
        {"type": "ReplicaFailure", "status": "True", "message": "quota"}]}),
                "failed",
            ),
        ] {
            let observed = of_deployment(Some(&deployment(&status)), &[]);
            assert_eq!(brief_worker(&observed).0, expected, "{status}");
        }
        assert_eq!(brief_worker(&of_deployment(None, &[])).0, "waiting");
    }

    #[test]
    fn failed_update_shows_its_problem_while_the_old_worker_runs() {
        let status = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1});
        let refused = json!({"initContainerStatuses": [{
            "name": "fetch-model", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"terminated": {"exitCode": 1, "message": "the server answers 404"}},
        }]});
        let observed = of_deployment(Some(&deployment(&status)), &[&pod(&refused)]);
        let ObservedWorker::Updating(finding) = &observed else { unreachable!("{observed:?}") };
        assert_eq!(finding.reason, Reason::CloudWorkerFailed);
        assert_eq!(
            finding.message,
            "cloud worker: the previous version keeps running; Pod w-1: fetch-model exited with code 1: the server answers 404"
        );
    }

    #[test]
    fn unschedulable_pod_shows_the_message_of_the_scheduler() {
        let message = "0/3 nodes are available: 3 Insufficient memory.";
        let unplaced = json!({"phase": "Pending", "conditions": [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]});
        let observed = of_deployment(Some(&deployment(&json!({}))), &[&pod(&unplaced)]);
        let (brief, shown) = brief_worker(&observed);
        assert!(brief == "waiting" && shown.ends_with(message), "{brief}: {shown}");
    }

    #[test]
    fn pod_that_cannot_start_has_a_message() {
        let waiting = |reason: &str, message: &str| {
            json!({"containerStatuses": [{
                "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]})
        };
        for (status, expected, text) in [
            (waiting("ContainerCreating", ""), "waiting", "to become ready"),
            (
                waiting("ImagePullBackOff", "no such image"),
                "failed",
                "ImagePullBackOff: no such image",
            ),
            (waiting("CrashLoopBackOff", "back-off 40s"), "failed", "Pod w-1: CrashLoopBackOff"),
            (json!({"phase": "Failed", "message": "evicted"}), "failed", "evicted"),
            (json!({"phase": "Pending"}), "waiting", "to become ready"),
        ] {
            let observed = of_deployment(Some(&deployment(&json!({}))), &[&pod(&status)]);
            let (brief, message) = brief_worker(&observed);
            assert_eq!(brief, expected, "{status}");
            assert!(message.contains(text) && !message.contains("40s"), "{message}");
        }
    }

    #[test]
    fn status_of_a_cloud_worker_in_a_pod_counts_until_another_pod_runs() {
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w-1", "uid": "p1"},
        }))
        .unwrap();
        let observed = |pod_uid: &str, status: &str| {
            let report = CloudWorkerReport { pod: pod_uid.to_owned(), status: status.to_owned() };
            with_report(ObservedWorker::Running, &[&pod], Some(&report))
        };
        let message = "cloud worker in Pod w-1: reports status failed".to_owned();
        assert_eq!(brief_worker(&observed("p1", "failed")), ("failed", message));
        assert_eq!(brief_worker(&observed("p1", "completed")).0, "completed");
        assert_eq!(observed("p1", "running"), ObservedWorker::Running);
        assert_eq!(observed("an earlier Pod", "failed"), ObservedWorker::Running);
        let starting = waiting("starting".to_owned());
        assert_eq!(with_report(starting.clone(), &[&pod], None), starting);
    }
}
