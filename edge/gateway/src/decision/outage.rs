//! The time in which the cloud does not answer: its cause, and what it cost. Pure.

use std::time::{Duration, Instant};

/// Bytes of the cause, which is a part of a condition.
const MAX_CAUSE: usize = 200;

/// An outage of the cloud that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outage {
    since: Instant,
    /// The samples without an answer of the cloud, when it began.
    fallbacks: u64,
}

/// An outage of the cloud that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedOutage {
    /// Time from the failure that opened the breaker until the next answer.
    pub lasted: Duration,
    /// Hard samples that the cloud did not answer.
    pub samples: u64,
}

/// What is known of the answers of the cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outages {
    now: Option<Outage>,
    cause: Option<String>,
    has_answered: bool,
}

impl Outages {
    /// Another cloud, or another token, of which nothing is known. An outage continues until the next
    /// answer.
    pub fn reset(&mut self) {
        (self.has_answered, self.cause) = (false, None);
    }

    /// The cloud works, but refused a request: the next answer ends the outage.
    pub fn refused(&mut self) {
        (self.has_answered, self.cause) = (true, None);
    }

    /// Records the cause of a failed call.
    pub fn failed(&mut self, cause: &str) {
        self.cause = Some(cause[..cause.floor_char_boundary(MAX_CAUSE)].to_owned());
    }

    /// The cloud is left alone from now on. `fallbacks`: all samples without an answer so far.
    pub fn begin(&mut self, fallbacks: u64, now: Instant) {
        self.now.get_or_insert(Outage { since: now, fallbacks });
    }

    /// The cloud answered. The outage that this ends, if there was one.
    pub fn answered(&mut self, fallbacks: u64, now: Instant) -> Option<EndedOutage> {
        (self.has_answered, self.cause) = (true, None);
        self.now.take().map(|it| EndedOutage {
            lasted: now.saturating_duration_since(it.since),
            samples: fallbacks.saturating_sub(it.fallbacks),
        })
    }

    /// The cause of the last failure, until the cloud answers.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// Whether a call had a result.
    pub const fn is_known(&self) -> bool {
        self.has_answered || self.cause.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any begin of time")]
    fn outage_ends_once_with_its_duration_and_samples() {
        let (mut outages, began) = (Outages::default(), Instant::now());
        assert!(!outages.is_known());
        assert_eq!(outages.answered(7, began), None);
        assert!(outages.is_known());
        outages.failed("reset");
        outages.begin(10, began);
        let later = began + Duration::from_secs(30);
        outages.begin(20, later);
        outages.failed(&"ä".repeat(200));
        assert_eq!(outages.cause().map(str::len), Some(200));
        let end = began + Duration::from_secs(90);
        let ended = EndedOutage { lasted: Duration::from_secs(90), samples: 15 };
        assert_eq!(outages.answered(25, end), Some(ended));
        assert_eq!((outages.answered(26, end), outages.cause()), (None, None));
        outages.begin(26, end);
        outages.reset();
        assert!(!outages.is_known());
        let ended = EndedOutage { lasted: Duration::ZERO, samples: 1 };
        assert_eq!(outages.answered(27, end), Some(ended), "a new address ends an outage");
    }
}
