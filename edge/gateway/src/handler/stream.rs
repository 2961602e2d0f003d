//! Streamed completions: asks the edge for its stream, and answers with the head as soon as it is
//! decided who answers, at the latest when the first comment is due.

mod director;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Incoming,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
};
use tokio::{sync::oneshot, time::timeout};

use self::director::{Director, relay_cloud};
use super::{
    Exchange, cloud_stream::ask_stream, completion::Completion, edge::NO_ROOM, edge_down::Fault,
};
use crate::{
    clock,
    config::{Rule, Streaming},
    decision::Outcome,
    metrics::Side,
    protocol::{completion::Request, frames::Frames},
    server::{Answer, BodyError, Paced, boxed, collect, error, stream_body},
    upstream::{DECISION, Upper, forwarded},
};

/// The tokens on which `Prefix` decides.
const PREFIX: usize = 16;
/// The longest answer for which `Auto` is `Buffer`.
const AUTO_BUFFER: u32 = 256;
/// Interval between two comments while the edge's stream is kept back, and the longest wait for the
/// head of the answer.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Answers a streamed completion.
pub async fn answer(exchange: &mut Exchange, completion: &Completion<'_>) -> Answer {
    let is_pinned =
        completion.is_pinned || exchange.service.config.streaming == Streaming::EdgeOnly;
    let body = exchange.edge_body(completion);
    let mut is_extended = body.is_extended;
    let asked = clock::now();
    let mut answered =
        exchange.open_edge(completion.head, &completion.path, body.body.clone().into()).await;
    if is_extended && answered.as_ref().is_ok_and(|a| a.status() == StatusCode::BAD_REQUEST) {
        // The server may refuse log-probabilities with other options of this request.
        is_extended = false;
        let plain = completion.plain_body();
        answered = exchange.open_edge(completion.head, &completion.path, plain.into()).await;
    }
    let time = clock::now().saturating_duration_since(asked);
    exchange.waited += time;
    exchange.gateway.metrics.upstream(Side::Edge, time);
    match answered {
        Ok(answer) if is_event_stream(&answer) => {
            exchange.note_edge(answer.status(), answer.headers(), &Bytes::new());
            begin(exchange, completion, is_extended, is_pinned, answer).await
        }
        Ok(answer) => match whole_answer(exchange, answer).await {
            Ok(answer) => answer,
            Err(error) => cloud_instead(exchange, completion, is_pinned, Fault::Error(error)).await,
        },
        Err(reason) => cloud_instead(exchange, completion, is_pinned, Fault::Down(reason)).await,
    }
}

/// Starts a director, and waits for its verdict.
async fn begin(
    exchange: &Exchange,
    completion: &Completion<'_>,
    is_extended: bool,
    is_pinned: bool,
    edge: Response<Incoming>,
) -> Answer {
    let (parts, edge) = edge.into_parts();
    let config = &exchange.service.config;
    let (out, body) = stream_body();
    let (head, verdict) = oneshot::channel();
    let director = Director {
        frames: Frames::new(config.limits.max_body_bytes, is_extended),
        prefix: prefix(exchange, completion.request, is_extended, is_pinned),
        is_pinned,
        client_deadline: exchange.client_deadline(completion.head),
        cloud: exchange.completion_at_cloud(completion, true),
        comparison: exchange.completion_at_cloud(completion, false),
        head: Some(head),
        out,
        exchange: Exchange {
            gateway: Arc::clone(&exchange.gateway),
            service: Arc::clone(&exchange.service),
            client: exchange.client,
            started: exchange.started,
            waited: exchange.waited,
            wire: exchange.wire,
            trailers: HeaderMap::new(),
            unread_as: exchange.unread_as,
            hops: exchange.hops.clone(),
            upper: Upper::default(),
            // The answer's body keeps the place.
            place: None,
            held: exchange.held.clone(),
            answers: exchange.answers.clone(),
        },
    };
    tokio::spawn(director.run(edge));
    let mut answer = Response::new(boxed(body));
    *answer.headers_mut() = forwarded(&parts.headers);
    answer.headers_mut().remove(CONTENT_LENGTH);
    match timeout(HEARTBEAT, verdict).await {
        Ok(Ok(Ok(verdict))) => verdict.describe(&mut answer),
        Ok(Ok(Err(refusal))) => return exchange.refused(&refusal),
        Ok(Err(_)) => {
            let text = "the model server's stream ended before an answer";
            return error(exchange.service.protocol(), StatusCode::BAD_GATEWAY, text);
        }
        Err(_) => {
            answer.headers_mut().insert(DECISION, HeaderValue::from_static("pending"));
        }
    }
    answer
}

