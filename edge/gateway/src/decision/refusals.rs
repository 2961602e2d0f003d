//! The calls in a row that the cloud refused, and whether that is a problem of the service or of
//! one client. Pure.

use std::time::{Duration, Instant};

/// Refused calls in a row from which on they are a problem.
const IN_A_ROW: u32 = 3;
/// While calls are accepted more often than that, refused ones between them are mistakes of single
/// requests.
const ACCEPTED: Duration = Duration::from_secs(10);

/// How the cloud refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudRefusal {
    /// The address of the cloud for calls of this kind.
    pub url: String,
    /// The status of HTTP, also for gRPC.
    pub status: u16,
    /// The status and the text of the answer.
    pub reason: String,
}

/// Refused calls in a row, and the last one.
#[derive(Debug, Default)]
pub(super) struct CloudRefusals {
    in_a_row: u32,
    last: Option<CloudRefusal>,
    is_problem: bool,
    accepted: Option<Instant>,
}

impl CloudRefusals {
    /// A call was refused. Returns whether this is a problem since now.
    pub(super) fn refused(&mut self, refusal: CloudRefusal, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = Some(refusal);
        let is_quiet = |at| now.saturating_duration_since(at) >= ACCEPTED;
        let was_problem = self.is_problem;
        self.is_problem |= self.in_a_row >= IN_A_ROW && self.accepted.is_none_or(is_quiet);
        self.is_problem && !was_problem
    }

    /// A call was accepted. Returns whether this ends a problem.
    pub(super) fn accepted(&mut self, now: Instant) -> bool {
        let was_problem = self.is_problem;
        *self = Self { accepted: Some(now), ..Self::default() };
        was_problem
    }

    /// The last refusal, if refused calls are a problem.
    pub(super) const fn problem(&self) -> Option<&CloudRefusal> {
        if self.is_problem { self.last.as_ref() } else { None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refusal(status: u16) -> CloudRefusal {
        CloudRefusal { url: "http://c".to_owned(), status, reason: status.to_string() }
    }

    #[test]
    fn three_refused_calls_are_a_problem_until_one_is_accepted() {
        let (mut refusals, now) = (CloudRefusals::default(), crate::clock::now());
        assert!(!refusals.refused(refusal(400), now) && !refusals.refused(refusal(404), now));
        assert_eq!(refusals.problem(), None);
        assert!(refusals.refused(refusal(422), now), "it begins");
        assert!(!refusals.refused(refusal(404), now), "it began before");
        assert_eq!(refusals.problem().unwrap().status, 404, "the last one");
        assert!(refusals.accepted(now), "it ends");
        assert_eq!(refusals.problem(), None);
        assert!(!refusals.accepted(now));
    }

    #[test]
    fn bad_requests_of_one_client_between_good_ones_are_no_problem() {
        let (mut refusals, mut now) = (CloudRefusals::default(), crate::clock::now());
        for _ in 0..20 {
            refusals.accepted(now);
            for _ in 0..100 {
                now += ACCEPTED / 101;
                assert!(!refusals.refused(refusal(400), now));
                assert_eq!(refusals.problem(), None);
            }
        }
    }

    #[test]
    fn cloud_that_stops_accepting_is_a_problem_after_ten_seconds() {
        let (mut refusals, now) = (CloudRefusals::default(), crate::clock::now());
        refusals.accepted(now);
        (0..3).for_each(|_| _ = refusals.refused(refusal(404), now));
        assert_eq!(refusals.problem(), None);
        assert!(refusals.refused(refusal(404), now + ACCEPTED));
    }
}
