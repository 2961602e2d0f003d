//! Computes the next status of a dataset from its previous status, findings and observation.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::DatasetStatus;
use neptune_wire::DatasetCounts;

use crate::{
    dataset::{
        observed::ReportedDataset,
        replicas::{self, ReplicasObservation},
    },
    finding::Finding,
    fleet::observed::Observed,
    kubernetes::conditions::condition,
    reason::Reason,
    steps::StatusInputs,
};

/// Condition type: the counts match the data.
pub const READY: &str = "Ready";
/// Condition type: all replicas are in sync.
pub const REPLICATED: &str = "Replicated";

/// The observation of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetObservation {
    /// The observation of the data on the node of the spec.
    pub source: Observed<ReportedDataset>,
    /// The copies; `None` if the spec names none.
    pub replicas: Option<ReplicasObservation>,
}

/// Returns the status to write; the previous one if nothing new is known.
#[must_use]
pub fn next(previous: &DatasetStatus, inputs: &StatusInputs<DatasetObservation>) -> DatasetStatus {
    let is_same_spec = previous.observed_generation == inputs.generation;
    if keeps_previous(previous, inputs) {
        return previous.clone();
    }
    let mut next = match &inputs.observed.source {
        Observed::Reported(report) => counts(report),
        // The last counts stay until newer ones of this spec are reported.
        _ if is_same_spec => previous.clone(),
        _ => DatasetStatus::default(),
    };
    let (status, finding) = ready(inputs);
    next.observed_generation = inputs.generation;
    let before = &previous.conditions;
    let rows = inputs.observed.replicas.as_ref();
    let rows = rows.map(|observed| replicas::rows(previous, observed, &inputs.observed.source));
    let replicated = rows.as_ref().map(|rows| match Finding::join(inputs.findings) {
        Some(finding) => ("False", finding),
        None => rows.condition.clone(),
    });
    let conditions = [
        Some((READY, status, finding)),
        replicated.map(|(status, finding)| (REPLICATED, status, finding)),
    ];
    let conditions = conditions.into_iter().flatten().map(|(type_, status, finding)| {
        condition(before, type_, status, finding, inputs.generation, inputs.now)
    });
    next.conditions = conditions.collect();
    if let Some(rows) = rows {
        next.replicas = rows.rows;
        next.replicas_in_sync = Some(rows.in_sync);
        next.lag = rows.lag;
    } else {
        (next.generation, next.root) = (None, None);
        next.replicas = Vec::new();
        (next.replicas_in_sync, next.lag) = (None, None);
    }
    next
}

/// Whether the status stays: the controller started recently and the agent has not reported yet.
fn keeps_previous(previous: &DatasetStatus, inputs: &StatusInputs<DatasetObservation>) -> bool {
    let reason = previous.conditions.first().and_then(|ready| ready.reason.parse().ok());
    let was_about_data = reason.is_some_and(|reason: Reason| !reason.is_obstacle());
    inputs.findings.is_empty()
        && matches!(inputs.observed.source, Observed::Unknown(_))
        && previous.observed_generation == inputs.generation
        && was_about_data
}

fn counts(report: &ReportedDataset) -> DatasetStatus {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let some = |count: u64| (count > 0).then(|| number(count));
    let offered = DatasetStatus {
        bytes_read: Some(number(report.bytes_read)),
        generation: report.generation.as_ref().map(|it| number(it.number)),
        root: report.generation.as_ref().map(|it| it.root.clone()),
        ..DatasetStatus::default()
    };
    let Some(counts) = &report.counts else { return offered };
    let columns = counts.columns.iter().take(DatasetCounts::MAX_COLUMNS);
    let labels = counts.labels.iter().take(DatasetCounts::MAX_LABELS);
    DatasetStatus {
        // An invalid time is omitted; the counts are kept.
        update_time: counts.changed_at.parse::<Timestamp>().ok().map(Time),
        number_of_samples: Some(number(counts.number_of_samples)),
        bytes: Some(number(counts.bytes)),
        columns: columns.cloned().collect(),
        labels: labels.map(|(label, count)| (label.clone(), number(*count))).collect(),
        other_labels: some(counts.other_labels),
        skipped_files: some(counts.skipped),
        ..offered
    }
}

