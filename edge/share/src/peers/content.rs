//! What a node offers to its peers: where a content is, and whether one of its objects names it.

use std::path::PathBuf;

use neptune_transfer::Digest;
use neptune_wire::NodeName;

/// Bytes of the description of a dataset at most.
pub const MAX_DESCRIPTION: u64 = 16 * 1024;

/// A part of a file, with the bytes of one content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRange {
    /// Path of the file that has the content.
    pub path: PathBuf,
    /// Offset in the file at which the content begins, in bytes.
    pub offset: u64,
    /// Length of the content in bytes.
    pub length: u64,
}

/// What a node has of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentState {
    /// The node has all of the content, verified.
    Held(FileRange),
    /// It downloads the content from the origin, and has this many bytes. A download from a peer is
    /// not one: two nodes could wait for each other.
    Fetching(u64),
    /// One of its objects names the content.
    Wanted,
    /// The node has nothing, and no object names the content.
    Absent,
}

/// Contents that a node serves. The methods are called for each request of a member of the site, so
/// they have to return soon.
pub trait ContentSource: Send + Sync {
    /// Returns the state of a content for a peer.
    fn find(&self, digest: &Digest, peer: &NodeName) -> ContentState;

    /// A peer relies on this node to fetch the content from the origin. Returns whether it does.
    fn request(&self, digest: &Digest, peer: &NodeName) -> bool;

    /// A peer received bytes that do not have the digest: the copy of this node may be damaged.
    fn scrub(&self, digest: &Digest, peer: &NodeName);

    /// Returns a description of the newest state of a dataset, if this node offers it to the peer.
    /// At most [`MAX_DESCRIPTION`] bytes.
    fn describe(&self, _dataset: &Digest, _peer: &NodeName) -> Option<Vec<u8>> {
        None
    }

    /// This many bytes of the source's contents are about to be sent.
    fn on_sent(&self, _bytes: u64) {}
}
