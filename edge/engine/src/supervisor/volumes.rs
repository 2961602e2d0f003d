//! Provides the volumes of a worker, a model server or a training before its container is created, and
//! removes those that are not used any more.

use std::collections::{BTreeSet, HashMap};

use bollard::{body_full, errors::Error as DockerError, models, query_parameters as query};
use bytes::Bytes;
use neptune_agent_core::{
    domain::{
        container::{ContainerSpec, container_name},
        observed_container::ContainerIdentity,
        problem::Problem,
    },
    supervision::Claim,
    training::volumes::claim,
    volumes::mounts::engine_volumes,
};
use neptune_wire::WorkerReason;

use super::{NewContainer, Supervisor};
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

    /// Removes the unused volumes among those with this label. One that cannot be removed does not
    /// keep the others; the error is that of the last one.
    ///
    /// # Errors
    /// The engine does not answer, or refuses: a container uses one.
    pub async fn remove_unused_volumes(
        &self,
        label: &str,
        is_unused: impl Fn(&HashMap<String, String>) -> bool,
    ) -> Result<(), Problem> {
        let listed = self.docker.labelled_volumes(vec![label.to_owned()]).await;
        let volumes = listed.map_err(|error| self.docker.problem(&error))?;
        let mut removed = Ok(());
        for volume in volumes.into_iter().filter(|volume| is_unused(&volume.labels)) {
            if let Err(problem) = self.remove_volumes(&[volume.name]).await {
                removed = Err(problem);
            }
        }
        removed
    }

    /// Creates the volumes of the engine that the container of a worker or a model server mounts, and
    /// lets any user write to them. The containers before it are removed.
    pub(super) async fn provide_volumes(
        &self,
        identity: &ContainerIdentity,
        spec: &ContainerSpec,
    ) -> Result<Result<(), Problem>, DockerError> {
        let names = engine_volumes(&spec.volumes);
        if names.is_empty() {
            return Ok(Ok(()));
        }
        let labels = identity.labels();
        let claim = |labels: &HashMap<String, String>| match ContainerIdentity::from_labels(
            labels,
            &identity.node,
        ) {
            Some(owner) if owner.uid == identity.uid => Claim::Current,
            Some(_) => Claim::Outdated,
            None => Claim::Foreign,
        };
        if let Err(problem) = self.create_volumes(&names, &labels, claim).await? {
            return Ok(Err(problem));
        }
        let name = container_name(&identity.node, &identity.worker);
        let body = opening_container(labels, &spec.image, &names);
        match self.create_in_place(&name, identity, body).await? {
            Ok(id) => self.open_volumes(id, names.len()).await.map(Ok),
            Err(problem) => Ok(Err(problem)),
        }
    }

    /// Does the same as [`Supervisor::provide_volumes`] for the container of a training.
    pub(super) async fn provide_training_volumes(
        &self,
        new: &NewContainer,
    ) -> Result<Result<(), Problem>, DockerError> {
        let names = engine_volumes(&new.spec.volumes);
        if names.is_empty() {
            return Ok(Ok(()));
        }
        let own = &new.volume_labels;
        let claim = |labels: &HashMap<String, String>| claim(labels, own);
        if let Err(problem) = self.create_volumes(&names, own, claim).await? {
            return Ok(Err(problem));
        }
        let body = opening_container(new.labels.clone(), &new.spec.image, &names);
        let id = self.create(&new.name, body).await?;
        self.open_volumes(id, names.len()).await.map(Ok)
    }

    /// Lets any user write to the volumes that this container mounts, and removes the container.
    ///
    /// The engine creates a volume for root, with mode 0755, and an archive that is sent to a volume
    /// does not change its root. It does in a container that has the volumes below another directory.
    /// That container is never started.
    async fn open_volumes(&self, id: String, count: usize) -> Result<(), DockerError> {
        let directories = (0..count).map(|index| format!("{OPENED}/{index}"));
        let archive = Bytes::from(mode_archive(directories, MODE));
        let options = query::UploadToContainerOptionsBuilder::new().path("/").build();
        let client = self.docker.client()?;
        let opened = client.upload_to_container(&id, Some(options), body_full(archive)).await;
        self.remove_all(&[id]).await?;
        opened
    }

    /// Creates volumes with these labels, unless the engine has them for this object. Those of another
    /// object of the same name are removed with their files.
    async fn create_volumes(
        &self,
        names: &BTreeSet<&str>,
        labels: &HashMap<String, String>,
        claim: impl Fn(&HashMap<String, String>) -> Claim,
    ) -> Result<Result<(), Problem>, DockerError> {
        for name in names {
            match claim(&self.create_volume(labels, name).await?) {
                Claim::Current => {}
                Claim::Outdated => {
                    self.remove_volume(name).await?;
                    self.create_volume(labels, name).await?;
                }
                Claim::Foreign => return Ok(Err(volume_taken(name))),
            }
        }
        Ok(Ok(()))
    }

    /// Creates a volume; the engine returns one that exists. Returns its labels.
    async fn create_volume(
        &self,
        labels: &HashMap<String, String>,
        name: &str,
    ) -> Result<HashMap<String, String>, DockerError> {
        let request = models::VolumeCreateRequest {
            name: Some(name.to_owned()),
            labels: Some(labels.clone()),
            ..Default::default()
        };
        Ok(self.docker.client()?.create_volume(request).await?.labels)
    }
}

/// The container by which the mode of volumes is set.
fn opening_container(
    labels: HashMap<String, String>,
    image: &str,
    names: &BTreeSet<&str>,
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
        labels: Some(labels),
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
    use std::sync::{Arc, Mutex};

    use neptune_agent_core::{
        fixtures::{container_identity, node_context, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
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
    async fn volume_that_cannot_be_removed_does_not_keep_the_others() {
        static REMOVED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        const UID: &str = "io.neptune.training-uid";
        let (docker, _directory) = engine(|path| {
            let Some(name) = path.strip_prefix("/volumes/") else {
                let named = |name: &str| {
                    let mut volume = volume(json!({ UID: name }));
                    volume["Name"] = json!(name);
                    volume
                };
                let volumes = ["used", "in-use", "unused"].map(named);
                return Some((200, json!({"Volumes": volumes, "Warnings": null})));
            };
            REMOVED.lock().unwrap().push(name.to_owned());
            let is_in_use = name.starts_with("in-use");
            let message = json!({"message": "volume is in use"});
            Some(if is_in_use { (409, message) } else { (200, json!({})) })
        });
        let supervisor = Supervisor::new(Arc::new(docker));
        let is_unused = |labels: &HashMap<String, String>| labels[UID] != "used";
        let removed = supervisor.remove_unused_volumes(UID, is_unused).await;
        assert!(removed.unwrap_err().message.contains("volume is in use"));
        let names: Vec<String> = std::mem::take(&mut *REMOVED.lock().unwrap());
        let names: Vec<&str> = names.iter().filter_map(|name| name.split('?').next()).collect();
        assert_eq!(names, ["in-use", "unused"]);
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
