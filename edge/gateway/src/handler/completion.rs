//! What whole and streamed completions have in common: bodies, confidences, and their counting.

use std::time::Instant;

use bytes::Bytes;
use hyper::{StatusCode, http::request::Parts};
use neptune_cascade::{
    Signal, Unjudged,
    policy::{Decision, Route, Upload},
    tokens::TokenSignal,
};

use super::{Exchange, cloud::Unanswered};
use crate::{
    capture::Sample,
    clock,
    config::Rule,
    gateway::{EdgeAnswer, Shadow},
    metrics::Side,
    protocol::{
        completion::{Probed, Reply, Request},
        path::unpinned,
    },
    server::Answer,
    upstream::CloudRequest,
};

/// The text of the answer to a hard sample with `onCloudFailure: Error` and without an answer of the
/// cloud.
pub(super) const CLOUD_FAILED: &str =
    "the cloud gave no answer to hard samples, and onCloudFailure is Error";

/// A request for a completion, with its head and body.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The head of the request.
    pub head: &'a Parts,
    /// What it asks for.
    pub request: &'a Request<'a>,
    /// The body as the client sent it.
    pub body: Bytes,
    /// Path and query of the request.
    pub path: String,
    /// Whether a route pin keeps the request at the edge.
    pub is_pinned: bool,
}

/// The body for the edge, and whether log-probabilities were added to it.
#[derive(Debug, Clone)]
pub struct EdgeBody {
    /// The body to send to the edge.
    pub body: Bytes,
    /// Whether the answer has to be stripped.
    pub is_extended: bool,
}

impl Completion<'_> {
    /// Returns the body for the edge as the client sent it, without the suffix of the model's name
    /// that is the route pin.
    pub(super) fn plain_body(&self) -> Bytes {
        let model = self.request.model.as_deref().and_then(unpinned);
        let body = self.request.edge_body(model, None, Probed::None);
        body.map_or_else(|| self.body.clone(), Bytes::from)
    }
}

impl Exchange {
    fn token_signal(&self) -> Option<&TokenSignal> {
        match &self.service.rule {
            Rule::Tokens(signal) => Some(signal),
            _ => None,
        }
    }

    /// Returns the body for the edge, with log-probabilities if its server gives them.
    pub(super) fn edge_body(&self, completion: &Completion<'_>) -> EdgeBody {
        let (signal, probed) = (self.token_signal(), self.service.probed());
        let request = completion.request;
        let model = request.model.as_deref().and_then(unpinned);
        let body = request.edge_body(model, signal, probed);
        EdgeBody {
            body: body.map_or_else(|| completion.body.clone(), Bytes::from),
            is_extended: request.is_extended(probed, signal),
        }
    }

    /// Returns the request to the cloud for a completion.
    pub(super) fn completion_at_cloud(
        &self,
        completion: &Completion<'_>,
        is_stream: bool,
    ) -> CloudRequest {
        let model = self.service.cloud.as_ref().and_then(|cloud| cloud.model_name());
        let body = completion.request.cloud_body(model, is_stream);
        let path = completion.head.uri.path().to_owned();
        self.cloud_request(completion.head, path, body)
    }

    /// Returns the confidence of an answer, and counts it in the metrics.
    pub(super) fn signal(&self, reply: &Reply) -> Signal {
        let signal = match &self.service.rule {
            Rule::Tokens(signal) => reply.signal(signal),
            Rule::Random => Ok(clock::random()),
            Rule::Constant => Ok(0.0),
            Rule::Classes(..) | Rule::Boxes(_) => Err(Unjudged::Missing),
        };
        if let Ok(confidence) = signal {
            self.gateway.metrics.judged(confidence);
        }
        signal
    }

    /// Decides about a completion. `deadline` is when the client gives up, if that is known.
    pub(super) fn decide_one(
        &self,
        signal: Signal,
        is_pinned: bool,
        deadline: Option<Instant>,
    ) -> (Decision, Route) {
        let mut decisions = self.gateway.decisions();
        let route = decisions.route(is_pinned, deadline, clock::now());
        if self.hops.is_shadow {
            // No sample: the policy does not see it.
            return (Decision::Pinned, route);
        }
        let decided = decisions.decide(&[signal], route, clock::random);
        (decided.first().copied().unwrap_or(Decision::Pinned), route)
    }

    /// Records the result of an upload: whether the answers agree, if it was answered.
    pub(super) fn record_upload(&self, signal: Signal, agreed: Result<Option<bool>, Unanswered>) {
        let upload = match agreed {
            Ok(agreed) => Upload::Answered(agreed),
            Err(Unanswered::Failed) => Upload::Failed,
            Err(Unanswered::NotSent) => Upload::NotSent,
        };
        self.gateway.decisions().uploaded(signal, upload);
    }

    pub(super) fn count_tokens(&self, side: Side, reply: &Reply) {
        if let Some((input, output)) = reply.usage {
            self.gateway.metrics.tokens(side, input, output);
        }
    }

    /// Queues an easy answer for comparison, if there is room. Returns whether it is recorded after
    /// that.
    pub(super) fn shadow_text(
        &self,
        request: impl FnOnce() -> CloudRequest,
        signal: Signal,
        route: Route,
        text: &str,
        sample: impl FnOnce() -> Option<Sample>,
    ) -> bool {
        if !self.gateway.shadows.has_place() {
            return false;
        }
        let chosen = self.gateway.decisions().take_shadows(&[Decision::Easy], route, clock::random);
        if chosen != [true] {
            return false;
        }
        let sample = sample();
        let is_captured = sample.is_some();
        let is_queued = self.gateway.shadows.push(Shadow {
            service: std::sync::Arc::clone(&self.service),
            request: request(),
            signals: vec![signal],
            edge: EdgeAnswer::Text(text.to_owned()),
            sample,
        });
        is_captured && is_queued
    }

    /// The answer to a hard sample with `onCloudFailure: Error`.
    pub(super) fn cloud_failed(&self) -> Answer {
        self.error(StatusCode::BAD_GATEWAY, CLOUD_FAILED)
    }

    /// Passes a completion on that is not decided.
    pub(super) async fn pass_whole(&mut self, head: &Parts, path: &str, body: Bytes) -> Answer {
        match self.ask_edge(head, path, body.into()).await {
            Ok((status, headers, body)) => self.unread(status, headers, body),
            Err(failure) => {
                let reason = match self.edge_reason(failure) {
                    Ok(reason) => reason,
                    Err(answer) => return *answer,
                };
                self.error(StatusCode::SERVICE_UNAVAILABLE, &self.edge_text(&reason))
            }
        }
    }
}
