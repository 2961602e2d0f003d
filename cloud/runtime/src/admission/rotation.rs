//! Decides when the webhook's certificate is replaced, so that the server never presents one that
//! the API server does not trust. Pure.
//!
//! | | presented | trusted |
//! |---|---|---|
//! | usually | current | previous, current |
//! | after two thirds of its validity | current | previous, current, next |
//! | a twelfth later, once the next is trusted | next, which becomes current | former current, next |
//!
//! Replicas share the certificates: a replica that has not observed a step yet presents one that is
//! still trusted.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::admission::certificate::{IssuedCertificate, SKEW};

/// The certificate in use, and those before and after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateSet {
    /// The certificate that is presented.
    pub current: Option<IssuedCertificate>,
    /// The certificate that will be presented next.
    pub next: Option<IssuedCertificate>,
    /// The authority of the certificate that was presented before.
    pub previous: Option<String>,
}

/// A step of the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStep {
    /// No step is due before the next check.
    Wait,
    /// Issue one and present it at once: none is usable.
    Issue,
    /// Issue the next one, to be trusted before it is presented.
    Prepare,
    /// Present the next certificate: clients trust it, or no current one is usable.
    Promote,
}

/// A step, and when to plan again if nothing changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RotationPlan {
    /// The step to execute now.
    pub step: RotationStep,
    /// When to plan again if nothing changes.
    pub next_check_at: Timestamp,
}

/// Plans the next step. `names` are the hosts that clients connect to; `trusted` is whether clients
/// trust the next certificate's authority.
pub fn plan(
    certificates: &CertificateSet,
    names: &[String],
    trusted: bool,
    now: Timestamp,
) -> RotationPlan {
    let usable = |one: &&IssuedCertificate| {
        one.names == names && now < one.expires && now >= minus(one.made, SKEW)
    };
    let next = certificates.next.as_ref().filter(usable);
    let Some(current) = certificates.current.as_ref().filter(usable) else {
        let step = if next.is_some() { RotationStep::Promote } else { RotationStep::Issue };
        return RotationPlan { step, next_check_at: now };
    };
    let Some(next) = next else {
        let due = plus(current.made, validity(current) * 2 / 3);
        let step = if now < due { RotationStep::Wait } else { RotationStep::Prepare };
        return RotationPlan { step, next_check_at: due };
    };
    let due = plus(next.made, validity(next) / 12);
    if now < due {
        return RotationPlan { step: RotationStep::Wait, next_check_at: due };
    }
    let step = if trusted { RotationStep::Promote } else { RotationStep::Wait };
    // A change of the CA bundle triggers a reconciliation by its watch.
    RotationPlan { step, next_check_at: current.expires }
}

fn validity(one: &IssuedCertificate) -> SignedDuration {
    one.made.duration_until(one.expires)
}

fn plus(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn minus(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

impl CertificateSet {
    /// The certificates after a step. `issue` issues a certificate if the step needs one.
    ///
    /// # Errors
    /// Those of `issue`.
    pub fn after<E>(
        self,
        step: RotationStep,
        issue: impl FnOnce() -> Result<IssuedCertificate, E>,
    ) -> Result<Self, E> {
        let authority = || self.current.as_ref().map(|one| one.authority.clone());
        Ok(match step {
            RotationStep::Wait => self,
            RotationStep::Issue => Self {
                previous: authority().or(self.previous),
                current: Some(issue()?),
                next: None,
            },
            RotationStep::Prepare => Self { next: Some(issue()?), ..self },
            RotationStep::Promote => {
                Self { previous: authority().or(self.previous), current: self.next, next: None }
            }
        })
    }

    /// All authorities that clients should trust, in PEM.
    pub fn bundle(&self) -> String {
        let issued =
            |one: &'_ Option<IssuedCertificate>| one.as_ref().map(|one| one.authority.clone());
        [self.previous.clone(), issued(&self.current), issued(&self.next)]
            .into_iter()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Valid for twelve days.
    fn issued(name: &str, day: i32) -> IssuedCertificate {
        IssuedCertificate {
            authority: format!("{name};"),
            certificate: String::new(),
            key: String::new(),
            names: vec!["host".to_owned()],
            made: at(day),
            expires: at(day + 12),
        }
    }

    fn at(day: i32) -> Timestamp {
        plus(Timestamp::UNIX_EPOCH, SignedDuration::from_hours(i64::from(day) * 24 + 24_000))
    }

    fn certificates(current: Option<i32>, next: Option<i32>) -> CertificateSet {
        let next = next.map(|day| issued("next", day));
        CertificateSet { current: current.map(|day| issued("current", day)), next, previous: None }
    }

    #[test]
    fn step_follows_age_and_trust() {
        use RotationStep::{Issue, Prepare, Promote, Wait};
        let table = [
            // current, next, trusted, today: step, next check
            (None, None, false, 0, Issue, 0),
            (Some(0), None, false, 0, Wait, 8),
            (Some(0), None, false, 7, Wait, 8),
            (Some(0), None, false, 8, Prepare, 8),
            (Some(0), Some(8), false, 8, Wait, 9),
            (Some(0), Some(8), true, 8, Wait, 9),
            (Some(0), Some(8), true, 9, Promote, 12),
            // Not before it is trusted, unless the current one is expired.
            (Some(0), Some(8), false, 9, Wait, 12),
            (Some(0), Some(8), false, 12, Promote, 12),
            // After a long suspension.
            (Some(0), None, true, 12, Issue, 12),
            (Some(0), Some(8), true, 20, Issue, 20),
            // Issued by a clock that was far ahead.
            (Some(100), None, true, 0, Issue, 0),
            (Some(0), Some(100), true, 8, Prepare, 8),
        ];
        for (current, next, trusted, today, step, again) in table {
            let plan = plan(&certificates(current, next), &["host".to_owned()], trusted, at(today));
            let case = format!("{current:?} {next:?} {trusted} {today}");
            assert_eq!(plan, RotationPlan { step, next_check_at: at(again) }, "{case}");
        }
    }

    #[test]
    fn changed_host_name_needs_a_new_certificate() {
        let plan = plan(&certificates(Some(0), Some(8)), &["elsewhere".to_owned()], true, at(9));
        assert_eq!(plan.step, RotationStep::Issue);
    }

    #[test]
    fn current_and_previous_certificate_are_always_trusted() {
        let issue = |name: &'static str| move || Ok::<_, ()>(issued(name, 0));
        let mut certificates = CertificateSet::default();
        let steps = [
            (RotationStep::Issue, "a", "a;"),
            (RotationStep::Prepare, "b", "a;b;"),
            (RotationStep::Promote, "", "a;b;"),
            (RotationStep::Prepare, "c", "a;b;c;"),
            (RotationStep::Promote, "", "b;c;"),
            (RotationStep::Issue, "d", "c;d;"),
        ];
        for (step, name, trusted) in steps {
            let serving_certificate = certificates.current.clone();
            certificates = certificates.after(step, issue(name)).unwrap();
            assert_eq!(certificates.bundle(), trusted);
            for one in [serving_certificate, certificates.current.clone()].into_iter().flatten() {
                assert!(certificates.bundle().contains(&one.authority));
            }
        }
    }
}
