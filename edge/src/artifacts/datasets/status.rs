//! Decides what is reported of a dataset, from the reports of its watch. Pure.

use std::{cmp::Reverse, path::PathBuf};

use neptune_agent_core::desired::dataset::{DatasetProblem, WantedDataset};
use neptune_datasets::{ChangeDetection, CountReport, DatasetError, SampleCounts};
use neptune_wire::{DatasetCounts, DatasetReason, DatasetReport, DatasetState};

/// The state of a watched dataset, and its problem if it failed. `allowed` are the directories of
/// the policy.
pub fn state_of(
    report: &CountReport,
    allowed: &[PathBuf],
) -> (DatasetState, Option<DatasetProblem>) {
    match (&report.error, &report.change_detection) {
        (Some(error), _) => (DatasetState::Failed, Some(problem_of(error, allowed))),
        (None, None) => (DatasetState::Counting, None),
        (None, Some(_)) => (DatasetState::Counted, None),
    }
}

/// Adds the reason and the remedy to an error of counting. `allowed`: the directories in which
/// datasets are allowed.
pub fn problem_of(error: &DatasetError, allowed: &[PathBuf]) -> DatasetProblem {
    use DatasetReason as Reason;
    let (reason, remedy) = match error {
        DatasetError::Format(error) => return DatasetProblem::of_format(error),
        DatasetError::InvalidPath { .. } => {
            (Reason::DataUrlInvalid, "correct spec.dataUrl".to_owned())
        }
        DatasetError::OutsideAllowed { .. } | DatasetError::SymlinkOutsideAllowed { .. } => {
            let allowed: Vec<_> = allowed.iter().map(|root| root.display().to_string()).collect();
            let allowed = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
            let remedy = format!(
                "allowed directories: {allowed}; move the data there, or allow its directory with --allow-data-dir of neptune-edge"
            );
            (Reason::OutsideAllowedDirectories, remedy)
        }
        DatasetError::NotFound { .. } => {
            (Reason::PathMissing, "create it, or correct spec.dataUrl".to_owned())
        }
        DatasetError::PermissionDenied { .. } => {
            (Reason::PermissionDenied, "grant the user of neptune-edge read access".to_owned())
        }
        DatasetError::WrongFileType { .. } => {
            (Reason::WrongKindOfPath, "correct spec.dataUrl or spec.format".to_owned())
        }
        DatasetError::CorruptRecord { .. }
        | DatasetError::MalformedJson { .. }
        | DatasetError::NoSuchMember { .. }
        | DatasetError::NoSuchColumn { .. }
        | DatasetError::MalformedAnnotation { .. } => {
            (Reason::DataMalformed, "correct the data, or spec.format and its options".to_owned())
        }
        DatasetError::Io { .. }
        | DatasetError::ChangedWhileCounting { .. }
        | DatasetError::Stopped => (Reason::DatasetUnreadable, "retrying".to_owned()),
    };
    DatasetProblem { reason, message: format!("{error}; {remedy}") }
}

/// Remarks on a successful count, for people.
pub fn remark(report: &CountReport) -> String {
    let mut remarks = Vec::new();
    if let Some(tally) = &report.counts {
        if tally.unfinished {
            remarks.push("the last sample is incomplete".to_owned());
        }
        if tally.skipped > 0 {
            let example = tally.skipped_example.as_deref().unwrap_or_default();
            remarks.push(format!("{} files are skipped, for example {example}", tally.skipped));
        }
    }
    if let Some(ChangeDetection::Polling { reason }) = &report.change_detection {
        remarks.push(format!("changes are detected only once per minute: {reason}"));
    }
    remarks.join("; ")
}

/// Builds the report of a dataset from its state, its count and a remark for people.
pub fn dataset_status(
    wanted: &WantedDataset,
    (state, problem): (DatasetState, Option<DatasetProblem>),
    remark: String,
    tally: Option<DatasetCounts>,
    bytes_read: u64,
) -> DatasetReport {
    let (reason, message) = match problem {
        Some(DatasetProblem { reason, message }) => (Some(reason), message),
        None if state == DatasetState::Counting => (Some(DatasetReason::Counting), String::new()),
        None => (None, remark),
    };
    DatasetReport {
        content: wanted.content.clone(),
        state,
        reason,
        message,
        tally,
        bytes_read,
        // `replication` adds them.
        generation: None,
        replica: None,
    }
}

/// The reported counts. Columns and labels are limited in number; the most frequent labels are
/// kept.
pub fn wire_tally(tally: &SampleCounts, changed_at: &str) -> DatasetCounts {
    let mut labels: Vec<(&String, &u64)> = tally.labels.by_name.iter().collect();
    labels.sort_by_key(|(_, count)| Reverse(**count));
    let rest = labels.split_off(labels.len().min(DatasetCounts::MAX_LABELS));
    DatasetCounts {
        number_of_samples: tally.samples,
        bytes: tally.bytes,
        columns: tally.columns.iter().take(DatasetCounts::MAX_COLUMNS).cloned().collect(),
        labels: labels.into_iter().map(|(label, count)| (label.clone(), *count)).collect(),
        other_labels: tally.labels.other + rest.into_iter().map(|(_, count)| count).sum::<u64>(),
        skipped: tally.skipped,
        changed_at: changed_at.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn most_frequent_labels_are_reported_and_others_summed() {
        let mut tally = SampleCounts { samples: 10, ..SampleCounts::default() };
        for n in 0..100_u64 {
            tally.labels.by_name.insert(format!("{n:03}"), n);
        }
        tally.labels.other = 7;
        tally.columns = (0..500).map(|n| n.to_string()).collect();
        let reported = wire_tally(&tally, "then");
        assert_eq!(reported.labels.len(), DatasetCounts::MAX_LABELS);
        assert!(reported.labels.contains_key("099") && !reported.labels.contains_key("035"));
        assert_eq!(reported.other_labels, 7 + (0..36).sum::<u64>());
        assert_eq!(reported.columns.len(), DatasetCounts::MAX_COLUMNS);
    }

    #[test]
    fn dataset_is_counting_until_first_count_completes() {
        let report =
            CountReport { counts: Some(SampleCounts::default()), ..CountReport::default() };
        assert_eq!(state_of(&report, &[]).0, DatasetState::Counting, "stored counts may be old");
        let watching = Some(ChangeDetection::Events);
        let report = CountReport { change_detection: watching.clone(), ..report };
        assert_eq!(state_of(&report, &[]).0, DatasetState::Counted);
        let error = Some(DatasetError::NotFound { path: "/x".into() });
        let (state, problem) =
            state_of(&CountReport { error, change_detection: watching, ..report }, &[]);
        assert_eq!(
            (state, problem.unwrap().reason),
            (DatasetState::Failed, DatasetReason::PathMissing)
        );
    }

    #[test]
    fn path_outside_the_allowed_directories_names_them() {
        let error = DatasetError::OutsideAllowed { path: "/etc/passwd".into() };
        let problem = problem_of(&error, &["/code/data".into(), "/data".into()]);
        assert_eq!(problem.reason, DatasetReason::OutsideAllowedDirectories);
        for part in ["/etc/passwd", "/code/data, /data", "--allow-data-dir"] {
            assert!(problem.message.contains(part), "{}", problem.message);
        }
    }
}
