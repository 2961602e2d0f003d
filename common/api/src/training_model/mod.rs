//! `TrainingModel` of `sedna.io/v1alpha1`: weights that nodes train together, each with its own
//! data.

mod aggregation;
mod result;
mod rules;
mod status;
mod worker;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use aggregation::{
    Aggregation, AggregationStrategy, AggregationWorker, AggregatorService, AggregatorServiceType,
    NormLimits, TooFewWorkers, UpdateWeights,
};
pub use result::{
    EarlyStop, MetricMode, TrainingEvaluation, TrainingOutput, TrainingSchedule,
    TrainingScheduleType,
};
pub use status::{
    AggregatorStatus, LastRun, MeasuredOutput, TrainedWeights, TrainingModelStatus,
    TrainingOutputStatus, TrainingPhase, TrainingRound, TrainingRoundWorker,
    TrainingRoundWorkerState, TrainingWorkerState, TrainingWorkerStatus, WeightsReference,
};
pub use worker::{
    DatasetSelection, InitialWeights, TrainingNetwork, TrainingScript, TrainingVolume,
    TrainingWorker, TrainingWorkerSpec,
};

use crate::schema;

/// TrainingModelSpec describes the program, the workers, and what becomes of their weights.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "sedna.io",
    version = "v1alpha1",
    kind = "TrainingModel",
    plural = "trainingmodels",
    shortname = "tm",
    category = "neptune",
    namespaced,
    status = "TrainingModelStatus",
    derive = "PartialEq",
    doc = "TrainingModel trains a model on several nodes, in rounds: each node trains with its own data, which does not leave it, and an aggregator averages the weights.",
    printcolumn(
        name = "Phase",
        type_ = "string",
        description = "Phase of the current or last run",
        json_path = ".status.phase"
    ),
    printcolumn(
        name = "Round",
        type_ = "string",
        description = "Current round, of all rounds",
        json_path = ".status.progress"
    ),
    printcolumn(
        name = "Workers",
        type_ = "string",
        description = "Workers whose update of this round is accepted, of those that take part",
        json_path = ".status.participants"
    ),
    printcolumn(
        name = "Metric",
        type_ = "string",
        description = "Metric of the best weights of the run, and then of the published ones",
        json_path = ".status.metric"
    ),
    printcolumn(
        name = "Loss",
        type_ = "string",
        description = "Mean loss of the workers in the last round",
        json_path = r#".status.metrics[?(@.key=="loss")].value"#
    ),
    printcolumn(
        name = "Output",
        type_ = "string",
        description = "Model that receives the weights",
        json_path = ".status.output.model"
    ),
    printcolumn(
        name = "Run",
        type_ = "integer",
        description = "Number of the run",
        json_path = ".status.run",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why the run makes no progress or ended without a result",
        json_path = r#".status.conditions[?(@.type=="Degraded")].reason"#,
        priority = 1
    ),
    printcolumn(
        name = "Aggregator",
        type_ = "string",
        description = "Address of the aggregator",
        json_path = ".status.aggregator.url",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
#[x_kube(
    validation = rules::something_to_run(),
    validation = rules::enough_training_workers(),
    validation = rules::growth_measured()
)]
pub struct TrainingModelSpec {
    /// initialWeights are the weights that the first round begins with. If it is not set, the first
    /// worker by name makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<InitialWeights>,
    /// script is the training program, unless workerSpec.image contains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<TrainingScript>,
    /// workerSpec describes the containers that train.
    pub worker_spec: TrainingWorkerSpec,
    /// trainingWorkers are the workers: where they train, and with which Dataset.
    #[schemars(
        length(min = 1, max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub training_workers: Vec<TrainingWorker>,
    /// aggregation describes the rounds and how the workers' weights become one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<Aggregation>,
    /// evaluation is how weights are measured. If it is not set, they are not, and the weights of
    /// the last round are the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<TrainingEvaluation>,
    /// earlyStop is when a run ends before its last round. It needs an evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// output is the Model that receives the weights of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TrainingOutput>,
    /// schedule is when runs start. If it is not set, one run starts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<TrainingSchedule>,
    /// suspend is whether no run and no round starts. A round that is open ends first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// backoffLimit is how often the container of a worker may fail in a round before the round
    /// continues without the worker. Defaults to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub backoff_limit: Option<i32>,
    /// activeDeadline is how long a run may take, such as "12h". If it is not set, a run may take
    /// any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::DURATION))]
    pub active_deadline: Option<String>,
}
