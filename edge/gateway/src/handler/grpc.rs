//! Requests of gRPC: `ModelInfer` is decided as over REST, every other method passes to the edge.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, Request, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderName},
    http::request::Parts,
};
use tonic::{Code, Status};

use super::{Exchange, client_timeout, pass::pass, tensors};
use crate::{
    clock,
    protocol::{
        Malformed, Payload,
        grpc::{
            MODEL_INFER, Target, is_health, is_inference, is_shared_memory, is_unary, message,
            method, renamed,
        },
        path::unpinned,
    },
    server::{Answer, Paced, boxed, collect, status_of},
};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Answers one request over gRPC.
pub async fn route(exchange: &mut Exchange, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if exchange.service.edge_grpc.is_none() {
        let text = "edge.grpcAddress is not configured any more; restart the gateway";
        return exchange.error(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    // Not gRPC-Web, which has other frames.
    let is_grpc = |kind: &[u8]| {
        let rest = kind.strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| rest.first().is_none_or(|next| b"+;".contains(next)))
    };
    if !head.headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes())) {
        let text = "this address is of gRPC, and the content type is not application/grpc";
        return exchange.error(StatusCode::BAD_REQUEST, text);
    }
    if is_shared_memory(path) {
        let text = format!("{}: shared memory of Triton is not supported", method(path));
        return exchange.error(StatusCode::NOT_IMPLEMENTED, &text);
    }
    if !is_unary(path) {
        // A stream may pause and last. Its memory is bounded by the flow control of HTTP/2.
        let (limit, is_sample) =
            (client_timeout(&head).unwrap_or(Duration::MAX), is_inference(path));
        if !is_health(path)
            && let Some(refused) = exchange.refuse_model(None)
        {
            return refused;
        }
        if let Some(answer) = exchange.take_place() {
            return answer;
        }
        return pass(exchange, head, boxed(body), limit, is_sample).await;
    }
    let limits = exchange.service.config.limits;
    let pause = exchange.service.config.timeouts.client;
    let body = match Paced::new(body, limits.max_body_bytes, pause) {
        Ok(body) => body.with_min_speed(),
        Err(problem) => return exchange.body_error(&problem),
    };
    let is_readable = head.headers.get(ENCODING).is_none_or(|encoding| encoding == "identity");
    if path != MODEL_INFER || !is_readable {
        let (limit, is_sample) = (exchange.edge_limit(&head), is_inference(path));
        if is_sample && let Some(refused) = exchange.refuse_model(None) {
            return refused;
        }
        if let Some(answer) = exchange.take_place() {
            return answer;
        }
        return pass(exchange, head, boxed(body), limit, is_sample).await;
    }
    let body = match collect(body.holding(exchange.held.clone())).await {
        Ok(body) => body,
        Err(problem) => return exchange.body_error(&problem),
    };
    if let Some(answer) = exchange.take_place() {
        return answer;
    }
    // The time to receive the request is the client's.
    exchange.started = clock::now();
    match message(body) {
        Ok(message) => infer(exchange, &head, message).await,
        Err(problem) => exchange.error(StatusCode::BAD_REQUEST, &problem.to_string()),
    }
}

async fn infer(exchange: &mut Exchange, head: &Parts, message: Bytes) -> Answer {
    let (target, payload) = match read(message) {
        Ok(read) => read,
        Err(problem) => return exchange.error(StatusCode::BAD_REQUEST, &problem.to_string()),
    };
    let pinned = unpinned(&target.model_name);
    let path = head.uri.path();
    if let Some(refused) = exchange.refuse_model(Some(pinned.unwrap_or(&target.model_name))) {
        return refused;
    }
    if !exchange.service.decides(pinned.unwrap_or(&target.model_name)) {
        exchange.note_other_model(pinned.unwrap_or(&target.model_name));
        return exchange.pass_whole(head, path, payload.body).await;
    }
    exchange.note_decided();
    let request = tensors::Tensors {
        edge_path: path.to_owned(),
        cloud_path: path.to_owned(),
        model: pinned.unwrap_or(&target.model_name),
        is_pinned: pinned.is_some() || exchange.is_pinned(head),
        is_versioned: !target.model_version.is_empty(),
        head,
    };
    tensors::answer(exchange, &request, payload).await
}

/// Returns the model of a request, and its message for the edge without the suffix of the model's
/// name that is the route pin.
fn read(message: Bytes) -> Result<(Target, Payload), Malformed> {
    let target = Target::from_message(&message)?;
    let payload = Payload::from(message);
    let payload = match unpinned(&target.model_name) {
        Some(model) => renamed(&payload, model, true)?,
        None => payload,
    };
    Ok((target, payload))
}

/// The edge's answer: its message and the metadata after it, or a status alone, which is then
/// among the headers. The reason, if it does not work.
pub fn edge_answer(
    status: StatusCode,
    mut headers: HeaderMap,
    body: Bytes,
    mut trailers: HeaderMap,
) -> Result<(StatusCode, HeaderMap, Bytes, HeaderMap), String> {
    if status != StatusCode::OK {
        return Err(format!("it answers {status} instead of gRPC"));
    }
    if headers.contains_key(STATUS) {
        trailers.extend(std::mem::take(&mut headers));
    }
    let Some(grpc_status) = Status::from_header_map(&trailers) else {
        return Err("its answer has no grpc-status".to_owned());
    };
    match grpc_status.code() {
        Code::Ok => match message(body) {
            Ok(message) => Ok((status, headers, message, trailers)),
            Err(problem) => Err(problem.to_string()),
        },
        Code::Unavailable => Err(format!("UNAVAILABLE: {}", grpc_status.message())),
        code => {
            headers.extend(trailers);
            Ok((status_of(code), headers, Bytes::new(), HeaderMap::new()))
        }
    }
}
