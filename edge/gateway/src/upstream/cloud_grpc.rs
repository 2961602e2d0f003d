//! One call of the cloud over gRPC, with the deadlines of REST.

use std::{
    error::Error as StdError,
    fs,
    future::poll_fn,
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Request, Response,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, TE},
};
use neptune_cascade::breaker::Failure;
use tokio::time::{Instant, timeout_at};
use tonic::{
    Code, Status,
    body::Body,
    client::GrpcService as _,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::{
    cloud::{CloudAnswer, CloudRequest, bearer},
    excerpt::line,
    failure::{CloudError, chain, classified, failed, retry_after},
    path::Upper,
};
use crate::{
    config::{Cloud, Config},
    error::Error,
    protocol::{Payload, grpc::message},
    server::{GrpcBody, status_of},
};

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The connection to the cloud's gRPC, which is made with the first call.
#[derive(Debug)]
pub(super) struct GrpcClient {
    url: String,
    endpoint: Endpoint,
    /// None before the first call, and after one without an answer: the connection may be dead.
    channel: Mutex<Option<Channel>>,
    first_byte: Duration,
    max_answer: usize,
}

impl GrpcClient {
    /// Builds the client of a URL. Reads the CA file.
    pub(super) fn new(url: &str, cloud: &Cloud, config: &Config) -> Result<Self, Error> {
        let failed = |error: &dyn StdError| Error::Cloud(chain(error));
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .and_then(|e| e.user_agent(concat!("neptune-gateway/", env!("CARGO_PKG_VERSION"))))
            .map_err(|error| failed(&error))?
            .connect_timeout(config.timeouts.cloud_connect)
            .tcp_nodelay(true);
        if url.starts_with("https:") {
            let mut tls = ClientTlsConfig::new();
            if let Some(path) = &cloud.ca_file {
                tls = tls.ca_certificate(Certificate::from_pem(fs::read(path)?));
            }
            // A machine without system authorities can still use those in the CA file.
            endpoint = endpoint
                .clone()
                .tls_config(tls.clone().with_native_roots())
                .or_else(|_| endpoint.tls_config(tls))
                .map_err(|error| failed(&error))?;
        }
        Ok(Self {
            url: url.to_owned(),
            endpoint,
            channel: Mutex::default(),
            first_byte: config.cloud_first_byte(),
            max_answer: config.limits.max_body_bytes,
        })
    }

    /// Calls the cloud, and returns the message of its answer.
    pub(super) async fn call(
        &self,
        request: &CloudRequest,
        token: Option<HeaderValue>,
    ) -> Result<CloudAnswer, CloudError> {
        let deadline = Instant::from_std(request.deadline);
        #[expect(clippy::disallowed_methods, reason = "I/O: the deadline of the first byte")]
        let now = Instant::now();
        let call = build(request, token.clone(), deadline.saturating_duration_since(now))?;
        let answered = timeout_at(deadline.min(now + self.first_byte), async {
            let mut channel = self.channel();
            poll_fn(|cx| channel.poll_ready(cx)).await?;
            channel.call(call).await
        });
        let answer = match answered.await {
            Err(_) => {
                *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return Err(failed(false, "no answer in time".to_owned()));
            }
            Ok(Err(error)) => return Err(failed(!is_timeout(&error), chain(&error))),
            Ok(Ok(answer)) => answer,
        };
        let answer =
            timeout_at(deadline, read(answer, self.max_answer, bearer(token.as_ref()))).await;
        answer.unwrap_or_else(|_| Err(failed(false, "the answer did not end in time".to_owned())))
    }

    /// Its address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn channel(&self) -> Channel {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.get_or_insert_with(|| self.endpoint.connect_lazy()).clone()
    }
}

/// The request of a call, which has this time left.
fn build(
    request: &CloudRequest,
    token: Option<HeaderValue>,
    rest: Duration,
) -> Result<Request<Body>, CloudError> {
    let body = Body::new(GrpcBody::request(request.body.body.clone()));
    let mut call = Request::post(&*request.path)
        .body(body)
        .map_err(|error| failed(false, error.to_string()))?;
    let headers = call.headers_mut();
    *headers = request.headers.clone();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    // Eight digits at most.
    let millis = rest.as_millis().min(99_999_999);
    if let Ok(value) = HeaderValue::from_str(&format!("{millis}m")) {
        headers.insert(TIMEOUT, value);
    }
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, token);
    }
    Ok(call)
}

async fn read(
    answer: Response<Body>,
    max: usize,
    token: Option<&str>,
) -> Result<CloudAnswer, CloudError> {
    let (head, mut body) = answer.into_parts();
    if !head.status.is_success() {
        return Err(classified(head.status, retry_after(&head.headers), ""));
    }
    if let Some(status) = Status::from_header_map(&head.headers) {
        return Err(of_status(&status, token));
    }
    let (mut bytes, mut trailers) = (BytesMut::new(), HeaderMap::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(false, chain(&error)))?;
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() > max => {
                return Err(failed(false, format!("the answer has more than {max} bytes")));
            }
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    match Status::from_header_map(&trailers) {
        Some(status) if status.code() == Code::Ok => message(bytes.freeze())
            .map(|message: Bytes| CloudAnswer {
                payload: Payload::from(message),
                upper: Upper::of(&head.headers),
            })
            .map_err(|error| CloudError::Invalid { received: error.to_string() }),
        Some(status) => Err(of_status(&status, token)),
        None => Err(failed(false, "the answer has no status".to_owned())),
    }
}

/// What a status other than OK means.
fn of_status(status: &Status, token: Option<&str>) -> CloudError {
    let reason = match &*line(status.message(), token) {
        "" => format!("gRPC {:?}", status.code()),
        text => format!("gRPC {:?}: {text}", status.code()),
    };
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            CloudError::Failed { failure: Failure::TokenRefused, is_repeatable: false, reason }
        }
        Code::Unavailable => failed(true, reason),
        Code::Ok
        | Code::Unknown
        | Code::Internal
        | Code::DataLoss
        | Code::Cancelled
        | Code::Aborted
        | Code::DeadlineExceeded
        | Code::ResourceExhausted => failed(false, reason),
        refused => CloudError::Refused { status: status_of(refused), reason },
    }
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn code_decides_about_pause_and_retry() {
        for (code, failure, is_repeatable) in [
            (Code::Unavailable, Some(Failure::NoAnswer), true),
            (Code::Internal, Some(Failure::NoAnswer), false),
            (Code::ResourceExhausted, Some(Failure::NoAnswer), false),
            (Code::Unauthenticated, Some(Failure::TokenRefused), false),
            (Code::PermissionDenied, Some(Failure::TokenRefused), false),
            (Code::InvalidArgument, None, false),
            (Code::NotFound, None, false),
            (Code::Unimplemented, None, false),
        ] {
            let found = match of_status(&Status::new(code, ""), None) {
                CloudError::Failed { failure, is_repeatable, .. } => (Some(failure), is_repeatable),
                CloudError::Refused { status, .. } => {
                    assert_ne!(status, StatusCode::OK);
                    (None, false)
                }
                CloudError::Invalid { received } => unreachable!("{received}"),
            };
            assert_eq!(found, (failure, is_repeatable), "{code:?}");
        }
    }
}
