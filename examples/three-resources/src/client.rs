//! A client of a model server, or of a gateway in front of it: Open Inference Protocol, keep-alive
//! connections, a timeout. `protocol` defines the messages.

use std::time::Duration;

use bytes::Bytes;
use digits::{predict::Classification, samples::Pixels};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::timeout;

use crate::{
    error::Error,
    protocol::{InferRequest, InferResponse},
    source::{self, Source},
};

const CONNECT: Duration = Duration::from_secs(1);
/// Longer than a gateway waits for the edge, and for the cloud.
const REQUEST: Duration = Duration::from_secs(20);

/// A model on a model server.
#[derive(Clone)]
pub struct Client {
    infer: Uri,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// The answer of a model.
#[derive(Debug)]
pub struct Answer {
    /// The version that answered, if the server reports it.
    pub version: Option<String>,
    /// One classification per sample.
    pub classifications: Vec<Classification>,
    /// Which model answered each sample; `None` from a model server.
    pub sources: Option<Vec<Source>>,
}

impl Client {
    /// A client for `model` at the URL in an `InferenceModel`'s status.
    ///
    /// # Errors
    /// [`Error::Url`] when it is not an `http://` URL with a host.
    pub fn new(url: &str, model: &str) -> Result<Self, Error> {
        let error = |reason: &str| Error::Url { url: url.to_owned(), reason: reason.to_owned() };
        let infer = format!("{}/v2/models/{model}/infer", url.trim_end_matches('/'));
        let infer: Uri = infer.parse().map_err(|_| error("not a URL"))?;
        if infer.scheme_str() != Some("http") || infer.authority().is_none() {
            return Err(error("must be http:// and a host"));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        Ok(Self { infer, pool: Pool::builder(TokioExecutor::new()).build(connector) })
    }

    /// The address of its requests.
    pub fn url(&self) -> String {
        self.infer.to_string()
    }

    /// Infers each image. Takes at most 20 s.
    ///
    /// # Errors
    /// [`Error::Call`] when the server cannot be reached, times out, or does not answer with ten
    /// probabilities per sample.
    pub async fn infer(&self, images: &[Pixels]) -> Result<Answer, Error> {
        let body =
            serde_json::to_vec(&InferRequest::new(images)).expect("numbers can be serialised");
        let answered = timeout(REQUEST, self.exchange(body)).await;
        let answered = answered.unwrap_or_else(|_| Err("no answer within 20 s".to_owned()));
        let answer = answered.and_then(|(header, response)| {
            let classifications = response.classifications(images.len())?;
            let sources =
                header.map(|header| source::sources(&header, images.len())).transpose()?;
            Ok(Answer { version: response.model_version, classifications, sources })
        });
        answer.map_err(|reason| Error::Call { url: self.infer.to_string(), reason })
    }

    /// The header that names who answered, and the answer.
    async fn exchange(&self, body: Vec<u8>) -> Result<(Option<String>, InferResponse), String> {
        let request = Request::post(self.infer.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(|error| error.to_string())?;
        let response = self.pool.request(request).await.map_err(|error| chain(&error))?;
        let status = response.status();
        let header = response.headers().get(source::HEADER);
        let header = header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let body = response.into_body().collect().await.map_err(|error| chain(&error))?.to_bytes();
        if status != StatusCode::OK {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(format!("{status}: {text}"));
        }
        let answer = serde_json::from_slice(&body);
        Ok((header, answer.map_err(|error| format!("unreadable answer: {error}"))?))
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
