//! One answer of the cloud: permission, deadline, at most one retry, and what the breaker learns.

use std::{sync::Arc, time::Instant};

use hyper::http::request::Parts;
use neptune_cascade::breaker::{Failure, Permit};
use tracing::{debug, info, warn};

use super::{
    Exchange,
    invalid::{expected, received},
};
use crate::{
    clock,
    decision::{EndedOutage, RefusedCall},
    gateway::{Gateway, Service},
    metrics::Side,
    protocol::Payload,
    upstream::{CloudAnswer, CloudClient, CloudError, CloudRequest, to_cloud},
};

/// Permission for a call. If the client goes away meanwhile, the next one may call.
#[derive(Debug)]
pub struct Permission {
    pub gateway: Arc<Gateway>,
    permit: Option<Permit>,
    /// Time at which the call began.
    pub asked: Instant,
}

impl Permission {
    /// Asks for permission; `None` if the cloud is left alone.
    pub fn ask(gateway: &Arc<Gateway>) -> Option<Self> {
        let asked = clock::now();
        let permit = gateway.decisions().permit(asked).ok()?;
        Some(Self { gateway: Arc::clone(gateway), permit: Some(permit), asked })
    }

    pub fn succeeded(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let ended = self.gateway.decisions().succeeded(permit, clock::now());
        if let Some(EndedOutage { lasted, samples }) = ended {
            let seconds = lasted.as_secs_f64();
            info!(
                "the cloud answers again after {seconds:.1} s, in which it did not answer {samples} \
                 hard samples"
            );
        }
    }

    /// Whether the refused calls in a row are a problem since then.
    pub fn refused(&mut self, refusal: RefusedCall) -> bool {
        self.permit.take().is_some_and(|permit| {
            self.gateway.decisions().refused_by_cloud(permit, refusal, clock::now())
        })
    }

    /// An answer came, or begins. Whether this ends the problem of refused calls.
    pub fn accepted(&self) -> bool {
        let now = clock::now();
        self.permit.is_some_and(|permit| self.gateway.decisions().accepted_by_cloud(permit, now))
    }

    /// Records that the client's own deadline ended the call.
    pub fn cut(&mut self) {
        if let Some(permit) = self.permit.take() {
            let now = clock::now();
            let time = now.saturating_duration_since(self.asked);
            self.gateway.decisions().cut(permit, time, now);
        }
    }

    /// Whether the cloud is left alone since then.
    pub fn failed(&mut self, failure: Failure) -> bool {
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

async fn attempt(
    gateway: &Gateway,
    client: &CloudClient,
    request: &CloudRequest,
) -> Result<CloudAnswer, CloudError> {
    gateway.metrics.uploaded(request.body.body.len());
    client.call(request).await
}

/// Whether a call without an answer is made once more: the retry budget and the deadline allow it.
pub(super) fn is_repeated<T>(
    gateway: &Gateway,
    request: &CloudRequest,
    answer: &Result<T, CloudError>,
) -> bool {
    let is_repeatable = matches!(answer, Err(CloudError::Failed { is_repeatable: true, .. }));
    let now = clock::now();
    is_repeatable && now < request.deadline.at && gateway.decisions().take_retry(now)
}

/// A call whose result is known.
pub(super) struct Call<'a> {
    pub service: &'a Service,
    pub url: &'a str,
    pub request: &'a CloudRequest,
    /// Describes the form of an answer, for messages.
    pub expected: &'static str,
}

impl Call<'_> {
    /// Reports a failure to the breaker, and logs it. An answer is left to the caller.
    pub fn conclude<T>(
        &self,
        permission: &mut Permission,
        answer: Result<T, CloudError>,
    ) -> Option<T> {
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
