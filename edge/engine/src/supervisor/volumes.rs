//! Provides the volumes of a worker before its container is created, and removes those of workers that
//! left the node.

use std::collections::HashMap;

use bollard::{body_full, errors::Error as DockerError, models, query_parameters as query};
use bytes::Bytes;
use neptune_agent_core::domain::{
    container::{ContainerSpec, container_name},
    observed_container::ContainerIdentity,
    problem::Problem,
    volume::VolumeSource,
};
use neptune_wire::WorkerReason;

use super::Supervisor;
use crate::{docker::status_code, mode_archive::mode_archive};

/// The directory in which the container that opens volumes mounts them.
const OPENED: &str = "neptune-volumes";

/// The mode of the root of a volume: any user of the container can write.
const MODE: u32 = 0o777;

impl Supervisor {
    /// Removes volumes. One that does not exist counts as removed.
    ///
    /// # Errors
    /// The engine does not answer, or refuses: another container uses one.
    pub async fn remove_volumes(&self, names: &[String]) -> Result<(), Problem> {
        for name in names {
            let removed = self.remove_volume(name).await;
            removed.map_err(|error| self.docker.problem(&error))?;
        }
        Ok(())
    }

    async fn remove_volume(&self, name: &str) -> Result<(), DockerError> {
        let options = None::<query::RemoveVolumeOptions>;
        match self.docker.client()?.remove_volume(name, options).await {
            Err(error) if status_code(&error) == Some(404) => Ok(()),
            removed => removed,
        }
    }

    /// Creates the volumes of the engine that a container mounts, and lets any user write to them.
    /// The containers before it are removed.
    pub(super) async fn provide_volumes(
        &self,
        identity: &ContainerIdentity,
        spec: &ContainerSpec,
    ) -> Result<Result<(), Problem>, DockerError> {
        let names = engine_volumes(spec);
        if names.is_empty() {
            return Ok(Ok(()));
        }
        for name in &names {
            if let Err(problem) = self.provide_volume(identity, name).await? {
                return Ok(Err(problem));
            }
        }
        // The engine creates a volume for root, with mode 0755, and an archive that is sent to a
        // volume does not change its root. It does in a container that has the volumes below another
        // directory. That container is never started.
        let name = container_name(&identity.node, &identity.worker);
        let body = opening_container(identity, &spec.image, &names);
        let id = match self.create_in_place(&name, identity, body).await? {
            Ok(id) => id,
            Err(problem) => return Ok(Err(problem)),
        };
        let directories = (0..names.len()).map(|index| format!("{OPENED}/{index}"));
        let archive = Bytes::from(mode_archive(directories, MODE));
        let options = query::UploadToContainerOptionsBuilder::new().path("/").build();
        let client = self.docker.client()?;
        let opened = client.upload_to_container(&id, Some(options), body_full(archive)).await;
        self.remove_all(&[id]).await?;
        opened.map(Ok)
    }

    /// Creates a volume, unless the engine has it for this object. One of another object of the same
    /// name is removed with its files.
    async fn provide_volume(
        &self,
        identity: &ContainerIdentity,
        name: &str,
    ) -> Result<Result<(), Problem>, DockerError> {
        let labels = self.create_volume(identity, name).await?;
        let owner = ContainerIdentity::from_labels(&labels, &identity.node);
        match owner {
            Some(owner) if owner.uid == identity.uid => Ok(Ok(())),
            Some(_) => {
                self.remove_volume(name).await?;
                self.create_volume(identity, name).await.map(|_| Ok(()))
            }
            None => Ok(Err(volume_taken(name))),
        }
    }

    /// Creates a volume; the engine returns one that exists. Returns its labels.
    async fn create_volume(
        &self,
        identity: &ContainerIdentity,
        name: &str,
    ) -> Result<HashMap<String, String>, DockerError> {
        let request = models::VolumeCreateRequest {
            name: Some(name.to_owned()),
            labels: Some(identity.labels()),
            ..Default::default()
        };
        Ok(self.docker.client()?.create_volume(request).await?.labels)
    }
}

