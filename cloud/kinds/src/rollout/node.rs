//! What a step of a rollout reads of a node. Values only.

use std::fmt;

use k8s_openapi::jiff::Timestamp;

use super::rank::Rank;
use crate::reason::Reason;

/// Why a node failed with the revision of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The node reports this reason.
    Reported(Reason),
    /// The node was not ready in time.
    Late,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(reason) => reason.fmt(f),
            Self::Late => f.write_str("RolloutDeadline"),
        }
    }
}

/// What a node has of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    /// The node has nothing of it.
    Nothing,
    /// The node has another revision, or it is not known which one.
    Old,
    /// The node has the revision of the rollout.
    New,
}

/// Why a node has or may have the revision of the rollout, since when. It is withdrawn only from a
/// node that waits for another rollout while this one is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// When the controller decided it, or saw that the node has the revision.
    pub since: Timestamp,
    /// Why the node has it.
    pub cause: GrantCause,
}

/// Why a node may have the revision of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantCause {
    /// The rollout reached the node.
    Wave,
    /// The node had nothing before, so the rollout takes nothing down.
    Join,
    /// The node had the revision when this controller saw it first.
    Known,
}

/// A node of the object.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutNode<'a> {
    /// The name of the node.
    pub name: &'a str,
    /// Its place in the order of the rollout.
    pub rank: Rank,
    /// What it has of the object.
    pub has: Has,
    /// Whether its agent is connected.
    pub is_online: bool,
    /// Whether it reports that what it has is ready.
    pub is_ready: bool,
    /// Since when it is ready with the revision of the rollout, as this controller saw it.
    pub ready_since: Option<Timestamp>,
    /// Why what it has failed, as it reports.
    pub failure: Option<Reason>,
    /// Whether it waits for the hours in which it may download.
    pub is_deferred: bool,
    /// Whether it has all of the revision but for a Model, which the rollout of another object keeps
    /// from it.
    pub is_delayed: bool,
    /// The grant that this controller remembers.
    pub grant: Option<Grant>,
}
