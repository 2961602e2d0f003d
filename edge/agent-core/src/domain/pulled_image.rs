//! The images that this agent pulled, and the limits of those that nothing uses any more.

use std::{collections::BTreeMap, time::Duration};

/// The images that this agent pulled, by the reference of the pull.
pub type PulledImages = BTreeMap<String, PulledImage>;

/// The stored record of an image that this agent pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledImage {
    /// The engine's ID of the image that the pull brought.
    pub id: String,
    /// How long nothing has used it while the agent was running and connected to the cloud. Not a
    /// point in time: the clock of a node may jump by years.
    pub unused: Duration,
}

/// An image that this agent pulled, as it is on the engine now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedImage {
    /// The reference by which the agent pulled the image.
    pub reference: String,
    pub id: String,
    /// Size in bytes, including layers that other images share.
    pub size: u64,
    /// Number of tags of the image on the engine.
    pub tags: usize,
    /// Whether a container, a worker or a model server uses it, by this or another reference.
    pub is_used: bool,
}

/// The limits that decide when unused images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcLimits {
    /// The disk space that unused images may occupy; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// No image is removed that is unused for less.
    pub min_age: Duration,
    /// An image that is unused for longer is removed; `None` for no limit.
    pub max_age: Option<Duration>,
}

impl ImageGcLimits {
    /// Whether no image is ever removed.
    pub fn is_off(&self) -> bool {
        self.max_bytes.is_none() && self.max_age.is_none()
    }
}

/// The result of one pass over the pulled images.
#[derive(Debug)]
pub struct CollectedImages {
    pub pulled: PulledImages,
    /// Whether an image was removed. Another one may be due.
    pub has_removed: bool,
}
