//! Asks both model servers about labelled samples. I/O.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use neptune_cascade::breaker::Failure;
use tokio::time::sleep;

use crate::{
    clock,
    error::CalibrateError,
    gateway::Service,
    protocol::Payload,
    server::{Paced, Wire, collect, whole},
    upstream::{CloudClient, CloudError, CloudRequest, Deadline, excerpt},
};

/// Times that a request is sent before the calibration fails.
const TRIES: u32 = 3;
/// Pause before a request is sent again. After the second time it is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a server may ask for.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The two model servers of a configuration.
pub struct Servers<'a> {
    service: &'a Service,
    cloud: &'a CloudClient,
}

/// Why a request failed, and the pause after which it is sent again, if it is.
struct Failed {
    reason: String,
    pause: Option<Duration>,
}

impl<'a> Servers<'a> {
    /// The servers of a configuration that has a cloud.
    ///
    /// # Errors
    /// There is no cloud.
    pub fn from_service(service: &'a Service) -> Result<Self, CalibrateError> {
        let cloud = service.cloud.as_ref().ok_or(CalibrateError::NoCloud)?;
        Ok(Self { service, cloud })
    }

    /// A page of the edge's model server.
    ///
    /// # Errors
    /// No answer.
    pub async fn edge_page(&self, path: &str) -> Result<Bytes, CalibrateError> {
        let ask = async || {
            let limit = self.service.config.edge_timeout();
            let (headers, body) = (HeaderMap::new(), whole(Bytes::new()));
            self.service.edge.pass(Method::GET, path, headers, body, limit).await
        };
        let answer = repeated(async || self.read(ask().await.map_err(|e| e.to_string())).await);
        answer.await.map(|payload| payload.body).map_err(|reason| self.edge_failed(path, reason))
    }

    /// The answers of both to a request. `what` names the samples.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn both(
        &self,
        edge: (&str, Bytes),
        cloud: (&str, Bytes),
        what: &str,
    ) -> Result<[Payload; 2], CalibrateError> {
        let edge = repeated(async || {
            let limit = self.service.config.edge_timeout();
            let (path, body) = (edge.0, edge.1.clone());
            let answer = self.service.edge.post(path, &json_headers(), body, limit).await;
            self.read(answer.map_err(|error| error.to_string())).await
        });
        let cloud = repeated(async || {
            let request = CloudRequest {
                wire: Wire::Rest,
                path: cloud.0.to_owned(),
                headers: json_headers(),
                body: cloud.1.clone().into(),
                deadline: Deadline::earliest(
                    clock::now() + self.service.config.cloud_total(),
                    None,
                ),
                held: None,
            };
            let answer = self.cloud.call(&request).await;
            answer.map(|answer| answer.payload).map_err(|error| of_cloud(&error))
        });
        let (edge, cloud) = tokio::join!(edge, cloud);
        let edge = edge.map_err(|reason| self.edge_failed(what, reason))?;
        let cloud = cloud.map_err(|reason| CalibrateError::NoAnswer {
            side: "cloud",
            address: self.cloud.url(Wire::Rest).to_owned(),
            what: what.to_owned(),
            reason,
        })?;
        Ok([edge, cloud])
    }

    /// Reads the whole answer of the edge.
    async fn read(
        &self,
        answer: Result<hyper::Response<hyper::body::Incoming>, String>,
    ) -> Result<Payload, Failed> {
        let again = |reason| Failed { reason, pause: Some(PAUSE) };
        let (head, body) = answer.map_err(again)?.into_parts();
        let limits = self.service.config.limits.max_body_bytes;
        let body = Paced::new(body, limits, self.service.config.edge_timeout());
        let body = match body {
            Ok(body) => collect(body).await.map_err(|error| again(error.to_string()))?,
            Err(error) => return Err(Failed { reason: error.to_string(), pause: None }),
        };
        if !head.status.is_success() {
            let excerpt = excerpt(&body, None);
            let is_busy =
                head.status.is_server_error() || head.status == StatusCode::TOO_MANY_REQUESTS;
            let pause = is_busy.then_some(PAUSE);
            return Err(Failed { reason: format!("{}: {excerpt}", head.status), pause });
        }
        Payload::new(&head.headers, body)
            .map_err(|error| Failed { reason: error.to_string(), pause: None })
    }

    fn edge_failed(&self, what: &str, reason: String) -> CalibrateError {
        let (address, what) = (self.service.edge.address().to_owned(), what.to_owned());
        CalibrateError::NoAnswer { side: "edge", address, what, reason }
    }
}

fn json_headers() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))])
}

fn of_cloud(error: &CloudError) -> Failed {
    let pause = match error {
        CloudError::Failed { failure: Failure::RetryAfter(pause), .. } => Some(*pause),
        CloudError::Failed { failure: Failure::NoAnswer, .. } | CloudError::OutOfTime { .. } => {
            Some(PAUSE)
        }
        _ => None,
    };
    Failed { reason: error.to_string(), pause }
}

/// Asks until there is an answer, or a reason not to ask again.
async fn repeated(ask: impl AsyncFn() -> Result<Payload, Failed>) -> Result<Payload, String> {
    let mut tried = 1;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(Failed { pause: Some(pause), .. }) if tried < TRIES && pause <= MAX_PAUSE => {
                sleep(pause * tried).await;
                tried += 1;
            }
            Err(Failed { reason, .. }) => return Err(reason),
        }
    }
}
