//! Which form the halves of a service have, and whether their fields go together. Pure: a part of
//! `validate`.

use neptune_api::{
    CloudWorker, EdgeModel, EdgeWorker, Endpoint, JointInferenceService, JointInferenceServiceSpec,
    ModelServer, WorkerSpec,
};

use crate::{finding::Finding, reason::Reason};

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

/// What is wrong with the fields of a model.
fn model_problem(model: &EdgeModel) -> Option<&'static str> {
    let is_set = |text: &Option<String>| text.is_some();
    let settings = is_set(&model.best) || is_set(&model.margin);
    let settings = settings || model.mode.is_some() || model.dwell_seconds.is_some();
    match (&model.name, &model.selector) {
        (Some(_), Some(_)) | (None, None) => Some("spec.edgeWorker.model: give name or selector"),
        (Some(_), None) if settings => Some(
            "spec.edgeWorker.model: remove best, mode, margin and dwellSeconds: only selector chooses among models",
        ),
        (None, Some(selector)) if selector.match_labels.is_empty() => {
            Some("spec.edgeWorker.model.selector.matchLabels is empty; set at least one label")
        }
        _ => None,
    }
}

/// The forms of both sides. Adds a finding per field that does not go with them.
pub fn check_forms<'a>(
    service: &'a JointInferenceService,
    findings: &mut Vec<Finding>,
) -> (Option<EdgeForm<'a>>, Option<CloudForm<'a>>) {
    let spec = &service.spec;
    let (edge, cloud) = (edge_form(&spec.edge_worker), cloud_form(&spec.cloud_worker));
    check_edge(edge, &spec.edge_worker, findings);
    check_cloud(cloud, &spec.cloud_worker, findings);
    check_gateway(edge, cloud, spec, findings);
    (edge, cloud)
}

fn invalid(text: &str, findings: &mut Vec<Finding>) {
    findings.push(Finding::new(Reason::WorkerInvalid, text));
}

fn check_edge(form: Option<EdgeForm<'_>>, edge: &EdgeWorker, findings: &mut Vec<Finding>) {
    match form {
        None => invalid(
            "spec.edgeWorker: give exactly one of workerSpec (a worker of your own), server (a model server, the gateway decides) and inferenceModel",
            findings,
        ),
        Some(EdgeForm::InferenceModel(_)) if edge.model.is_some() => invalid(
            "spec.edgeWorker.model: remove it: the InferenceModel names its model",
            findings,
        ),
        Some(EdgeForm::Worker(_) | EdgeForm::Server(_)) if edge.model.is_none() => {
            invalid("spec.edgeWorker.model is missing; set it to the Model of the worker", findings)
        }
        Some(_) => {}
    }
    if let Some(text) = edge.model.as_ref().and_then(model_problem) {
        invalid(text, findings);
    }
}

fn check_cloud(form: Option<CloudForm<'_>>, cloud: &CloudWorker, findings: &mut Vec<Finding>) {
    match form {
        None => invalid(
            "spec.cloudWorker: give exactly one of workerSpec, server, inferenceModel, endpoint and service",
            findings,
        ),
        Some(CloudForm::Worker(_) | CloudForm::Server(_)) if cloud.model.is_none() => invalid(
            "spec.cloudWorker.model is missing; set it to the Model of the worker",
            findings,
        ),
        Some(CloudForm::Worker(_)) if cloud.node_name.is_none() => invalid(
            "spec.cloudWorker.nodeName is missing; set it to the node that runs the worker",
            findings,
        ),
        Some(CloudForm::Worker(_) | CloudForm::Server(_)) => {}
        Some(_) => {
            if cloud.model.is_some() {
                invalid(
                    "spec.cloudWorker.model: remove it: inferenceModel, endpoint and service name their own model",
                    findings,
                );
            }
            if cloud.node_name.is_some() {
                invalid(
                    "spec.cloudWorker.nodeName: remove it: only workerSpec and server run on a node that the service names",
                    findings,
                );
            }
        }
    }
}

/// Checks the fields that need a gateway, or a worker without one.
fn check_gateway(
    edge: Option<EdgeForm<'_>>,
    cloud: Option<CloudForm<'_>>,
    spec: &JointInferenceServiceSpec,
    findings: &mut Vec<Finding>,
) {
    if let Some(EdgeForm::Worker(_)) = edge {
        if !matches!(cloud, None | Some(CloudForm::Worker(_))) {
            invalid(
                "spec.cloudWorker must have a workerSpec: with edgeWorker.workerSpec the worker of the edge calls a worker of your own",
                findings,
            );
        }
        if spec.gateway.is_some() {
            invalid(
                "spec.gateway: remove it: with edgeWorker.workerSpec there is no gateway",
                findings,
            );
        }
        if spec.edge_worker.hard_example_algorithm.goal.is_some() {
            let message = "spec.edgeWorker.hardExampleAlgorithm.goal: goal needs the gateway: with workerSpec the worker itself decides, so give it parameters";
            findings.push(Finding::new(Reason::GoalInvalid, message));
        }
    } else if edge.is_some() && spec.edge_worker.dataset.is_some() {
        invalid(
            "spec.edgeWorker.dataset: remove it: only a worker with workerSpec reads a dataset",
            findings,
        );
    }
}
