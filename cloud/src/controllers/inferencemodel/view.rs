//! How a model's server fares, from what its node's agent or its Deployment says. Pure.

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use neptune_api::{InferenceModelStatus, ServingFailure, ServingProgress, TransitionStatus};
use neptune_wire::{
    DownloadProgress, LoadFailure, NodeName, ServingStatus, StatusReport, Transition,
};

use super::{
    super::pods::{deployment_trouble, is_current, pod_trouble},
    kubernetes::{VERSION_LABEL, version},
};
use crate::{
    fleet::Presence,
    reason::{Finding, Reason},
};

/// How a server fares.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// Somebody who knows says so.
    Said(Box<Said>),
    /// Nobody has said anything yet, and somebody will, or a person has to help.
    Awaited(Finding),
    /// Who knows is not there: what was known may hold or not.
    Silent(Finding),
    /// This controller has not listened long enough: it is as it was, or else awaited.
    Unknown(Finding),
}

/// What is known of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Whether requests are answered.
    pub answers: bool,
    /// By which version; `None` also when the image brings its model.
    pub serving_version: Option<String>,
    /// By how many servers.
    pub ready_replicas: i32,
    /// Where the switch is.
    pub transition: TransitionStatus,
    /// Why, for programs and for people.
    pub finding: Finding,
    /// The download under way.
    pub progress: Option<ServingProgress>,
    /// The last version that could not be served.
    pub failure: Option<ServingFailure>,
}

/// What is known of a server that an agent runs.
#[derive(Debug, Clone, Copy)]
pub struct AgentFacts<'a> {
    /// Its node.
    pub node: &'a NodeName,
    /// The version that the spec wants.
    pub target: Option<&'a str>,
    /// Whether the node's agent is there.
    pub presence: Presence,
    /// What it said last of the model.
    pub report: Option<&'a StatusReport>,
    /// Whether this controller has listened long enough for silence to mean something.
    pub settled: bool,
    /// Whether this controller is connected to the broker itself.
    pub connected: bool,
}

/// A server that an agent runs.
pub fn of_agent(facts: AgentFacts) -> View {
    let AgentFacts { node, presence, report, settled, .. } = facts;
    let awaited = Finding::new(
        Reason::AwaitingAgent,
        format!("node {node} is told what to serve and has not said yet how that goes"),
    );
    let serving = report.and_then(|report| report.serving.as_ref());
    match (presence, serving) {
        (Presence::Unheard, _) | (Presence::Online, None) if !settled => View::Unknown(awaited),
        (Presence::Unheard, _) => View::Awaited(Finding::new(
            Reason::AgentNotSeen,
            format!(
                "no agent of node {node} has spoken; start neptune-edge there with --node-name {node} and the broker of this controller"
            ),
        )),
        (Presence::Offline { since }, _) => {
            let own = if facts.connected {
                ""
            } else {
                "; this controller itself is not connected to the broker"
            };
            View::Silent(Finding::new(
                Reason::NodeOffline,
                format!(
                    "node {node} is not connected, last heard {since:.0}; what is served there goes on being served{own}"
                ),
            ))
        }
        (Presence::Online, None) => View::Awaited(awaited),
        (Presence::Online, Some(serving)) => View::Said(Box::new(said(facts, serving))),
    }
}

fn said(facts: AgentFacts, serving: &ServingStatus) -> Said {
    let AgentFacts { node, target, .. } = facts;
    // A report on an earlier spec: what serves does, and what is wanted now was not begun.
    let is_earlier = serving.target_version.as_deref() != target;
    let transition = match serving.transition {
        _ if is_earlier => TransitionStatus::InProgress,
        Transition::UpToDate => TransitionStatus::UpToDate,
        Transition::InProgress => TransitionStatus::InProgress,
        Transition::BlockedByFailedLoad => TransitionStatus::BlockedByFailedLoad,
        Transition::InvalidSpec => TransitionStatus::InvalidSpec,
    };
    // An image that brings its model has no version to tell.
    let answers = serving.serving_version.is_some()
        || target.is_none() && transition == TransitionStatus::UpToDate;
    let progress = serving.progress.filter(|_| !is_earlier).as_ref().map(progress);
    let reason = match transition {
        TransitionStatus::UpToDate => Reason::Serving,
        TransitionStatus::InProgress if is_earlier => Reason::AwaitingAgent,
        TransitionStatus::InProgress if progress.is_some() => Reason::ModelDownloading,
        TransitionStatus::InProgress => Reason::ServerStarting,
        TransitionStatus::BlockedByFailedLoad => Reason::LoadFailed,
        TransitionStatus::InvalidSpec => Reason::ServingRefused,
    };
    let message = if is_earlier {
        format!("node {node} is told to serve {} and has not begun", named(target))
    } else if serving.message.is_empty() {
        default_message(serving, transition)
    } else {
        serving.message.clone()
    };
    Said {
        answers,
        serving_version: serving.serving_version.clone(),
        ready_replicas: i32::from(answers),
        transition,
        finding: Finding::new(reason, message),
        progress,
        failure: serving.last_failure.as_ref().map(failure),
    }
}

