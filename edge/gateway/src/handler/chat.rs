//! Completions: the edge answers, and a hard one is answered by the cloud instead.

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode, http::request::Parts};
use neptune_cascade::{
    Signal, Unjudged,
    compare::same_text,
    policy::{Decision, Route, Upload},
    tokens::TokenSignal,
};

use super::{Exchange, cloud::Unanswered, respond::Verdict, stream, tensors::answer_with};
use crate::{
    clock,
    config::{OnCloudFailure, Rule},
    decision::Outcome,
    metrics::Side,
    protocol::{
        completion::{Kind, Probed, Reply, Request, is_answer, text, without_logprobs},
        path::{Task, unpinned},
    },
    server::Answer,
    shadow::{EdgeAnswer, Shadow},
    upstream::CloudRequest,
};

/// A request for a completion.
#[derive(Debug)]
pub struct Completion<'a> {
    /// Its head.
    pub head: &'a Parts,
    /// What it asks for.
    pub request: &'a Request<'a>,
    /// Its body.
    pub body: Bytes,
    /// Its path.
    pub path: String,
    /// Whether the client keeps it at the edge.
    pub is_pinned: bool,
}

/// The body for the edge, and whether log-probabilities were added to it.
#[derive(Debug, Clone)]
pub struct EdgeBody {
    /// The body.
    pub body: Bytes,
    /// Whether the answer has to be stripped.
    pub is_extended: bool,
}

/// Answers a completion.
pub async fn answer(exchange: &mut Exchange, task: &Task<'_>, head: &Parts, body: Bytes) -> Answer {
    let kind = if *task == Task::Chat { Kind::Chat } else { Kind::Text };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let Some(request) = Request::parse(kind, &body) else {
        return exchange.pass_whole(head, &path, body).await;
    };
    let model = request.model.as_deref();
    let is_decided =
        model.is_none_or(|model| exchange.service.decides(unpinned(model).unwrap_or(model)));
    if !is_decided {
        return exchange.pass_whole(head, &path, body).await;
    }
    let is_pinned = model.is_some_and(|model| unpinned(model).is_some())
        || exchange.service.is_pinned(&head.headers);
    let completion = Completion { head, request: &request, body: body.clone(), path, is_pinned };
    if request.is_stream {
        stream::answer(exchange, &completion).await
    } else {
        whole(exchange, &completion).await
    }
}

async fn whole(exchange: &mut Exchange, completion: &Completion<'_>) -> Answer {
    let edge_body = exchange.edge_body(completion);
    let mut answered =
        exchange.ask_edge(completion.head, &completion.path, edge_body.body.clone()).await;
    let mut is_extended = edge_body.is_extended;
    if is_extended && matches!(&answered, Ok((StatusCode::BAD_REQUEST, ..))) {
        // The server may refuse log-probabilities with other options of this request.
        is_extended = false;
        let plain = exchange.plain_body(completion);
        answered = exchange.ask_edge(completion.head, &completion.path, plain).await;
    }
    match answered {
        Ok((status, headers, body)) if status.is_success() => {
            judge(exchange, completion, is_extended, (status, headers, body)).await
        }
        Ok((status, headers, body)) => answer_with(status, headers, body),
        Err(reason) => {
            if let Err(refusal) = exchange.replace_edge(1, completion.is_pinned, &reason) {
                return *refusal;
            }
            let call = exchange.completion_at_cloud(completion, false);
            exchange.answer_of_cloud(1, &call, &reason, is_answer).await
        }
    }
}

