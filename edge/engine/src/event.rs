//! What the engine's tasks report. The agent's loop receives them as part of its own events.

use neptune_agent_core::domain::{
    artifact::ImageEvent, engine_observation::EngineObservation, problem::Problem,
    pulled_image::CollectedImages,
};

/// An event of the container engine for the agent's loop.
#[derive(Debug)]
pub enum EngineEvent {
    /// The engine answers with this version, or it is unavailable.
    Status(Result<String, Problem>),
    /// One of this node's containers changed.
    ContainersChanged {
        /// The ID of a container that the engine stopped on request.
        stopped: Option<String>,
    },
    /// The result of the observation of this number.
    ContainersObserved { seq: u64, result: Result<EngineObservation, Problem> },
    /// The agent pulled an image, which has this ID.
    ImagePulled { image: String, id: String },
    /// The result of removing unused images.
    ImagesCollected(Result<CollectedImages, Problem>),
    /// The state of an image that a model server waits for.
    ImagePull { image: String, event: ImageEvent },
}
