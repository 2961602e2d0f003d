//! The status that a dataset should have, from the one it has and what is known now. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{DatasetStatus, JisConditionType};
use neptune_wire::DatasetCounts;

use super::{super::condition::condition, view::View};
use crate::reason::{Finding, Reason};

/// The one condition's type.
pub const READY: &str = "Ready";

/// What a status is made of.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The generation that was looked at.
    pub generation: Option<i64>,
    /// What stands between the spec and its node.
    pub findings: &'a [Finding],
    /// What the agent says.
    pub view: View,
    /// The time.
    pub now: Timestamp,
}

/// The next status.
#[must_use]
pub fn next(previous: &DatasetStatus, facts: &Facts) -> DatasetStatus {
    let is_same_spec = previous.observed_generation == facts.generation;
    if keeps(previous, facts) {
        return previous.clone();
    }
    let mut next = match &facts.view {
        View::Said(said) => numbers(said.tally.as_ref(), said.bytes_read),
        // The last numbers stand while there are no newer ones of this spec.
        _ if is_same_spec => previous.clone(),
        _ => DatasetStatus::default(),
    };
    let (status, finding) = verdict(facts);
    next.observed_generation = facts.generation;
    let before = &previous.conditions;
    next.conditions = vec![condition(before, READY, status, finding, facts.generation, facts.now)];
    next
}

/// After this controller's start the agents' words are on their way: until they come, the dataset is as
/// it was.
fn keeps(previous: &DatasetStatus, facts: &Facts) -> bool {
    let reason = previous.conditions.first().and_then(|ready| ready.reason.parse().ok());
    let spoke_of_data = reason.is_some_and(|reason: Reason| !reason.is_obstacle());
    facts.findings.is_empty()
        && matches!(facts.view, View::Unknown(_))
        && previous.observed_generation == facts.generation
        && spoke_of_data
}

fn numbers(tally: Option<&DatasetCounts>, bytes_read: u64) -> DatasetStatus {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let some = |count: u64| (count > 0).then(|| number(count));
    let bytes_read = Some(number(bytes_read));
    let Some(tally) = tally else {
        return DatasetStatus { bytes_read, ..DatasetStatus::default() };
    };
    let columns = tally.columns.iter().take(DatasetCounts::MAX_COLUMNS);
    let labels = tally.labels.iter().take(DatasetCounts::MAX_LABELS);
    DatasetStatus {
        // A time that is none is not worth losing the rest for.
        update_time: tally.changed_at.parse::<Timestamp>().ok().map(Time),
        number_of_samples: Some(number(tally.number_of_samples)),
        bytes: Some(number(tally.bytes)),
        columns: columns.cloned().collect(),
        labels: labels.map(|(label, count)| (label.clone(), number(*count))).collect(),
        other_labels: some(tally.other_labels),
        skipped_files: some(tally.skipped),
        bytes_read,
        ..DatasetStatus::default()
    }
}

/// The status of the condition, and why.
fn verdict(facts: &Facts) -> (&'static str, Finding) {
    if let Some(obstacle) = obstacle(facts.findings) {
        return ("False", obstacle);
    }
    match &facts.view {
        View::Said(said) if said.is_counted => ("True", said.finding.clone()),
        View::Said(said) => ("False", said.finding.clone()),
        View::Awaited(finding) => ("False", finding.clone()),
        View::Silent(finding) | View::Unknown(finding) => ("Unknown", finding.clone()),
    }
}

