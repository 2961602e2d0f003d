//! Responses with JSON, and with problems.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use neptune_wire::aggregator::AggregatorProblem;
use serde::Serialize;
use tracing::warn;

use crate::{
    error::Error,
    run::{Problem, Rejection},
};

/// A response with a value.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    with_type(status, "application/json", value)
}

/// A response with a problem (RFC 9457).
pub fn problem(status: StatusCode, reason: &str, detail: impl Into<String>) -> Response<Body> {
    let problem = AggregatorProblem { reason: reason.to_owned(), detail: detail.into() };
    with_type(status, "application/problem+json", &problem)
}

fn with_type(
    status: StatusCode,
    media_type: &'static str,
    value: &impl Serialize,
) -> Response<Body> {
    let body = serde_json::to_vec(value).expect("wire values have text keys");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Asks the client of a response to try again.
pub fn retry_later(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

/// A response without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Answers 403 `NodeNotTrusted` to a peer that is no known node, or not that of the task.
pub fn not_trusted() -> Response<Body> {
    let text = "the key of this node is not the one that the controller named for this task; \
        it is accepted once the controller has sent it";
    problem(StatusCode::FORBIDDEN, "NodeNotTrusted", text)
}

/// Answers 403 `NodeNotTrusted` to a request that only the controller may send.
pub fn not_controller() -> Response<Body> {
    problem(StatusCode::FORBIDDEN, "NodeNotTrusted", "only the controller may send this request")
}

/// Answers 422 to an update that does not count, with the check that it failed.
pub fn refused(refusal: &Problem) -> Response<Body> {
    problem(StatusCode::UNPROCESSABLE_ENTITY, &refusal.reason, &*refusal.message)
}

/// Answers a request that failed, with the status code of its error.
pub fn error(error: &Error) -> Response<Body> {
    let Error::Rejected(rejection) = error else {
        if matches!(error, Error::NoRun) {
            return problem(StatusCode::GONE, "RoundClosed", error.to_string());
        }
        warn!(%error, "a request failed");
        if error.is_disk_full() {
            let text = "the disk of the aggregator is full";
            return problem(StatusCode::INSUFFICIENT_STORAGE, "DiskFull", text);
        }
        let text = "the aggregator cannot access its files; see its log";
        return problem(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", text);
    };
    let (status, reason) = match rejection {
        Rejection::Invalid(_) => (StatusCode::BAD_REQUEST, "InvalidRequest"),
        Rejection::OtherTrainingModel(_) => (StatusCode::CONFLICT, "OtherTrainingModel"),
        Rejection::RunEnded { .. } => (StatusCode::CONFLICT, "RunEnded"),
        Rejection::RunChanged => (StatusCode::CONFLICT, "RunChanged"),
        Rejection::RoundClosed => (StatusCode::GONE, "RoundClosed"),
        Rejection::ReportMissing => (StatusCode::CONFLICT, "ReportMissing"),
        Rejection::OtherUpdateAccepted(_) => (StatusCode::CONFLICT, "OtherUpdateAccepted"),
    };
    problem(status, reason, rejection.to_string())
}
