//! What travels between neptune-cloud, neptune-edge and the workers: names, topics, messages,
//! and the rules by which both sides stay of one mind over a link that loses, doubles and reorders.
//!
//! Everything here is a value or a pure function. Connections are `neptune-link`'s, files and
//! clocks are the callers'.
//!
//! # Guarantees
//! - Whatever was lost, doubled or reordered before, one [`Sync`] that arrives and whose answer
//!   arrives makes the agent's objects equal to the controller's ([`source`], [`replica`]).
//! - Counters never go backward and nothing that was counted is counted twice ([`counters`]).

#![deny(missing_docs)]

mod batch;
pub mod counters;
mod dataset;
mod decode;
mod downstream;
mod hash;
mod model;
mod name;
pub mod replica;
mod resource;
mod revision;
mod serving;
pub mod source;
mod topic;
mod upstream;
mod worker;

pub use batch::{Batch, BatchMessage};
pub use counters::{Counters, RunTotals};
pub use dataset::{DatasetCounts, DatasetReason, DatasetReport, DatasetState};
pub use decode::{DecodeError, SCHEMA_VERSION, decode, encode};
pub use downstream::{
    Delete, Index, IndexEntry, Insert, ObjectContent, ObjectMetadata, ResourceLimits, Role,
    Scripts, Worker,
};
pub use hash::{ContentHash, canonical_json};
pub use model::{
    MAX_METRICS, MAX_MODELS, Metric, ModelOutput, ModelPresenceReport, ModelReload, OutputError,
    PresenceState, WorkerModel, WorkerUpdateMode,
};
pub use name::{NameError, Namespace, NodeName, ObjectKey, ObjectName, WorkerName};
pub use replica::Replica;
pub use resource::Resource;
pub use revision::{Revision, RevisionClock};
pub use serving::{
    DownloadProgress, HealthCheck, LoadFailure, ModelServer, ModelServerReport, ServedModel,
    ServerUpdateMode, Transition,
};
pub use source::Source;
pub use topic::{Topic, TopicError, TopicPrefix};
pub use upstream::{
    AgentInstance, Capacity, NodeReport, Phase, ReportOutput, StatusReport, Sync, TaskInfo,
    WorkerReason, WorkerReport, WorkerState,
};
pub use worker::{WorkerInfo, WorkerTaskInfo};
