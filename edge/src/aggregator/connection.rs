//! The HTTP connection to an aggregator on this node, as its controller.

use neptune_pinned_tls::TlsKey;
use neptune_program::root_cause;
use neptune_wire::{
    AggregatorEndpoint,
    aggregator::{AggregatorProblem, RunRequest, RunStatus},
};
use reqwest::{Client, Response, StatusCode};

use crate::training::aggregator_client::aggregator_client;

/// How long the aggregator may wait for a change before it answers, in seconds.
const WAIT_SECONDS: u64 = 25;
/// The largest answer in bytes: 256 workers, 100 rounds.
const MAX_ANSWER: usize = 4 << 20;

/// An HTTP client for one aggregator of this node, which checks the pin of its key.
#[derive(Debug, Clone)]
pub struct AggregatorConnection {
    client: Client,
    origin: String,
}

impl AggregatorConnection {
    /// A connection with the key of the aggregator at this port of the node.
    ///
    /// # Errors
    /// The system's settings of HTTP clients are invalid.
    pub fn new(key: &TlsKey, port: u16) -> Result<Self, AggregatorProblem> {
        let origin = format!("https://127.0.0.1:{port}");
        let endpoint = AggregatorEndpoint { url: origin.clone(), pin: key.pin().clone() };
        let client = aggregator_client(key, &endpoint);
        let client = client.map_err(|problem| unreachable(&origin, &problem.message))?;
        Ok(Self { client, origin })
    }

    /// Sends the run. Returns the state.
    ///
    /// # Errors
    /// No answer, or the aggregator refuses the run.
    pub async fn put(&self, request: &RunRequest) -> Result<RunStatus, AggregatorProblem> {
        let url = format!("{}/v1/run", self.origin);
        let response = self.client.put(url).json(request).send().await;
        self.state_of(response.map_err(|error| self.failed(&error))?).await
    }

    /// The state, once its revision is above `after`; `None` if it did not change for a while.
    ///
    /// # Errors
    /// No answer.
    pub async fn state(&self, after: Option<u64>) -> Result<Option<RunStatus>, AggregatorProblem> {
        let query =
            after.map_or_else(String::new, |after| format!("?after={after}&wait={WAIT_SECONDS}"));
        let response = self.client.get(format!("{}/v1/state{query}", self.origin)).send().await;
        let response = response.map_err(|error| self.failed(&error))?;
        if after.is_some() && response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        self.state_of(response).await.map(Some)
    }

    async fn state_of(&self, mut response: Response) -> Result<RunStatus, AggregatorProblem> {
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                let why = format!("its answer exceeds {MAX_ANSWER} bytes");
                return Err(unreachable(&self.origin, &why));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            let invalid = |error| unreachable(&self.origin, &format!("invalid answer: {error}"));
            return serde_json::from_slice(&body).map_err(invalid);
        }
        match serde_json::from_slice::<AggregatorProblem>(&body) {
            Ok(problem) if !problem.reason.is_empty() => Err(problem),
            _ => Err(unreachable(&self.origin, &format!("it answered {status}"))),
        }
    }

    fn failed(&self, error: &reqwest::Error) -> AggregatorProblem {
        unreachable(&self.origin, &root_cause(error))
    }
}

fn unreachable(origin: &str, why: &str) -> AggregatorProblem {
    AggregatorProblem {
        reason: "AggregatorUnreachable".to_owned(),
        detail: format!(
            "{origin} does not answer: {why}; check that no other program uses the port, or set another one in spec.aggregation.service.address; retrying"
        ),
    }
}
