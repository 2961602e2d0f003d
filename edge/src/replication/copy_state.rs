//! Decides what is reported of a copy, and when the source is asked again. Pure.

use std::time::Duration;

use neptune_share::replicas::{DatasetDescription, Generation};
use neptune_wire::{DatasetGeneration, ReplicaReport, ReplicaState};

/// How long a copy may be behind its source and counts as in sync: a source that grows has a new
/// generation every few seconds.
const TOLERANCE: Duration = Duration::from_secs(10);
/// Pause between two questions to a source that changes.
const MIN_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two questions to a source that does not change, or is not reachable. It is shorter
/// than [`MAX_IDLE`](neptune_share::peers::limits::MAX_IDLE), so that an idle copy keeps its connection.
const MAX_PAUSE: Duration = Duration::from_secs(7);
/// Pause after a sync that was interrupted.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a failure of the node, such as a full disk.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);

/// How the last question to the source ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The copy has the newest generation. `is_new`: since this question.
    Equal { is_new: bool },
    /// The source has data that the copy does not have yet.
    Behind,
    /// The source does not answer, or does not offer the data.
    Unreachable(String),
    /// The data cannot be copied.
    Failed(String),
}

/// What is known of a copy, for its view and its report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyState {
    /// The last complete copy; `None` before the first one.
    pub described: Option<DatasetDescription>,
    /// The last report; `None` before the first question to the source.
    pub report: Option<ReplicaReport>,
}

/// What is reported of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFacts<'a> {
    pub outcome: &'a SyncOutcome,
    pub generation: Option<Generation>,
    pub bytes_behind: u64,
    /// Time since the copy was equal, or since the start.
    pub since_equal: Duration,
    /// How many files of the copy somebody else changed.
    pub overwritten: u64,
}

/// Returns the report of a copy for the facts.
pub fn report(facts: &CopyFacts<'_>) -> ReplicaReport {
    let is_late = facts.generation.is_none() || facts.since_equal > TOLERANCE;
    let (state, message) = match facts.outcome {
        SyncOutcome::Behind if is_late => (ReplicaState::Syncing, String::new()),
        SyncOutcome::Equal { .. } | SyncOutcome::Behind => (ReplicaState::InSync, String::new()),
        SyncOutcome::Unreachable(why) => (ReplicaState::Offline, why.clone()),
        SyncOutcome::Failed(why) => (ReplicaState::Failed, why.clone()),
    };
    let is_in_sync = state == ReplicaState::InSync;
    ReplicaReport {
        state,
        generation: facts.generation.map(|it| wire_generation(&it)),
        bytes_behind: if is_in_sync { 0 } else { facts.bytes_behind },
        seconds: if is_in_sync { 0 } else { rounded(facts.since_equal.as_secs()) },
        overwritten: facts.overwritten,
        message,
    }
}

/// Returns how long to wait before the source is asked again. `last` is the previous pause.
pub fn next_pause(outcome: &SyncOutcome, last: Duration) -> Duration {
    let doubled = (last * 2).clamp(MIN_PAUSE, MAX_PAUSE);
    match outcome {
        SyncOutcome::Equal { is_new: true } => MIN_PAUSE,
        SyncOutcome::Equal { is_new: false } | SyncOutcome::Unreachable(_) => doubled,
        SyncOutcome::Behind => RETRY_PAUSE,
        SyncOutcome::Failed(_) => FAILURE_PAUSE,
    }
}

/// The generation as it is reported.
pub fn wire_generation(generation: &Generation) -> DatasetGeneration {
    let Generation { number, root, bytes, .. } = generation;
    DatasetGeneration { number: *number, root: root.to_string(), bytes: *bytes }
}

/// Seconds in steps that grow, so that waiting causes few reports.
fn rounded(seconds: u64) -> u64 {
    let step = match seconds {
        ..60 => 5,
        60..600 => 30,
        600.. => 300,
    };
    seconds / step * step
}

#[cfg(test)]
mod tests {
    use neptune_content::Digest;

    use super::*;

    fn report_with(outcome: &SyncOutcome, seconds: u64, is_complete: bool) -> ReplicaReport {
        let digest = Digest::of_bytes(b"x");
        let generation = Generation { number: 3, root: digest, manifest: digest, bytes: 9 };
        report(&CopyFacts {
            outcome,
            generation: is_complete.then_some(generation),
            bytes_behind: 7,
            since_equal: Duration::from_secs(seconds),
            overwritten: 1,
        })
    }

    #[test]
    fn copy_is_in_sync_while_it_is_a_few_seconds_behind() {
        let brief = |outcome, seconds, is_complete| {
            let report = report_with(&outcome, seconds, is_complete);
            (report.state, report.bytes_behind, report.seconds)
        };
        let equal = || SyncOutcome::Equal { is_new: true };
        assert_eq!(brief(equal(), 0, true), (ReplicaState::InSync, 0, 0));
        assert_eq!(brief(SyncOutcome::Behind, 9, true), (ReplicaState::InSync, 0, 0));
        assert_eq!(brief(SyncOutcome::Behind, 11, true), (ReplicaState::Syncing, 7, 10));
        assert_eq!(brief(SyncOutcome::Behind, 9, false), (ReplicaState::Syncing, 7, 5));
        let offline = SyncOutcome::Unreachable("why".to_owned());
        assert_eq!(brief(offline, 3601, true), (ReplicaState::Offline, 7, 3600));
        let failed = report_with(&SyncOutcome::Failed("why".to_owned()), 0, true);
        assert_eq!((failed.state, &*failed.message), (ReplicaState::Failed, "why"));
        assert_eq!(failed.generation.map(|it| it.number), Some(3));
    }

    #[test]
    fn connection_is_asked_before_either_side_closes_it() {
        use neptune_share::peers::limits::{IDLE_TIMEOUT, MAX_IDLE};
        assert!(MAX_PAUSE < MAX_IDLE && MAX_IDLE < IDLE_TIMEOUT);
    }

    #[test]
    fn pause_grows_while_nothing_changes_and_is_short_after_a_change() {
        let idle = SyncOutcome::Equal { is_new: false };
        let mut pause = next_pause(&SyncOutcome::Equal { is_new: true }, MAX_PAUSE);
        let mut seen = vec![pause.as_secs()];
        for _ in 0..4 {
            pause = next_pause(&idle, pause);
            seen.push(pause.as_secs());
        }
        assert_eq!(seen, [2, 4, 7, 7, 7]);
        assert_eq!(next_pause(&SyncOutcome::Behind, pause), RETRY_PAUSE);
    }
}