/// Returns the number of tokens on which to decide; `None` for the whole answer. A stream whose
/// tokens have no log-probabilities is decided at once.
fn prefix(
    exchange: &Exchange,
    request: &Request<'_>,
    is_extended: bool,
    is_pinned: bool,
) -> Option<usize> {
    let has_logprobs = is_extended || request.asks_for_logprobs();
    if is_pinned || !has_logprobs || !matches!(exchange.service.rule, Rule::Tokens(_)) {
        return Some(0);
    }
    let is_short = request.max_tokens.is_some_and(|limit| limit <= AUTO_BUFFER);
    match exchange.service.config.streaming {
        Streaming::Buffer => None,
        Streaming::Auto if is_short => None,
        _ => Some(PREFIX),
    }
}

/// A server that does not stream answers as a whole, also with an error.
///
/// # Errors
/// The answer is an error for which the cloud may answer.
async fn whole_answer(
    exchange: &mut Exchange,
    answer: Response<Incoming>,
) -> Result<Answer, Box<Answer>> {
    let (parts, body) = answer.into_parts();
    let config = &exchange.service.config;
    let body = match Paced::new(body, config.limits.max_body_bytes, config.edge_timeout()) {
        Ok(body) => collect(body.holding(exchange.answers.clone())).await,
        Err(problem) => Err(problem),
    };
    Ok(match body {
        Ok(body) => {
            let (status, headers) = (parts.status, forwarded(&parts.headers));
            exchange.note_edge(status, &headers, &body);
            let is_for_cloud = exchange.is_for_cloud(status, &headers, &body);
            let answer = exchange.unread(status, headers, body);
            if is_for_cloud {
                return Err(Box::new(answer));
            }
            answer
        }
        Err(BodyError::NoRoom) => exchange.busy(NO_ROOM),
        Err(BodyError::TooLong(max)) => exchange.edge_too_large(max),
        Err(problem @ BodyError::Stalled(_)) => {
            exchange.edge_failed(None);
            exchange.error(StatusCode::GATEWAY_TIMEOUT, &exchange.edge_text(&problem.to_string()))
        }
        Err(problem) => exchange.error(StatusCode::BAD_GATEWAY, &problem.to_string()),
    })
}

/// The cloud's stream in place of the edge's, if it may answer and does.
async fn cloud_instead(
    exchange: &mut Exchange,
    completion: &Completion<'_>,
    is_pinned: bool,
    fault: Fault,
) -> Answer {
    let fault = match exchange.replace_edge(completion.head, 1, is_pinned, fault) {
        Ok(fault) => fault,
        Err(answer) => return *answer,
    };
    let call = exchange.completion_at_cloud(completion, true);
    let Ok(stream) = ask_stream(&exchange.gateway, &exchange.service, &call).await else {
        return exchange.nobody_answered(fault);
    };
    exchange.upper = stream.upper.clone();
    let outcomes = [Outcome::Cloud(fault.decision())];
    exchange.count(&outcomes);
    let (out, body) = stream_body();
    tokio::spawn(async move {
        // An error means that the client went away.
        let _ = relay_cloud(stream, &out).await;
    });
    let mut answer = Response::new(boxed(body));
    event_stream(answer.headers_mut());
    exchange.verdict(&outcomes, None).describe(&mut answer);
    answer
}

fn is_event_stream(answer: &Response<Incoming>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    answer.status().is_success()
        && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn event_stream(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}
