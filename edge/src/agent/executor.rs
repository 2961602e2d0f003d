//! Executes the steps of a plan, each in its own task, so that a slow stop or pull delays no other
//! worker. The outcome is sent as an event.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use neptune_agent_core::domain::{
    allowed_dirs::PathUse,
    artifact::LocalArtifact,
    broker_login::BrokerLogin,
    container::{ContainerSpec, MQTT_URL},
    mounts::{is_below, is_of_agent},
    node_context::NodeContext,
    outcome::StepOutcome,
    problem::Problem,
    step::Step,
    volume::VolumeSource,
};
use neptune_edge_broker::BrokerCredentials;
use neptune_edge_engine::supervisor::Supervisor;
use neptune_wire::{WorkerName, WorkerReason};
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
};
use tracing::{info, warn};

use crate::{
    artifacts::{host_path, version_directory::place},
    event::AgentEvent,
    gateway::ownership,
    values::runtime_files::RuntimeFiles,
};

/// Starts the steps of a plan as tasks, with what they need.
#[derive(Clone)]
pub struct Executor {
    pub supervisor: Supervisor,
    pub context: Arc<NodeContext>,
    pub events: mpsc::Sender<AgentEvent>,
    /// The logins at the embedded broker; `None` with another broker.
    pub credentials: Option<Arc<BrokerCredentials>>,
    /// The files of Secrets and `ConfigMap`s.
    pub files: Arc<RuntimeFiles>,
}

impl Executor {
    /// Starts a step. [`AgentEvent::StepDone`] reports its outcome. `cancel_pull` ends the pull of
    /// an image.
    pub fn begin(&self, step: Step, cancel_pull: Arc<Notify>) {
        let executor = self.clone();
        // Before the next observation is handled, which ends the logins of unknown workers.
        let login = self.login(&step);
        tokio::spawn(async move {
            let worker = step.worker().clone();
            let outcome = match login {
                Ok(login) => executor.run(&step, login.as_ref(), &cancel_pull).await,
                Err(problem) => StepOutcome::Failed(problem),
            };
            log(&worker, &step, &outcome);
            let spec = match step {
                Step::Start { identity, .. } => Some((identity.spec_hash, identity.restarts)),
                Step::Remove { .. } | Step::Stop { .. } | Step::Place { .. } => None,
            };
            // The receiver is dropped only when the process exits.
            let _ = executor.events.send(AgentEvent::StepDone { worker, outcome, spec }).await;
        });
    }

    /// The login of the container that the step creates, if it is one of a worker that uses the
    /// embedded broker.
    fn login(&self, step: &Step) -> Result<Option<BrokerLogin>, Problem> {
        let (Step::Start { identity, spec, .. }, Some(credentials)) = (step, &self.credentials)
        else {
            return Ok(None);
        };
        if !spec.env.contains_key(MQTT_URL) {
            return Ok(None);
        }
        credentials.issue(&identity.worker).map(Some).map_err(|error| Problem {
            reason: WorkerReason::ContainerRefused,
            message: format!(
                "cannot create the worker's password: /dev/urandom: {error}; retrying"
            ),
        })
    }

