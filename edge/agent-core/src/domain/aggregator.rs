//! An aggregator of this node as values.

use neptune_wire::{AggregatorContent, AggregatorReport, ObjectKey};

/// An aggregator that this node runs.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedAggregator {
    pub owner: ObjectKey,
    /// UID of the `TrainingModel`, which is also the name of the aggregator's directory.
    pub uid: String,
    pub content: AggregatorContent,
}

impl WantedAggregator {
    /// Whether the same container serves both.
    pub fn has_container_of(&self, other: &Self) -> bool {
        let container = |it: &Self| {
            let AggregatorContent { container, image, port, .. } = &it.content;
            (it.uid.clone(), container.clone(), image.clone(), *port)
        };
        container(self) == container(other)
    }
}

/// What the supervision of an aggregator reports.
#[derive(Debug)]
pub enum AggregatorEvent {
    /// The aggregator's status changed.
    Reported(Box<AggregatorReport>),
    /// The container and the files of the aggregator were removed.
    Removed,
}
