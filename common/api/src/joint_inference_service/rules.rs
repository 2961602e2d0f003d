//! The CEL validation rules of a `JointInferenceService`. See `rules.rs` of the crate.

use kube::core::{Reason, Rule};

use crate::rules::BY_LABELS;

pub(crate) fn edge_worker_placed() -> Rule {
    Rule::new(format!("has(self.nodeName) || {BY_LABELS}"))
        .field_path(".nodeName")
        .message("must be the name of an edge node, or set nodeSelector to the labels of one")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn edge_worker_placed_once() -> Rule {
    Rule::new(format!("!(has(self.nodeName) && {BY_LABELS})"))
        .message("nodeName and nodeSelector are mutually exclusive; remove one")
}

pub(crate) fn one_edge_worker_kind() -> Rule {
    Rule::new(format!("{} == 1", number_of(&["workerSpec", "server", "inferenceModel"]))).message(
        "give exactly one of workerSpec (a worker of your own), server (a model server, the gateway decides) and inferenceModel",
    )
}

pub(crate) fn one_cloud_worker_kind() -> Rule {
    let forms = ["workerSpec", "server", "inferenceModel", "endpoint", "service"];
    Rule::new(format!("{} == 1", number_of(&forms)))
        .message("give exactly one of workerSpec, server, inferenceModel, endpoint and service")
}

/// Requires a field of a worker, unless its program is in its image.
pub(crate) fn of_script(field: &str, meaning: &str) -> Rule {
    Rule::new(format!("has(self.{field}) || self.frameworkType == 'container'"))
        .field_path(format!(".{field}"))
        .message(&*format!("must be {meaning}, or set frameworkType to container"))
        .reason(Reason::FieldValueRequired)
}

/// Refuses a field of the program of an image with a framework that starts a script.
pub(crate) fn of_image(field: &str) -> Rule {
    Rule::new(format!("!has(self.{field}) || self.frameworkType == 'container'"))
        .field_path(format!(".{field}"))
        .message(
            "only with frameworkType container; a framework starts the script of scriptBootFile",
        )
}

/// Requires one success of a probe that restarts the worker, as Kubernetes does.
pub(crate) fn one_success(probe: &str) -> Rule {
    Rule::new(format!(
        "!has(self.{probe}) || !has(self.{probe}.successThreshold) || \
         self.{probe}.successThreshold == 1"
    ))
    .field_path(format!(".{probe}.successThreshold"))
    .message("must be 1: only readinessProbe may require more successes")
}

pub(crate) fn parameter_has_one_value() -> Rule {
    Rule::new("has(self.value) != has(self.valueFrom)")
        .message("give exactly one of value and valueFrom")
}

pub(crate) fn variable_has_one_value() -> Rule {
    Rule::new("!(has(self.value) && has(self.valueFrom))")
        .message("value and valueFrom are mutually exclusive; remove one")
}

pub(crate) fn variable_has_one_source() -> Rule {
    let sources = ["nodeLabel", "secretKeyRef", "configMapKeyRef"];
    Rule::new(format!("{} == 1", number_of(&sources)))
        .message("give exactly one of nodeLabel, secretKeyRef and configMapKeyRef")
}

pub(crate) fn optional_of_label() -> Rule {
    Rule::new("!has(self.optional) || has(self.nodeLabel)")
        .message("optional beside nodeLabel only; set it in secretKeyRef or configMapKeyRef")
}

fn model_required() -> Rule {
    Rule::new(format!("has(self.model) || !{}", any_of(&["workerSpec", "server"])))
        .field_path(".model")
        .message("must be the Model of the worker")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn edge_model_required() -> Rule {
    model_required()
}

pub(crate) fn edge_model_refused() -> Rule {
    Rule::new("!has(self.model) || !has(self.inferenceModel)")
        .field_path(".model")
        .message("remove it: the InferenceModel names its model")
}

pub(crate) fn edge_model_once() -> Rule {
    Rule::new("has(self.name) != has(self.selector)").message("give name or selector")
}

pub(crate) fn selector_has_best() -> Rule {
    Rule::new("!has(self.selector) || (has(self.best) && self.best != '')")
        .field_path(".best")
        .message("selector needs best: which metric decides")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn selector_has_labels() -> Rule {
    Rule::new("size(self.matchLabels) > 0")
        .field_path(".matchLabels")
        .message("must have at least one label")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn selection_has_selector() -> Rule {
    let settings = any_of(&["best", "mode", "margin", "dwellSeconds"]);
    Rule::new(format!("has(self.selector) || !{settings}"))
        .message("remove best, mode, margin and dwellSeconds: only selector chooses among models")
}

pub(crate) fn cloud_model_required() -> Rule {
    model_required()
}

pub(crate) fn cloud_model_refused() -> Rule {
    let others = any_of(&["inferenceModel", "endpoint", "service"]);
    Rule::new(format!("!has(self.model) || !{others}"))
        .field_path(".model")
        .message("remove it: inferenceModel, endpoint and service name their own model")
}

pub(crate) fn cloud_node_required() -> Rule {
    Rule::new("has(self.nodeName) || !has(self.workerSpec)")
        .field_path(".nodeName")
        .message("must be the name of the node that runs the worker")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn cloud_node_refused() -> Rule {
    let others = any_of(&["inferenceModel", "endpoint", "service"]);
    Rule::new(format!("!has(self.nodeName) || !{others}"))
        .field_path(".nodeName")
        .message("remove it: only workerSpec and server run on a node that the service names")
}

pub(crate) fn goal_needs_gateway() -> Rule {
    Rule::new(
        "!has(self.workerSpec) || !has(self.hardExampleAlgorithm) || \
         !has(self.hardExampleAlgorithm.goal)",
    )
    .field_path(".hardExampleAlgorithm.goal")
    .message(
        "goal needs the gateway: with workerSpec the worker itself decides, so give it parameters",
    )
}

pub(crate) fn dataset_needs_worker() -> Rule {
    Rule::new("!has(self.dataset) || has(self.workerSpec)")
        .field_path(".dataset")
        .message("remove it: only a worker with workerSpec reads a dataset")
}

pub(crate) fn gateway_needed() -> Rule {
    Rule::new("!has(self.gateway) || !has(self.edgeWorker) || !has(self.edgeWorker.workerSpec)")
        .field_path(".gateway")
        .message("remove it: with edgeWorker.workerSpec there is no gateway")
}

/// Whether `spec.gateway.grpcPort` is set.
const HAS_GRPC: &str = "(has(self.gateway) && has(self.gateway.grpcPort))";

pub(crate) fn grpc_port_differs() -> Rule {
    Rule::new("!has(self.grpcPort) || self.grpcPort != (has(self.port) ? self.port : 8080)")
        .field_path(".grpcPort")
        .message("must differ from port, which is 8080 by default")
}

pub(crate) fn grpc_needs_grpc_url() -> Rule {
    Rule::new(format!(
        "!{HAS_GRPC} || !has(self.cloudWorker) || !has(self.cloudWorker.endpoint) || \
         has(self.cloudWorker.endpoint.grpcUrl)"
    ))
    .field_path(".cloudWorker")
    .message("endpoint.grpcUrl must be the address of the server's gRPC, because gateway.grpcPort is set")
}

pub(crate) fn grpc_url_needs_grpc() -> Rule {
    Rule::new(format!(
        "{HAS_GRPC} || !has(self.cloudWorker) || !has(self.cloudWorker.endpoint) || \
         !has(self.cloudWorker.endpoint.grpcUrl)"
    ))
    .field_path(".cloudWorker")
    .message("endpoint.grpcUrl needs gateway.grpcPort; set it, or remove grpcUrl")
}

pub(crate) fn grpc_refused_with_worker() -> Rule {
    Rule::new(format!("!{HAS_GRPC} || !has(self.cloudWorker) || !has(self.cloudWorker.workerSpec)"))
        .field_path(".gateway")
        .message("remove grpcPort: a cloudWorker.workerSpec has one port, which is not for gRPC")
}

pub(crate) fn worker_calls_worker() -> Rule {
    Rule::new(
        "!has(self.edgeWorker) || !has(self.edgeWorker.workerSpec) || !has(self.cloudWorker) || \
         has(self.cloudWorker.workerSpec)",
    )
    .field_path(".cloudWorker")
    .message("must have a workerSpec: with edgeWorker.workerSpec the worker of the edge calls a worker of your own")
}

pub(crate) fn one_goal() -> Rule {
    Rule::new("!(has(self.uploadRatio) && has(self.agreement))")
        .message("give uploadRatio or agreement, not both: one is enforced, the other follows")
}

pub(crate) fn one_ratio() -> Rule {
    Rule::new("!has(self.totalUploadRatio) || !(has(self.uploadRatio) || has(self.agreement))")
        .message("give totalUploadRatio, or uploadRatio or agreement: only one is enforced")
}

pub(crate) fn cap_above_goal() -> Rule {
    Rule::new(
        "!has(self.uploadRatio) || !has(self.maxUploadRatio) || \
         double(self.maxUploadRatio) >= double(self.uploadRatio)",
    )
    .field_path(".maxUploadRatio")
    .message("must not be below uploadRatio")
}

/// Requires the URL of an endpoint. The controller checks its parts.
pub(crate) fn endpoint_url() -> Rule {
    Rule::new("self.matches('^https?://[^/?#@]+(/[^?#]*)?$')")
        .message("must be a URL such as https://llm.example/v1, without user and query")
}

/// Requires the address of the gRPC of an endpoint. The controller checks its parts.
pub(crate) fn endpoint_grpc_url() -> Rule {
    Rule::new("self.matches('^https?://[^/?#@]+:[0-9]+/?$')")
        .message("must be an address with its port such as https://models.example:8001")
}

/// The number of these fields that are set.
fn number_of(fields: &[&str]) -> String {
    let each: Vec<_> = fields.iter().map(|field| format!("(has(self.{field}) ? 1 : 0)")).collect();
    each.join(" + ")
}

/// Whether one of these fields is set.
fn any_of(fields: &[&str]) -> String {
    let each: Vec<_> = fields.iter().map(|field| format!("has(self.{field})")).collect();
    format!("({})", each.join(" || "))
}

/// A controller that does not know `totals` computes another number, and may not write the status.
pub(crate) fn status_of_slices() -> Rule {
    Rule::new(
        "!has(self.slices) || (has(self.totals) && has(self.metrics) && size(self.metrics) > 0 && int(self.metrics[0].value) == self.totals.inferenceNumber)",
    )
    .message("this status was written for more than 32 nodes; run a controller of 0.2 or later")
}

/// A controller without slices lists what the nodes that the status names report. If they have counted
/// nothing since, it computes the same total, and might add up what the slices have as well.
pub(crate) fn reports_stay_in_slices() -> Rule {
    Rule::new("!has(oldSelf.slices) || has(oldSelf.reports) || !has(self.reports)").message(
        "the counters of this service are in NodeReportSlices; run a controller of 0.2 or later",
    )
}
