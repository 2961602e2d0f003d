//! One answer of the cloud: permission, deadline, at most one retry, and what the breaker learns.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::http::request::Parts;
use neptune_cascade::breaker::{Failure, Permit};
use tracing::{debug, warn};

use super::Exchange;
use crate::{
    clock,
    gateway::{Gateway, Service},
    metrics::Side,
    protocol::Payload,
    upstream::{CloudClient, CloudError, CloudRequest, CloudStream, failed, to_cloud},
};

/// Permission for a call. If the client goes away meanwhile, the next one may call.
#[derive(Debug)]
struct Permission {
    gateway: Arc<Gateway>,
    permit: Option<Permit>,
}

/// A streamed answer that began.
#[derive(Debug)]
pub struct OpenedStream {
    stream: CloudStream,
    /// What was read and not handed out yet.
    held: Option<Bytes>,
    has_ended: bool,
    permission: Permission,
    url: String,
}

impl OpenedStream {
    /// The next piece; `None` at the end. The breaker learns how the stream ends: a cloud whose
    /// answers break does not work, although they begin.
    ///
    /// # Errors
    /// As [`CloudStream::next`].
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
            Err(reason) => {
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
    /// As [`OpenedStream::next`], or it has more than `max` bytes.
    pub async fn hold(mut self, max: usize) -> Result<Self, CloudError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.next().await? {
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

impl Permission {
    /// Asks for permission; `None` if the cloud is left alone.
    fn ask(gateway: &Arc<Gateway>) -> Option<Self> {
        let permit = gateway.decisions().permit(clock::now()).ok()?;
        Some(Self { gateway: Arc::clone(gateway), permit: Some(permit) })
    }

    fn succeeded(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.gateway.decisions().succeeded(permit);
        }
    }

    /// Whether the cloud is left alone since then.
    fn failed(&mut self, failure: Failure) -> bool {
        self.permit.take().is_some_and(|permit| {
            let (now, random) = (clock::now(), clock::random());
            self.gateway.decisions().failed(permit, failure, now, random)
        })
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.gateway.decisions().abandoned(permit);
        }
    }
}

/// Why there is no answer of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It was not asked.
    NotSent,
    /// It was asked.
    Failed,
}

/// Calls the cloud. `is_answer` is true for answers of the protocol.
///
/// # Errors
/// There is no permission, or no answer in time.
pub async fn ask(
    gateway: &Arc<Gateway>,
    service: &Service,
    request: &CloudRequest,
    is_answer: impl Fn(&Payload) -> bool,
) -> Result<Payload, Unanswered> {
    let client = service.cloud.as_ref().ok_or(Unanswered::NotSent)?;
    let mut permission = Permission::ask(gateway).ok_or(Unanswered::NotSent)?;
    let asked = clock::now();
    let mut answer = attempt(gateway, client, request).await;
    if is_repeated(gateway, request, &answer) {
        answer = attempt(gateway, client, request).await;
    }
    let answer =
        answer.and_then(|body| if is_answer(&body) { Ok(body) } else { Err(not_an_answer()) });
    gateway.metrics.upstream(Side::Cloud, clock::now().saturating_duration_since(asked));
    let answer = conclude(service, &mut permission, client.url(request.wire), answer);
    permission.succeeded();
    answer.ok_or(Unanswered::Failed)
}

/// As [`ask`], for a streamed answer. Its head and first event are there.
///
/// # Errors
/// As [`ask`].
pub async fn ask_stream(
    gateway: &Arc<Gateway>,
    service: &Service,
    request: &CloudRequest,
) -> Result<OpenedStream, Unanswered> {
    let client = service.cloud.as_ref().ok_or(Unanswered::NotSent)?;
    let mut permission = Permission::ask(gateway).ok_or(Unanswered::NotSent)?;
    let asked = clock::now();
    let max = service.config.limits.max_body_bytes;
    let mut answer = begin(gateway, client, request, max).await;
    if is_repeated(gateway, request, &answer) {
        answer = begin(gateway, client, request, max).await;
    }
    let time = clock::now().saturating_duration_since(asked);
    gateway.metrics.upstream(Side::Cloud, time);
    gateway.metrics.first_token(Side::Cloud, time);
    let url = client.url(request.wire);
    let answer = conclude(service, &mut permission, url, answer).ok_or(Unanswered::Failed)?;
    let (stream, first) = answer;
    Ok(OpenedStream {
        stream,
        held: Some(first),
        has_ended: false,
        permission,
        url: url.to_owned(),
    })
}

