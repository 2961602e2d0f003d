//! The rounds of a `TrainingModel`, and how the workers' weights become one.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{ResourceRequirements, schema};

/// Aggregation describes the rounds and how the workers' weights become one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::trim_leaves_something(),
    validation = rules::worker_of_strategy(),
    validation = rules::worker_in_the_cloud()
)]
pub struct Aggregation {
    /// strategy is FedAvg for the weighted mean, TrimmedMean for the mean without the largest and
    /// smallest values of each element, which needs 3 workers to have an effect, or Worker for an
    /// engine of its own, such as Flower: spec.aggregation.worker is its server. Defaults to FedAvg.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<AggregationStrategy>,
    /// rounds is the number of rounds of a run. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub rounds: Option<i32>,
    /// minWorkers is the smallest number of updates that a round may close with. Defaults to all
    /// workers of the round if there are at most 3, or else to two thirds of them, rounded up;
    /// workers whose update was refused, that failed, or without data are not counted. A change takes
    /// effect in the open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub min_workers: Option<i32>,
    /// grace is how long a round with minWorkers updates waits for the other workers, such as "30s".
    /// Defaults to the time that it took to have them, at least 10s. It does not begin while workers
    /// with most of the samples may still answer. A change takes effect in the open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::DURATION))]
    pub grace: Option<String>,
    /// roundTimeout is the deadline of a round and of a container, such as "30m"; "none" waits for
    /// minWorkers updates indefinitely. Defaults to 1h. A change takes effect in the open round, and
    /// for containers in the next run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::DURATION_OR_NONE))]
    pub round_timeout: Option<String>,
    /// maxDeadlines is how often the deadline of a round with fewer than minWorkers updates begins
    /// again before onTooFewWorkers decides. Defaults to 3. A change takes effect in the open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_deadlines: Option<i32>,
    /// onTooFewWorkers is what happens then, and when fewer workers than minWorkers can still send an
    /// update. Fail: the run fails, and its last weights are kept. Wait: the round waits for workers,
    /// or for another minWorkers. Defaults to Fail. A change takes effect in the open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_too_few_workers: Option<TooFewWorkers>,
    /// fraction is the share of the workers that take part in a round, such as "0.5". Defaults to
    /// "1".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHARE))]
    pub fraction: Option<String>,
    /// weights is how much each update counts. Samples: by the number of samples that the agent of
    /// the node counted. Equal: all the same. Defaults to Samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<UpdateWeights>,
    /// maxWeight is the largest weight of one of three or more updates. Defaults to "0.5".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHARE))]
    pub max_weight: Option<String>,
    /// clip limits how far an update may move the weights. A change takes effect in the open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<NormLimits>,
    /// trim is the share of values that TrimmedMean drops at each end. Defaults to "0.2".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub trim: Option<String>,
    /// serverLearningRate is the factor of the mean difference. Defaults to "1".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::DECIMAL))]
    pub server_learning_rate: Option<String>,
    /// serverMomentum is the share of the last step that is added to the next one, from "0" to
    /// below "1". Defaults to "0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHARE))]
    pub server_momentum: Option<String>,
    /// maxUpdateBytes is the largest file of weights, such as "512Mi". Defaults to 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = crate::rules::above_zero())]
    pub max_update_bytes: Option<String>,
    /// seed is the seed of the run. The same seed, program, data and workers give the same weights.
    /// Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub seed: Option<i64>,
    /// nodeName is the node whose agent runs the aggregator as a container, with the weights in the
    /// agent's data directory. The controller reaches it through the agent. Defaults to a Deployment
    /// in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub node_name: Option<String>,
    /// service is how nodes reach the aggregator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<AggregatorService>,
    /// storageClassName is the storage class of the aggregator's volume. Defaults to the default
    /// class of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub storage_class_name: Option<String>,
    /// worker is the server of an engine that decides the rounds, with strategy Worker only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<AggregationWorker>,
}

/// AggregationWorker is the server of an engine. It runs beside the aggregator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AggregationWorker {
    /// frameworkType is the name of a framework in the ConfigMap neptune-frameworks: its entry
    /// training has images, commands and the port of an engine. Defaults to container: args are the
    /// command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: Option<String>,
    /// frameworkVersion is the version of the framework, as in the tag of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_version: Option<String>,
    /// image is the container image of the server, instead of that of the framework. It has to
    /// contain /bin/sh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// args are the arguments of the command of the framework. The program of spec.script is in
    /// /program/script.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub args: Vec<String>,
    /// port is the port at which workers reach the server. Defaults to that of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i32>,
    /// resources are the resource limits of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// state is the room on the aggregator's volume for the files of the server. Defaults to 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = crate::rules::above_zero())]
    pub state: Option<String>,
}

/// AggregationStrategy is the way in which the weights of the workers become one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AggregationStrategy {
    /// The mean of the updates, weighted by their weights.
    #[default]
    FedAvg,
    /// The mean without the largest and smallest values of each element.
    TrimmedMean,
    /// An engine of its own decides.
    Worker,
}

/// TooFewWorkers is what happens to a round that cannot have enough updates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TooFewWorkers {
    /// The round waits for more updates.
    Wait,
    /// The run fails, and no further round begins.
    #[default]
    Fail,
}

/// UpdateWeights is the number by which an update counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateWeights {
    /// An update counts by its number of samples.
    #[default]
    Samples,
    /// All updates count the same.
    Equal,
}

/// NormLimits limit how far an update may move the weights, in multiples of the median norm of the
/// round. Updates count in the median by their weight. If all programs report steps, norms are
/// compared per step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormLimits {
    /// maxNormFactor is the multiple of the median norm to which larger updates are scaled down.
    /// Defaults to "2".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::DECIMAL))]
    pub max_norm_factor: Option<String>,
    /// refuseNormFactor is the multiple of the median norm above which an update does not count. If
    /// it is not set, no update is refused for its norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = schema::DECIMAL))]
    pub refuse_norm_factor: Option<String>,
}

/// AggregatorService is how nodes reach the aggregator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AggregatorService {
    /// type is the type of the Service. Defaults to NodePort.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<AggregatorServiceType>,
    /// address is the host and port at which nodes and the controller reach the aggregator,
    /// instead of the address of the Service, such as "training.example:8418".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 300), regex(pattern = schema::HOST_AND_PORT))]
    pub address: Option<String>,
}

/// AggregatorServiceType is the type of the aggregator's Service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AggregatorServiceType {
    /// A port of each node of the cluster.
    #[default]
    NodePort,
    /// An address in the cluster.
    ClusterIP,
    /// An address of a load balancer.
    LoadBalancer,
}
