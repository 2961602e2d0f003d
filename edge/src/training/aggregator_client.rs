//! Creates the HTTP client of one aggregator for the uploads and downloads of a task.

use std::time::Duration;

use neptune_agent_core::domain::training::TaskProblem;
use neptune_aggregator_client::builder;
use neptune_pinned_tls::TlsKey;
use neptune_wire::{AggregatorEndpoint, TrainingReason};
use reqwest::Client;

/// How long a response may stand still.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The client that connects as the owner of `key`.
///
/// # Errors
/// The system's settings of HTTP clients are invalid.
pub fn aggregator_client(
    key: &TlsKey,
    aggregator: &AggregatorEndpoint,
) -> Result<Client, TaskProblem> {
    builder(key, &aggregator.pin).read_timeout(READ_TIMEOUT).build().map_err(|error| {
        TaskProblem::new(
            TrainingReason::AggregatorUnreachable,
            format!("cannot create an HTTP client: {error}; correct the proxy in the agent's environment"),
        )
    })
}
