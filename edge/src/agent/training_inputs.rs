//! Decides whether the dataset and the program of a training task are on the node, and which problem
//! to report if not.

use neptune_agent_core::{
    desired::{Desired, WantedTask},
    domain::{
        artifact::{DownloadState, LocalArtifact},
        training::TaskProblem,
    },
    training::container::TaskInputs,
};
use neptune_wire::{DatasetState, TrainingReason, WorkerReason};

use super::{containers::Containers, devices::NodeDevices, node_key::NodeKey};
use crate::{
    artifacts::{datasets::Datasets, downloads::Downloads},
    storage::Store,
};

/// The parts of the agent that tasks depend on.
pub struct TrainingContext<'a> {
    pub desired: &'a Desired,
    pub datasets: &'a Datasets,
    pub downloads: &'a Downloads,
    pub key: &'a NodeKey,
    pub store: &'a mut Store,
    pub devices: &'a mut NodeDevices,
    pub containers: &'a Containers,
}

/// The dataset and the program of a task, if they are on the node.
pub fn inputs(
    wanted: &WantedTask,
    context: &TrainingContext<'_>,
) -> Result<TaskInputs, TaskProblem> {
    let key = &wanted.dataset;
    let Some(available) = context.datasets.availability().get(key) else {
        let message = format!(
            "waiting to receive {key} from the controller; create the Dataset if it does not exist"
        );
        return Err(TaskProblem::new(TrainingReason::DatasetNotReceived, message));
    };
    let unavailable =
        |message: String| Err(TaskProblem::new(TrainingReason::DatasetUnavailable, message));
    let Some(dataset) = available.usable.clone() else {
        return match &available.problem {
            Some(problem) => unavailable(problem.message.clone()),
            None => Err(TaskProblem::waiting(format!("waiting for {key}"))),
        };
    };
    let status = context.datasets.status(key);
    let counted = match status {
        Some(status) if status.state == DatasetState::Failed => {
            return unavailable(format!("{key} is not counted: {}", status.message));
        }
        status => status.and_then(|status| status.tally.as_ref()).map(|it| it.number_of_samples),
    };
    match counted {
        None => return Err(TaskProblem::waiting(format!("waiting for the count of {key}"))),
        Some(0) => {
            let message = format!("{key} has no sample; add data to it");
            return Err(TaskProblem::new(TrainingReason::DatasetEmpty, message));
        }
        Some(_) => {}
    }
    let format = context.desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
    let script = script(wanted, context.downloads)?;
    Ok(TaskInputs { dataset, format: format.to_owned(), counted, script, weights: None })
}

fn script(
    wanted: &WantedTask,
    downloads: &Downloads,
) -> Result<Option<LocalArtifact>, TaskProblem> {
    let Some(source) = wanted.script_source() else { return Ok(None) };
    if let Some(artifact) = downloads.local_artifact(&source) {
        return Ok(Some(artifact.clone()));
    }
    let problem = match downloads.state(&source) {
        DownloadState::Stuck { problem, .. } => Some(problem),
        DownloadState::Downloading { problem, .. } => problem,
        DownloadState::Ready => None,
    };
    Err(match problem {
        None => TaskProblem::waiting("waiting for the download of the program"),
        Some(problem) => {
            let reason = match problem.reason {
                WorkerReason::ModelDigestMismatch => TrainingReason::DigestMismatch,
                WorkerReason::DiskFull => TrainingReason::DiskFull,
                _ => TrainingReason::DownloadFailed,
            };
            TaskProblem::new(reason, problem.message)
        }
    })
}
