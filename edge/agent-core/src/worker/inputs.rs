//! Decides whether a worker's model, dataset and files are on the node, and which problem to report
//! if not.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use neptune_wire::{ObjectKey, WorkerName, WorkerReason};

use crate::{
    desired::{Desired, WantedWorker},
    domain::{
        artifact::{Availability, LocalArtifact},
        problem::Problem,
    },
    values::resolve::WorkerValues,
};

/// The local model and dataset of a worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerInputs<'a> {
    /// The model with its object; `None` if the worker needs none.
    pub model: Option<(&'a ObjectKey, &'a LocalArtifact)>,
    /// The dataset with its format, which is empty if the Dataset has none; `None` if the worker
    /// needs no dataset.
    pub dataset: Option<(&'a LocalArtifact, &'a str)>,
    /// The directory of the node for the samples that a gateway captures.
    pub capture: Option<&'a Path>,
    /// What the worker gets of its Secrets and `ConfigMap`s; `None` if it has none.
    pub values: Option<&'a WorkerValues>,
}

/// The models and datasets of the node.
#[derive(Debug, Clone, Copy)]
pub struct NodeInputs<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
    /// The gateways whose files were written, each with its directory for captured samples, or why
    /// they could not be.
    pub gateways: &'a BTreeMap<WorkerName, Result<Option<PathBuf>, String>>,
    /// The values of the workers that have Secrets or `ConfigMap`s, or why they cannot be read.
    pub values: &'a BTreeMap<WorkerName, Result<WorkerValues, Problem>>,
}

/// Why an input of a worker is not on the node.
#[derive(Debug, PartialEq)]
pub struct MissingInput {
    pub problem: Problem,
    /// Whether a person has to solve the problem.
    pub is_stuck: bool,
}

impl<'a> NodeInputs<'a> {
    /// The inputs of a worker, if all are on the node.
    pub fn for_worker(
        &self,
        wanted: &'a WantedWorker,
        desired: &'a Desired,
    ) -> Result<WorkerInputs<'a>, MissingInput> {
        use WorkerReason::{DatasetDownloading, DatasetNotReceived};
        use WorkerReason::{ModelDownloading, ModelNotReceived};
        let capture = match wanted.worker.gateway {
            Some(_) => self.gateway_capture(&wanted.worker.name)?,
            None => None,
        };
        let values = match self.values.get(&wanted.worker.name) {
            Some(Ok(values)) => Some(values),
            Some(Err(problem)) => {
                return Err(MissingInput { problem: problem.clone(), is_stuck: false });
            }
            None => None,
        };
        let model = wanted.model.as_ref().map(|key| {
            let model = find(self.models, key, "Model", [ModelNotReceived, ModelDownloading])?;
            Ok((key, model))
        });
        let model = model.transpose()?;
        let Some(key) = &wanted.dataset else {
            return Ok(WorkerInputs { model, dataset: None, capture, values });
        };
        let data = find(self.datasets, key, "Dataset", [DatasetNotReceived, DatasetDownloading])?;
        let format = desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
        Ok(WorkerInputs { model, dataset: Some((data, format)), capture, values })
    }

    /// The directory for captured samples of a gateway whose files are there.
    fn gateway_capture(&self, gateway: &WorkerName) -> Result<Option<&'a Path>, MissingInput> {
        let (reason, message) = match self.gateways.get(gateway) {
            Some(Ok(capture)) => return Ok(capture.as_deref()),
            Some(Err(why)) => (WorkerReason::ContainerRefused, why.clone()),
            None => (WorkerReason::Starting, "the gateway's configuration is written".to_owned()),
        };
        Err(MissingInput { problem: Problem { reason, message }, is_stuck: false })
    }

    /// Why the usable version of a worker's model is not the wanted one.
    pub fn model_problem(&self, wanted: &WantedWorker) -> Option<&'a Problem> {
        self.models.get(wanted.model.as_ref()?)?.problem.as_ref()
    }
}

fn find<'a>(
    inputs: &'a BTreeMap<ObjectKey, Availability>,
    key: &ObjectKey,
    kind: &str,
    [not_received, downloading]: [WorkerReason; 2],
) -> Result<&'a LocalArtifact, MissingInput> {
    let Some(input) = inputs.get(key) else {
        let message = format!(
            "waiting to receive {key} from the controller; create the {kind} if it does not exist"
        );
        return Err(MissingInput {
            problem: Problem { reason: not_received, message },
            is_stuck: false,
        });
    };
    input.usable.as_ref().ok_or_else(|| {
        let problem = input.problem.clone().unwrap_or_else(|| Problem {
            reason: downloading,
            message: format!("waiting for {key}"),
        });
        MissingInput { problem, is_stuck: input.is_stuck }
    })
}
