//! The restart of workers that a person requests with an annotation.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use neptune_wire::{NodeName, RestartTime, Role};

/// The annotation of an object, and of the Pods of its workers, with the last requested restart.
pub const RESTARTED_ANNOTATION: &str = "neptune.io/restartedAt";

/// The key of the worker in the annotation.
const WORKER: &str = "worker=";

/// A requested restart: `TIME[ NODE,...][ worker=edge|cloud]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// When it was requested.
    pub at: RestartTime,
    /// The nodes on which workers are restarted; empty for all nodes.
    pub nodes: BTreeSet<NodeName>,
    /// The worker of a `JointInferenceService`; `None` for both.
    pub worker: Option<Role>,
}

impl Restart {
    /// The restart that the annotation of an object requests. A malformed value, which the webhook
    /// refuses, requests none.
    pub fn requested(metadata: &ObjectMeta) -> Option<Self> {
        Self::parse(metadata.annotations.as_ref()?.get(RESTARTED_ANNOTATION)?).ok()
    }

    /// The restart of the server of an `InferenceModel`, which has no other workers.
    pub fn requested_of_server(metadata: &ObjectMeta) -> Option<Self> {
        Self::requested(metadata).map(|restart| Self { worker: None, ..restart })
    }

    /// Parses the value of the annotation.
    ///
    /// # Errors
    /// The problem, and the remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = |what: &str| {
            format!(
                "annotation {RESTARTED_ANNOTATION}: {what}; use kubectl neptune restart, or a time, optionally nodes, and optionally worker=edge or worker=cloud, such as \"2026-11-24T06:00:00Z edge0,edge1 worker=edge\""
            )
        };
        let mut words = text.split_whitespace();
        let at = words.next().unwrap_or_default();
        let at = at.parse().ok().and_then(restart_time);
        let at = at.ok_or_else(|| refuse("it begins with no RFC 3339 time"))?;
        let mut restart = Self { at, nodes: BTreeSet::new(), worker: None };
        for word in words {
            match word.strip_prefix(WORKER) {
                Some("edge") => restart.worker = Some(Role::Edge),
                Some("cloud") => restart.worker = Some(Role::Cloud),
                Some(other) => return Err(refuse(&format!("there is no worker {other:?}"))),
                None if restart.nodes.is_empty() => {
                    let nodes = word.split(',').map(str::parse::<NodeName>);
                    let nodes = nodes.collect::<Result<_, _>>();
                    restart.nodes =
                        nodes.map_err(|_| refuse(&format!("{word:?} is no list of nodes")))?;
                }
                None => return Err(refuse(&format!("{word:?} follows the nodes"))),
            }
        }
        Ok(restart)
    }

    /// The time of the restart for a worker on a node; `None` if it is not restarted there.
    pub fn on_node(&self, node: &NodeName, role: Role) -> Option<&RestartTime> {
        let is_meant = self.nodes.is_empty() || self.nodes.contains(node);
        Some(&self.at).filter(|_| is_meant && self.is_of_worker(role))
    }

    /// The time of the restart for a worker on all of its nodes; `None` if it is not restarted on all.
    pub fn everywhere(&self, role: Role) -> Option<&RestartTime> {
        Some(&self.at).filter(|_| self.nodes.is_empty() && self.is_of_worker(role))
    }

    fn is_of_worker(&self, role: Role) -> bool {
        self.worker.is_none_or(|worker| worker == role)
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.at)?;
        let nodes: Vec<_> = self.nodes.iter().map(NodeName::as_str).collect();
        if !nodes.is_empty() {
            write!(formatter, " {}", nodes.join(","))?;
        }
        match self.worker {
            Some(Role::Edge) => write!(formatter, " {WORKER}edge"),
            Some(Role::Cloud) => write!(formatter, " {WORKER}cloud"),
            None => Ok(()),
        }
    }
}

/// The time in the form of messages; `None` outside the years 0 to 9999.
pub fn restart_time(time: Timestamp) -> Option<RestartTime> {
    time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string().parse().ok()
}

/// What is wrong with the annotation of an object, with the remedy.
pub fn problem(metadata: &ObjectMeta) -> Option<String> {
    Restart::parse(metadata.annotations.as_ref()?.get(RESTARTED_ANNOTATION)?).err()
}

/// Restarts the Pods of a template.
pub fn annotate(template: &mut PodTemplateSpec, restarted_at: Option<&RestartTime>) {
    let Some(time) = restarted_at else { return };
    let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
    annotations.insert(RESTARTED_ANNOTATION.to_owned(), time.to_string());
}

