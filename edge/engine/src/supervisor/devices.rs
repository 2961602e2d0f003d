//! What starting a container with devices needs beside the request: an engine that can pass them on,
//! and no other agent that gives them away at the same time.

use std::collections::BTreeSet;

use bollard::errors::Error as DockerError;
use jiff::Timestamp;
use neptune_agent_core::{
    devices::{
        engine_support::{depends_on_engine, refusal, unsuited},
        messages::Shortage,
    },
    domain::{
        container::ContainerSpec,
        device::{DeviceHolder, DeviceUnit, Rival, yields},
        problem::Problem,
    },
};
use neptune_wire::{NodeName, ObjectKey};

use super::Supervisor;
use crate::{
    containers::device_holder,
    docker::{labels_of_all, plain, status_code},
};

impl Supervisor {
    /// Checks that the engine can pass these units to a container.
    ///
    /// # Errors
    /// It cannot, or does not answer.
    pub(super) async fn check_engine(&self, units: &[DeviceUnit]) -> Result<(), Problem> {
        if !depends_on_engine(units) {
            return Ok(());
        }
        let facts = self.docker.facts().await?;
        unsuited(&facts, units).map_or(Ok(()), Err)
    }

    /// Starts a created container, unless another container has one of its units. One with units that
    /// does not start is removed: its labels would keep others from them.
    pub(super) async fn start_with_devices(
        &self,
        id: String,
        (spec, owner): (&ContainerSpec, &ObjectKey),
        node: &NodeName,
    ) -> Result<Result<String, Problem>, DockerError> {
        if spec.units.is_empty() {
            return self.start_created(id).await.map(Ok);
        }
        let started = match self.rivals(&id, &spec.units).await {
            Ok(rivals) if rivals.is_empty() => self.start_created(id.clone()).await.map(Ok),
            Ok(rivals) => Ok(Err(busy(&rivals, spec).problem(&[], owner, node))),
            Err(error) => Err(error),
        };
        if !matches!(started, Ok(Ok(_))) {
            self.remove_all(&[id]).await?;
        }
        started
    }

    /// The containers to which a new container has to leave its units.
    async fn rivals(
        &self,
        id: &str,
        units: &[DeviceUnit],
    ) -> Result<Vec<DeviceHolder>, DockerError> {
        let names: BTreeSet<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
        let own = self.created(id).await?.unwrap_or(i128::MAX);
        let mut rivals = Vec::new();
        for summary in self.docker.socket().list(&labels_of_all()).await? {
            let Some(holder) = device_holder(&summary) else { continue };
            let shares = holder.units.iter().any(|unit| names.contains(unit.as_str()));
            if !shares || holder.has_ended || holder.id == id {
                continue;
            }
            // One that does not exist any more has nothing.
            let Some(created) = self.created(&holder.id).await? else { continue };
            let rival =
                Rival { id: summary.id.clone(), has_started: summary.has_started(), created };
            if yields(id, own, &[rival]) {
                rivals.push(holder);
            }
        }
        Ok(rivals)
    }

    /// When the engine created a container, in nanoseconds; `None` if it does not exist.
    async fn created(&self, id: &str) -> Result<Option<i128>, DockerError> {
        let details = self.docker.details(id).await?;
        let time = |text: &str| text.parse::<Timestamp>().map_or(0, Timestamp::as_nanosecond);
        Ok(details.map(|details| time(&details.created)))
    }
}

/// The problem of a container that the engine did not create or start because of its devices.
pub(super) fn refused_devices(
    error: &DockerError,
    units: &[DeviceUnit],
    node: &NodeName,
) -> Option<Problem> {
    status_code(error)?;
    refusal(&plain(error), units, node)
}

