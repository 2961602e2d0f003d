//! When the webhook's certificate is replaced, so that at no moment a server shows one that a client
//! does not trust. Pure.
//!
//! | | shown | trusted |
//! |---|---|---|
//! | usually | current | previous, current |
//! | from two thirds of its life | current | previous, current, next |
//! | a twelfth later, once the next is trusted | next, which becomes current | what was current, next |
//!
//! Replicas share what is held: one that has not heard of a step yet shows what is still trusted.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::admission::certificate::{Issued, SKEW};

/// The certificates that there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The one that is shown.
    pub current: Option<Issued>,
    /// The one that will be shown.
    pub next: Option<Issued>,
    /// The authority of the one that was shown before.
    pub previous: Option<String>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet.
    Wait,
    /// Make one and show it at once: there is none that can be shown.
    Issue,
    /// Make the next one, to be trusted before it is shown.
    Prepare,
    /// Show the next one.
    Promote,
}

/// A step, and when to look again though nothing changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// What is to be done.
    pub step: Step,
    /// When to look again.
    pub wake_at: Timestamp,
}

/// Plans. `names` are the hosts that clients ask for, `trusted` says whether clients know the next
/// one's authority.
pub fn plan(held: &Held, names: &[String], trusted: bool, now: Timestamp) -> Plan {
    let usable =
        |one: &&Issued| one.names == names && now < one.expires && now >= minus(one.made, SKEW);
    let next = held.next.as_ref().filter(usable);
    let Some(current) = held.current.as_ref().filter(usable) else {
        let step = if next.is_some() { Step::Promote } else { Step::Issue };
        return Plan { step, wake_at: now };
    };
    let Some(next) = next else {
        let due = plus(current.made, life(current) * 2 / 3);
        let step = if now < due { Step::Wait } else { Step::Prepare };
        return Plan { step, wake_at: due };
    };
    let due = plus(next.made, life(next) / 12);
    if now < due {
        return Plan { step: Step::Wait, wake_at: due };
    }
    let step = if trusted { Step::Promote } else { Step::Wait };
    // That it is trusted now is news that wakes by itself.
    Plan { step, wake_at: current.expires }
}

fn life(one: &Issued) -> SignedDuration {
    one.made.duration_until(one.expires)
}

fn plus(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn minus(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

impl Held {
    /// After a step; `made` makes a certificate where one is needed.
    ///
    /// # Errors
    /// Those of `made`.
    pub fn after<E>(self, step: Step, made: impl FnOnce() -> Result<Issued, E>) -> Result<Self, E> {
        let authority = || self.current.as_ref().map(|one| one.authority.clone());
        Ok(match step {
            Step::Wait => self,
            Step::Issue => {
                Self { previous: authority().or(self.previous), current: Some(made()?), next: None }
            }
            Step::Prepare => Self { next: Some(made()?), ..self },
            Step::Promote => {
                Self { previous: authority().or(self.previous), current: self.next, next: None }
            }
        })
    }

    /// All authorities that clients should trust, in PEM.
    pub fn bundle(&self) -> String {
        let issued = |one: &'_ Option<Issued>| one.as_ref().map(|one| one.authority.clone());
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

    /// Twelve days of life.
    fn issued(name: &str, day: i32) -> Issued {
        Issued {
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

    fn held(current: Option<i32>, next: Option<i32>) -> Held {
        let next = next.map(|day| issued("next", day));
        Held { current: current.map(|day| issued("current", day)), next, previous: None }
    }

    #[test]
    fn each_state_has_its_step() {
        use Step::{Issue, Prepare, Promote, Wait};
        let table = [
            // current, next, trusted, today: step, when to look again
            (None, None, false, 0, Issue, 0),
            (Some(0), None, false, 0, Wait, 8),
            (Some(0), None, false, 7, Wait, 8),
            (Some(0), None, false, 8, Prepare, 8),
            (Some(0), Some(8), false, 8, Wait, 9),
            (Some(0), Some(8), true, 8, Wait, 9),
            (Some(0), Some(8), true, 9, Promote, 12),
            // Not before it is trusted, unless there is nothing to lose.
            (Some(0), Some(8), false, 9, Wait, 12),
            (Some(0), Some(8), false, 12, Promote, 12),
            // After a long sleep.
            (Some(0), None, true, 12, Issue, 12),
            (Some(0), Some(8), true, 20, Issue, 20),
            // Made by a clock that was far ahead.
            (Some(100), None, true, 0, Issue, 0),
            (Some(0), Some(100), true, 8, Prepare, 8),
        ];
        for (current, next, trusted, today, step, again) in table {
            let plan = plan(&held(current, next), &["host".to_owned()], trusted, at(today));
            let case = format!("{current:?} {next:?} {trusted} {today}");
            assert_eq!(plan, Plan { step, wake_at: at(again) }, "{case}");
        }
    }

    #[test]
    fn another_name_needs_another_certificate() {
        let plan = plan(&held(Some(0), Some(8)), &["elsewhere".to_owned()], true, at(9));
        assert_eq!(plan.step, Step::Issue);
    }

    #[test]
    fn current_and_previous_certificate_are_always_trusted() {
        let made = |name: &'static str| move || Ok::<_, ()>(issued(name, 0));
        let mut held = Held::default();
        let steps = [
            (Step::Issue, "a", "a;"),
            (Step::Prepare, "b", "a;b;"),
            (Step::Promote, "", "a;b;"),
            (Step::Prepare, "c", "a;b;c;"),
            (Step::Promote, "", "b;c;"),
            (Step::Issue, "d", "c;d;"),
        ];
        for (step, name, trusted) in steps {
            let serving_certificate = held.current.clone();
            held = held.after(step, made(name)).unwrap();
            assert_eq!(held.bundle(), trusted);
            for one in [serving_certificate, held.current.clone()].into_iter().flatten() {
                assert!(held.bundle().contains(&one.authority));
            }
        }
    }
}
