//! The settings of a rollout, with their defaults.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::util::intstr::IntOrString,
    jiff::{SignedDuration, Timestamp},
};
use neptune_api::Rollout;

use crate::{finding::Finding, kubernetes::node_selector::SelectedNodes, reason::Reason};

/// The annotation with the time at which a person resumed a rollout that failures stopped, RFC 3339.
pub const RESUMED_ANNOTATION: &str = "neptune.io/rollout-resumed";

const DEFAULT_MAX_UNAVAILABLE: Amount = Amount::Percent(10);
const DEFAULT_PAUSE_ON_FAILURE: Amount = Amount::Percent(5);
const DEFAULT_MIN_READY_SECONDS: i32 = 30;
const DEFAULT_DEADLINE_SECONDS: i32 = 600;

/// The maximum number of nodes that a change may reach at the same time without a warning.
const MAX_AT_ONCE: usize = 32;

/// The warning for an object without a rollout whose selector, the value of this field, matches many
/// nodes.
pub fn all_at_once(field: &str, selected: &SelectedNodes) -> Option<String> {
    let nodes = selected.nodes.iter().filter(|node| node.is_edge).count();
    (nodes > MAX_AT_ONCE).then(|| {
        format!(
            "{field} matches {nodes} edge nodes and spec.rollout is not set: a change reaches all of them at the same time; rollout: {{}} begins with one node and stops when it fails"
        )
    })
}

/// A number of nodes, or a percentage of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A number of nodes.
    Count(usize),
    /// A percentage, rounded down.
    Percent(usize),
}

impl Amount {
    /// The number, as a part of this many nodes.
    pub fn of_nodes(self, nodes: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => nodes * percent / 100,
        }
    }

    fn parse(value: &IntOrString) -> Option<Self> {
        match value {
            IntOrString::Int(count) => usize::try_from(*count).ok().map(Self::Count),
            IntOrString::String(text) => {
                let digits = text.strip_suffix('%').filter(|digits| is_plain(digits))?;
                let percent = digits.parse().ok().filter(|percent| *percent <= 100)?;
                Some(Self::Percent(percent))
            }
        }
    }
}

/// Whether these are digits without leading zeros.
fn is_plain(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'))
}

/// The settings of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How many nodes the rollout may take down at the same time.
    pub max_unavailable: Amount,
    /// How many of the nodes with the change may fail before it stops.
    pub pause_on_failure: Amount,
    /// How long a node has to be ready.
    pub min_ready: SignedDuration,
    /// The time in which a node has to be ready.
    pub deadline: SignedDuration,
    /// Whether the spec stops the rollout.
    pub is_paused: bool,
    /// When a person resumed the rollout last.
    pub resumed_at: Option<Timestamp>,
}

impl Policy {
    /// The settings of a valid spec, with its annotations.
    pub fn new(rollout: &Rollout, annotations: Option<&BTreeMap<String, String>>) -> Self {
        let amount = |value: &Option<IntOrString>, default| {
            value.as_ref().and_then(Amount::parse).unwrap_or(default)
        };
        let seconds = |value: Option<i32>, default| {
            SignedDuration::from_secs(i64::from(value.unwrap_or(default)))
        };
        let resumed = annotations.and_then(|all| all.get(RESUMED_ANNOTATION));
        Self {
            max_unavailable: amount(&rollout.max_unavailable, DEFAULT_MAX_UNAVAILABLE),
            pause_on_failure: amount(&rollout.pause_on_failure, DEFAULT_PAUSE_ON_FAILURE),
            min_ready: seconds(rollout.min_ready_seconds, DEFAULT_MIN_READY_SECONDS),
            deadline: seconds(rollout.progress_deadline_seconds, DEFAULT_DEADLINE_SECONDS),
            is_paused: rollout.paused,
            resumed_at: resumed.and_then(|time| time.parse().ok()),
        }
    }

    /// How many nodes the rollout may take down at the same time, of this many: at least one.
    pub fn limit(&self, total: usize) -> usize {
        self.max_unavailable.of_nodes(total).max(1)
    }
}