/// Keeps the restart of the present Deployment if no later one is wanted: a request that is removed
/// restarts nothing.
pub fn keep_restart(wanted: &mut Deployment, present: &Deployment) {
    let time = |deployment: &Deployment| -> Option<RestartTime> {
        let template = deployment.spec.as_ref()?.template.metadata.as_ref()?;
        template.annotations.as_ref()?.get(RESTARTED_ANNOTATION)?.parse().ok()
    };
    let present = time(present).max(time(wanted));
    if let Some(spec) = &mut wanted.spec {
        annotate(&mut spec.template, present.as_ref());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::apps::v1::DeploymentSpec;

    use super::*;

    fn annotated(value: &str) -> ObjectMeta {
        let annotations = [(RESTARTED_ANNOTATION.to_owned(), value.to_owned())];
        ObjectMeta { annotations: Some(annotations.into()), ..ObjectMeta::default() }
    }

    #[test]
    fn annotation_has_a_time_and_may_limit_nodes_and_worker() {
        let (edge0, edge1) = ("edge0".parse().unwrap(), "edge1".parse().unwrap());
        for (text, canonical, expected) in [
            ("2026-11-24T07:00:00+01:00", "2026-11-24T06:00:00.000Z", [true; 4]),
            (
                "2026-11-24T06:00:00.1234Z edge0",
                "2026-11-24T06:00:00.123Z edge0",
                [true, false, true, false],
            ),
            (
                "2026-11-24T06:00:00Z edge1,edge0 worker=cloud",
                "2026-11-24T06:00:00.000Z edge0,edge1 worker=cloud",
                [false, false, true, true],
            ),
            (
                " 2026-11-24T06:00:00Z  worker=edge ",
                "2026-11-24T06:00:00.000Z worker=edge",
                [true, true, false, false],
            ),
        ] {
            let restart = Restart::parse(text).unwrap();
            assert_eq!(restart.to_string(), canonical);
            assert_eq!(Restart::parse(canonical).unwrap(), restart);
            let places = [
                (&edge0, Role::Edge),
                (&edge1, Role::Edge),
                (&edge0, Role::Cloud),
                (&edge1, Role::Cloud),
            ];
            let restarted = places.map(|(node, role)| restart.on_node(node, role).is_some());
            assert_eq!(restarted, expected, "{text}");
            assert_eq!(problem(&annotated(text)), None);
        }
        let everywhere = |text| Restart::parse(text).unwrap().everywhere(Role::Edge).is_some();
        assert!(everywhere("2026-11-24T06:00:00Z"));
        assert!(!everywhere("2026-11-24T06:00:00Z edge0"));
        assert!(!everywhere("2026-11-24T06:00:00Z worker=cloud"));
    }

    #[test]
    fn malformed_annotation_requests_nothing_and_names_the_remedy() {
        for (text, what) in [
            ("", "it begins with no RFC 3339 time"),
            ("now", "it begins with no RFC 3339 time"),
            ("2026-11-24", "it begins with no RFC 3339 time"),
            ("-000001-11-24T06:00:00Z", "it begins with no RFC 3339 time"),
            ("2026-11-24T06:00:00Z edge0,", "\"edge0,\" is no list of nodes"),
            ("2026-11-24T06:00:00Z edge0 edge1", "\"edge1\" follows the nodes"),
            ("2026-11-24T06:00:00Z worker=all", "there is no worker \"all\""),
        ] {
            let problem = problem(&annotated(text)).unwrap();
            assert!(
                problem.contains(&format!(": {what}; use kubectl neptune restart")),
                "{problem}"
            );
            assert_eq!(Restart::requested(&annotated(text)), None);
        }
        assert_eq!(problem(&ObjectMeta::default()), None);
    }

    #[test]
    fn deployment_keeps_the_later_restart() {
        let deployment = |time: Option<&str>| {
            let mut deployment =
                Deployment { spec: Some(DeploymentSpec::default()), ..Deployment::default() };
            let time = time.map(|time| time.parse().unwrap());
            annotate(&mut deployment.spec.as_mut().unwrap().template, time.as_ref());
            deployment
        };
        let (first, second) = ("2026-11-24T06:00:00.000Z", "2026-11-24T06:00:00.001Z");
        for (wanted, present, kept) in [
            (None, None, None),
            (None, Some(first), Some(first)),
            (Some(first), Some(second), Some(second)),
            (Some(second), Some(first), Some(second)),
            (Some(first), None, Some(first)),
        ] {
            let mut next = deployment(wanted);
            keep_restart(&mut next, &deployment(present));
            assert_eq!(next, deployment(kept));
        }
    }
}
