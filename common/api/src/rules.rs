//! The CEL validation rules of the schemas, with their messages. API servers of Kubernetes 1.25 or
//! later evaluate them. `neptune-cloud` validates the same and is authoritative.
//!
//! A rule may only read fields of bounded size: an API server refuses anything else as too
//! expensive (ADR 13 in `docs/adr`). `neptune_cel_cost` finds such rules. Messages are fixed texts:
//! the API server names the field, and a text that a rule builds is one more expression to bound.

use kube::core::{Reason, Rule};

/// Whether `image` is set and not empty: then the manifest is ignored.
const BY_IMAGE: &str = "(has(self.image) && self.image != '')";

/// Pattern of the address of a model or dataset: an http(s) or s3 URL, a file URL or an absolute
/// path. It matches every address that `neptune_wire::ArtifactAddress` accepts.
const ADDRESS: &str = "^((?i:https?)://[^/?#]|(?i:s3)://[^/]+/.|((?i:file)://(localhost)?)?/+[^/])";

fn unless_by_image(rest: &str, field: &str, message: &str) -> Rule {
    Rule::new(format!("{BY_IMAGE} || {rest}")).field_path(field).message(message)
}

/// Requires `rest` for every file `f` of the manifest, which may be missing.
fn every_file(rest: &str, message: &str) -> Rule {
    let rule = format!("!has(self.manifest) || self.manifest.all(f, {rest})");
    unless_by_image(&rule, ".manifest", message)
}

