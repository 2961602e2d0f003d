//! The HTTP client of one aggregator, which presents the key of this program and trusts no other key
//! than the aggregator's. [`AggregatorClient`] sends runs and reads states, as the controller does;
//! [`builder`] is for other requests.

#![deny(missing_docs)]

use std::{error::Error as _, time::Duration};

use neptune_pinned_tls::{TlsKey, client_config};
use neptune_program::root_cause;
use neptune_wire::{
    AggregatorEndpoint, KeyPin,
    aggregator::{AggregatorProblem, RunRequest, RunStatus},
};
use reqwest::{Client, ClientBuilder, Response, StatusCode, redirect::Policy};

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the aggregator may wait for a change before it answers, in seconds.
const WAIT_SECONDS: u64 = 25;
/// The timeout of a request of the controller, which is longer than [`WAIT_SECONDS`].
const TIMEOUT: Duration = Duration::from_secs(40);
/// The largest response in bytes: 256 workers, 100 rounds.
const MAX_BODY: usize = 4 << 20;

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no usable answer. The cause, without the URL.
    #[error("{0}")]
    Unreachable(String),
    /// The aggregator refuses the request.
    #[error("{}: {}", .0.reason, .0.detail)]
    Refused(AggregatorProblem),
}

impl From<reqwest::Error> for RequestError {
    fn from(error: reqwest::Error) -> Self {
        let is_outermost = error.source().is_none();
        let text = if is_outermost && error.is_timeout() {
            "timeout".to_owned()
        } else {
            root_cause(&error)
        };
        // Some errors of the TLS library end with the address of its manual.
        Self::Unreachable(text.split(": https://").next().unwrap_or(&text).to_owned())
    }
}

/// Returns the builder of a client that connects as the owner of `key` to the owner of `pin`.
#[expect(clippy::disallowed_methods, reason = "the one connection to aggregators")]
pub fn builder(key: &TlsKey, pin: &KeyPin) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(client_config(key, pin.clone()))
        .https_only(true)
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
}

/// The client of an aggregator, for its controller.
#[derive(Debug, Clone)]
pub struct AggregatorClient {
    client: Client,
    endpoint: AggregatorEndpoint,
}

impl AggregatorClient {
    /// Returns the client with the key of the controller. It uses no proxy.
    ///
    /// # Errors
    /// The client library refuses its configuration.
    pub fn new(key: &TlsKey, endpoint: AggregatorEndpoint) -> Result<Self, RequestError> {
        let client = builder(key, &endpoint.pin).no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { client, endpoint })
    }

    /// Returns the address and the pin of the aggregator.
    pub fn endpoint(&self) -> &AggregatorEndpoint {
        &self.endpoint
    }

    /// Sends the desired run. Returns the state.
    ///
    /// # Errors
    /// There is no answer, or the aggregator refuses the run.
    pub async fn put(&self, request: &RunRequest) -> Result<RunStatus, RequestError> {
        let url = format!("{}/v1/run", self.endpoint.url);
        state_of(self.client.put(url).json(request).send().await?).await
    }

    /// Returns the state, once its revision is above `after`; `None` if it did not change for a while.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn state(&self, after: Option<u64>) -> Result<Option<RunStatus>, RequestError> {
        let query =
            after.map_or_else(String::new, |after| format!("?after={after}&wait={WAIT_SECONDS}"));
        let request = self.client.get(format!("{}/v1/state{query}", self.endpoint.url));
        let response = request.send().await?;
        // Without a revision there is no state that could be unchanged.
        if after.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        state_of(response).await.map(Some)
    }
}

async fn state_of(mut response: Response) -> Result<RunStatus, RequestError> {
    let unusable = RequestError::Unreachable;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(unusable(format!("its answer exceeds {MAX_BODY} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        let state = serde_json::from_slice(&body);
        return state.map_err(|error| unusable(format!("invalid answer: {error}")));
    }
    match serde_json::from_slice::<AggregatorProblem>(&body) {
        Ok(problem) if !problem.reason.is_empty() => Err(RequestError::Refused(problem)),
        _ => Err(unusable(format!("it answered {status}"))),
    }
}
