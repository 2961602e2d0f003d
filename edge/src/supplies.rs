//! Decides whether all that a worker uses, its model and its dataset, is on the node, and if it is not, why.

use std::collections::BTreeMap;

use neptune_wire::{ObjectKey, WorkerReason};

use crate::{
    container::Uses,
    desired::{Desired, Wanted},
    edition::Supplied,
    reload,
    track::Problem,
};

/// How a model, or a dataset, fares on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Availability {
    /// The newest version that is there, verified.
    pub usable: Option<Supplied>,
    /// Why that is not the version that is wanted.
    pub problem: Option<Problem>,
    /// Whether the problem needs somebody's help.
    pub is_stuck: bool,
}

/// What is on the node for workers to use.
#[derive(Debug, Clone, Copy)]
pub struct Supplies<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
}

/// Why a worker cannot have what it needs.
#[derive(Debug, PartialEq)]
pub struct Lack {
    pub problem: Problem,
    /// Whether the problem needs somebody's help.
    pub is_stuck: bool,
}

impl<'a> Supplies<'a> {
    /// What a worker uses, if all of it is here.
    pub fn of(&self, wanted: &Wanted, desired: &'a Desired) -> Result<Uses<'a>, Lack> {
        use WorkerReason::{DatasetDownloading, DatasetNotReceived};
        use WorkerReason::{ModelDownloading, ModelNotReceived};
        let model =
            find(self.models, &wanted.model, "Model", [ModelNotReceived, ModelDownloading])?;
        let Some(key) = &wanted.dataset else { return Ok(Uses { model, dataset: None }) };
        let data = find(self.datasets, key, "Dataset", [DatasetNotReceived, DatasetDownloading])?;
        let format = desired.datasets.get(key).map_or("", |dataset| dataset.format.as_str());
        Ok(Uses { model, dataset: Some((data, format)) })
    }

    /// What a person should know of what a running worker uses.
    pub fn note(&self, wanted: &Wanted, reload: Option<&reload::Decision>) -> String {
        match self.models.get(&wanted.model).and_then(|view| view.problem.as_ref()) {
            Some(problem) => format!("runs on the model's previous version: {}", problem.message),
            None => reload.map(|reload| reload.note.clone()).unwrap_or_default(),
        }
    }
}

fn find<'a>(
    views: &'a BTreeMap<ObjectKey, Availability>,
    key: &ObjectKey,
    kind: &str,
    [not_received, on_its_way]: [WorkerReason; 2],
) -> Result<&'a Supplied, Lack> {
    let Some(view) = views.get(key) else {
        let message =
            format!("the node was not told of {key} yet; apply that {kind} if it does not exist");
        return Err(Lack { problem: Problem { reason: not_received, message }, is_stuck: false });
    };
    view.usable.as_ref().ok_or_else(|| {
        let problem = view.problem.clone().unwrap_or_else(|| Problem {
            reason: on_its_way,
            message: format!("{key} is on its way"),
        });
        Lack { problem, is_stuck: view.is_stuck }
    })
}
