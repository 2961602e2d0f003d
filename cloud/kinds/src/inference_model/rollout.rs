//! The state of the model servers of a Deployment, and of its rollout.

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use neptune_api::{InferenceModelStatus, ServingFailure, TransitionStatus};

use crate::{
    finding::Finding,
    fleet::observed::Observed,
    inference_model::{
        observed::{ObservedServer, ReportedServer},
        target::{Deployed, HOLD_ANNOTATION, named},
        workload::{self, pod_version},
    },
    kubernetes::pods::{
        container_has_failed, deployment_problem, has_other_versions, is_current, pod_pending,
        pod_problem,
    },
    reason::Reason,
};

/// The inputs of [`of_cluster`].
#[derive(Debug, Clone, Copy)]
pub struct DeployedServer<'a> {
    /// The Deployment, if it exists.
    pub deployment: Option<&'a Deployment>,
    /// The Pods of the Deployment. Without known Pods only the Deployment is evaluated.
    pub pods: &'a [&'a Pod],
    /// The version to serve; `None` while the spec is invalid.
    pub target: Option<&'a str>,
    /// Whether the annotation keeps the deployed version.
    pub hold: bool,
    /// The status in the API server, which has earlier failures.
    pub previous: &'a InferenceModelStatus,
    /// The current time, for a new failure.
    pub now: Timestamp,
}

/// The state of the servers of a Deployment.
pub fn of_cluster(server: DeployedServer) -> ObservedServer {
    let DeployedServer { deployment, pods, previous, now, .. } = server;
    let Some(deployment) = deployment else {
        let message = "waiting for its Deployment to be created";
        return Observed::Pending(Finding::new(Reason::ServerStarting, message));
    };
    let deployed = workload::deployed(deployment).map(Deployed::into_name);
    let deployed = deployed.as_deref();
    let status = deployment.status.clone().unwrap_or_default();
    let ready = status.ready_replicas.unwrap_or_default();
    let has_other_versions = has_other_versions(deployment);
    let (transition, finding) = switch(server, deployment, deployed, has_other_versions);
    let serving_version = match (ready, has_other_versions || !is_current(deployment)) {
        (0, _) => None,
        (_, false) => deployed.map(str::to_owned),
        // During a rollout the older version serves until the newer one is available.
        (_, true) => previous.serving_version.clone().or_else(|| ready_version(pods)),
    };
    let failed = is_failure(finding.reason).then(|| ServingFailure {
        version: deployed.unwrap_or_default().to_owned(),
        reason: finding.reason.to_string(),
        message: finding.message.clone(),
        time: Some(Time(now)),
    });
    Observed::Reported(Box::new(ReportedServer {
        answers: Some(ready > 0),
        serving_version,
        ready_replicas: ready,
        transition,
        finding,
        progress: None,
        failure: newest_failure(failed, previous),
    }))
}

/// The state of the rollout. `has_other_versions`: whether Pods of an earlier version still exist.
fn switch(
    server: DeployedServer,
    deployment: &Deployment,
    deployed: Option<&str>,
    has_other_versions: bool,
) -> (TransitionStatus, Finding) {
    let DeployedServer { pods, target, hold, .. } = server;
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let status = deployment.status.clone().unwrap_or_default();
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let is_complete = is_current(deployment)
        && status.updated_replicas.unwrap_or_default() == desired
        && !has_other_versions
        && status.available_replicas.unwrap_or_default() >= desired;
    let is_target = deployed == target;
    let newest = || pods.iter().filter(|pod| pod_version(pod).as_deref() == deployed);
    let problem =
        || newest().find_map(|pod| pod_problem(pod)).or_else(|| deployment_problem(deployment));
    let (transition, reason, message) = if !is_target && !hold {
        // The cached Deployment is older than the applied one.
        let message = format!("updating Deployment {name} to {}", named(target));
        (TransitionStatus::InProgress, Reason::ServerStarting, message)
    } else if is_complete && !is_target {
        let message = format!(
            "annotation {HOLD_ANNOTATION} keeps {}; remove it to switch to {}",
            named(deployed),
            named(target)
        );
        (TransitionStatus::InProgress, Reason::UpgradeHeld, message)
    } else if is_complete && desired == 0 {
        let message = "spec.replicas is 0; no server runs".to_owned();
        (TransitionStatus::UpToDate, Reason::ScaledToZero, message)
    } else if is_complete {
        let message = format!("{} is served", named(target));
        (TransitionStatus::UpToDate, Reason::Serving, message)
    } else if let Some(problem) = problem() {
        let message = format!("{}: {problem}", named(deployed));
        let of_transformer = newest().any(|pod| container_has_failed(pod, workload::TRANSFORMER));
        let reason = if of_transformer { Reason::TransformerFailed } else { Reason::LoadFailed };
        (TransitionStatus::BlockedByFailedLoad, reason, message)
    } else {
        let ready = status.ready_replicas.unwrap_or_default();
        let pending = newest().find_map(|pod| pod_pending(pod));
        let pending = pending.map_or_else(String::new, |what| format!("; {what}"));
        let message =
            format!("{ready} of {desired} servers of Deployment {name} are ready{pending}");
        (TransitionStatus::InProgress, Reason::ServerStarting, message)
    };
    (transition, Finding::new(reason, message))
}

fn is_failure(reason: Reason) -> bool {
    matches!(reason, Reason::LoadFailed | Reason::TransformerFailed)
}

