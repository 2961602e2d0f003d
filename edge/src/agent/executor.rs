//! Executes the steps of a plan, each in its own task, so that a slow stop or pull delays no other
//! worker. The result of each comes back as an event.

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

/// Carries out steps.
#[derive(Clone)]
pub struct Executor {
    pub docker: Arc<Docker>,
    pub context: Arc<NodeContext>,
    /// Where datasets may be.
    pub data_policy: PathPolicy,
    pub events: mpsc::Sender<AgentEvent>,
}

impl Executor {
    /// Begins a step. Its [`AgentEvent::StepDone`] follows.
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
            // The agent is gone only when the process ends.
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
        // A directory for each object, and in it one for each server or worker.
        let root = dir.ancestors().nth(2).unwrap_or(dir).to_owned();
        let (dir, versions) = (dir.to_owned(), versions.clone());
        let display = dir.display().to_string();
        let placing = spawn_blocking(move || place(&root, &dir, &versions));
        let placed = placing.await.expect("linking files does not panic");
        StepOutcome::Placed(placed.map_err(|error| Problem {
            reason: WorkerReason::ModelUnavailable,
            message: format!("the model's versions cannot be put into {display}: {error}"),
        }))
    }

    async fn check_mounts(&self, spec: &ContainerSpec) -> Result<(), Problem> {
        let script_problem =
            |message: String| Problem { reason: WorkerReason::ScriptMissing, message };
        if let Some(scripts) = &spec.scripts {
            let dir = scripts.dir.display();
            self.allowed(&scripts.dir).await.map_err(|why| {
                script_problem(format!("workerSpec.scriptDir {dir} {why}; give a directory on the node with the scripts alone"))
            })?;
            if !is_below(&scripts.boot_file) {
                let file = &scripts.boot_file;
                return Err(script_problem(format!(
                    "workerSpec.scriptBootFile {file:?} is not a file below scriptDir"
                )));
            }
            let file = scripts.dir.join(&scripts.boot_file);
            if !tokio::fs::metadata(&file).await.is_ok_and(|found| found.is_file()) {
                let file = file.display();
                return Err(script_problem(format!(
                    "there is no file {file} on the node; copy it there, or correct workerSpec.scriptDir and scriptBootFile"
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
                "the model file {} is not there any more",
                model.display()
            )));
        }
        if !model.starts_with(&self.context.data_dir) {
            self.allowed(model)
                .await
                .map_err(|why| missing(format!("the model's path {} {why}", model.display())))?;
        }
        Ok(())
    }

    async fn check_dataset(&self, path: &Path) -> Result<(), Problem> {
        let problem = |why: String| Problem {
            reason: WorkerReason::DatasetUnavailable,
            message: format!("the dataset's path {} {why}", path.display()),
        };
        if path.starts_with(&self.context.data_dir) {
            let found = tokio::fs::metadata(path).await;
            return found.map(drop).map_err(|_| problem("is not there any more".to_owned()));
        }
        let (policy, own) = (self.data_policy.clone(), path.to_owned());
        let resolving = spawn_blocking(move || policy.resolve(&own));
        let resolved = resolving.await.expect("looking at a path does not panic");
        resolved.map_err(|error| problem(format!("cannot be mounted: {error}")))?;
        self.allowed(path).await.map_err(problem)
    }

    /// Judges the path as written and what it leads to.
    async fn allowed(&self, path: &Path) -> Result<(), String> {
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
            info!(%worker, versions = ?versions.names, "versions placed");
        }
        (_, StepOutcome::Removed) => info!(%worker, "containers removed"),
        // What went wrong is logged with the worker's health, once.
        _ => {}
    }
}
