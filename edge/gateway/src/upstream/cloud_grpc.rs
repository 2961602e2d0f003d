//! One call of the cloud over gRPC, with the deadlines of REST.

use std::{
    error::Error as StdError,
    fs,
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Request, Response, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, TE},
    http::uri::{InvalidUri, PathAndQuery},
};
use neptune_cascade::breaker::Failure;
use neptune_program::{causes, chain};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::{
    Code, Status,
    body::Body,
    client::GrpcService as _,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::{
    call::{CloudAnswer, CloudRequest, bearer},
    failure::{CloudError, classified_with, failed, grpc_reason, out_of_time},
    path::Upper,
};
use crate::{
    config::{Cloud, Config},
    error::Error,
    protocol::{Payload, grpc::message},
    server::{GrpcBody, status_of},
};

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Calls in a row without an answer after which the connection is replaced, although a client's
/// deadline cut each of them.
const CUT_IN_A_ROW: u32 = 3;

/// The connection to the cloud's gRPC, which is made with the first call.
#[derive(Debug)]
pub(super) struct GrpcClient {
    url: String,
    endpoint: Endpoint,
    /// None before the first call, and after one without an answer: the connection may be dead.
    channel: Mutex<Option<Channel>>,
    /// Calls in a row that a client's deadline cut.
    cut: AtomicU32,
    first_byte: Duration,
    max_answer: usize,
}

/// The URL with the configured address of its host, if it has one.
fn at_address(url: &Uri, cloud: &Cloud) -> Option<Uri> {
    let address = *cloud.addresses.get(url.host()?)?;
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    let authority = SocketAddr::new(address, port).to_string();
    let path = url.path_and_query().map_or("/", PathAndQuery::as_str);
    Uri::builder().scheme(url.scheme_str()?).authority(authority).path_and_query(path).build().ok()
}

impl GrpcClient {
    /// Builds the client of a URL. Reads the CA file.
    pub(super) fn new(url: &str, cloud: &Cloud, config: &Config) -> Result<Self, Error> {
        let failed = |error: &(dyn StdError + 'static)| Error::Cloud(causes(error));
        let named: Uri = url.parse().map_err(|error: InvalidUri| failed(&error))?;
        let host = named.host().unwrap_or_default().to_owned();
        let called = at_address(&named, cloud).unwrap_or_else(|| named.clone());
        let mut endpoint = Endpoint::from(called)
            .user_agent(concat!("neptune-gateway/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| failed(&error))?
            .origin(named)
            .connect_timeout(config.timeouts.cloud_connect)
            .tcp_nodelay(true);
        if url.starts_with("https:") {
            let mut tls = ClientTlsConfig::new();
            if cloud.addresses.contains_key(&host) {
                tls = tls.domain_name(host);
            }
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
            cut: AtomicU32::new(0),
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
        let deadline = Instant::from_std(request.deadline.at);
        #[expect(clippy::disallowed_methods, reason = "I/O: the deadline of the first byte")]
        let now = Instant::now();
        let call = build(request, token.clone(), deadline.saturating_duration_since(now))?;
        let first_byte = deadline.min(now + self.first_byte);
        let answered = timeout_at(first_byte, async {
            let mut channel = self.channel();
            poll_fn(|cx| channel.poll_ready(cx)).await?;
            channel.call(call).await
        });
        let answer = match answered.await {
            Err(_) => {
                let is_out_of_time = first_byte == deadline;
                self.replace_channel(is_out_of_time && request.deadline.is_clients);
                return Err(if is_out_of_time {
                    out_of_time("no answer in time")
                } else {
                    failed(false, "no answer in time".to_owned())
                });
            }
            Ok(Err(error)) => return Err(failed(!is_timeout(&error), causes(&error))),
            Ok(Ok(answer)) => answer,
        };
        self.cut.store(0, Ordering::Relaxed);
        let answer =
            timeout_at(deadline, read(answer, request, self.max_answer, bearer(token.as_ref())))
                .await;
        answer.unwrap_or_else(|_| Err(out_of_time("the answer did not end in time")))
    }

    /// Returns the address of the cloud for gRPC.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The next call makes another connection. One call that a client's
    /// deadline cut is no sign of a broken connection; several in a row are.
    fn replace_channel(&self, is_cut: bool) {
        if is_cut && self.cut.fetch_add(1, Ordering::Relaxed) + 1 < CUT_IN_A_ROW {
            return;
        }
        self.cut.store(0, Ordering::Relaxed);
        *self.channel.lock() = None;
    }

    fn channel(&self) -> Channel {
        let mut channel = self.channel.lock();
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
    request: &CloudRequest,
    max: usize,
    token: Option<&str>,
) -> Result<CloudAnswer, CloudError> {
    let (head, mut body) = answer.into_parts();
    if !head.status.is_success() {
        return Err(classified_with(head.status, &head.headers, ""));
    }
    if let Some(status) = Status::from_header_map(&head.headers) {
        return Err(of_status(&status, token));
    }
    let (mut bytes, mut trailers) = (BytesMut::new(), HeaderMap::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(false, causes(&error)))?;
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() > max => {
                return Err(failed(false, format!("the answer has more than {max} bytes")));
            }
            Ok(data) => {
                request.hold(bytes.len(), data.len())?;
                bytes.extend_from_slice(&data);
            }
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    match Status::from_header_map(&trailers) {
        Some(status) if status.code() == Code::Ok => message(bytes.freeze())
            .map(|message: Bytes| CloudAnswer {
                payload: Payload::from(message),
                upper: Upper::from_headers(&head.headers),
            })
            .map_err(|error| CloudError::Invalid { received: error.to_string() }),
        Some(status) => Err(of_status(&status, token)),
        None => Err(failed(false, "the answer has no status".to_owned())),
    }
}

/// What a status other than OK means.
fn of_status(status: &Status, token: Option<&str>) -> CloudError {
    let reason = grpc_reason(status, token);
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            CloudError::Failed { failure: Failure::TokenRefused, is_repeatable: false, reason }
        }
        Code::Unavailable => failed(true, reason),
        // The deadline that the call stated.
        Code::DeadlineExceeded => CloudError::OutOfTime { reason },
        Code::Ok
        | Code::Unknown
        | Code::Internal
        | Code::DataLoss
        | Code::Cancelled
        | Code::Aborted
        | Code::ResourceExhausted => failed(false, reason),
        refused => CloudError::Refused { status: status_of(refused), reason },
    }
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    chain(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|io| io.kind() == io::ErrorKind::TimedOut)
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
            let actual = match of_status(&Status::new(code, ""), None) {
                CloudError::Failed { failure, is_repeatable, .. } => (Some(failure), is_repeatable),
                CloudError::Refused { status, .. } => {
                    assert_ne!(status, StatusCode::OK);
                    (None, false)
                }
                other => unreachable!("{other}"),
            };
            assert_eq!(actual, (failure, is_repeatable), "{code:?}");
        }
    }
}
