//! The resources that a user of Neptune writes, as types, and the CRDs made of them.
//!
//! Shapes and their explanations live here (`kubectl explain` prints the doc comments), and what a spec
//! cannot be in any cluster: `form` and `rules`, which an API server holds against it. What a spec means
//! and whether it can work is decided in `neptune-cloud`.
#![deny(missing_docs)]
// The doc comments are the plain text that `kubectl explain` prints.
#![allow(clippy::doc_markdown)]
// Each printcolumn has a type of its own.
#![allow(clippy::duplicated_attributes)]

pub mod crdgen;
pub mod dataset;
mod form;
pub mod inference_model;
pub mod joint_inference_service;
mod key_value;
pub mod model;
mod rules;

pub use dataset::{Dataset, DatasetSpec, DatasetStatus};
pub use inference_model::{
    InferenceModel, InferenceModelFile, InferenceModelSpec, InferenceModelStatus, ServingFailure,
    ServingHealth, ServingProgress, TransitionStatus,
};
pub use joint_inference_service::{
    AgentCounters, CloudWorker, CounterTotals, DatasetReference, EdgeWorker, EnvironmentVariable,
    HardExampleAlgorithm, JisCondition, JisConditionType, JointInferenceService,
    JointInferenceServiceSpec, JointInferenceServiceStatus, Limits, ModelReference, ModelUpdate,
    ResourceRequirements, WorkerSpec,
};
pub use key_value::KeyValue;
pub use model::{MetricsSource, Model, ModelNode, ModelNodeState, ModelSpec, ModelStatus};
