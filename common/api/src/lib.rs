//! The resources that a user of Neptune writes, as types, and the CRDs made of them.
//!
//! Only shapes and their explanations live here (`kubectl explain` prints the doc comments). What a
//! spec means and whether it can work is decided in `neptune-cloud`.
#![deny(missing_docs)]
// The doc comments are the plain text that `kubectl explain` prints.
#![allow(clippy::doc_markdown)]
// Each printcolumn has a type of its own.
#![allow(clippy::duplicated_attributes)]

pub mod crdgen;
pub mod dataset;
pub mod inference_model;
pub mod joint_inference_service;
mod key_value;
pub mod model;

pub use dataset::{Dataset, DatasetSpec, DatasetStatus};
pub use inference_model::{
    InferenceModel, InferenceModelFile, InferenceModelSpec, InferenceModelStatus, ServingFailure,
    ServingHealth, ServingProgress, TransitionStatus,
};
pub use joint_inference_service::{
    CloudWorker, Condition, ConditionType, CountedReport, Counts, EdgeWorker, EnvironmentVariable,
    HardExampleAlgorithm, JointInferenceService, JointInferenceServiceSpec,
    JointInferenceServiceStatus, Limits, ModelReference, ResourceRequirements, WorkerSpec,
};
pub use key_value::KeyValue;
pub use model::{Model, ModelSpec, ModelStatus};
