//! What a gateway notices of the chain that it is part of.

use std::time::{Duration, Instant};

/// A loop is reported for this time after the last request of it.
const REPORTED: Duration = Duration::from_secs(60);

/// The chain, as the last requests showed it.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Whether the next gateway does not call its own cloud.
    pub(super) is_upper_away: bool,
    refused: Option<(String, Instant)>,
}

impl Chain {
    /// A request came back, or passed too many gateways.
    pub(super) fn refused(&mut self, why: String, now: Instant) {
        self.refused = Some((why, now));
    }

    /// Why a request of the last minute was refused.
    pub(super) fn refusal(&self, now: Instant) -> Option<&str> {
        let (why, last) = self.refused.as_ref()?;
        (now.saturating_duration_since(*last) < REPORTED).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_is_reported_for_a_minute() {
        let start = crate::clock::now();
        let mut chain = Chain::default();
        assert_eq!(chain.refusal(start), None);
        chain.refused("why".to_owned(), start);
        assert_eq!(chain.refusal(start + REPORTED / 2), Some("why"));
        assert_eq!(chain.refusal(start + REPORTED), None);
    }
}
