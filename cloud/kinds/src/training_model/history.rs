//! The closed rounds in the status, with the rows of their workers, from the aggregator's state.

use neptune_api::{KeyValue, TrainingRound, TrainingRoundWorker, TrainingRoundWorkerState};
use neptune_wire::aggregator::{ResultState, RoundRecord, RoundWorker, kept_rows};

use super::{outcome::named, rows::decimal};
use crate::reason::Reason;

/// The most rounds in the history.
pub const MAX_ROUNDS: usize = 100;

/// Significant digits of the numbers of a row.
const DIGITS: usize = 6;

/// Takes over the rounds of the current run. `metric` is the name of the evaluation's metric.
pub fn extend(
    history: &mut Vec<TrainingRound>,
    run: i64,
    rounds: &[RoundRecord],
    metric: Option<&str>,
) {
    let oldest = rounds.first().map(|round| i64::from(round.round));
    // The aggregator has the newest rounds of the run.
    history.retain(|round| round.run != run || oldest.is_some_and(|oldest| round.round < oldest));
    history.extend(rounds.iter().map(|record| round(run, record, metric)));
    let surplus = history.len().saturating_sub(MAX_ROUNDS);
    history.drain(..surplus);
    let kept = kept_rows(history.iter().map(|round| round.workers.as_slice()));
    for (round, kept) in history.iter_mut().zip(kept) {
        let dropped = round.workers.len() - kept;
        if dropped > 0 {
            round.workers.truncate(kept);
            let before = round.omitted_workers.unwrap_or_default();
            round.omitted_workers = Some(before.saturating_add(whole(dropped)));
        }
    }
}

fn round(run: i64, round: &RoundRecord, metric: Option<&str>) -> TrainingRound {
    TrainingRound {
        run,
        round: i64::from(round.round),
        participants: i64::from(round.participants),
        samples: whole(round.samples),
        loss: round.loss.map(decimal),
        metric: metric.and_then(|name| named(&round.metrics, name)).map(str::to_owned),
        seconds: whole(round.seconds),
        sha256sum: round.weights.as_ref().map(|it| it.sha256.clone()).unwrap_or_default(),
        workers: round.workers.iter().map(row).collect(),
        omitted_workers: omitted(round.omitted_workers),
    }
}

fn row(worker: &RoundWorker) -> TrainingRoundWorker {
    let reason = worker.reason.as_ref();
    TrainingRoundWorker {
        name: worker.name.clone(),
        state: match worker.state {
            ResultState::Accepted => TrainingRoundWorkerState::Accepted,
            ResultState::Refused => TrainingRoundWorkerState::Refused,
            ResultState::Failed => TrainingRoundWorkerState::Failed,
            ResultState::Pending => TrainingRoundWorkerState::Absent,
            ResultState::Excluded => TrainingRoundWorkerState::Excluded,
        },
        samples: worker.samples.map(whole),
        loss: worker.loss.map(significant),
        metrics: worker.metrics.iter().map(|it| KeyValue::new(&it.key, &it.value)).collect(),
        omitted_metrics: omitted(worker.omitted_metrics),
        norm: worker.norm.map(significant),
        weight: worker.weight.map(significant),
        // A closed set: nodes choose no text of the status here.
        reason: reason.map(|it| it.parse().unwrap_or(Reason::TrainingFailed).to_string()),
    }
}

fn omitted(count: usize) -> Option<i64> {
    (count > 0).then(|| whole(count))
}

fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// A number with at most [`DIGITS`] significant digits, with an exponent if it is very small or large.
fn significant(number: f64) -> String {
    let rounded = format!("{number:.*e}", DIGITS - 1).parse::<f64>().unwrap_or(number);
    let text = format!("{rounded:?}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::Metric;

    use super::*;

    fn worker(name: &str, state: ResultState) -> RoundWorker {
        RoundWorker {
            name: name.to_owned(),
            state,
            samples: None,
            loss: None,
            metrics: Vec::new(),
            omitted_metrics: 0,
            norm: None,
            weight: None,
            reason: None,
        }
    }

    fn record(round: u32, workers: Vec<RoundWorker>) -> RoundRecord {
        RoundRecord {
            round,
            participants: 1,
            samples: 7,
            dataset_samples: 0,
            missing_samples: 0,
            loss: None,
            metrics: Vec::new(),
            seconds: 1,
            weights: None,
            workers,
            omitted_workers: 0,
        }
    }

    fn rows(history: &[TrainingRound]) -> Vec<(i64, i64, usize, Option<i64>)> {
        let row = |it: &TrainingRound| (it.run, it.round, it.workers.len(), it.omitted_workers);
        history.iter().map(row).collect()
    }

    #[test]
    fn numbers_have_six_significant_digits() {
        for (number, text) in [
            (0.598_173_260_143_512_9, "0.598173"),
            (0.000_123_456_78, "0.000123457"),
            (1.234_567_8e-12, "1.23457e-12"),
            (100.0, "100"),
            (1e300, "1e300"),
            (0.0, "0"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn row_has_what_the_worker_reported_and_a_known_reason() {
        let mut accepted = worker("a", ResultState::Accepted);
        accepted.samples = Some(600);
        (accepted.loss, accepted.norm, accepted.weight) = (Some(0.5), Some(1.25), Some(1.0 / 3.0));
        accepted.metrics = vec![Metric { key: "accuracy".to_owned(), value: "0.9".to_owned() }];
        let mut failed = worker("b", ResultState::Failed);
        failed.reason = Some("=cmd()".to_owned());
        let mut history = Vec::new();
        extend(&mut history, 1, &[record(1, vec![accepted, failed])], None);
        let row = &history[0].workers[0];
        assert_eq!((&*row.name, row.samples, row.loss.as_deref()), ("a", Some(600), Some("0.5")));
        assert_eq!((row.norm.as_deref(), row.weight.as_deref()), (Some("1.25"), Some("0.333333")));
        assert_eq!((&*row.metrics[0].key, &*row.metrics[0].value), ("accuracy", "0.9"));
        let row = &history[0].workers[1];
        assert_eq!(row.reason.as_deref(), Some("TrainingFailed"));
        assert_eq!(row.state, TrainingRoundWorkerState::Failed);
    }

    #[test]
    fn rows_of_earlier_runs_stay_until_newer_ones_need_the_room() {
        let few = || vec![worker("a", ResultState::Pending); 3];
        let mut history = Vec::new();
        extend(&mut history, 1, &[record(1, few()), record(2, few())], None);
        extend(&mut history, 2, &[record(1, few())], None);
        // The same state again changes nothing.
        let before = history.clone();
        extend(&mut history, 2, &[record(1, few())], None);
        assert_eq!(history, before);
        assert_eq!(rows(&history), [(1, 1, 3, None), (1, 2, 3, None), (2, 1, 3, None)]);
        assert_eq!(history[0].workers[0].state, TrainingRoundWorkerState::Absent);

        // The aggregator has dropped a row already.
        let many = vec![worker("a", ResultState::Pending); 5000];
        let newest = RoundRecord { omitted_workers: 1, ..record(2, many) };
        extend(&mut history, 2, &[record(1, few()), newest], None);
        let kept = whole(history[3].workers.len());
        assert!(kept > 1000, "{kept}");
        assert_eq!(history[3].omitted_workers, Some(5001 - kept));
        let dropped: Vec<_> = history[..3].iter().map(|it| it.omitted_workers).collect();
        assert_eq!(dropped, [Some(3); 3]);
    }
}