/// Keeps the previous failure, with its time, if the observed one is the same.
fn newest_failure(
    observed: Option<ServingFailure>,
    previous: &InferenceModelStatus,
) -> Option<ServingFailure> {
    let known = previous.last_failure.as_ref();
    let Some(observed) = observed else { return known.cloned() };
    let is_known = known.is_some_and(|known| {
        (&known.version, &known.message) == (&observed.version, &observed.message)
    });
    if is_known { known.cloned() } else { Some(observed) }
}

fn ready_version(pods: &[&Pod]) -> Option<String> {
    let is_ready = |pod: &&&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    pods.iter().filter(is_ready).find_map(|pod| pod_version(pod))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn reported(server: ObservedServer) -> ReportedServer {
        let Observed::Reported(report) = server else { unreachable!("{server:?}") };
        *report
    }

    fn deployment(version: &str, replicas: i32, status: &Value) -> Deployment {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "generation": 2},
            "spec": {
                "replicas": replicas, "selector": {},
                "template": {"metadata": {"labels": {"neptune.io/model-version": version}}},
            },
            "status": status,
        }))
        .unwrap()
    }

    fn pod(version: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("p{version}"), "labels": {"neptune.io/model-version": version}},
            "status": status,
        }))
        .unwrap()
    }

    fn in_cluster(deployment: &Deployment, pods: &[&Pod], serving: Option<&str>) -> ReportedServer {
        maybe_held(deployment, pods, serving, false)
    }

    fn maybe_held(
        deployment: &Deployment,
        pods: &[&Pod],
        serving: Option<&str>,
        hold: bool,
    ) -> ReportedServer {
        let previous = InferenceModelStatus {
            serving_version: serving.map(str::to_owned),
            ..InferenceModelStatus::default()
        };
        reported(of_cluster(DeployedServer {
            deployment: Some(deployment),
            pods,
            target: Some("4"),
            hold,
            previous: &previous,
            now: Timestamp::UNIX_EPOCH,
        }))
    }

    #[test]
    fn deployment_serves_the_version_of_its_ready_replicas() {
        use TransitionStatus::{BlockedByFailedLoad, InProgress, UpToDate};
        let stuck = json!({"type": "Progressing", "status": "False", "message": "deadline"});
        for (version, replicas, status, before, transition, serving) in [
            ("4", 1, json!({}), None, InProgress, None),
            (
                "4",
                1,
                json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1}),
                None,
                InProgress,
                None,
            ),
            (
                "4",
                2,
                json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1}),
                None,
                InProgress,
                Some("4"),
            ),
            (
                "4",
                1,
                json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
                Some("3"),
                UpToDate,
                Some("4"),
            ),
            (
                "4",
                1,
                json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
                Some("3"),
                InProgress,
                Some("3"),
            ),
            (
                "4",
                1,
                json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
                Some("3"),
                InProgress,
                Some("3"),
            ),
            (
                "4",
                1,
                json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "conditions": [stuck]}),
                Some("3"),
                BlockedByFailedLoad,
                Some("3"),
            ),
            ("4", 0, json!({"observedGeneration": 2}), Some("4"), UpToDate, None),
            (
                "3",
                1,
                json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
                Some("3"),
                InProgress,
                Some("3"),
            ),
        ] {
            let reported = in_cluster(&deployment(version, replicas, &status), &[], before);
            assert_eq!(
                (reported.transition, reported.serving_version.as_deref()),
                (transition, serving),
                "{status}"
            );
            let failed = transition == BlockedByFailedLoad;
            assert_eq!(reported.failure.is_some(), failed, "{status}");
        }
        let held = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1});
        for (hold, reason) in [(true, Reason::UpgradeHeld), (false, Reason::ServerStarting)] {
            let reported = maybe_held(&deployment("3", 1, &held), &[], None, hold);
            assert_eq!((reported.finding.reason, reported.transition), (reason, InProgress));
        }
    }

    #[test]
    fn pods_show_why_a_version_fails_and_which_one_serves() {
        let crashing = json!({"initContainerStatuses": [{
            "name": "fetch-model", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        }]});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let (new, old) = (pod("4", &crashing), pod("3", &ready));
        let status = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1});
        let reported = in_cluster(&deployment("4", 1, &status), &[&old, &new], None);
        assert_eq!(reported.transition, TransitionStatus::BlockedByFailedLoad);
        assert_eq!(reported.finding.message, "version 4: Pod p4: CrashLoopBackOff");
        assert_eq!(reported.serving_version.as_deref(), Some("3"));
        assert_eq!(reported.failure.unwrap().version, "4");
        // A failing Pod of an earlier version is not a failure of this version.
        let reported = in_cluster(&deployment("4", 1, &status), &[&pod("3", &crashing)], None);
        assert_eq!(reported.transition, TransitionStatus::InProgress);
    }

    #[test]
    fn repeated_failure_keeps_its_time() {
        let at = |second| Some(Time(Timestamp::from_second(second).unwrap()));
        let failure = |message: &str, second| ServingFailure {
            version: "4".to_owned(),
            message: message.to_owned(),
            time: at(second),
            ..ServingFailure::default()
        };
        let previous = InferenceModelStatus {
            last_failure: Some(failure("no image", 1)),
            ..InferenceModelStatus::default()
        };
        let time = |seen| newest_failure(seen, &previous).unwrap().time;
        assert_eq!(time(Some(failure("no image", 2))), at(1));
        assert_eq!(time(Some(failure("no room", 2))), at(2));
        assert_eq!(time(None), at(1));
    }
}
