//! Checks whether the fields of a spec go together. A part of `validate`.

use neptune_api::{CloudWorker, EdgeModel, EdgeWorker, JointInferenceService};

use crate::{
    finding::Finding,
    joint_inference_service::spec::forms::{CloudForm, EdgeForm, cloud_form, edge_form},
    reason::Reason,
};

/// The forms of both sides. Adds a finding per field that does not go with them.
pub fn check_forms<'a>(
    service: &'a JointInferenceService,
    findings: &mut Vec<Finding>,
) -> (Option<EdgeForm<'a>>, Option<CloudForm<'a>>) {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let forms = (edge_form(edge), cloud_form(cloud));
    let texts = edge_problem(forms.0, edge).into_iter();
    let texts = texts.chain(edge.model.as_ref().and_then(model_problem));
    let texts = texts.chain(cloud_problems(forms.1, cloud).into_iter().flatten());
    let texts = texts.chain(gateway_problems(forms, service).into_iter().flatten());
    findings.extend(texts.map(|text| Finding::new(Reason::WorkerInvalid, text)));
    if let Some(EdgeForm::Worker(_)) = forms.0
        && edge.hard_example_algorithm.goal.is_some()
    {
        let message = "spec.edgeWorker.hardExampleAlgorithm.goal: goal needs the gateway: with workerSpec the worker itself decides, so give it parameters";
        findings.push(Finding::new(Reason::GoalInvalid, message));
    }
    forms
}

/// What is wrong with the form of the edge side and its model.
fn edge_problem(form: Option<EdgeForm>, edge: &EdgeWorker) -> Option<&'static str> {
    match form {
        None => Some(
            "spec.edgeWorker: give exactly one of workerSpec (a worker of your own), server (a model server, the gateway decides) and inferenceModel",
        ),
        Some(EdgeForm::InferenceModel(_)) if edge.model.is_some() => {
            Some("spec.edgeWorker.model: remove it: the InferenceModel names its model")
        }
        Some(EdgeForm::Worker(_) | EdgeForm::Server(_)) if edge.model.is_none() => {
            Some("spec.edgeWorker.model is missing; set it to the Model of the worker")
        }
        Some(_) => None,
    }
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

/// What is wrong with the form of the cloud side, its model and its node.
fn cloud_problems(form: Option<CloudForm>, cloud: &CloudWorker) -> [Option<&'static str>; 2] {
    let problem = match form {
        None => {
            "spec.cloudWorker: give exactly one of workerSpec, server, inferenceModel, endpoint and service"
        }
        Some(CloudForm::Worker(_) | CloudForm::Server(_)) if cloud.model.is_none() => {
            "spec.cloudWorker.model is missing; set it to the Model of the worker"
        }
        Some(CloudForm::Worker(_)) if cloud.node_name.is_none() => {
            "spec.cloudWorker.nodeName is missing; set it to the node that runs the worker"
        }
        Some(CloudForm::Worker(_) | CloudForm::Server(_)) => return [None, None],
        Some(_) => {
            let model = "spec.cloudWorker.model: remove it: inferenceModel, endpoint and service name their own model";
            let node = "spec.cloudWorker.nodeName: remove it: only workerSpec and server run on a node that the service names";
            return [
                cloud.model.is_some().then_some(model),
                cloud.node_name.is_some().then_some(node),
            ];
        }
    };
    [Some(problem), None]
}

/// What is wrong with the fields that need a gateway, or a worker without one.
fn gateway_problems(
    (edge, cloud): (Option<EdgeForm>, Option<CloudForm>),
    service: &JointInferenceService,
) -> [Option<&'static str>; 2] {
    let spec = &service.spec;
    if let Some(EdgeForm::Worker(_)) = edge {
        let is_other = !matches!(cloud, None | Some(CloudForm::Worker(_)));
        let other = "spec.cloudWorker must have a workerSpec: with edgeWorker.workerSpec the worker of the edge calls a worker of your own";
        let gateway = "spec.gateway: remove it: with edgeWorker.workerSpec there is no gateway";
        [is_other.then_some(other), spec.gateway.is_some().then_some(gateway)]
    } else {
        let is_unread = edge.is_some() && spec.edge_worker.dataset.is_some();
        let dataset =
            "spec.edgeWorker.dataset: remove it: only a worker with workerSpec reads a dataset";
        [is_unread.then_some(dataset), None]
    }
}