    async fn run(
        &self,
        step: &Step,
        login: Option<&BrokerLogin>,
        cancel_pull: &Notify,
    ) -> StepOutcome {
        match step {
            Step::Remove { ids, volumes, .. } => match self.remove(ids, volumes).await {
                Ok(()) => StepOutcome::Removed,
                Err(problem) => StepOutcome::Failed(problem),
            },
            Step::Stop { id, failed, at, .. } => match self.supervisor.stop(id).await {
                Ok(()) => StepOutcome::Stopped { id: id.clone(), failed: failed.clone(), at: *at },
                Err(problem) => StepOutcome::Failed(problem),
            },
            Step::Place { dir, versions, .. } => self.place(dir, versions).await,
            Step::Start { identity, spec, remove, may_pull } => {
                if let Err(problem) = self.check_mounts(spec).await {
                    return StepOutcome::Failed(problem);
                }
                let cancel_pull = may_pull.then_some(cancel_pull);
                // Before anything is removed: it may be missing for long.
                if let Err(outcome) = self.ensure_image(spec, cancel_pull).await {
                    return outcome;
                }
                if let Err(problem) = self.write_files(spec).await {
                    return StepOutcome::Failed(problem);
                }
                if let Err(outcome) = self.give_directories(spec, remove).await {
                    return outcome;
                }
                let started = async {
                    let spec = self.resolved(spec).await?;
                    self.supervisor.start(identity, (&spec, login), remove).await
                };
                match started.await {
                    Ok(id) => StepOutcome::Started { id },
                    Err(problem) => StepOutcome::Failed(problem),
                }
            }
        }
    }

    async fn remove(&self, ids: &[String], volumes: &[String]) -> Result<(), Problem> {
        self.supervisor.remove(ids).await?;
        self.supervisor.remove_volumes(volumes).await
    }

    /// Pulls the image if it is not on the node. `cancel` is set if that is allowed, and ends it.
    async fn ensure_image(
        &self,
        spec: &ContainerSpec,
        cancel: Option<&Notify>,
    ) -> Result<(), StepOutcome> {
        let docker = &self.supervisor.docker;
        if docker.has_image(&spec.image).await.map_err(StepOutcome::Failed)? {
            return Ok(());
        }
        let Some(cancelled) = cancel else { return Err(StepOutcome::ImageAbsent) };
        tokio::select! {
            pulled = docker.pull_image(&spec.image, &spec.pull, &self.events) => {
                pulled.map_err(|problem| StepOutcome::PullFailed(problem.message))
            }
            () = cancelled.notified() => Err(StepOutcome::ImageAbsent),
        }
    }

    /// Gives the directories of a gateway to its user, after the container that used them has ended.
    async fn give_directories(
        &self,
        spec: &ContainerSpec,
        remove: &[String],
    ) -> Result<(), StepOutcome> {
        if spec.directories.is_empty() {
            return Ok(());
        }
        self.supervisor.remove(remove).await.map_err(StepOutcome::Failed)?;
        let (spec, context) = (spec.clone(), Arc::clone(&self.context));
        let given = spawn_blocking(move || ownership::give(&spec, &context)).await;
        given.expect("changing an owner does not panic").map_err(|message| {
            StepOutcome::Failed(Problem { reason: WorkerReason::ContainerRefused, message })
        })
    }

    /// Writes the files of Secrets and `ConfigMap`s that the container mounts.
    async fn write_files(&self, spec: &ContainerSpec) -> Result<(), Problem> {
        for volume in &spec.volumes {
            let VolumeSource::Files(dir) = &volume.source else { continue };
            let (files, dir) = (Arc::clone(&self.files), dir.clone());
            let written = spawn_blocking(move || files.write(&dir)).await;
            written.expect("writing files does not panic").map_err(|why| Problem {
                reason: WorkerReason::ContainerRefused,
                message: format!(
                    "cannot write the files of volume {}: {why}; make --runtime-dir of the agent writable; retrying",
                    volume.name
                ),
            })?;
        }
        Ok(())
    }

    async fn place(&self, dir: &Path, versions: &BTreeMap<String, LocalArtifact>) -> StepOutcome {
        // The layout is one directory per object, and in it one per server or worker.
        let root = dir.ancestors().nth(2).unwrap_or(dir).to_owned();
        let (dir, versions) = (dir.to_owned(), versions.clone());
        let shown = dir.display().to_string();
        let placing = spawn_blocking(move || place(&root, &dir, &versions));
        let placed = placing.await.expect("linking files does not panic");
        StepOutcome::Placed(placed.map_err(|error| Problem {
            reason: WorkerReason::ModelUnavailable,
            message: format!("cannot place the model's versions in {shown}: {error}"),
        }))
    }

