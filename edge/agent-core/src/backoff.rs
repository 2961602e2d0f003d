//! The backoffs of the agent: how long it waits before it retries an operation.

use std::time::Duration;

use neptune_backoff::Backoff;

/// Pause between the starts of a worker that exits repeatedly.
pub const WORKER_RESTART: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));
/// How long to leave the containers to another agent that uses the node's name.
pub const YIELD_CONTAINERS: Backoff =
    Backoff::new(Duration::from_secs(2), Duration::from_secs(5 * 60));
/// Pause between pulls of an image that is not available in the registry.
pub const IMAGE_PULL: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(10 * 60));
/// Pause between attempts to create or start a container that the engine refuses. It is short
/// because an attempt is cheap.
pub const CONTAINER_REFUSED: Backoff =
    Backoff::new(Duration::from_secs(2), Duration::from_secs(30));
/// Pause between attempts of a download that fails until a user corrects something: a digest, a
/// missing file.
pub const DOWNLOAD_RETRY: Backoff =
    Backoff::new(Duration::from_secs(15), Duration::from_secs(10 * 60));
/// Pause between repetitions of a message over `EventBus`, which loses messages silently.
pub const EVENTBUS_REPEAT: Backoff =
    Backoff::new(Duration::from_secs(10), Duration::from_secs(5 * 60));
/// Pause between observations of an engine that does not respond. It is short because an attempt on
/// a missing socket is cheap, and the workers wait for the engine after a boot.
pub const ENGINE_OBSERVE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Pause between connections to an engine that does not respond.
pub const ENGINE_CONNECT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Pause between syncs while objects are missing.
pub const RESYNC: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Pause between posts of a cloud worker's report to a controller that does not accept it.
pub const REPORT_POST: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
/// Interval between checks for a script, image or file that a user must provide on the node.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Pause between the starts of a training program that fails.
pub const TRAINING_RESTART: Backoff =
    Backoff::new(Duration::from_secs(2), Duration::from_secs(5 * 60));
/// Pause between attempts to get what a training task needs, or to send its output.
pub const TRAINING_INPUTS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
