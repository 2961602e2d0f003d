//! Why a message of a node is dropped.

use neptune_cloud_metrics::Rejection;
use neptune_wire::{AnswerError, DecodeError, NodeName, ObjectKey, OutputError};

/// Why a message was dropped.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    #[error(transparent)]
    Topic(#[from] neptune_wire::TopicError),
    #[error("a report of {bytes} bytes; at most 256 KiB are allowed")]
    TooLarge { bytes: usize },
    #[error("nodes do not publish on this topic")]
    Direction,
    #[error("node {from} published on another node's topic")]
    OtherNode { from: NodeName },
    #[error("Node {node} not found; its messages are processed when it is registered")]
    UnknownNode { node: NodeName },
    #[error("node {node} is revoked; its messages are dropped")]
    Revoked { node: NodeName },
    #[error(transparent)]
    Payload(#[from] DecodeError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error("taskInfo: {hard} hard examples of {inference} inferences are not possible")]
    Impossible { inference: u64, hard: u64 },
    #[error("counters of {key}: node {node} never had its edge worker")]
    NeverHad { node: NodeName, key: ObjectKey },
    #[error("instance {0:?} is not 1 to 64 letters, digits and '-'")]
    Instance(String),
    #[error("object {key} with uid {uid:?} not found")]
    UnknownObject { key: ObjectKey, uid: String },
}

impl Rejected {
    /// Returns the label of the reason in the metrics.
    pub fn reason(&self) -> Rejection {
        match self {
            Self::Topic(_) | Self::Direction => Rejection::Topic,
            Self::TooLarge { .. } => Rejection::TooLarge,
            Self::OtherNode { .. } => Rejection::OtherNode,
            Self::UnknownNode { .. } => Rejection::UnknownNode,
            Self::Revoked { .. } => Rejection::Revoked,
            Self::Payload(_) | Self::Output(_) | Self::Answer(_) | Self::Instance(_) => {
                Rejection::Payload
            }
            Self::Impossible { .. } => Rejection::Impossible,
            Self::NeverHad { .. } => Rejection::NeverHad,
            Self::UnknownObject { .. } => Rejection::UnknownObject,
        }
    }
}
