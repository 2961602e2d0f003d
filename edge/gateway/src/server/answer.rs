//! Answers that the gateway gives by itself.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde_json::{Value, json};

use super::body::{AnyBody, boxed};
use crate::config::Protocol;

/// An answer to a client, whole or streamed.
pub type Answer = Response<AnyBody>;

/// A body that is there as a whole.
pub fn whole(body: impl Into<Bytes>) -> AnyBody {
    boxed(Full::new(body.into()))
}

/// Returns an answer with JSON.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(whole(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The answer to a connection without a place, which ends with it.
pub fn busy_connection() -> Answer {
    let text = r#"{"error":"the gateway has as many connections as it can serve; try again"}"#;
    let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, text);
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// An error, in the form of the protocol.
pub fn error(protocol: Protocol, status: StatusCode, message: &str) -> Answer {
    let body = match protocol {
        Protocol::Openai => json!({"error": {
            "message": message,
            "type": if status.is_client_error() { "invalid_request_error" } else { "server_error" },
            "param": null,
            "code": code(status),
        }}),
        Protocol::Oip | Protocol::Tfserving => json!({"error": message}),
    };
    json(status, body.to_string())
}

/// The code of an error of the `OpenAI` API: the name that clients know, or the status.
fn code(status: StatusCode) -> Value {
    match status {
        StatusCode::UNAUTHORIZED => "invalid_api_key".into(),
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded".into(),
        status => status.as_u16().into(),
    }
}