/// The names of the volumes of the engine that a container mounts, each once.
fn engine_volumes(spec: &ContainerSpec) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for volume in &spec.volumes {
        if let VolumeSource::Engine(name) = &volume.source
            && !names.contains(&name.as_str())
        {
            names.push(name);
        }
    }
    names
}

/// The container by which the mode of volumes is set.
fn opening_container(
    identity: &ContainerIdentity,
    image: &str,
    names: &[&str],
) -> models::ContainerCreateBody {
    let mounts = names.iter().enumerate().map(|(index, name)| models::Mount {
        typ: Some(models::MountType::VOLUME),
        source: Some((*name).to_owned()),
        target: Some(format!("/{OPENED}/{index}")),
        volume_options: Some(models::MountVolumeOptions {
            no_copy: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    });
    models::ContainerCreateBody {
        image: Some(image.to_owned()),
        // An image without a command is refused otherwise.
        entrypoint: Some(vec!["/never-started".to_owned()]),
        labels: Some(identity.labels()),
        host_config: Some(models::HostConfig {
            network_mode: Some("none".to_owned()),
            mounts: Some(mounts.collect()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn volume_taken(name: &str) -> Problem {
    Problem {
        reason: WorkerReason::ContainerRefused,
        message: format!(
            "volume {name} already exists and was not created by this node's agent; remove it (docker volume rm {name})"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_agent_core::{
        fixtures::{container_identity, node_context, wanted_worker},
        worker::{container::resolve_worker, inputs::WorkerInputs},
    };
    use neptune_wire::{ContainerMount, EmptyDirMount};
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::fake_engine::{Answers, engine};

    async fn start(answers: Answers) -> Problem {
        let (docker, _directory) = engine(answers);
        let mut wanted = wanted_worker();
        wanted.worker.program.mounts = vec![ContainerMount {
            name: "state".to_owned(),
            path: "/state".to_owned(),
            empty_dir: Some(EmptyDirMount::default()),
            ..ContainerMount::default()
        }];
        let target = resolve_worker(&wanted, WorkerInputs::default(), &node_context());
        let supervisor = Supervisor::new(Arc::new(docker));
        let spec = target.container.spec;
        supervisor.start(&container_identity(), (&spec, None), &[]).await.unwrap_err()
    }

    fn volume(labels: Value) -> Value {
        let mut volume = json!({
            "Name": "neptune-edge0-s-w-1-state", "Driver": "local", "Mountpoint": "/v",
            "Scope": "local", "Options": {},
        });
        volume["Labels"] = labels;
        volume
    }

    #[tokio::test]
    async fn volume_that_no_agent_created_is_named_and_no_container_is_made() {
        let problem = start(|path| {
            let created = (201, volume(json!({"team": "blue"})));
            let asked = (500, json!({"message": "asked"}));
            Some(if path.contains("/volumes/create") { created } else { asked })
        })
        .await;
        assert_eq!(problem.reason, WorkerReason::ContainerRefused);
        let start = "volume neptune-edge0-s-w-1-state already exists and was not created by";
        assert!(problem.message.starts_with(start), "{}", problem.message);
    }

    #[tokio::test]
    async fn volume_of_another_object_that_is_in_use_is_not_mounted() {
        let problem = start(|path| {
            let mut labels = container_identity().labels();
            labels.insert("io.neptune.uid".to_owned(), "another".to_owned());
            if path.contains("/volumes/create") {
                return Some((201, volume(json!(labels))));
            }
            let message = if path.contains("/volumes/") { "volume is in use" } else { "asked" };
            Some((409, json!({ "message": message })))
        })
        .await;
        assert!(problem.message.contains("volume is in use"), "{}", problem.message);
    }
}
