//! One answer of the cloud: permission, deadline, at most one retry, and what the breaker learns.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::http::request::Parts;
use neptune_cascade::breaker::Failure;
use tracing::{debug, info, warn};

use super::{
    Exchange,
    invalid::{expected, received},
    permission::Permission,
};
use crate::{
    clock,
    decision::RefusedCall,
    gateway::{Gateway, HeldAnswers, Service},
    metrics::Side,
    protocol::Payload,
    upstream::{
        CloudAnswer, CloudClient, CloudError, CloudRequest, CloudStream, Upper, failed, to_cloud,
    },
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

/// Why there is no answer of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The cloud was not asked.
    NotSent,
    /// The cloud was asked, and did not answer in time or in the form of the protocol.
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
) -> Result<CloudAnswer, Unanswered> {
    let client = service.cloud.as_ref().ok_or(Unanswered::NotSent)?;
    let mut permission = Permission::ask(gateway).ok_or(Unanswered::NotSent)?;
    let asked = permission.asked;
    let mut answer = attempt(gateway, client, request).await;
    if is_repeated(gateway, request, &answer) {
        answer = attempt(gateway, client, request).await;
    }
    let answer = answer.and_then(|answer| {
        let received = || received(request.wire, &answer.payload);
        if is_answer(&answer.payload) {
            Ok(answer)
        } else {
            Err(CloudError::Invalid { received: received() })
        }
    });
    let now = clock::now();
    let time = now.saturating_duration_since(asked);
    gateway.metrics.upstream(Side::Cloud, time);
    if let Ok(answer) = &answer {
        gateway.decisions().answered(time, answer.upper.is_away, now);
    }
    let expected = expected(service.protocol(), request.wire);
    let call = Call { service, url: client.url(request.wire), request, expected };
    let answer = call.conclude(&mut permission, answer);
    permission.succeeded();
    answer.ok_or(Unanswered::Failed)
}

/// Calls the cloud like [`ask`], for a streamed answer. Returns when its head and first event are
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
        upper: Upper::of(stream.headers()),
        stream,
        held: Some(first),
        has_ended: false,
        permission,
        is_clients_deadline: request.deadline.is_clients,
        url: url.to_owned(),
    })
}

async fn attempt(
    gateway: &Gateway,
    client: &CloudClient,
    request: &CloudRequest,
) -> Result<CloudAnswer, CloudError> {
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

fn is_repeated<T>(
    gateway: &Gateway,
    request: &CloudRequest,
    answer: &Result<T, CloudError>,
) -> bool {
    let is_repeatable = matches!(answer, Err(CloudError::Failed { is_repeatable: true, .. }));
    let now = clock::now();
    is_repeatable && now < request.deadline.at && gateway.decisions().take_retry(now)
}

/// A call whose result is known.
struct Call<'a> {
    service: &'a Service,
    url: &'a str,
    request: &'a CloudRequest,
    /// Describes the form of an answer, for messages.
    expected: &'static str,
}

impl Call<'_> {
    /// Reports a failure to the breaker, and logs it. An answer is left to the caller.
    fn conclude<T>(&self, permission: &mut Permission, answer: Result<T, CloudError>) -> Option<T> {
        let url = self.url;
        match answer {
            Ok(answer) => {
                if permission.accepted() {
                    info!("{url} accepts requests again");
                }
                return Some(answer);
            }
            Err(CloudError::Invalid { received }) => self.invalid(permission, &received),
            Err(CloudError::NoRoom) => debug!("an answer of {url} is dropped for lack of room"),
            Err(CloudError::Refused { status, reason }) => {
                // It works. Other requests may be accepted.
                let refusal = RefusedCall {
                    url: url.to_owned(),
                    status: status.as_u16(),
                    reason: reason.clone(),
                };
                if permission.refused(refusal) {
                    warn!("{url} refuses every request ({reason})");
                } else if self.service.is_first_refusal() {
                    warn!("{url} refuses a request ({reason}); further ones are not logged");
                } else {
                    debug!("{url} refuses a request ({reason})");
                }
            }
            Err(CloudError::OutOfTime { reason }) if self.request.deadline.is_clients => {
                debug!("{url} did not answer before the client's deadline: {reason}");
                permission.cut();
            }
            Err(CloudError::OutOfTime { reason }) => {
                self.unanswered(permission, Failure::NoAnswer, &reason);
            }
            Err(CloudError::Failed { failure: Failure::TokenRefused, reason, .. }) => {
                let is_new = permission.failed(Failure::TokenRefused);
                {
                    let mut decisions = permission.gateway.decisions();
                    decisions.forget_invalid_answers();
                    decisions.token_refused(reason.clone());
                }
                if is_new {
                    let cloud = self.service.config.cloud.as_ref();
                    let file = cloud.and_then(|cloud| cloud.token_file.as_ref());
                    if let Some(file) = file {
                        warn!("{url} refuses the token in {}: {reason}", file.display());
                    } else {
                        warn!("{url} refuses requests without a token: {reason}");
                    }
                }
            }
            Err(CloudError::Failed { failure, reason, .. }) => {
                self.unanswered(permission, failure, &reason);
            }
        }
        None
    }

    /// The cloud does not work.
    fn unanswered(&self, permission: &mut Permission, failure: Failure, reason: &str) {
        let url = self.url;
        {
            let mut decisions = permission.gateway.decisions();
            decisions.forget_invalid_answers();
            decisions.cloud_failed(reason);
        }
        if permission.failed(failure) {
            warn!("{url} is left alone for a while: {reason}");
        } else {
            debug!("{url} did not answer: {reason}");
        }
    }

    /// The cloud answers in another form. For the breaker that is a failure.
    fn invalid(&self, permission: &mut Permission, received: &str) {
        let address = match &self.service.cloud {
            Some(client) => client.address(self.request),
            None => self.url.to_owned(),
        };
        let expected = self.expected;
        let text = format!(
            "{address} answers in another form than the protocol: expected {expected}, received \
             {received}"
        );
        permission.gateway.decisions().cloud_failed(&text);
        if permission.failed(Failure::NoAnswer) {
            warn!("the cloud is left alone for a while: {text}");
        } else {
            debug!("{text}");
        }
        permission.gateway.decisions().answer_invalid(text);
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
        let (mut headers, body) = (to_cloud(&head.headers), body.into());
        self.hops.describe(self.service.config.id.as_deref(), &mut headers);
        let (wire, deadline) = (self.wire, self.cloud_deadline(head));
        CloudRequest {
            wire,
            path,
            headers,
            body,
            deadline,
            held: Some(Arc::new(self.answers.clone())),
        }
    }

    /// Calls the cloud, and counts the time as waiting. Keeps what the answer shows of the gateways
    /// above.
    pub(super) async fn ask_cloud(
        &mut self,
        request: &CloudRequest,
        is_answer: impl Fn(&Payload) -> bool,
    ) -> Result<Payload, Unanswered> {
        let asked = clock::now();
        let answer = ask(&self.gateway, &self.service, request, is_answer).await;
        self.waited += clock::now().saturating_duration_since(asked);
        let CloudAnswer { payload, upper } = answer?;
        self.upper = upper;
        Ok(payload)
    }
}