fn default_message(serving: &ServingStatus, transition: TransitionStatus) -> String {
    let target = named(serving.target_version.as_deref());
    match (transition, &serving.last_failure) {
        (TransitionStatus::UpToDate, _) => format!("{target} is served"),
        (TransitionStatus::InProgress, _) => format!("{target} is on its way"),
        (_, Some(failure)) => format!("{target}: {}: {}", failure.reason, failure.message),
        (_, None) => format!("{target} cannot be served"),
    }
}

fn named(version: Option<&str>) -> String {
    version.map_or_else(|| "the image".to_owned(), |version| format!("version {version}"))
}

fn progress(progress: &DownloadProgress) -> ServingProgress {
    let DownloadProgress { received_bytes, total_bytes, bytes_per_second } = *progress;
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let percent = total_bytes.filter(|total| *total > 0).map(|total| {
        let percent = u128::from(received_bytes) * 100 / u128::from(total);
        i32::try_from(percent.min(100)).unwrap_or(100)
    });
    ServingProgress {
        received_bytes: number(received_bytes),
        total_bytes: total_bytes.map(number),
        bytes_per_second: number(bytes_per_second),
        percent,
    }
}

fn failure(failure: &LoadFailure) -> ServingFailure {
    ServingFailure {
        version: failure.version.clone(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
        // A time that is none is not worth losing the rest for.
        time: failure.time.parse::<Timestamp>().ok().map(Time),
    }
}

/// What is known of servers behind a Deployment.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFacts<'a> {
    /// The Deployment, if it is there.
    pub deployment: Option<&'a Deployment>,
    /// Its Pods. They may be unknown; then the Deployment alone speaks.
    pub pods: &'a [&'a Pod],
    /// The version that the spec wants.
    pub target: Option<&'a str>,
    /// The status so far.
    pub previous: &'a InferenceModelStatus,
    /// The time.
    pub now: Timestamp,
}

/// Servers behind a Deployment.
pub fn of_cluster(facts: ClusterFacts) -> View {
    let ClusterFacts { deployment, pods, target, previous, now } = facts;
    let Some(deployment) = deployment else {
        let message = "its Deployment is being made";
        return View::Awaited(Finding::new(Reason::ServerStarting, message));
    };
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = status.ready_replicas.unwrap_or_default();
    let updated = status.updated_replicas.unwrap_or_default();
    let others = status.replicas.unwrap_or_default() > updated;
    let deployed = version(deployment);
    let held = deployed != target;
    let complete = is_current(deployment)
        && updated == wanted
        && !others
        && status.available_replicas.unwrap_or_default() >= wanted;
    let trouble = || {
        let mut newest = pods.iter().filter(|pod| label(pod) == deployed);
        newest.find_map(|pod| pod_trouble(pod)).or_else(|| deployment_trouble(deployment))
    };
    let (transition, finding) = if complete && held {
        let message =
            format!("{} is held by an annotation; {} waits", named(deployed), named(target));
        (TransitionStatus::InProgress, Finding::new(Reason::UpgradeHeld, message))
    } else if complete && wanted == 0 {
        let message = "spec.replicas is 0: no server is wanted";
        (TransitionStatus::UpToDate, Finding::new(Reason::ScaledToZero, message))
    } else if complete {
        let message = format!("{} is served", named(target));
        (TransitionStatus::UpToDate, Finding::new(Reason::Serving, message))
    } else if let Some(trouble) = trouble() {
        let message = format!("{}: {trouble}", named(deployed));
        (TransitionStatus::BlockedByFailedLoad, Finding::new(Reason::LoadFailed, message))
    } else {
        let message = format!("{ready} of {wanted} servers of Deployment {name} are ready");
        (TransitionStatus::InProgress, Finding::new(Reason::ServerStarting, message))
    };
    let serving_version = match (ready, others || !is_current(deployment)) {
        (0, _) => None,
        (_, false) => deployed.map(str::to_owned),
        // Two versions at once: the older one serves until the newer one has taken over.
        (_, true) => previous.serving_version.clone().or_else(|| ready_version(pods)),
    };
    let failed = (finding.reason == Reason::LoadFailed).then(|| ServingFailure {
        version: deployed.unwrap_or_default().to_owned(),
        reason: finding.reason.to_string(),
        message: finding.message.clone(),
        time: Some(Time(now)),
    });
    View::Said(Box::new(Said {
        answers: ready > 0,
        serving_version,
        ready_replicas: ready,
        transition,
        finding,
        progress: None,
        failure: newest_failure(failed, previous),
    }))
}

/// The same failure seen again is no news.
fn newest_failure(
    seen: Option<ServingFailure>,
    previous: &InferenceModelStatus,
) -> Option<ServingFailure> {
    let known = previous.last_failure.as_ref();
    let Some(seen) = seen else { return known.cloned() };
    let is_known = known
        .is_some_and(|known| (&known.version, &known.message) == (&seen.version, &seen.message));
    if is_known { known.cloned() } else { Some(seen) }
}

fn label(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(VERSION_LABEL).map(String::as_str)
}

fn ready_version(pods: &[&Pod]) -> Option<String> {
    let is_ready = |pod: &&&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    pods.iter().filter(is_ready).find_map(|pod| label(pod)).map(str::to_owned)
}
