//! The custom resources of Neptune as types, and the CRDs generated from them.
//!
//! The doc comments are the field descriptions that `kubectl explain` prints. `schema` and `rules`
//! are the constraints that apply in any cluster; API servers enforce them. `neptune-cloud`
//! validates what depends on the cluster.
#![deny(missing_docs)]
// `kubectl explain` prints the doc comments as plain text.
#![allow(clippy::doc_markdown)]
// Each printcolumn has its own `type_`.
#![allow(clippy::duplicated_attributes)]

mod config_source;
pub mod crdgen;
pub mod dataset;
pub mod edge_node;
pub mod inference_model;
pub mod joint_inference_service;
mod key_value;
pub mod log_request;
pub mod model;
mod model_metadata;
pub mod node_report_slice;
mod placement;
mod probes;
mod resources;
mod rollout;
mod rules;
mod schema;
mod security_context;
pub mod training_model;
mod transformer;
mod volumes;

pub use config_source::{
    ConfigMapVolumeSource, ConfigReference, EnvFromSource, KeySelector, KeyToPath,
    SecretVolumeSource,
};
pub use dataset::{
    Dataset, DatasetDeletions, DatasetReplica, DatasetReplicaState, DatasetReplicas, DatasetSpec,
    DatasetStatus,
};
pub use edge_node::{
    EdgeNode, EdgeNodeCapacity, EdgeNodeDevice, EdgeNodeProblem, EdgeNodeSpec, EdgeNodeStatus,
};
pub use inference_model::{
    InferenceModel, InferenceModelFile, InferenceModelSpec, InferenceModelStatus, NodeServer,
    ServerCounts, ServerOverrides, ServingFailure, ServingHealth, ServingProgress,
    TransitionStatus,
};
pub use joint_inference_service::{
    AgentCounters, Capture, CaptureStatus, CloudWorker, CounterTotals, DatasetReference, EdgeModel,
    EdgeWorker, EdgeWorkerStatus, Endpoint, FailedModel, Gateway, GatewayClient,
    GatewayClientStatus, GatewayProblemStatus, GatewayStatus, GatewayTimeouts, GatewayTls, Goal,
    HardExampleAlgorithm, InferenceModelReference, JisCondition, JisConditionType,
    JointInferenceService, JointInferenceServiceReference, JointInferenceServiceSpec,
    JointInferenceServiceStatus, ModelReference, ModelSelector, ModelServer, ModelUpdate,
    NeverUpload, NodeCounts, NodeGatewayStatus, NodeSlices, NotComparedModel, RejectedReports,
    RestartPolicy, SelectedModel, SelectionCause, SelectionMode, TierAddress, TierStatus,
    TotalUploadStatus, ValueSource, VariableSource, WorkerParameter, WorkerSpec, WorkerVariable,
};
pub use key_value::{EnvironmentVariable, KeyValue};
pub use log_request::{
    LogObjectKind, LogObjectReference, LogRequest, LogRequestPhase, LogRequestReason,
    LogRequestSpec, LogRequestStatus, LogWorker,
};
pub use model::{
    MeasuredDataset, MetricsSource, Model, ModelNode, ModelNodeState, ModelPlacement, ModelSpec,
    ModelStatus, ResolvedModel,
};
pub use model_metadata::{BaseModel, ModelFramework, ModelMetadata, ModelTensor};
/// The protocol of a model server.
pub use neptune_gateway_config::Protocol as ServerProtocol;
pub use node_report_slice::{NodeReportSlice, SliceRow};
pub use placement::Placement;
pub use probes::{ExecAction, HttpGetAction, HttpScheme, Probe, TcpSocketAction};
pub use resources::{Limits, MAX_DEVICES, Quantity, ResourceRequirements};
pub use rollout::{Rollout, RolloutState, RolloutStatus};
pub use security_context::{
    Capabilities, SeccompProfile, SeccompType, SecretReference, SecurityContext,
};
pub use training_model::{
    Aggregation, AggregationStrategy, AggregationWorker, AggregatorService, AggregatorServiceType,
    AggregatorStatus, DatasetSelection, EarlyStop, InitialWeights, LastRun, MeasuredOutput,
    MetricMode, NormLimits, TooFewWorkers, TrainedWeights, TrainingEvaluation, TrainingModel,
    TrainingModelSpec, TrainingModelStatus, TrainingNetwork, TrainingOutput, TrainingOutputStatus,
    TrainingPhase, TrainingRound, TrainingRoundWorker, TrainingRoundWorkerState, TrainingSchedule,
    TrainingScheduleType, TrainingScript, TrainingVolume, TrainingWorker, TrainingWorkerSpec,
    TrainingWorkerState, TrainingWorkerStatus, UpdateWeights, WeightsReference,
};
pub use transformer::{Transformer, TransformerStyle};
pub use volumes::{
    EmptyDirSource, HostPathSource, HostPathType, PersistentVolumeClaimSource, Volume,
    VolumeMedium, VolumeMount,
};