/// Checks the settings. The CRD refuses the same.
pub fn check(rollout: Option<&Rollout>, findings: &mut Vec<Finding>) {
    let Some(rollout) = rollout else { return };
    let mut refuse = |field: &str, expected: &str| {
        let message = format!("spec.rollout.{field} must be {expected}");
        findings.push(Finding::new(Reason::RolloutInvalid, message));
    };
    let is_positive = |value: &IntOrString| {
        matches!(Amount::parse(value), Some(Amount::Count(1..) | Amount::Percent(1..)))
    };
    if rollout.max_unavailable.as_ref().is_some_and(|value| !is_positive(value)) {
        refuse("maxUnavailable", "a number above 0, or a percentage such as \"10%\"");
    }
    if rollout.pause_on_failure.as_ref().is_some_and(|value| Amount::parse(value).is_none()) {
        refuse("pauseOnFailure", "a number, or a percentage such as \"5%\"");
    }
    if rollout.min_ready_seconds.is_some_and(|seconds| !(0..=86_400).contains(&seconds)) {
        refuse("minReadySeconds", "0 to 86400");
    }
    if rollout.progress_deadline_seconds.is_some_and(|it| !(1..=604_800).contains(&it)) {
        refuse("progressDeadlineSeconds", "1 to 604800");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> IntOrString {
        IntOrString::String(text.to_owned())
    }

    #[test]
    fn settings_have_the_documented_defaults() {
        let policy = Policy::new(&Rollout::default(), None);
        assert_eq!([policy.limit(3000), policy.limit(9), policy.limit(0)], [300, 1, 1]);
        assert_eq!(
            [1, 19, 20, 100].map(|nodes| policy.pause_on_failure.of_nodes(nodes)),
            [0, 0, 1, 5]
        );
        let times = (policy.min_ready.as_secs(), policy.deadline.as_secs());
        assert_eq!((times, policy.is_paused, policy.resumed_at), ((30, 600), false, None));
    }

    #[test]
    fn settings_are_numbers_or_percentages_and_a_time() {
        let rollout = Rollout {
            max_unavailable: Some(IntOrString::Int(4)),
            pause_on_failure: Some(text("50%")),
            ..Rollout::default()
        };
        let annotations =
            [(RESUMED_ANNOTATION.to_owned(), "1970-01-01T00:00:07Z".to_owned())].into();
        let policy = Policy::new(&rollout, Some(&annotations));
        assert_eq!((policy.limit(3000), policy.pause_on_failure.of_nodes(9)), (4, 4));
        assert_eq!(policy.resumed_at, Some(Timestamp::from_second(7).expect("a valid time")));
    }

    #[test]
    fn invalid_amounts_and_times_are_findings_that_name_the_field() {
        let int = IntOrString::Int;
        let finding = |rollout: &Rollout| {
            let mut findings = Vec::new();
            check(Some(rollout), &mut findings);
            let message = |it: Finding| it.message.split(' ').next().map(str::to_owned);
            findings.into_iter().filter_map(message).collect::<Vec<_>>()
        };
        for value in [int(0), int(-1), text("0%"), text("101%"), text("5"), text("%"), text("+5%")]
        {
            let rollout = Rollout { max_unavailable: Some(value.clone()), ..Rollout::default() };
            assert_eq!(finding(&rollout), ["spec.rollout.maxUnavailable"], "{value:?}");
        }
        for value in [int(1), text("1%"), text("100%")] {
            let rollout = Rollout { max_unavailable: Some(value), ..Rollout::default() };
            assert!(finding(&rollout).is_empty());
        }
        let rollout = Rollout {
            pause_on_failure: Some(int(-1)),
            min_ready_seconds: Some(-1),
            progress_deadline_seconds: Some(0),
            ..Rollout::default()
        };
        let fields = ["pauseOnFailure", "minReadySeconds", "progressDeadlineSeconds"];
        assert_eq!(finding(&rollout), fields.map(|field| format!("spec.rollout.{field}")));
        let zero = Rollout {
            pause_on_failure: Some(int(0)),
            min_ready_seconds: Some(0),
            progress_deadline_seconds: Some(1),
            ..Rollout::default()
        };
        assert!(finding(&zero).is_empty());
    }
}