/// The units of a new container that others have.
fn busy(rivals: &[DeviceHolder], spec: &ContainerSpec) -> Shortage {
    let is_taken = |unit: &&DeviceUnit| rivals.iter().any(|rival| rival.units.contains(&unit.name));
    let taken = spec.units.iter().find(is_taken);
    let resource = taken.map_or("", |unit| &unit.resource);
    let of_resource = spec.units.iter().filter(|unit| unit.resource == resource);
    Shortage::Busy {
        resource: resource.to_owned(),
        in_use: of_resource.clone().filter(is_taken).count(),
        present: of_resource.count(),
        by: rivals.iter().map(|rival| rival.owner.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use neptune_agent_core::{
        domain::device::{DevicePart, device_labels},
        fixtures::{container_identity, node_context, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
    };
    use neptune_wire::WorkerReason;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fake_engine::{Answers, engine};

    fn unit(part: DevicePart) -> DeviceUnit {
        DeviceUnit {
            name: "a.b/camera=x".to_owned(),
            resource: "a.b/camera".to_owned(),
            identity: String::new(),
            parts: vec![part],
        }
    }

    fn camera() -> DeviceUnit {
        let path = "/dev/null".to_owned();
        unit(DevicePart::Node { path: path.clone(), target: path, group: None })
    }

    async fn start(answers: Answers, unit: DeviceUnit) -> Result<String, Problem> {
        let (docker, _directory) = engine(answers);
        let target = resolve_worker(&wanted_worker(), WorkerInputs::default(), &node_context());
        let spec = ContainerSpec { units: vec![unit], ..target.container.spec };
        let supervisor = Supervisor::new(Arc::new(docker));
        supervisor.start(&container_identity(), (&spec, None), &[]).await
    }

    /// Another agent's container of this state and time of creation beside the new one, which was
    /// created at 12:00:01.
    fn beside(path: &str, state: &str, created: &str) -> (u16, Value) {
        let mut labels = container_identity().labels();
        labels.extend(device_labels(&[camera()]));
        labels.insert("io.neptune.node".to_owned(), "edge1".to_owned());
        let inspected = |created: &str| json!({"State": {}, "Created": created});
        match path {
            path if path.contains("/containers/create") => {
                (201, json!({"Id": "new", "Warnings": []}))
            }
            path if path.contains("/containers/json") => {
                (200, json!([{"Id": "other", "State": state, "Labels": labels}]))
            }
            path if path.contains("/containers/new/json") => {
                (200, inspected("2026-08-01T12:00:01.000000001Z"))
            }
            path if path.contains("/containers/other/json") => (200, inspected(created)),
            path => {
                REQUESTS.lock().unwrap().push(path.to_owned());
                (204, Value::Null)
            }
        }
    }

    /// The requests that change a container, of the one test that uses them.
    static REQUESTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[tokio::test]
    async fn of_two_new_containers_the_later_one_is_removed_and_not_started() {
        let before: Answers = |path| Some(beside(path, "created", "2026-08-01T12:00:01Z"));
        let problem = start(before, camera()).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::DeviceBusy);
        let text = "a.b/camera on node edge0: 1 of 1 in use by default/s; the worker starts when it is free";
        assert_eq!(problem.message, text);
        let requests = std::mem::take(&mut *REQUESTS.lock().unwrap());
        assert!(requests.iter().all(|path| !path.contains("/start")), "{requests:?}");
        assert!(requests.iter().any(|path| path.contains("/containers/new?")), "{requests:?}");

        let running: Answers = |path| Some(beside(path, "running", "2026-08-01T12:00:02Z"));
        let problem = start(running, camera()).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::DeviceBusy, "it runs already");
        let after: Answers = |path| Some(beside(path, "created", "2026-08-01T12:00:02Z"));
        assert_eq!(start(after, camera()).await, Ok("new".to_owned()));
        let ended: Answers = |path| Some(beside(path, "exited", "2026-08-01T12:00:00Z"));
        assert_eq!(start(ended, camera()).await, Ok("new".to_owned()));
    }

    #[tokio::test]
    async fn engine_without_cdi_is_not_asked_to_create_a_container() {
        let answers: Answers = |path| match path {
            path if path.contains("/version") => Some((200, json!({"Version": "20.10.24"}))),
            path if path.contains("/info") => Some((200, json!({"Runtimes": {"runc": {}}}))),
            _ => Some((500, json!({"message": "asked"}))),
        };
        let cdi = unit(DevicePart::Cdi("nvidia.com/gpu=0".to_owned()));
        let problem = start(answers, cdi).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::EngineUnsuited);
        assert!(problem.message.starts_with("docker 20.10.24 has no CDI;"), "{}", problem.message);
        let runtime = DevicePart::Runtime { name: "nvidia".to_owned(), id: None };
        let problem = start(answers, unit(runtime)).await.unwrap_err();
        assert!(problem.message.contains("no runtime nvidia"), "{}", problem.message);
    }

    #[tokio::test]
    async fn refusal_because_of_a_cdi_device_is_a_missing_device_and_leaves_nothing() {
        let answers: Answers = |path| {
            let refused = json!({"message": "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0"});
            match path {
                path if path.contains("/version") => Some((200, json!({"Version": "28.2.2"}))),
                path if path.contains("/info") => {
                    Some((200, json!({"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]})))
                }
                path if path.contains("/create") => {
                    Some((201, json!({"Id": "new", "Warnings": []})))
                }
                path if path.contains("/containers/json") => Some((200, json!([]))),
                path if path.contains("/start") => Some((500, refused)),
                path if path.contains("/new/json") => Some((200, json!({"State": {}}))),
                _ => Some((204, Value::Null)),
            }
        };
        let cdi = unit(DevicePart::Cdi("nvidia.com/gpu=0".to_owned()));
        let problem = start(answers, cdi).await.unwrap_err();
        assert_eq!(problem.reason, WorkerReason::DeviceMissing);
        assert!(
            problem.message.starts_with("device nvidia.com/gpu=0 of a.b/camera is not on node")
        );
    }
}