async fn judge(
    exchange: &mut Exchange,
    completion: &Completion<'_>,
    is_extended: bool,
    (status, headers, body): (StatusCode, HeaderMap, Bytes),
) -> Answer {
    let reply = Reply::of(&body);
    exchange.count_tokens(Side::Edge, &reply);
    let signal = exchange.signal(&reply, completion.request.max_tokens);
    let (decision, route) = exchange.decide_one(signal, completion.is_pinned);
    let mut outcome = Outcome::Edge(decision);
    let mut cloud_answer = None;
    if decision == Decision::Hard {
        let call = exchange.completion_at_cloud(completion, false);
        let answer = exchange.ask_cloud(&call, is_answer).await;
        let agreed = answer.as_deref().map(|cloud| {
            let labels = &exchange.service.config.hard_example.labels;
            text(cloud).and_then(|cloud| same_text(reply.text(), &cloud, labels))
        });
        exchange.record_upload(signal, agreed.map_err(|reason| *reason));
        outcome = if answer.is_ok() { Outcome::Cloud(decision) } else { Outcome::Fallback };
        cloud_answer = answer.ok();
    } else if decision == Decision::Easy {
        let call = || exchange.completion_at_cloud(completion, false);
        exchange.shadow_text(call, signal, route, reply.text());
    }
    if outcome.is_unanswered() && exchange.service.config.on_cloud_failure == OnCloudFailure::Error
    {
        return exchange.cloud_failed();
    }
    exchange.count(&[outcome]);
    let mut answer = match cloud_answer {
        Some(cloud) => {
            exchange.count_tokens(Side::Cloud, &Reply::of(&cloud));
            answer_with(status, headers, cloud)
        }
        None => {
            let stripped = if is_extended { without_logprobs(&body) } else { None };
            answer_with(status, headers, stripped.map_or(body, Bytes::from))
        }
    };
    Verdict::of(&[outcome], Some(&[signal])).describe(&mut answer);
    answer
}

impl Exchange {
    fn token_signal(&self) -> Option<&TokenSignal> {
        match &self.service.rule {
            Rule::Tokens(signal) => Some(signal),
            _ => None,
        }
    }

    /// The body for the edge, with log-probabilities if its server gives them.
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

    /// The body for the edge as the client sent it, but for the suffix that pins it.
    pub(super) fn plain_body(&self, completion: &Completion<'_>) -> Bytes {
        let model = completion.request.model.as_deref().and_then(unpinned);
        let body = completion.request.edge_body(model, None, Probed::None);
        body.map_or_else(|| completion.body.clone(), Bytes::from)
    }

    /// The request to the cloud.
    pub(super) fn completion_at_cloud(
        &self,
        completion: &Completion<'_>,
        is_stream: bool,
    ) -> CloudRequest {
        let model = self.service.cloud.as_ref().and_then(|cloud| cloud.model_name());
        let body = completion.request.cloud_body(model, is_stream);
        let path = completion.head.uri.path().to_owned();
        self.cloud_request(completion.head, path, body.into())
    }

    /// The confidence of an answer.
    pub(super) fn signal(&self, reply: &Reply, max_tokens: Option<u32>) -> Signal {
        let signal = match &self.service.rule {
            Rule::Tokens(signal) => reply.signal(signal, max_tokens),
            Rule::Random => Ok(clock::random()),
            Rule::Constant => Ok(0.0),
            Rule::Classes(..) | Rule::Boxes(_) => Err(Unjudged::Missing),
        };
        if let Ok(confidence) = signal {
            self.gateway.metrics.judged(confidence);
        }
        signal
    }

    pub(super) fn decide_one(&self, signal: Signal, is_pinned: bool) -> (Decision, Route) {
        let mut decisions = self.gateway.decisions();
        let route = decisions.route(is_pinned, clock::now());
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

    /// Queues an easy answer for comparison, if there is room.
    pub(super) fn shadow_text(
        &self,
        request: impl FnOnce() -> CloudRequest,
        signal: Signal,
        route: Route,
        text: &str,
    ) {
        let Ok(place) = self.gateway.shadows.try_reserve() else { return };
        let chosen = self.gateway.decisions().take_shadows(&[Decision::Easy], route, clock::random);
        if chosen == [true] {
            place.send(Shadow {
                service: std::sync::Arc::clone(&self.service),
                request: request(),
                signals: vec![signal],
                edge: EdgeAnswer::Text(text.to_owned()),
            });
        }
    }

    /// The answer to a hard sample with `onCloudFailure: Error`.
    pub(super) fn cloud_failed(&self) -> Answer {
        let text = "the cloud did not answer hard samples, and onCloudFailure is Error";
        self.error(StatusCode::BAD_GATEWAY, text)
    }

    async fn pass_whole(&mut self, head: &Parts, path: &str, body: Bytes) -> Answer {
        match self.ask_edge(head, path, body).await {
            Ok((status, headers, body)) => self.unread(status, headers, body),
            Err(reason) => {
                let address = self.service.edge.address();
                let text = format!("the model server at {address} does not answer ({reason})");
                self.error(StatusCode::SERVICE_UNAVAILABLE, &text)
            }
        }
    }
}
