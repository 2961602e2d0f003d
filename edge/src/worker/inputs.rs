//! Decides whether a worker's model, dataset and files are on the node, and which problem to report
//! if not. Pure.

use std::collections::BTreeMap;

use neptune_wire::{ObjectKey, WorkerName, WorkerReason};

use crate::{
    desired::{Desired, WantedWorker},
    domain::{
        artifact::{Availability, LocalArtifact},
        problem::Problem,
    },
};

/// The local model and dataset of a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerInputs<'a> {
    /// With its object; `None` if the worker needs none.
    pub model: Option<(&'a ObjectKey, &'a LocalArtifact)>,
    /// With its format; empty if the Dataset has none.
    pub dataset: Option<(&'a LocalArtifact, &'a str)>,
}

/// The models and datasets of the node.
#[derive(Debug, Clone, Copy)]
pub struct NodeInputs<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
    /// The gateways whose files were written, or why they could not be.
    pub gateways: &'a BTreeMap<WorkerName, Result<(), String>>,
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
    pub fn of(
        &self,
        wanted: &'a WantedWorker,
        desired: &'a Desired,
    ) -> Result<WorkerInputs<'a>, MissingInput> {
        use WorkerReason::{DatasetDownloading, DatasetNotReceived};
        use WorkerReason::{ModelDownloading, ModelNotReceived};
        if wanted.worker.gateway.is_some() {
            self.check_gateway(&wanted.worker.name)?;
        }
        let model = wanted.model.as_ref().map(|key| {
            let model = find(self.models, key, "Model", [ModelNotReceived, ModelDownloading])?;
            Ok((key, model))
        });
        let model = model.transpose()?;
        let Some(key) = &wanted.dataset else { return Ok(WorkerInputs { model, dataset: None }) };
        let data = find(self.datasets, key, "Dataset", [DatasetNotReceived, DatasetDownloading])?;
        let format = desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
        Ok(WorkerInputs { model, dataset: Some((data, format)) })
    }

    /// Whether the files of a gateway are there.
    fn check_gateway(&self, gateway: &WorkerName) -> Result<(), MissingInput> {
        let (reason, message) = match self.gateways.get(gateway) {
            Some(Ok(())) => return Ok(()),
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
