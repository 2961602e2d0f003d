//! What each worker contributed to a closed round, and how many of these rows are kept.

use serde::{Deserialize, Serialize};

use super::ResultState;
use crate::Metric;

/// The most bytes of the rows of all rounds, as JSON.
pub const MAX_ROWS_BYTES: usize = 64 * 1024;

/// What a worker contributed to a closed round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoundWorker {
    /// Name of the worker.
    pub name: String,
    /// What its result is worth. [`ResultState::Pending`]: it sent none until the round closed.
    pub state: ResultState,
    /// The samples that its update counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// The loss that the program reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Metrics that the program reported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Number of other metrics that it reported.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub omitted_metrics: usize,
    /// The norm of its difference to the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<f64>,
    /// The share of the update in the new weights, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Why it does not count, or counts less: CamelCase, a reason of conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Returns how many rows of each round are kept, so that they have at most [`MAX_ROWS_BYTES`]. Rounds
/// are oldest first. Of the newest round the first rows are kept, of an older one all or none; a
/// round that is older than one with dropped rows has none.
pub fn kept_rows<'a, R: Serialize + 'a>(
    rounds: impl DoubleEndedIterator<Item = &'a [R]>,
) -> Vec<usize> {
    let mut left = MAX_ROWS_BYTES;
    let keep = |(age, rows): (usize, &[R])| {
        let fits = |row: &&R| {
            let bytes = serde_json::to_string(row).map_or(usize::MAX, |text| text.len() + 1);
            let rest = left.checked_sub(bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let kept = rows.iter().take_while(fits).count();
        if kept == rows.len() {
            return kept;
        }
        left = 0;
        if age == 0 { kept } else { 0 }
    };
    let mut kept: Vec<_> = rounds.rev().enumerate().map(keep).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Rows that have this number of bytes each, with their separators.
    fn rows(count: usize, bytes: usize) -> Vec<String> {
        vec!["x".repeat(bytes - 3); count]
    }

    fn kept(rounds: &[Vec<String>]) -> Vec<usize> {
        kept_rows(rounds.iter().map(Vec::as_slice))
    }

    #[test]
    fn newest_rounds_within_the_limit_keep_their_rows() {
        let kib = |rows: usize| self::rows(rows, 1024);
        for (rounds, expected) in [
            (vec![], vec![]),
            (vec![kib(64)], vec![64]),
            (vec![kib(1), kib(64)], vec![0, 64]),
            // The oldest are dropped, each as a whole.
            (vec![kib(30), kib(30), kib(30)], vec![0, 30, 30]),
            // A small older round does not pass a dropped one: the kept rounds have no gap.
            (vec![kib(1), kib(40), kib(30)], vec![0, 0, 30]),
            // A round of an engine has no rows.
            (vec![kib(10), kib(0), kib(10)], vec![10, 0, 10]),
            // One round that exceeds the limit keeps its first rows.
            (vec![kib(1), kib(65)], vec![0, 64]),
            (vec![kib(1), rows(1, 65 * 1024)], vec![0, 0]),
        ] {
            assert_eq!(kept(&rounds), expected);
        }
    }

    #[test]
    fn rows_of_thousands_of_workers_are_limited() {
        let row = RoundWorker {
            name: "worker-of-a-node".to_owned(),
            state: ResultState::Accepted,
            samples: Some(1000),
            loss: Some(0.598_173_260_143_512_9),
            metrics: vec![Metric { key: "accuracy".to_owned(), value: "0.943".to_owned() }],
            omitted_metrics: 0,
            norm: Some(1.234_567_890_123),
            weight: Some(0.001),
            reason: None,
        };
        let round = vec![row; 5000];
        let kept = kept_rows([round.as_slice(), &round].into_iter());
        assert_eq!(kept[0], 0);
        assert!((300..5000).contains(&kept[1]), "{kept:?}");
        assert!(serde_json::to_string(&round[..kept[1]]).unwrap().len() <= MAX_ROWS_BYTES + 1);
    }
}
