//! Why the cloud did not answer, and what that means for the breaker and a retry.

use std::{error::Error as StdError, time::Duration};

use hyper::{HeaderMap, StatusCode, header::RETRY_AFTER};
use neptune_cascade::breaker::Failure;

/// Why the cloud did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// It does not work.
    #[error("{reason}")]
    Failed {
        /// For the breaker.
        failure: Failure,
        /// No byte of an answer came, or one that invites another attempt.
        is_repeatable: bool,
        /// What happened.
        reason: String,
    },
    /// It answers in another form than that of the protocol.
    #[error("the answer is not one of the protocol: {received}")]
    Invalid {
        /// What came instead. Nothing of its content.
        received: String,
    },
    /// It works, and refuses this request.
    #[error("{reason}")]
    Refused {
        /// Its status; of gRPC, the one of HTTP with the same meaning.
        status: StatusCode,
        /// Its status and its text.
        reason: String,
    },
}

/// What a status other than success means. `text` is that of the cloud.
pub fn classified(status: StatusCode, pause: Option<Duration>, text: &str) -> CloudError {
    let reason = if text.is_empty() { status.to_string() } else { format!("{status}: {text}") };
    let (failure, is_repeatable) = match (status.as_u16(), pause) {
        (401 | 403, _) => (Failure::TokenRefused, false),
        (429 | 503, Some(pause)) => (Failure::RetryAfter(pause), false),
        (502..=504, None) => (Failure::NoAnswer, true),
        (408 | 429 | 300..=399 | 500.., _) => (Failure::NoAnswer, false),
        _ => return CloudError::Refused { status, reason },
    };
    CloudError::Failed { failure, is_repeatable, reason }
}

/// In seconds; a date is not supported, and counts as none.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A failure that opens the breaker after a few.
pub const fn failed(is_repeatable: bool, reason: String) -> CloudError {
    CloudError::Failed { failure: Failure::NoAnswer, is_repeatable, reason }
}

/// The reasons of an error, without its URL.
pub fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
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
            let found = match classified(status, pause, "") {
                CloudError::Failed { failure, is_repeatable, .. } => (Some(failure), is_repeatable),
                CloudError::Refused { .. } | CloudError::Invalid { .. } => (None, false),
            };
            assert_eq!(found, (failure, is_repeatable), "{status}");
        }
    }
}
