//! Creates the HTTP client of one aggregator, which trusts no other key.

use std::time::Duration;

use neptune_agent_core::domain::training::TaskProblem;
use neptune_pinned_tls::{TlsKey, client_config};
use neptune_wire::{AggregatorEndpoint, TrainingReason};
use reqwest::{Client, redirect::Policy};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
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
    #[expect(clippy::disallowed_methods, reason = "the one connection to aggregators")]
    let builder = Client::builder();
    builder
        .tls_backend_preconfigured(client_config(key, aggregator.pin.clone()))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(Policy::none())
        .build()
        .map_err(|error| {
            TaskProblem::new(
                TrainingReason::AggregatorUnreachable,
                format!("cannot create an HTTP client: {error}; correct the proxy in the agent's environment"),
            )
        })
}
