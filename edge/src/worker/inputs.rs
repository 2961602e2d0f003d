//! Decides whether a worker's model and dataset are on the node, and if not, why. Pure.

use std::collections::BTreeMap;

use neptune_wire::{ObjectKey, WorkerReason};

use crate::{
    desired::{Desired, WantedWorker},
    domain::{
        artifact::{Availability, LocalArtifact},
        problem::Problem,
    },
};

/// What of the node a worker uses.
#[derive(Debug, Clone, Copy)]
pub struct WorkerInputs<'a> {
    pub model: &'a LocalArtifact,
    /// With its format, if it names one.
    pub dataset: Option<(&'a LocalArtifact, &'a str)>,
}

/// What is on the node for workers to use.
#[derive(Debug, Clone, Copy)]
pub struct NodeInputs<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
}

/// Why a worker cannot have what it needs.
#[derive(Debug, PartialEq)]
pub struct MissingInput {
    pub problem: Problem,
    /// Whether the problem needs somebody's help.
    pub needs_help: bool,
}

impl<'a> NodeInputs<'a> {
    /// What a worker uses, if all of it is here.
    pub fn of(
        &self,
        wanted: &WantedWorker,
        desired: &'a Desired,
    ) -> Result<WorkerInputs<'a>, MissingInput> {
        use WorkerReason::{DatasetDownloading, DatasetNotReceived};
        use WorkerReason::{ModelDownloading, ModelNotReceived};
        let model =
            find(self.models, &wanted.model, "Model", [ModelNotReceived, ModelDownloading])?;
        let Some(key) = &wanted.dataset else { return Ok(WorkerInputs { model, dataset: None }) };
        let data = find(self.datasets, key, "Dataset", [DatasetNotReceived, DatasetDownloading])?;
        let format = desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
        Ok(WorkerInputs { model, dataset: Some((data, format)) })
    }

    /// Why the usable version of a worker's model is not the wanted one.
    pub fn model_problem(&self, wanted: &WantedWorker) -> Option<&'a Problem> {
        self.models.get(&wanted.model)?.problem.as_ref()
    }
}

fn find<'a>(
    availability: &'a BTreeMap<ObjectKey, Availability>,
    key: &ObjectKey,
    kind: &str,
    [not_received, downloading]: [WorkerReason; 2],
) -> Result<&'a LocalArtifact, MissingInput> {
    let Some(available) = availability.get(key) else {
        let message =
            format!("the node was not told of {key} yet; apply that {kind} if it does not exist");
        return Err(MissingInput {
            problem: Problem { reason: not_received, message },
            needs_help: false,
        });
    };
    available.usable.as_ref().ok_or_else(|| {
        let problem = available.problem.clone().unwrap_or_else(|| Problem {
            reason: downloading,
            message: format!("{key} is on its way"),
        });
        MissingInput { problem, needs_help: available.needs_help }
    })
}
