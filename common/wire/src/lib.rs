//! The protocol between neptune-cloud, neptune-edge and the workers: names, topics, messages, and
//! the state machines that synchronize both sides over a link that loses, duplicates and reorders
//! messages.
//!
//! Everything here is a value or a pure function. `neptune-link` owns the connections; the callers
//! own files and clocks.
//!
//! # Guarantees
//! - After any loss, duplication or reordering, one [`Sync`] that arrives and whose response
//!   arrives makes the objects of the agent equal to those of the controller ([`source`],
//!   [`replica`]).
//! - Counters never decrease, and nothing is counted twice ([`counters`]).

#![deny(missing_docs)]

pub mod address;
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

pub use address::{AddressError, ArtifactAddress};
pub use batch::{Batch, BatchMessage};
pub use counters::{Counters, RunTotals};
pub use dataset::{DatasetCounts, DatasetReason, DatasetReport, DatasetState};
pub use decode::{DecodeError, SCHEMA_VERSION, decode, encode};
pub use downstream::{
    DatasetContent, Delete, Index, IndexEntry, Insert, ModelContent, ObjectContent, ObjectMetadata,
    ResourceLimits, Role, Scripts, Worker,
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
