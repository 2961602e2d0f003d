//! Whether the API server answers, as all watches and requests together see it: one log line at the
//! start of an outage and one at its end.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use kube::runtime::watcher;
use parking_lot::Mutex;

/// The time after the end of an outage in which requests that failed during it still report their
/// errors.
const TAIL: Duration = Duration::from_secs(6);

/// What the requests to the API server report of it.
#[derive(Debug, Default)]
pub struct ApiServer(Mutex<Availability>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Availability {
    #[default]
    Unknown,
    Unavailable {
        since: Instant,
    },
    Available {
        since: Instant,
    },
}

/// The change of the outage that has to be logged.
#[derive(Debug, PartialEq, Eq)]
enum Transition {
    Begin,
    End(Duration),
    None,
}

/// An error of a request, as far as it matters here.
pub trait ApiError: std::fmt::Display {
    /// Whether the API server was unreachable or could not answer, unlike an answer that refuses
    /// the request.
    fn is_outage(&self) -> bool;
}

impl ApiError for kube::Error {
    fn is_outage(&self) -> bool {
        match self {
            Self::Api(status) => status.code >= 500,
            Self::HyperError(_) | Self::Service(_) | Self::ReadEvents(_) => true,
            other => other.source().is_some_and(<dyn Error>::is::<std::io::Error>),
        }
    }
}

impl ApiError for watcher::Error {
    fn is_outage(&self) -> bool {
        match self {
            Self::InitialListFailed(error)
            | Self::WatchStartFailed(error)
            | Self::WatchFailed(error) => error.is_outage(),
            Self::WatchError(status) => status.code >= 500,
            Self::NoResourceVersion => false,
        }
    }
}

impl ApiError for tokio::time::error::Elapsed {
    fn is_outage(&self) -> bool {
        true
    }
}

impl ApiServer {
    /// A request failed. Returns whether that is an outage, which is logged here; any other error
    /// is left to the caller.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn failed(&self, request: &str, error: &impl ApiError) -> bool {
        if !error.is_outage() {
            return false;
        }
        if self.0.lock().on_failure(Instant::now()) == Transition::Begin {
            tracing::warn!(
                request,
                %error,
                "API server is not available; workers keep running, and all requests are retried until it answers"
            );
        } else {
            tracing::debug!(request, %error, "API server is not available");
        }
        true
    }

    /// Records that the API server answered, and logs the end of an outage.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn answered(&self) {
        if let Transition::End(outage) = self.0.lock().on_answer(Instant::now()) {
            tracing::info!(seconds = outage.as_secs(), "API server answers again");
        }
    }
}

impl Availability {
    fn on_failure(&mut self, now: Instant) -> Transition {
        match *self {
            Self::Unavailable { .. } => Transition::None,
            Self::Available { since } if now < since + TAIL => Transition::None,
            Self::Unknown | Self::Available { .. } => {
                *self = Self::Unavailable { since: now };
                Transition::Begin
            }
        }
    }

    fn on_answer(&mut self, now: Instant) -> Transition {
        match *self {
            Self::Unknown | Self::Available { .. } => Transition::None,
            Self::Unavailable { since } => {
                *self = Self::Available { since: now };
                Transition::End(now.saturating_duration_since(since))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn outage_has_one_line_at_its_start_and_one_at_its_end() {
        let (mut api, start) = (Availability::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(api.on_answer(at(0)), Transition::None);
        assert_eq!(api.on_failure(at(1)), Transition::Begin);
        for second in 2..30 {
            assert_eq!(api.on_failure(at(second)), Transition::None);
        }
        assert_eq!(api.on_answer(at(31)), Transition::End(Duration::from_secs(30)));
        assert_eq!(api.on_failure(at(32)), Transition::None, "a request of the outage");
        assert_eq!(api.on_answer(at(33)), Transition::None);
        assert_eq!(api.on_failure(at(60)), Transition::Begin, "another outage");
    }

    #[test]
    fn refused_request_is_no_outage() {
        let status = |code| kube::core::Status::failure("no", "Reason").with_code(code).boxed();
        for (code, is_outage) in
            [(403, false), (404, false), (409, false), (500, true), (503, true)]
        {
            assert_eq!(kube::Error::Api(status(code)).is_outage(), is_outage, "{code}");
        }
    }
}