/// Status, reason and message of the condition.
fn ready(inputs: &StatusInputs<DatasetObservation>) -> (&'static str, Finding) {
    if let Some(obstacle) = Finding::join(inputs.findings) {
        return ("False", obstacle);
    }
    match &inputs.observed.source {
        Observed::Reported(report) if report.is_counted => ("True", report.finding.clone()),
        Observed::Reported(report) => ("False", report.finding.clone()),
        Observed::Pending(finding) => ("False", finding.clone()),
        Observed::Unreachable(finding) | Observed::Unknown(finding) => ("Unknown", finding.clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sample_counts(samples: u64) -> DatasetCounts {
        DatasetCounts {
            number_of_samples: samples,
            bytes: samples * 10,
            columns: vec!["a".into(), "b".into()],
            labels: [("cat".into(), samples)].into(),
            changed_at: "2026-01-02T03:04:05Z".into(),
            ..DatasetCounts::default()
        }
    }

    fn reported(reason: Reason, counts: Option<DatasetCounts>) -> Observed<ReportedDataset> {
        Observed::Reported(ReportedDataset {
            is_counted: reason == Reason::Counted,
            finding: Finding::new(reason, "why"),
            counts,
            bytes_read: 7,
            generation: None,
        })
    }

    fn inputs(
        source: Observed<ReportedDataset>,
        second: i64,
    ) -> StatusInputs<'static, DatasetObservation> {
        let now = at(second);
        StatusInputs {
            generation: Some(1),
            findings: &[],
            observed: DatasetObservation { source, replicas: None },
            is_settled: true,
            now,
        }
    }

    fn counted(samples: u64) -> DatasetStatus {
        next(
            &DatasetStatus::default(),
            &inputs(reported(Reason::Counted, Some(sample_counts(samples))), 10),
        )
    }

    fn brief(status: &DatasetStatus) -> String {
        let [ready] = &status.conditions[..] else { unreachable!() };
        let samples = status.number_of_samples.map_or("-".to_owned(), |n| n.to_string());
        format!("{} {} {samples}", ready.status, ready.reason)
    }

    #[test]
    fn status_has_the_reported_counts() {
        let status = counted(1797);
        assert_eq!(brief(&status), "True Counted 1797");
        assert_eq!((status.bytes, status.bytes_read), (Some(17_970), Some(7)));
        assert_eq!(status.update_time.as_ref().unwrap().0.as_second(), 1_767_323_045);
        assert_eq!((status.columns.len(), status.labels["cat"]), (2, 1797));
        assert_eq!(
            (status.other_labels, status.skipped_files),
            (None, None),
            "omitted instead of 0"
        );
    }

    #[test]
    fn counts_of_the_same_spec_stay_until_newer_ones() {
        let before = counted(5);
        let offline = || Observed::Unreachable(Finding::new(Reason::NodeOffline, "offline"));
        let unknown = || Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let after = |observed, generation| {
            brief(&next(
                &before,
                &StatusInputs { generation: Some(generation), ..inputs(observed, 20) },
            ))
        };
        assert_eq!(after(offline(), 1), "Unknown NodeOffline 5");
        assert_eq!(
            after(reported(Reason::PathMissing, Some(sample_counts(5))), 1),
            "False PathMissing 5"
        );
        assert_eq!(after(unknown(), 1), "True Counted 5", "the status stays");
        assert_eq!(after(offline(), 2), "Unknown NodeOffline -");
        assert_eq!(after(unknown(), 2), "Unknown AwaitingAgent -");
        assert_eq!(after(reported(Reason::Counting, None), 2), "False Counting -");
    }

    #[test]
    fn findings_come_first_and_one_that_needs_a_change_heads_them() {
        let findings = [
            Finding::new(Reason::NodeNotFound, "no node"),
            Finding::new(Reason::DataUrlInvalid, "bad url"),
        ];
        let observed = Observed::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let status = next(
            &counted(5),
            &StatusInputs { findings: &findings, ..inputs(observed.clone(), 20) },
        );
        assert_eq!(brief(&status), "False DataUrlInvalid 5");
        assert_eq!(status.conditions[0].message, "bad url; no node");
        let healed = next(&status, &inputs(observed, 30));
        assert_eq!(brief(&healed), "Unknown AwaitingAgent 5", "a resolved obstacle is not kept");
    }

    #[test]
    fn replicas_have_their_own_condition_and_disappear_with_the_spec() {
        let refusal = Finding::new(Reason::ReplicationNotAllowed, "no");
        let replicas = ReplicasObservation {
            refusal: Some(refusal),
            nodes: Vec::new(),
            unusable: vec![("edge9".to_owned(), Finding::new(Reason::NodeNotFound, "gone"))],
        };
        let mut with = inputs(reported(Reason::Counted, Some(sample_counts(5))), 20);
        with.observed.replicas = Some(replicas);
        let status = next(&counted(5), &with);
        let conditions: Vec<_> =
            status.conditions.iter().map(|it| (&*it.type_, &*it.status, &*it.reason)).collect();
        let expected =
            [("Ready", "True", "Counted"), ("Replicated", "False", "ReplicationNotAllowed")];
        assert_eq!(conditions, expected);
        assert_eq!(status.replicas_in_sync.as_deref(), Some("0/1"));
        let without = inputs(Observed::Unreachable(Finding::new(Reason::NodeOffline, "o")), 30);
        let status = next(&status, &without);
        assert_eq!((status.replicas_in_sync, status.replicas.len()), (None, 0));
        assert_eq!(status.conditions.len(), 1);
    }

    #[test]
    fn reconcile_without_a_change_keeps_the_status_and_its_times() {
        let status = counted(5);
        assert_eq!(
            next(&status, &inputs(reported(Reason::Counted, Some(sample_counts(5))), 99)),
            status
        );
        let since =
            |status: &DatasetStatus| status.conditions[0].last_transition_time.0.as_second();
        let more = next(&status, &inputs(reported(Reason::Counted, Some(sample_counts(6))), 99));
        let missing =
            next(&status, &inputs(reported(Reason::PathMissing, Some(sample_counts(5))), 99));
        assert_eq!((since(&more), since(&missing)), (10, 99));
    }
}
