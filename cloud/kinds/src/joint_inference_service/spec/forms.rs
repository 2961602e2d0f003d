//! Reads the spec: which form each side has, and the settings of the gateway.

use neptune_api::{
    CloudWorker, EdgeWorker, Endpoint, Gateway, JointInferenceService, ModelServer, WorkerSpec,
};

/// The form of the edge side.
#[derive(Debug, Clone, Copy)]
pub enum EdgeForm<'a> {
    /// A program of the user.
    Worker(&'a WorkerSpec),
    /// A gateway in front of a model server that the service owns.
    Server(&'a ModelServer),
    /// A gateway in front of the `InferenceModel` of this name.
    InferenceModel(&'a str),
}

/// The form of the cloud side.
#[derive(Debug, Clone, Copy)]
pub enum CloudForm<'a> {
    /// A program of the user.
    Worker(&'a WorkerSpec),
    /// A model server that the service owns.
    Server(&'a ModelServer),
    /// The `InferenceModel` of this name.
    InferenceModel(&'a str),
    /// A server that Neptune does not run.
    Endpoint(&'a Endpoint),
    /// The gateway of the service of this name.
    Service(&'a str),
}

/// The form of the edge side; `None` unless the spec has exactly one.
pub fn edge_form(worker: &EdgeWorker) -> Option<EdgeForm<'_>> {
    let forms = [
        worker.worker_spec.as_ref().map(EdgeForm::Worker),
        worker.server.as_deref().map(EdgeForm::Server),
        worker.inference_model.as_ref().map(|model| EdgeForm::InferenceModel(&model.name)),
    ];
    only(forms)
}

/// The form of the cloud side; `None` unless the spec has exactly one.
pub fn cloud_form(worker: &CloudWorker) -> Option<CloudForm<'_>> {
    let forms = [
        worker.worker_spec.as_ref().map(CloudForm::Worker),
        worker.server.as_deref().map(CloudForm::Server),
        worker.inference_model.as_ref().map(|model| CloudForm::InferenceModel(&model.name)),
        worker.endpoint.as_deref().map(CloudForm::Endpoint),
        worker.service.as_ref().map(|service| CloudForm::Service(&service.name)),
    ];
    only(forms)
}

/// Whether the service has a gateway.
pub fn has_gateway(service: &JointInferenceService) -> bool {
    let form = edge_form(&service.spec.edge_worker);
    matches!(form, Some(EdgeForm::Server(_) | EdgeForm::InferenceModel(_)))
}

fn only<T, const N: usize>(forms: [Option<T>; N]) -> Option<T> {
    let mut given = forms.into_iter().flatten();
    let first = given.next()?;
    given.next().is_none().then_some(first)
}

/// Returns the settings of `spec.gateway`, or their defaults.
pub fn gateway_settings(service: &JointInferenceService) -> Gateway {
    service.spec.gateway.as_deref().cloned().unwrap_or_default()
}