    /// The spec as it is mounted. Pulling the image took minutes: the paths may be others now.
    async fn resolved(&self, spec: &ContainerSpec) -> Result<ContainerSpec, Problem> {
        let resolved = host_path::resolved(spec, &self.context).await;
        resolved.map_err(|(path_use, message)| {
            let reason = match path_use {
                PathUse::Volume => WorkerReason::VolumeNotAllowed,
                PathUse::Scripts => WorkerReason::ScriptMissing,
                PathUse::Dataset => WorkerReason::DatasetUnavailable,
                PathUse::Model | PathUse::Capture => WorkerReason::ModelUnavailable,
            };
            Problem { reason, message }
        })
    }

    async fn check_mounts(&self, spec: &ContainerSpec) -> Result<(), Problem> {
        let script_problem =
            |message: String| Problem { reason: WorkerReason::ScriptMissing, message };
        if let Some(scripts) = &spec.scripts {
            let dir = scripts.dir.display();
            host_path::check(&scripts.dir, PathUse::Scripts, &self.context).await.map_err(|why| {
                script_problem(format!("scriptDir {dir} {why}; use a directory on the node that contains only the scripts"))
            })?;
            if !is_below(&scripts.boot_file) {
                let file = &scripts.boot_file;
                return Err(script_problem(format!(
                    "scriptBootFile {file:?} is not below scriptDir; use a path relative to scriptDir without \"..\""
                )));
            }
            let file = scripts.dir.join(&scripts.boot_file);
            if !tokio::fs::metadata(&file).await.is_ok_and(|metadata| metadata.is_file()) {
                let file = file.display();
                return Err(script_problem(format!(
                    "file {file} not found on the node; copy it to the node, or correct scriptDir and scriptBootFile"
                )));
            }
        }
        host_path::check_volumes(&spec.volumes, &self.context).await?;
        if let Some(dataset) = &spec.dataset {
            self.check_dataset(&dataset.source).await?;
        }
        let Some(model) = spec.model.as_ref().map(|model| &model.source) else { return Ok(()) };
        let missing =
            |why: String| Problem { reason: WorkerReason::ModelUnavailable, message: why };
        if !is_of_agent(model, &self.context) {
            host_path::check(model, PathUse::Model, &self.context)
                .await
                .map_err(|why| missing(format!("model path {} {why}", model.display())))?;
        }
        if tokio::fs::metadata(model).await.is_err() {
            return Err(missing(format!(
                "model file {} no longer exists on the node; retrying",
                model.display()
            )));
        }
        Ok(())
    }

    async fn check_dataset(&self, path: &Path) -> Result<(), Problem> {
        let problem = |why: String| Problem {
            reason: WorkerReason::DatasetUnavailable,
            message: format!("dataset path {} {why}", path.display()),
        };
        if !is_of_agent(path, &self.context) {
            host_path::check(path, PathUse::Dataset, &self.context).await.map_err(problem)?;
        }
        let metadata = tokio::fs::metadata(path).await;
        metadata.map(drop).map_err(|_| problem("no longer exists on the node; retrying".to_owned()))
    }
}

fn log(worker: &WorkerName, step: &Step, outcome: &StepOutcome) {
    match (step, outcome) {
        (Step::Start { identity, .. }, StepOutcome::Started { id }) => {
            let container = &id[..id.len().min(12)];
            info!(%worker, container, restarts = identity.restarts, "worker started");
        }
        (_, StepOutcome::Placed(Ok(versions))) => {
            info!(%worker, versions = ?versions.names, "model versions placed");
        }
        (_, StepOutcome::Stopped { failed, .. }) => warn!(%worker, %failed, "worker stopped"),
        (_, StepOutcome::Removed) => info!(%worker, "containers removed"),
        // Failures are logged with the worker's health, once.
        _ => {}
    }
}
