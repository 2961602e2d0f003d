//! Executes the steps of a plan, each in its own task, so that a slow stop or pull delays no other
//! worker. The outcome is sent as an event.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use neptune_datasets::PathPolicy;
use neptune_wire::{WorkerName, WorkerReason};
use tokio::{sync::mpsc, task::spawn_blocking};
use tracing::info;

use crate::{
    artifacts::version_directory::place,
    domain::{
        artifact::LocalArtifact, container::ContainerSpec, node_context::NodeContext,
        outcome::StepOutcome, problem::Problem, step::Step,
    },
    engine::{
        docker::Docker,
        mounts::{is_below, may_be_mounted},
    },
    event::AgentEvent,
};

/// Executes steps.
#[derive(Clone)]
pub struct Executor {
    pub docker: Arc<Docker>,
    pub context: Arc<NodeContext>,
    /// The directories in which datasets are allowed.
    pub data_policy: PathPolicy,
    pub events: mpsc::Sender<AgentEvent>,
}

impl Executor {
    /// Starts a step. [`AgentEvent::StepDone`] reports its outcome.
    pub fn begin(&self, step: Step) {
        let executor = self.clone();
        tokio::spawn(async move {
            let worker = step.worker().clone();
            let outcome = executor.run(&step).await;
            log(&worker, &step, &outcome);
            let spec = match step {
                Step::Start { identity, .. } => Some((identity.spec_hash, identity.restarts)),
                Step::Remove { .. } | Step::Place { .. } => None,
            };
            // The receiver is dropped only when the process exits.
            let _ = executor.events.send(AgentEvent::StepDone { worker, outcome, spec }).await;
        });
    }

    async fn run(&self, step: &Step) -> StepOutcome {
        match step {
            Step::Remove { ids, .. } => self.docker.remove(ids).await,
            Step::Place { dir, versions, .. } => self.place(dir, versions).await,
            Step::Start { identity, spec, remove, may_pull } => {
                if let Err(problem) = self.check_mounts(spec).await {
                    return StepOutcome::Failed(problem);
                }
                self.docker.start(identity, spec, remove, *may_pull).await
            }
        }
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

    async fn check_mounts(&self, spec: &ContainerSpec) -> Result<(), Problem> {
        let script_problem =
            |message: String| Problem { reason: WorkerReason::ScriptMissing, message };
        if let Some(scripts) = &spec.scripts {
            let dir = scripts.dir.display();
            self.check_allowed(&scripts.dir).await.map_err(|why| {
                script_problem(format!("workerSpec.scriptDir {dir} {why}; use a directory on the node that contains only the scripts"))
            })?;
            if !is_below(&scripts.boot_file) {
                let file = &scripts.boot_file;
                return Err(script_problem(format!(
                    "workerSpec.scriptBootFile {file:?} is not below scriptDir; use a path relative to scriptDir without \"..\""
                )));
            }
            let file = scripts.dir.join(&scripts.boot_file);
            if !tokio::fs::metadata(&file).await.is_ok_and(|found| found.is_file()) {
                let file = file.display();
                return Err(script_problem(format!(
                    "file {file} not found on the node; copy it to the node, or correct workerSpec.scriptDir and scriptBootFile"
                )));
            }
        }
        if let Some(dataset) = &spec.dataset {
            self.check_dataset(&dataset.source).await?;
        }
        let Some(model) = spec.model.as_ref().map(|model| &model.source) else { return Ok(()) };
        let missing =
            |why: String| Problem { reason: WorkerReason::ModelUnavailable, message: why };
        if tokio::fs::metadata(model).await.is_err() {
            return Err(missing(format!(
                "model file {} no longer exists on the node; retrying",
                model.display()
            )));
        }
        if !model.starts_with(&self.context.data_dir) {
            self.check_allowed(model)
                .await
                .map_err(|why| missing(format!("model path {} {why}", model.display())))?;
        }
        Ok(())
    }

    async fn check_dataset(&self, path: &Path) -> Result<(), Problem> {
        let problem = |why: String| Problem {
            reason: WorkerReason::DatasetUnavailable,
            message: format!("dataset path {} {why}", path.display()),
        };
        if path.starts_with(&self.context.data_dir) {
            let found = tokio::fs::metadata(path).await;
            return found
                .map(drop)
                .map_err(|_| problem("no longer exists on the node; retrying".to_owned()));
        }
        let (policy, source) = (self.data_policy.clone(), path.to_owned());
        let resolution = spawn_blocking(move || policy.resolve(&source));
        let resolved = resolution.await.expect("resolving a path does not panic");
        resolved.map_err(|error| problem(format!("cannot be mounted: {error}")))?;
        self.check_allowed(path).await.map_err(problem)
    }

    /// Checks the path as written and the path that it resolves to.
    async fn check_allowed(&self, path: &Path) -> Result<(), String> {
        may_be_mounted(path, &self.context)?;
        match tokio::fs::canonicalize(path).await {
            Ok(real) => may_be_mounted(&real, &self.context),
            Err(_) => Ok(()),
        }
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
        (_, StepOutcome::Removed) => info!(%worker, "containers removed"),
        // Failures are logged with the worker's health, once.
        _ => {}
    }
}