pub(crate) fn manifest_given() -> Rule {
    unless_by_image(
        "(has(self.manifest) && size(self.manifest) > 0) || has(self.model)",
        ".manifest",
        "must list the versions of the model, or set spec.model to a Model, or spec.image to an image that contains the model",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn versions_named() -> Rule {
    every_file(
        "has(f.version) && f.version.matches('^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",
        "every version must be 1 to 63 letters, digits, '.', '-' and '_', starting and ending with a letter or digit",
    )
}

pub(crate) fn versions_unique() -> Rule {
    every_file(
        "!has(f.version) || self.manifest.exists_one(g, has(g.version) && g.version == f.version)",
        "duplicate version; remove one of the entries",
    )
}

pub(crate) fn files_addressed() -> Rule {
    every_file(
        &format!("has(f.downloadURL) && f.downloadURL.matches('{ADDRESS}')"),
        "every downloadURL must be http://..., https://..., s3://bucket/key, or file:///... on a node with an agent",
    )
}

pub(crate) fn digests_formed() -> Rule {
    every_file(
        "!has(f.sha256sum) || f.sha256sum.matches('^([0-9a-fA-F]{64})?$')",
        "every sha256sum must be 64 hex digits, as printed by sha256sum, or not set",
    )
}

pub(crate) fn model_or_manifest() -> Rule {
    unless_by_image(
        "!has(self.model) || !has(self.manifest) || size(self.manifest) == 0",
        ".manifest",
        "give manifest or model, not both",
    )
}

pub(crate) fn no_target_with_model() -> Rule {
    unless_by_image(
        "!has(self.model) || !has(self.targetVersion) || self.targetVersion == ''",
        ".targetVersion",
        "remove it: the version comes from the Model",
    )
}

pub(crate) fn target_given() -> Rule {
    unless_by_image(
        "(has(self.targetVersion) && self.targetVersion != '') || has(self.model)",
        ".targetVersion",
        "must be the version in spec.manifest to serve",
    )
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn target_listed() -> Rule {
    unless_by_image(
        "!has(self.targetVersion) || self.targetVersion == '' || !has(self.manifest) || \
         size(self.manifest) == 0 || \
         self.manifest.exists(f, has(f.version) && f.version == self.targetVersion)",
        ".targetVersion",
        "must be one of the versions in spec.manifest; correct it or add the version",
    )
}

pub(crate) fn edge_placed() -> Rule {
    Rule::new(
        "self.deployToLayer != 'edge' || (has(self.nodeName) && self.nodeName != '') || \
         (has(self.nodeSelector) && size(self.nodeSelector) > 0)",
    )
    .field_path(".nodeName")
    .message("must be the name of an edge node, or set spec.nodeSelector to the labels of one")
    .reason(Reason::FieldValueRequired)
}

/// Whether nodeSelector of an edge worker is set and not empty.
const BY_LABELS: &str = "(has(self.nodeSelector) && size(self.nodeSelector) > 0)";

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

pub(crate) fn image_has_no_version() -> Rule {
    Rule::new(format!(
        "!{BY_IMAGE} || !has(self.health) || !has(self.health.httpPath) || \
         !self.health.httpPath.contains('{{version}}')"
    ))
    .field_path(".health.httpPath")
    .message("must not contain {version}: an image that contains its model has no version")
}

pub(crate) fn one_health_check() -> Rule {
    Rule::new("!(has(self.tcp) && self.tcp && has(self.httpPath) && self.httpPath != '')")
        .message("httpPath and tcp are mutually exclusive; remove one")
}

pub(crate) fn serving_ports_differ() -> Rule {
    Rule::new("!has(self.grpcPort) || !has(self.servingPort) || self.grpcPort != self.servingPort")
        .field_path(".grpcPort")
        .message("must differ from servingPort")
}

/// Whether `scriptDir` is set and not empty.
const BY_SCRIPT: &str = "(has(self.scriptDir) && self.scriptDir != '')";

pub(crate) fn transformer_program() -> Rule {
    Rule::new(format!("{BY_IMAGE} || {BY_SCRIPT}")).message("give image or scriptDir")
}

pub(crate) fn transformer_script() -> Rule {
    Rule::new(format!("{BY_SCRIPT} == (has(self.scriptBootFile) && self.scriptBootFile != '')"))
        .field_path(".scriptBootFile")
        .message("give scriptDir and scriptBootFile together, or neither of them")
}

pub(crate) fn transformer_framework() -> Rule {
    Rule::new(format!("!{BY_SCRIPT} || (has(self.frameworkType) && self.frameworkType != '')"))
        .field_path(".frameworkType")
        .message("must be the framework that starts the script of scriptDir, such as python")
        .reason(Reason::FieldValueRequired)
}

pub(crate) fn transformer_port_differs() -> Rule {
    Rule::new(
        "!has(self.transformer) || !has(self.transformer.port) || self.transformer.port == 0 || \
         !has(self.servingPort) || self.transformer.port != self.servingPort",
    )
    .field_path(".transformer")
    .message("port must differ from servingPort, on which the transformer listens")
}

pub(crate) fn transformer_has_no_grpc() -> Rule {
    Rule::new("!has(self.transformer) || !has(self.grpcPort)")
        .field_path(".grpcPort")
        .message("remove it: a transformer has no port for gRPC")
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

pub(crate) fn one_edge_worker_kind() -> Rule {
    Rule::new(format!("{} == 1", number_of(&["workerSpec", "server", "inferenceModel"]))).message(
        "give exactly one of workerSpec (a worker of your own), server (a model server, the gateway decides) and inferenceModel",
    )
}

pub(crate) fn one_cloud_worker_kind() -> Rule {
    let kinds = ["workerSpec", "server", "inferenceModel", "endpoint", "service"];
    Rule::new(format!("{} == 1", number_of(&kinds)))
        .message("give exactly one of workerSpec, server, inferenceModel, endpoint and service")
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
        .message("give uploadRatio or agreement, not both: one is held, the other follows")
}

pub(crate) fn one_ratio() -> Rule {
    Rule::new("!has(self.totalUploadRatio) || !(has(self.uploadRatio) || has(self.agreement))")
        .message("give totalUploadRatio, or uploadRatio or agreement: only one is held")
}

pub(crate) fn cap_above_goal() -> Rule {
    Rule::new(
        "!has(self.uploadRatio) || !has(self.maxUploadRatio) || \
         double(self.maxUploadRatio) >= double(self.uploadRatio)",
    )
    .field_path(".maxUploadRatio")
    .message("must not be below uploadRatio")
}

/// Requires a training program.
pub(crate) fn something_to_run() -> Rule {
    Rule::new("has(self.script) || (has(self.workerSpec.image) && self.workerSpec.image != '')")
        .message(
            "give script (url and sha256sum, or scriptDir) or workerSpec.image: there is nothing to run",
        )
}

pub(crate) fn one_script() -> Rule {
    Rule::new("!(has(self.url) && has(self.scriptDir))")
        .message("give script.url or script.scriptDir, not both")
}

pub(crate) fn script_given() -> Rule {
    Rule::new("has(self.url) || has(self.scriptDir)")
        .message("give script.url with script.sha256sum, or script.scriptDir")
}

pub(crate) fn script_digest() -> Rule {
    Rule::new("!has(self.url) || has(self.sha256sum)")
        .message("script.url needs script.sha256sum: code from a network is run only with a digest")
}

pub(crate) fn one_source_of_weights() -> Rule {
    Rule::new("!(has(self.url) && has(self.model))")
        .message("give initialWeights.url or initialWeights.model, not both")
}

pub(crate) fn weights_given() -> Rule {
    Rule::new("has(self.url) || has(self.model)")
        .message("give initialWeights.url with initialWeights.sha256sum, or initialWeights.model")
}

pub(crate) fn weights_digest() -> Rule {
    Rule::new("!has(self.url) || has(self.sha256sum)")
        .message("initialWeights.url needs initialWeights.sha256sum")
}

pub(crate) fn training_worker_placed() -> Rule {
    Rule::new("has(self.nodeName) != has(self.nodeSelector)")
        .message("give exactly one of nodeName and nodeSelector for each training worker")
}

pub(crate) fn dataset_selected() -> Rule {
    Rule::new("has(self.name) != has(self.matchLabels)")
        .message("give exactly one of dataset.name and dataset.matchLabels")
}

pub(crate) fn trim_leaves_something() -> Rule {
    Rule::new(
        "!has(self.strategy) || self.strategy != 'TrimmedMean' || !has(self.trim) || \
         double(self.trim) < 0.5",
    )
    .field_path(".trim")
    .message("must be less than 0.5: more leaves no update to aggregate")
}

pub(crate) fn worker_of_strategy() -> Rule {
    Rule::new("(has(self.strategy) && self.strategy == 'Worker') == has(self.worker)")
        .field_path(".worker")
        .message("aggregation.worker goes with strategy Worker, and only with it")
}

pub(crate) fn worker_in_the_cloud() -> Rule {
    Rule::new("!has(self.worker) || !has(self.nodeName)").field_path(".nodeName").message(
        "aggregation.nodeName does not go with strategy Worker: the server of an engine runs in the cloud",
    )
}

/// The number of workers is known if each entry has one node and one Dataset.
pub(crate) fn enough_training_workers() -> Rule {
    Rule::new(
        "!has(self.aggregation) || !has(self.aggregation.minWorkers) || \
         self.aggregation.minWorkers <= size(self.trainingWorkers) || \
         self.trainingWorkers.exists(w, has(w.nodeSelector) || has(w.dataset.matchLabels))",
    )
    .field_path(".aggregation.minWorkers")
    .message("must not be above the number of entries in spec.trainingWorkers")
}

pub(crate) fn growth_measured() -> Rule {
    Rule::new(
        "!has(self.schedule) || !has(self.schedule.type) || self.schedule.type != 'OnGrowth' || \
         (has(self.schedule.dataset) && has(self.schedule.newSamples) && \
         self.schedule.newSamples > 0)",
    )
    .field_path(".schedule")
    .message("OnGrowth needs schedule.dataset and newSamples")
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

/// Refuses the node name `workers`, which is the topic level of the workers.
pub(crate) fn node_name_not_reserved() -> Rule {
    Rule::new("self != 'workers'")
        .message("the node name \"workers\" is reserved for MQTT topics; rename the node")
}

/// Requires the address of a Model or Dataset, or an empty string.
pub(crate) fn artifact_address() -> Rule {
    Rule::new(format!("self == '' || self.matches('{ADDRESS}')")).message(
        "must be an absolute path on the node, file:///path, http://..., https://... or s3://bucket/key",
    )
}

/// Whether nodeNames of a placement is set and not empty.
const BY_NAMES: &str = "(has(self.nodeNames) && size(self.nodeNames) > 0)";

pub(crate) fn placement_once() -> Rule {
    Rule::new(format!("!({BY_NAMES} && {BY_LABELS})"))
        .message("give nodeNames or nodeSelector, not both")
}

pub(crate) fn placement_given() -> Rule {
    Rule::new(format!("{BY_NAMES} || {BY_LABELS}"))
        .message("must have nodeNames or nodeSelector; remove placement to keep the model only where it is used")
        .reason(Reason::FieldValueRequired)
}

/// Requires the replicas of a Dataset to be on other nodes than its data.
pub(crate) fn source_is_no_replica() -> Rule {
    Rule::new(
        "!has(self.replicas) || !has(self.replicas.nodeNames) || !has(self.nodeName) || \
         !self.replicas.nodeNames.exists(name, name == self.nodeName)",
    )
    .field_path(".replicas")
    .message("must not have spec.nodeName, which is the source; name other nodes as replicas")
}

pub(crate) fn replica_names_not_reserved() -> Rule {
    placement_names_not_reserved()
}

pub(crate) fn placement_names_not_reserved() -> Rule {
    Rule::new("!has(self.nodeNames) || !self.nodeNames.exists(name, name == 'workers')")
        .field_path(".nodeNames")
        .message("the node name \"workers\" is reserved for MQTT topics; rename the node")
}

/// Requires a Kubernetes quantity above zero.
pub(crate) fn above_zero() -> Rule {
    Rule::new(
        "self.matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$') && \
         self.matches('^[0.]*[1-9]')",
    )
    .message("must be a Kubernetes quantity above 0, such as \"500m\" or \"256Mi\"")
}
