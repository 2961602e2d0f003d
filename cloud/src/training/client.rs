//! The HTTP client of one aggregator, which presents the controller's key.

use std::{error::Error as _, time::Duration};

use neptune_cloud_kinds::{finding::Finding, reason::Reason};
use neptune_pinned_tls::{TlsKey, client_config};
use neptune_program::root_cause;
use neptune_wire::{
    KeyPin,
    aggregator::{AggregatorProblem, RunRequest, RunStatus},
};
use reqwest::{Client, Response, StatusCode};

/// How long the aggregator may wait for a change before it answers.
const WAIT_SECONDS: u64 = 25;

/// The timeout of a request, which is longer than [`WAIT_SECONDS`].
const TIMEOUT: Duration = Duration::from_secs(40);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest response in bytes: 256 workers, 100 rounds.
const MAX_BODY: usize = 4 << 20;

/// The client of an aggregator.
#[derive(Debug, Clone)]
pub struct AggregatorClient {
    client: Client,
    url: String,
    pin: KeyPin,
    /// `namespace/name` of the `TrainingModel`, for messages.
    object: String,
}

impl AggregatorClient {
    /// A client with the controller's key, for the aggregator with this URL and pin.
    ///
    /// # Errors
    /// The client library refuses its configuration.
    #[expect(clippy::disallowed_methods, reason = "the one HTTP client of aggregators")]
    pub fn new(object: &str, (url, pin): (&str, &KeyPin), key: &TlsKey) -> Result<Self, Finding> {
        let tls = client_config(key, pin.clone());
        let client = Client::builder()
            .no_proxy()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .tls_backend_preconfigured(tls)
            .build();
        let (url, pin, object) = (url.to_owned(), pin.clone(), object.to_owned());
        match client {
            Ok(client) => Ok(Self { client, url, pin, object }),
            Err(error) => {
                let message = format!("HTTP client for {url}: {error}");
                Err(Finding::new(Reason::AggregatorUnreachable, message))
            }
        }
    }

    /// Whether this is the client of the aggregator with this URL and pin.
    pub fn is_for(&self, url: &str, pin: &KeyPin) -> bool {
        self.url == url && self.pin == *pin
    }

    /// Sends the desired run. Returns the state.
    ///
    /// # Errors
    /// No answer, or the aggregator refuses the run.
    pub async fn put(&self, request: &RunRequest) -> Result<RunStatus, Finding> {
        let url = format!("{}/v1/run", self.url);
        let response = self.client.put(url).json(request).send().await;
        let response = response.map_err(|error| self.unreachable(&cause(&error)))?;
        self.state_of(response).await
    }

    /// The state, once its revision is above `after`; `None` if it did not change for a while.
    ///
    /// # Errors
    /// No answer.
    pub async fn state(&self, after: Option<u64>) -> Result<Option<RunStatus>, Finding> {
        let query =
            after.map_or_else(String::new, |after| format!("?after={after}&wait={WAIT_SECONDS}"));
        let response = self.client.get(format!("{}/v1/state{query}", self.url)).send().await;
        let response = response.map_err(|error| self.unreachable(&cause(&error)))?;
        // Without a revision there is no state that could be unchanged.
        if after.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        self.state_of(response).await.map(Some)
    }

    async fn state_of(&self, mut response: Response) -> Result<RunStatus, Finding> {
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.unreachable(&cause(&error)))?
        {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(self.unreachable(&format!("its answer exceeds {MAX_BODY} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            let state = serde_json::from_slice(&body);
            return state.map_err(|error| self.unreachable(&format!("invalid answer: {error}")));
        }
        match serde_json::from_slice::<AggregatorProblem>(&body) {
            Ok(problem) if !problem.reason.is_empty() => Err(self.refused(&problem)),
            _ => Err(self.unreachable(&format!("it answered {status}"))),
        }
    }

    fn refused(&self, problem: &AggregatorProblem) -> Finding {
        let remedy = match problem.reason.as_str() {
            "NodeNotTrusted" => {
                "; it was started for another key of the controller, and is replaced"
            }
            "OtherTrainingModel" => {
                "; its volume is that of a deleted TrainingModel: delete the PersistentVolumeClaim of the aggregator"
            }
            _ => "",
        };
        let reason = problem.reason.parse().unwrap_or(Reason::TrainingFailed);
        let message =
            format!("the aggregator of TrainingModel {}: {}{remedy}", self.object, problem.detail);
        Finding::new(reason, message)
    }

    fn unreachable(&self, why: &str) -> Finding {
        let message = format!(
            "cannot reach the aggregator of TrainingModel {} at {}: {why}; check its Deployment and Service, or set spec.aggregation.service.address to an address that nodes and the controller reach",
            self.object, self.url
        );
        Finding::new(Reason::AggregatorUnreachable, message)
    }
}

/// The innermost cause, without the URL.
fn cause(error: &reqwest::Error) -> String {
    let is_outermost = error.source().is_none();
    let text =
        if is_outermost && error.is_timeout() { "timeout".to_owned() } else { root_cause(error) };
    // Some errors of the TLS library end with the address of its manual.
    text.split(": https://").next().unwrap_or(&text).to_owned()
}
