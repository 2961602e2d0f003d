//! Why a message of a node is dropped.

use neptune_wire::{DecodeError, NodeName, ObjectKey, OutputError};

use crate::metrics::Rejection;

/// Why a message was dropped.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    #[error(transparent)]
    Topic(#[from] neptune_wire::TopicError),
    #[error("nodes do not speak on this topic")]
    Direction,
    #[error("node {from} speaks for another")]
    OtherNode { from: NodeName },
    #[error("there is no Node {node}; what it says counts when there is")]
    UnknownNode { node: NodeName },
    #[error(transparent)]
    Payload(#[from] DecodeError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("the numbers {inference} and {hard} of taskInfo cannot be")]
    Impossible { inference: u64, hard: u64 },
    #[error("there is no {key} with uid {uid:?}")]
    UnknownObject { key: ObjectKey, uid: String },
}

impl Rejected {
    /// The label in the metrics.
    pub fn reason(&self) -> Rejection {
        match self {
            Self::Topic(_) | Self::Direction => Rejection::Topic,
            Self::OtherNode { .. } => Rejection::OtherNode,
            Self::UnknownNode { .. } => Rejection::UnknownNode,
            Self::Payload(_) | Self::Output(_) => Rejection::Payload,
            Self::Impossible { .. } => Rejection::Impossible,
            Self::UnknownObject { .. } => Rejection::UnknownObject,
        }
    }
}
