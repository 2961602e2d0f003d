//! Streamed answers of the cloud: how they begin, and what the breaker learns from how they end.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use neptune_cascade::breaker::Failure;
use tracing::{debug, warn};

use super::cloud::{Call, Permission, Unanswered, is_repeated};
use crate::{
    clock,
    gateway::{Gateway, HeldAnswers, Service},
    metrics::Side,
    upstream::{CloudClient, CloudError, CloudRequest, CloudStream, Upper, failed},
};

/// A streamed answer of the cloud whose head and first event are there.
#[derive(Debug)]
pub struct OpenedStream {
    stream: CloudStream,
    /// What was read and not handed out yet.
    held: Option<Bytes>,
    has_ended: bool,
    permission: Permission,
    /// Whether its deadline is the client's own.
    is_clients_deadline: bool,
    url: String,
    /// What its head shows of the gateways above.
    pub upper: Upper,
}

impl OpenedStream {
    /// The next piece; `None` at the end. The breaker learns how the stream ends: a cloud whose
    /// answers break does not work, although they begin.
    ///
    /// # Errors
    /// The errors of [`CloudStream::next`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, CloudError> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        if self.has_ended {
            return Ok(None);
        }
        let next = self.stream.next().await;
        match &next {
            Ok(Some(_)) => {}
            Ok(None) => {
                self.has_ended = true;
                self.permission.succeeded();
            }
            Err(CloudError::OutOfTime { reason }) if self.is_clients_deadline => {
                debug!("a stream of {} is cut: {reason}", self.url);
                self.permission.cut();
            }
            Err(reason) => {
                let cause = format!("a stream broke: {reason}");
                self.permission.gateway.decisions().cloud_failed(&cause);
                if self.permission.failed(Failure::NoAnswer) {
                    warn!("{} is left alone for a while: a stream broke: {reason}", self.url);
                } else {
                    debug!("a stream of {} broke: {reason}", self.url);
                }
            }
        }
        next
    }

    /// Reads it to its end. What was read is then handed out as one piece.
    ///
    /// # Errors
    /// [`OpenedStream::next`] fails, the stream has more than `max` bytes, or there is no room for
    /// it.
    pub async fn hold(mut self, max: usize, held: &HeldAnswers) -> Result<Self, CloudError> {
        // Its first event was read already.
        let mut whole = BytesMut::from(self.held.take().unwrap_or_default());
        while let Some(piece) = self.next().await? {
            if !held.hold(piece.len()) {
                self.permission.succeeded();
                return Err(CloudError::NoRoom);
            }
            whole.extend_from_slice(&piece);
            if whole.len() > max {
                self.permission.failed(Failure::NoAnswer);
                return Err(failed(false, format!("the stream has more than {max} bytes")));
            }
        }
        self.held = Some(whole.freeze());
        Ok(self)
    }
}

/// Calls the cloud like [`ask`](super::cloud::ask), for a streamed answer. Returns when its head and first event are
/// there.
///
/// # Errors
/// There is no permission, or no answer in time.
pub async fn ask_stream(
    gateway: &Arc<Gateway>,
    service: &Service,
    request: &CloudRequest,
) -> Result<OpenedStream, Unanswered> {
    let client = service.cloud.as_ref().ok_or(Unanswered::NotSent)?;
    let mut permission = Permission::ask(gateway).ok_or(Unanswered::NotSent)?;
    let asked = permission.asked;
    let max = service.config.limits.max_body_bytes;
    let mut answer = begin(gateway, client, request, max).await;
    if is_repeated(gateway, request, &answer) {
        answer = begin(gateway, client, request, max).await;
    }
    let time = clock::now().saturating_duration_since(asked);
    gateway.metrics.upstream(Side::Cloud, time);
    gateway.metrics.first_token(Side::Cloud, time);
    let url = client.url(request.wire);
    let call = Call { service, url, request, expected: "an event stream" };
    let answer = call.conclude(&mut permission, answer).ok_or(Unanswered::Failed)?;
    let (stream, first) = answer;
    Ok(OpenedStream {
        upper: Upper::from_headers(stream.headers()),
        stream,
        held: Some(first),
        has_ended: false,
        permission,
        is_clients_deadline: request.deadline.is_clients,
        url: url.to_owned(),
    })
}

async fn begin(
    gateway: &Gateway,
    client: &CloudClient,
    request: &CloudRequest,
    max: usize,
) -> Result<(CloudStream, Bytes), CloudError> {
    gateway.metrics.uploaded(request.body.body.len());
    let mut stream = client.open(request).await?;
    let kind = stream.headers().get(hyper::header::CONTENT_TYPE);
    let kind = kind.map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
    if !kind.as_ref().is_some_and(|kind| kind.starts_with("text/event-stream")) {
        let kind = kind.unwrap_or_else(|| "none".to_owned());
        return Err(CloudError::Invalid { received: format!("content type {kind}") });
    }
    match stream.first_event(max, request).await? {
        Some(first) => Ok((stream, first)),
        None => Err(CloudError::Invalid { received: "an empty event stream".to_owned() }),
    }
}
