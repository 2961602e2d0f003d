//! The actions of a fetch, and their results. Values only.

use std::time::{Duration, Instant};

use neptune_wire::NodeName;

/// The times of a fetch.
#[derive(Debug, Clone, Copy)]
pub struct FetchTimes {
    /// Time for an answer. A reachable member that needs longer is asked again.
    pub answer: Duration,
    /// Interval between two questions to the owner about its progress.
    pub poll: Duration,
    /// An owner without progress for this time is not waited for.
    pub no_progress: Duration,
    /// Holders that are all busy for this time are not waited for.
    pub busy: Duration,
    /// The first pause while all holders are busy, doubled for each further one up to eight times.
    pub busy_pause: Duration,
}

impl Default for FetchTimes {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(1),
            poll: Duration::from_secs(2),
            no_progress: Duration::from_secs(20),
            // 30 GB at the default rate: the longest transfer that others wait for.
            busy: Duration::from_mins(10),
            busy_pause: Duration::from_secs(1),
        }
    }
}

/// What a peer answers about a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It has the content.
    Held,
    /// It downloads the content from the origin, and has this many bytes.
    Fetching(u64),
    /// One of its own objects names the content.
    Wanted,
    /// None of its objects names the content.
    Absent,
}

/// The reply to [`FetchAction::Poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollReply {
    /// The peer answered with what it has of the content.
    Answered(Availability),
    /// The peer is reachable, and did not answer in time.
    Silent,
    /// The peer is not reachable.
    Unreachable,
}

/// Why a download from a peer ended without the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownloadFailure {
    /// The peer serves others.
    Busy,
    /// The connection failed after this many bytes.
    Interrupted(u64),
    /// The peer does not have the content any more, or its answer is not usable.
    Unusable,
    /// The peer is too slow.
    TooSlow,
    /// The content of this peer alone does not have the digest.
    WrongContent,
    /// The bytes of several peers, or of an earlier process, do not have the digest.
    WrongMixture,
}

/// Why the origin is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginReason {
    /// This node is the owner of the content.
    IsOwner,
    /// No peer can be asked.
    NoPeers,
    /// Three owners made no progress.
    OwnersFailed,
    /// All holders were busy for too long.
    PeersBusy,
}

/// The next step of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchAction {
    /// Ask these peers whether they have the content, all at once.
    Ask(Vec<NodeName>),
    /// Ask this peer to fetch the content from the origin.
    Request(NodeName),
    /// Ask this peer for the progress of its own download.
    Poll(NodeName),
    /// Download the content from a peer.
    Download {
        /// The peer that has the content.
        from: NodeName,
        /// Whether the bytes of other peers have to be discarded first.
        is_single_source: bool,
    },
    /// Wait until this time.
    Wait(Instant),
    /// Let the caller download the content from the origin.
    UseOrigin(OriginReason),
    /// The content is here, from this peer.
    Done(NodeName),
}
