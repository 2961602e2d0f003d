//! Decides what a replica does with the Lease. Pure.
//!
//! A replica does not compare clocks: a Lease is expired when this replica has seen no change of it
//! for its whole duration, by its own monotonic clock. The leader stops before that, so two never
//! lead at the same time.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// How long a Lease is valid after its last change.
pub const LEASE: Duration = Duration::from_secs(10);

/// The leader stops when it could not renew the Lease for this long. The rest of [`LEASE`] is for
/// its last messages.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(7);

/// The time between two renewals of the leader.
const RENEW: Duration = Duration::from_secs(2);

/// The time between two attempts of another replica. With [`LEASE`] it bounds the takeover: a
/// replica that sees the last change this late takes the Lease over 12.5 s after it.
const RETRY: Duration = Duration::from_millis(2500);

/// What to do with the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the Lease, because none exists.
    Create,
    /// Write this replica as its holder, over this version.
    Hold {
        /// The version that was seen.
        version: Option<String>,
        /// Whether another replica held it before.
        is_new: bool,
        /// How often the holder has changed.
        transitions: i32,
    },
    /// Wait, because another replica leads.
    Wait,
}

/// What a replica has seen of the Lease.
#[derive(Debug)]
pub struct Observer {
    identity: String,
    /// The version that was seen last, `None` for a missing Lease, and since when.
    seen: Option<(Option<String>, Instant)>,
    /// Whether this replica held the Lease at the last observation.
    leads: bool,
}

impl Observer {
    /// A replica that has seen nothing.
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None, leads: false }
    }

    /// What to do with the Lease as it is now.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Instant) -> Step {
        let version = lease.and_then(|lease| lease.metadata.resource_version.clone());
        let is_first = self.seen.is_none();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version.clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let is_expired = now.saturating_duration_since(since) >= LEASE;
        let Some(lease) = lease else {
            // A leader whose Lease was deleted creates it again. Others give it the time to do so,
            // unless there was never a Lease.
            return if self.leads || is_first || is_expired { Step::Create } else { Step::Wait };
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let transitions = spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        self.leads = holder == self.identity;
        if self.leads {
            return Step::Hold { version, is_new: false, transitions };
        }
        if holder.is_empty() || is_expired {
            return Step::Hold {
                version,
                is_new: true,
                transitions: transitions.saturating_add(1),
            };
        }
        Step::Wait
    }

    /// The time until the next attempt. Another replica's attempts are rare, except that one is at
    /// the end of the Lease.
    pub fn pause(&self, now: Instant) -> Duration {
        if self.leads {
            return RENEW;
        }
        let expiry = self.seen.as_ref().map_or(now, |(_, since)| *since + LEASE);
        let left = expiry.saturating_duration_since(now);
        if left.is_zero() { RETRY } else { left.min(RETRY) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn lease(holder: &str, version: u32) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()).filter(|holder| !holder.is_empty()),
            ..LeaseSpec::default()
        };
        let mut lease = Lease { spec: Some(spec), ..Lease::default() };
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    fn holds(step: &Step) -> bool {
        matches!(step, Step::Create | Step::Hold { .. })
    }

    #[test]
    fn standby_takes_over_within_15_seconds_and_after_the_leader_stopped() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // The leader renews every two seconds and dies at 10 s; the wall clocks do not matter.
        for first in (0..2500).step_by(100) {
            let mut observer = Observer::new("b".to_owned());
            let (mut ms, mut reads) = (first, 0);
            loop {
                let renewals = u32::try_from((ms / 2000).min(5)).unwrap_or_default();
                if holds(&observer.observe(Some(&lease("a", renewals)), at(ms))) {
                    break;
                }
                reads += 1;
                ms += u64::try_from(observer.pause(at(ms)).as_millis()).unwrap_or_default();
            }
            assert!(ms <= 10_000 + 12_500, "{ms}");
            let stopped = 10_000 + u64::try_from(RENEW_DEADLINE.as_millis()).unwrap_or_default();
            assert!(ms > stopped, "{ms}: the leader stops at {stopped}");
            assert!(reads <= ms / 2000, "{reads} reads in {ms} ms");
        }
    }

    #[test]
    fn replica_that_cannot_take_an_expired_lease_does_not_hurry() {
        let (mut observer, start) = (Observer::new("b".to_owned()), Instant::now());
        assert_eq!(observer.pause(start), RETRY, "nothing was read");
        observer.observe(Some(&lease("a", 1)), start);
        let late = start + LEASE.saturating_sub(Duration::from_millis(100));
        assert_eq!(observer.pause(late), Duration::from_millis(100));
        assert_eq!(observer.pause(start + LEASE), RETRY);
    }

    #[test]
    fn deleted_lease_is_created_by_the_leader_and_not_by_a_standby() {
        let (mut leader, mut standby) =
            (Observer::new("a".to_owned()), Observer::new("b".to_owned()));
        let start = Instant::now();
        for observer in [&mut leader, &mut standby] {
            observer.observe(Some(&lease("a", 1)), start);
        }
        let later = start + Duration::from_secs(2);
        assert_eq!(standby.observe(None, later), Step::Wait);
        assert_eq!(leader.observe(None, later), Step::Create);
        assert_eq!(standby.observe(None, later + LEASE), Step::Create, "the leader is dead too");
    }

    #[test]
    fn missing_or_released_lease_is_taken_at_once() {
        let now = Instant::now();
        assert_eq!(Observer::new("a".to_owned()).observe(None, now), Step::Create);
        let step = Observer::new("a".to_owned()).observe(Some(&lease("", 4)), now);
        assert_eq!(
            step,
            Step::Hold { version: Some("4".to_owned()), is_new: true, transitions: 1 }
        );
    }

    #[test]
    fn former_leader_waits_for_its_successor() {
        let (mut former, now) = (Observer::new("a".to_owned()), Instant::now());
        assert!(holds(&former.observe(Some(&lease("a", 1)), now)));
        assert_eq!(former.observe(Some(&lease("b", 2)), now + LEASE), Step::Wait);
    }
}