/// All findings, headed by one that somebody has to mend, if there is such a one.
fn obstacle(findings: &[Finding]) -> Option<Finding> {
    let broken = |finding: &&Finding| finding.reason.condition() == JisConditionType::Failed;
    let first = findings.iter().find(broken).or(findings.first())?;
    let rest = findings.iter().filter(|finding| *finding != first);
    let messages: Vec<_> =
        std::iter::once(first).chain(rest).map(|finding| finding.message.as_str()).collect();
    Some(Finding::new(first.reason, messages.join("; ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::view::Said, *};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tally(samples: u64) -> DatasetCounts {
        DatasetCounts {
            number_of_samples: samples,
            bytes: samples * 10,
            columns: vec!["a".into(), "b".into()],
            labels: [("cat".into(), samples)].into(),
            changed_at: "2026-01-02T03:04:05Z".into(),
            ..DatasetCounts::default()
        }
    }

    fn said(reason: Reason, tally: Option<DatasetCounts>) -> View {
        View::Said(Box::new(Said {
            is_counted: reason == Reason::Counted,
            finding: Finding::new(reason, "why"),
            tally,
            bytes_read: 7,
        }))
    }

    fn facts(view: View, second: i64) -> Facts<'static> {
        Facts { generation: Some(1), findings: &[], view, now: at(second) }
    }

    fn counted(samples: u64) -> DatasetStatus {
        next(&DatasetStatus::default(), &facts(said(Reason::Counted, Some(tally(samples))), 10))
    }

    fn word(status: &DatasetStatus) -> String {
        let [ready] = &status.conditions[..] else { unreachable!() };
        let samples = status.number_of_samples.map_or("-".to_owned(), |n| n.to_string());
        format!("{} {} {samples}", ready.status, ready.reason)
    }

    #[test]
    fn what_was_counted_stands_in_the_status() {
        let status = counted(1797);
        assert_eq!(word(&status), "True Counted 1797");
        assert_eq!((status.bytes, status.bytes_read), (Some(17_970), Some(7)));
        assert_eq!(status.update_time.as_ref().unwrap().0.as_second(), 1_767_323_045);
        assert_eq!((status.columns.len(), status.labels["cat"]), (2, 1797));
        assert_eq!((status.other_labels, status.skipped_files), (None, None), "none, and not 0");
    }

    #[test]
    fn the_last_numbers_stay_while_there_can_be_no_newer_ones_of_the_same_spec() {
        let before = counted(5);
        let offline = || View::Silent(Finding::new(Reason::NodeOffline, "gone"));
        let unknown = || View::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let after = |view, generation| {
            word(&next(&before, &Facts { generation: Some(generation), ..facts(view, 20) }))
        };
        assert_eq!(after(offline(), 1), "Unknown NodeOffline 5");
        assert_eq!(after(said(Reason::PathMissing, Some(tally(5))), 1), "False PathMissing 5");
        assert_eq!(after(unknown(), 1), "True Counted 5", "as it was");
        assert_eq!(after(offline(), 2), "Unknown NodeOffline -");
        assert_eq!(after(unknown(), 2), "Unknown AwaitingAgent -");
        assert_eq!(after(said(Reason::Counting, None), 2), "False Counting -");
    }

    #[test]
    fn findings_come_first_and_one_that_has_to_be_mended_heads_them() {
        let findings = [
            Finding::new(Reason::NodeNotFound, "no node"),
            Finding::new(Reason::DataUrlInvalid, "bad url"),
        ];
        let view = View::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let status = next(&counted(5), &Facts { findings: &findings, ..facts(view.clone(), 20) });
        assert_eq!(word(&status), "False DataUrlInvalid 5");
        assert_eq!(status.conditions[0].message, "bad url; no node");
        let healed = next(&status, &facts(view, 30));
        assert_eq!(word(&healed), "Unknown AwaitingAgent 5", "an obstacle is gone when it is gone");
    }

    #[test]
    fn a_look_that_sees_nothing_new_is_no_write_and_a_change_has_its_time() {
        let status = counted(5);
        assert_eq!(next(&status, &facts(said(Reason::Counted, Some(tally(5))), 99)), status);
        let since =
            |status: &DatasetStatus| status.conditions[0].last_transition_time.0.as_second();
        let more = next(&status, &facts(said(Reason::Counted, Some(tally(6))), 99));
        let gone = next(&status, &facts(said(Reason::PathMissing, Some(tally(5))), 99));
        assert_eq!((since(&more), since(&gone)), (10, 99));
    }
}
