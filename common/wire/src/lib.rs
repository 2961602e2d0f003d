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
//! - Counters never decrease, and nothing is counted twice ([`run_totals`]).

#![deny(missing_docs)]

pub mod address;
mod address_error;
pub mod aggregator;
mod batch;
mod container;
mod counter_members;
mod counters;
mod dataset;
mod decode;
mod device;
mod downstream;
#[cfg(feature = "fixtures")]
pub mod fixtures;
mod gateway;
mod hash;
mod hub_address;
mod lenient;
mod model;
mod name;
mod node_aggregator;
mod node_request;
mod oci_address;
mod peers;
mod probe;
mod program_text;
pub mod replica;
mod resource;
mod restart;
mod revision;
pub mod run_totals;
mod seal_scope;
mod sealed;
mod secret_bytes;
mod serving;
mod sorted_map;
pub mod source;
mod sync;
mod tiers;
mod topic;
mod topic_filter;
mod training;
mod unknown;
mod upstream;
mod volume;
mod worker;

pub use address::{ArtifactAddress, redact};
pub use address_error::AddressError;
pub use batch::{Batch, BatchMessage, MAX_BATCH_MESSAGES, Payload};
pub use container::{
    ContainerProgram, ContainerRights, ResourceLimits, Role, Scripts, WorkerReason,
};
pub use counters::{Counters, MAX_COUNTER};
pub use dataset::{
    DatasetCounts, DatasetGeneration, DatasetReason, DatasetReport, DatasetState, ReplicaDeletions,
    ReplicaOf, ReplicaReport, ReplicaState,
};
pub use decode::{DecodeError, SCHEMA_VERSION, decode, decode_counted, encode};
pub use device::{
    AgentFeature, DeviceRequests, DeviceResourceError, KUBERNETES_DOMAIN, MAX_OFFERED_DEVICES,
    OfferedDevice, check_device_resource, device_totals, too_few_devices,
};
pub use downstream::{
    DatasetContent, Delete, GatewaySpec, GatewayTlsFiles, Insert, MAX_MIRRORS, ModelContent,
    ObjectContent, ObjectMetadata, RestartPolicy, Worker,
};
pub use gateway::{
    CaptureReport, ClientReport, Figure, GatewayCloud, GatewayProblem, GatewayProblemReason,
    GatewayReport, GatewaySignal, MAX_PROBLEM_CHARS, MAX_PROBLEMS,
};
pub use hash::{ContentHash, canonical_json};
pub use hub_address::{DEFAULT_REVISION, HubAddress, MAX_FILE_PATTERNS};
pub use model::{
    DownloadSource, MAX_METRICS, MAX_MODELS, Metric, ModelOutput, ModelPresenceReport, ModelReload,
    OutputError, PresenceState, WorkerModel, WorkerUpdateMode,
};
pub use name::{
    MAX_LABEL_VALUE, NameError, Namespace, NodeName, ObjectKey, ObjectName, RequestId, WorkerName,
    is_label_value,
};
pub use node_aggregator::{AGGREGATOR_PORT, AggregatorContent, AggregatorReport};
pub use node_request::{
    AnswerError, AnswerProblem, AnswerReason, LogKind, LogSource, MAX_ANSWER_BYTES, MAX_TAIL_LINES,
    NodeAnswer, NodeRequest, RequestKind, is_shown,
};
pub use oci_address::{DEFAULT_TAG, OciAddress};
pub use peers::{PeerEndpoint, PeerRoster, RosterPeer};
pub use probe::{ContainerProbe, ContainerProbes, HttpGetProbe, ProbeAction};
pub use program_text::field_with_nul;
pub use replica::Replica;
pub use resource::Resource;
pub use restart::{RestartTime, RestartTimeError};
pub use revision::{Revision, RevisionClock};
pub use run_totals::{RunReport, RunTotals};
pub use seal_scope::SealScope;
pub use sealed::{
    ConfigContent, SealKeyId, SealKeyReport, SealPublicKey, SealPublicKeyError, SealedSecret,
    SecretVariable,
};
pub use secret_bytes::{SecretBytes, SecretValues};
pub use serving::{
    DownloadProgress, HealthCheck, LoadFailure, ModelServer, ModelServerReport, ServedModel,
    ServerUpdateMode, TRANSFORMER_FAILED, Transformer, TransformerProxy, Transition,
};
pub use sorted_map::SortedMap;
pub use source::{EncodedContent, EncodedInsert, Source, SyncNotices};
pub use sync::{AgentInstance, AgentStart, DepartedTotals, Index, IndexEntry, Sync};
pub use tiers::{MAX_TIERS, TierCounts};
pub use topic::{Topic, TopicError, TopicPrefix};
pub use topic_filter::{filter_matches, is_topic, is_topic_filter};
pub use training::{
    AggregatorEndpoint, ContentReference, KeyPin, SessionPlace, SessionServer, TaskId, TaskKind,
    TaskReport, TaskState, TrainingContainer, TrainingContent, TrainingNetwork, TrainingReason,
    TrainingReport, TrainingScript, TrainingTask,
};
pub use upstream::{
    Capacity, NodeProblem, NodeProblemReason, NodeReport, Phase, RejectedMessages, ReportOutput,
    StatusReport, TaskInfo, WorkerReport, WorkerState,
};
pub use volume::{ContainerMount, EmptyDirMount, HostPathType, MountSource};
pub use worker::{EarlierRuns, WorkerInfo, WorkerTaskInfo};
