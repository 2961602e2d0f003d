//! Why the cloud did not answer, and what that means for the breaker and a retry.

use std::{fmt::Display, time::Duration};

use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue, RETRY_AFTER},
};
use neptune_cascade::breaker::Failure;
use tonic::Status;

use super::excerpt::line;

/// How a gateway answered the samples of a request.
pub const DECISION: HeaderName = HeaderName::from_static("x-neptune-decision");
/// The value of [`DECISION`] with the status 504: the client's deadline passed.
pub const DEADLINE: HeaderValue = HeaderValue::from_static("deadline");
/// The value of [`DECISION`] with the status 502: the model server works, and its answer to this
/// request is too large to pass on.
pub const TOO_LARGE: HeaderValue = HeaderValue::from_static("too-large");

/// Why the cloud did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// The cloud does not work.
    #[error("{reason}")]
    Failed {
        /// What the breaker learns from the failure.
        failure: Failure,
        /// Whether no byte of an answer came, or one that invites another attempt.
        is_repeatable: bool,
        /// What happened, for messages.
        reason: String,
    },
    /// The deadline of the request passed. Whether that is a failure depends on who set it.
    #[error("{reason}")]
    OutOfTime {
        /// What was not there in time.
        reason: String,
    },
    /// The cloud answers in another form than that of the protocol.
    #[error("the answer is not one of the protocol: {received}")]
    Invalid {
        /// What came instead, without its content.
        received: String,
    },
    /// The answers in memory have as many bytes as the gateway permits. That is no failure of the
    /// cloud.
    #[error("the gateway has no room for the answer")]
    NoRoom,
    /// The cloud works, and refuses this request.
    #[error("{reason}")]
    Refused {
        /// Status code of HTTP. For gRPC, the one with the same meaning.
        status: StatusCode,
        /// The status and the text of the cloud.
        reason: String,
    },
}

/// A status, and the text of the server if it gave one.
pub fn reason(status: impl Display, text: &str) -> String {
    if text.is_empty() { status.to_string() } else { format!("{status}: {text}") }
}

/// The reason of a status of gRPC. `token` is what the request was authorized with.
pub fn grpc_reason(status: &Status, token: Option<&str>) -> String {
    reason(format_args!("gRPC {:?}", status.code()), &line(status.message(), token))
}

/// What a status other than success means. `text` is that of the cloud.
pub fn classified(status: StatusCode, pause: Option<Duration>, text: &str) -> CloudError {
    let reason = reason(status, text);
    let (failure, is_repeatable) = match (status.as_u16(), pause) {
        (401 | 403, _) => (Failure::TokenRefused, false),
        (429 | 503, Some(pause)) => (Failure::RetryAfter(pause), false),
        (502..=504, None) => (Failure::NoAnswer, true),
        (408 | 429 | 300..=399 | 500.., _) => (Failure::NoAnswer, false),
        _ => return CloudError::Refused { status, reason },
    };
    CloudError::Failed { failure, is_repeatable, reason }
}

/// Reads a pause in seconds. A date is not supported, and counts as none.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A failure that opens the breaker after a few.
pub const fn failed(is_repeatable: bool, reason: String) -> CloudError {
    CloudError::Failed { failure: Failure::NoAnswer, is_repeatable, reason }
}

/// What a status other than success means, with its headers. A gateway in the cloud's place
/// reports what is no failure: the deadline that it got passed, or an answer is too large.
pub fn classified_with(status: StatusCode, headers: &HeaderMap, text: &str) -> CloudError {
    match (status, headers.get(DECISION)) {
        (StatusCode::GATEWAY_TIMEOUT, Some(decision)) if decision == DEADLINE => {
            CloudError::OutOfTime { reason: format!("{status}: {text}") }
        }
        (StatusCode::BAD_GATEWAY, Some(decision)) if decision == TOO_LARGE => {
            CloudError::Refused { status, reason: reason(status, text) }
        }
        _ => classified(status, retry_after(headers), text),
    }
}

/// Returns the error of a request whose deadline passed.
pub fn out_of_time(reason: &str) -> CloudError {
    CloudError::OutOfTime { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_decides_about_pause_and_retry() {
        let second = Some(Duration::from_secs(7));
        for (status, pause, failure, is_repeatable) in [
            (401, None, Some(Failure::TokenRefused), false),
            (403, second, Some(Failure::TokenRefused), false),
            (429, second, Some(Failure::RetryAfter(Duration::from_secs(7))), false),
            (503, second, Some(Failure::RetryAfter(Duration::from_secs(7))), false),
            (503, None, Some(Failure::NoAnswer), true),
            (500, None, Some(Failure::NoAnswer), false),
            (302, None, Some(Failure::NoAnswer), false),
            (400, None, None, false),
            (404, None, None, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            let actual = match classified(status, pause, "") {
                CloudError::Failed { failure, is_repeatable, .. } => (Some(failure), is_repeatable),
                other => {
                    assert!(matches!(other, CloudError::Refused { .. }), "{other:?}");
                    (None, false)
                }
            };
            assert_eq!(actual, (failure, is_repeatable), "{status}");
        }
    }

    #[test]
    fn only_a_gateway_reports_what_is_no_failure() {
        let mut headers = HeaderMap::new();
        let of_504 =
            |headers: &HeaderMap| classified_with(StatusCode::GATEWAY_TIMEOUT, headers, "late");
        assert!(matches!(of_504(&headers), CloudError::Failed { failure: Failure::NoAnswer, .. }));
        headers.insert(DECISION, DEADLINE);
        assert_eq!(of_504(&headers), out_of_time("504 Gateway Timeout: late"));
        let of_502 = |headers: &HeaderMap| classified_with(StatusCode::BAD_GATEWAY, headers, "");
        assert!(matches!(of_502(&headers), CloudError::Failed { .. }));
        headers.insert(DECISION, TOO_LARGE);
        assert!(matches!(of_502(&headers), CloudError::Refused { .. }));
        assert!(matches!(of_504(&headers), CloudError::Failed { .. }));
    }
}