async fn attempt(
    gateway: &Gateway,
    client: &CloudClient,
    request: &CloudRequest,
) -> Result<Payload, CloudError> {
    gateway.metrics.uploaded(request.body.body.len());
    client.call(request).await
}

async fn begin(
    gateway: &Gateway,
    client: &CloudClient,
    request: &CloudRequest,
    max: usize,
) -> Result<(CloudStream, Bytes), CloudError> {
    gateway.metrics.uploaded(request.body.body.len());
    let mut stream = client.open(request).await?;
    let is_stream = stream
        .headers()
        .get(hyper::header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    if !is_stream {
        return Err(not_an_answer());
    }
    match stream.first_event(max).await? {
        Some(first) => Ok((stream, first)),
        None => Err(not_an_answer()),
    }
}

fn not_an_answer() -> CloudError {
    CloudError::Failed {
        failure: Failure::NoAnswer,
        is_repeatable: false,
        reason: "the body is no answer of the protocol".to_owned(),
    }
}

fn is_repeated<T>(
    gateway: &Gateway,
    request: &CloudRequest,
    answer: &Result<T, CloudError>,
) -> bool {
    let is_repeatable = matches!(answer, Err(CloudError::Failed { is_repeatable: true, .. }));
    let now = clock::now();
    is_repeatable && now < request.deadline && gateway.decisions().take_retry(now)
}

/// Reports a failure to the breaker, and logs it. An answer is left to the caller.
fn conclude<T>(
    service: &Service,
    permission: &mut Permission,
    url: &str,
    answer: Result<T, CloudError>,
) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(CloudError::Refused { status, excerpt }) => {
            // It works. Other requests may be accepted.
            permission.succeeded();
            if service.is_first_refusal() {
                warn!("{url} refuses a request ({status}), further ones are not logged: {excerpt}");
            } else {
                debug!("{url} refuses a request ({status}): {excerpt}");
            }
            None
        }
        Err(CloudError::Failed { failure: Failure::TokenRefused, reason, .. }) => {
            if permission.failed(Failure::TokenRefused) {
                let file = service.config.cloud.as_ref().and_then(|cloud| cloud.token_file.clone());
                let file = file.map_or_else(String::new, |file| format!(" in {}", file.display()));
                let status = reason.split(' ').next().unwrap_or_default();
                warn!("{url} refuses the token{file} ({status})");
            }
            None
        }
        Err(CloudError::Failed { failure, reason, .. }) => {
            if permission.failed(failure) {
                warn!("{url} is left alone for a while: {reason}");
            } else {
                debug!("{url} did not answer: {reason}");
            }
            None
        }
    }
}

impl Exchange {
    /// A request to the cloud with this body.
    pub(super) fn cloud_request(
        &self,
        head: &Parts,
        path: String,
        body: impl Into<Payload>,
    ) -> CloudRequest {
        let (headers, body) = (to_cloud(&head.headers), body.into());
        let (wire, deadline) = (self.wire, self.cloud_deadline(head));
        CloudRequest { wire, path, headers, body, deadline }
    }

    /// Calls the cloud, and counts the time as waiting.
    pub(super) async fn ask_cloud(
        &mut self,
        request: &CloudRequest,
        is_answer: impl Fn(&Payload) -> bool,
    ) -> Result<Payload, Unanswered> {
        let asked = clock::now();
        let answer = ask(&self.gateway, &self.service, request, is_answer).await;
        self.waited += clock::now().saturating_duration_since(asked);
        answer
    }
}
