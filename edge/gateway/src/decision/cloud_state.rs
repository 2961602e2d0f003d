//! What the breaker knows of the cloud, in words.

use std::{
    fmt,
    time::{Duration, Instant},
};

use neptune_cascade::breaker::{Breaker, Refusal};

/// What is known of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudState {
    /// No cloud is configured.
    Absent,
    /// Calls are permitted, and none had a result yet.
    Unknown,
    /// Calls are permitted, and the cloud answered one before.
    Reachable,
    /// Calls are permitted, and the last ones were refused.
    RequestsRefused,
    /// No calls are made for this time, after so many failures in a row.
    LeftAlone {
        /// The rest of the pause until the next call.
        pause: Duration,
        /// Number of failures in a row.
        failures: u32,
    },
    /// One call is in flight, and its result decides.
    CallPending,
    /// The cloud refuses the token. It is called again after minutes.
    TokenRefused,
}

impl CloudState {
    pub(super) fn from_breaker(
        breaker: &Breaker,
        has_cloud: bool,
        is_known: bool,
        is_refused: bool,
        now: Instant,
    ) -> Self {
        if !has_cloud {
            return Self::Absent;
        }
        if breaker.is_token_refused() {
            return Self::TokenRefused;
        }
        match breaker.refusal(now) {
            None if is_refused => Self::RequestsRefused,
            None if !is_known => Self::Unknown,
            None => Self::Reachable,
            Some(Refusal::Paused(until)) => Self::LeftAlone {
                pause: until.saturating_duration_since(now),
                failures: breaker.failures(),
            },
            Some(Refusal::CallPending) => Self::CallPending,
        }
    }
}

impl CloudState {
    /// Whether it is configured, and not called now.
    pub const fn is_away(self) -> bool {
        matches!(self, Self::LeftAlone { .. } | Self::CallPending | Self::TokenRefused)
    }

    /// The name in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "Absent",
            Self::Unknown => "Unknown",
            Self::Reachable => "Reachable",
            Self::RequestsRefused => "RequestsRefused",
            Self::LeftAlone { .. } | Self::CallPending => "LeftAlone",
            Self::TokenRefused => "TokenRefused",
        }
    }
}

impl fmt::Display for CloudState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no cloud is configured"),
            Self::Unknown => f.write_str("the cloud was not called yet"),
            Self::Reachable => f.write_str("the cloud is called"),
            Self::RequestsRefused => f.write_str("the cloud refuses every request"),
            Self::LeftAlone { pause, failures } => {
                let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
                let plural = if *failures == 1 { "" } else { "s" };
                write!(
                    f,
                    "the cloud is left alone for another {seconds} s after {failures} failure{plural}"
                )
            }
            Self::CallPending => f.write_str("the cloud is being tried by another request"),
            Self::TokenRefused => f.write_str("the cloud refuses the token"),
        }
    }
}
