//! The closed rounds of a `TrainingModel` as a table with one row per round and worker, and what is
//! missing in it. Pure.

use std::collections::BTreeSet;

use neptune_api::{KeyValue, TrainingRound, TrainingRoundWorker};
use neptune_cloud_kinds::training_model::MAX_ROUNDS;

/// The columns before and after those of the metrics.
const BEFORE: [&str; 4] = ["round", "worker", "samples", "loss"];
const AFTER: [&str; 5] = ["norm", "weight", "state", "reason", "run"];

/// The first characters by which spreadsheets recognize a formula.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// Returns the rounds as comma-separated values. Each metric has a column.
pub fn csv(history: &[TrainingRound]) -> String {
    let workers = history.iter().flat_map(|round| &round.workers);
    let keys: BTreeSet<_> =
        workers.flat_map(|worker| &worker.metrics).map(|metric| metric.key.as_str()).collect();
    let metrics = keys.iter().map(|key| format!("metric_{}", line(key)));
    let before = BEFORE.into_iter().map(str::to_owned);
    let header = before.chain(metrics).chain(AFTER.into_iter().map(str::to_owned));
    let rows = history
        .iter()
        .flat_map(|round| round.workers.iter().map(|worker| cells(round, worker, &keys)));
    let mut writer = csv::Writer::from_writer(Vec::new());
    for record in std::iter::once(header.collect()).chain(rows) {
        let record: Vec<String> = record;
        writer.write_record(record).expect("records of one length, in memory");
    }
    let bytes = writer.into_inner().expect("in memory");
    String::from_utf8(bytes).expect("made of text")
}

fn cells(
    round: &TrainingRound,
    worker: &TrainingRoundWorker,
    keys: &BTreeSet<&str>,
) -> Vec<String> {
    let text = |it: &Option<String>| it.as_deref().map(cell).unwrap_or_default();
    let samples = worker.samples.map(|it| it.to_string()).unwrap_or_default();
    let mut cells = vec![round.round.to_string(), cell(&worker.name), samples, text(&worker.loss)];
    let value = |key: &&str| worker.metrics.iter().find(|it: &&KeyValue| it.key == **key);
    cells.extend(keys.iter().map(|key| value(key).map(|it| cell(&it.value)).unwrap_or_default()));
    let state = format!("{:?}", worker.state);
    let (norm, weight) = (text(&worker.norm), text(&worker.weight));
    cells.extend([norm, weight, state, text(&worker.reason), round.run.to_string()]);
    cells
}

/// A text of a cell. A number is left as it is, and no other text is a formula in a spreadsheet.
fn cell(text: &str) -> String {
    let text = line(text);
    let is_number = text.parse::<f64>().is_ok_and(f64::is_finite);
    if text.starts_with(FORMULA) && !is_number { format!("'{text}") } else { text }
}

/// A text without line breaks and other control characters.
fn line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Returns what is missing in the table, one sentence per cause.
pub fn notes(name: &str, history: &[TrainingRound]) -> Vec<String> {
    let (Some(first), Some(last)) = (history.first(), history.last()) else {
        return vec![format!("no round is closed yet; see kubectl neptune status tm/{name}")];
    };
    let mut notes = Vec::new();
    if history.len() >= MAX_ROUNDS && first.run > 1 {
        notes.push(format!(
            "rounds of runs before run {} may be missing: the last {MAX_ROUNDS} rounds are kept",
            first.run
        ));
    }
    for run in first.run..=last.run {
        let of_run = || history.iter().filter(|round| round.run == run);
        let closed = of_run().map(|round| round.round).max().unwrap_or_default();
        let kept = i64::try_from(of_run().count()).unwrap_or(i64::MAX);
        if closed > kept {
            notes.push(format!(
                "missing rounds of run {run}: {}; the last {MAX_ROUNDS} rounds are kept",
                closed - kept
            ));
        }
    }
    let count = |is: &dyn Fn(&TrainingRound) -> bool| {
        history.iter().filter(|round| round.workers.is_empty() && is(round)).count()
    };
    let is_dropped = |round: &TrainingRound| round.omitted_workers.is_some();
    let is_of_engine = |round: &TrainingRound| round.sha256sum.is_empty();
    let causes = [
        (count(&is_dropped), "truncated to the newest rows that fit into 64 KiB"),
        (
            count(&|round| !is_dropped(round) && is_of_engine(round)),
            "an engine decided them (strategy Worker), and reports no workers",
        ),
        (
            count(&|round| !is_dropped(round) && !is_of_engine(round)),
            "the aggregator, its agent or the CRD is of an earlier version",
        ),
    ];
    let without_rows = causes.into_iter().filter(|(rounds, _)| *rounds > 0);
    notes.extend(without_rows.map(|(rounds, cause)| {
        format!("rounds without rows: {rounds} of {}; {cause}", history.len())
    }));
    for round in history.iter().filter(|round| !round.workers.is_empty()) {
        if let Some(omitted) = round.omitted_workers {
            notes.push(format!(
                "round {} of run {} is truncated: {omitted} more workers have no row",
                round.round, round.run
            ));
        }
    }
    let rows = history.iter().flat_map(|round| &round.workers);
    let omitted = rows.filter_map(|row| row.omitted_metrics).fold(0, i64::saturating_add);
    if omitted > 0 {
        notes.push(format!("metrics without a cell: {omitted}; a row has the first 8 short ones"));
    }
    notes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::TrainingRoundWorkerState;
    use serde_json::{Value, json};

    use super::*;

    /// A round with these rows.
    fn round(run: i64, round: i64, workers: Value) -> TrainingRound {
        TrainingRound {
            run,
            round,
            sha256sum: "0".repeat(64),
            workers: serde_json::from_value(workers).unwrap(),
            ..TrainingRound::default()
        }
    }

    #[test]
    fn table_has_a_row_per_round_and_worker_and_a_column_per_metric() {
        let accepted = json!({"name": "a", "state": "Accepted", "samples": 600, "loss": "0.25",
            "metrics": [{"key": "accuracy", "value": "0.9"}], "norm": "1.5", "weight": "1"});
        let other = json!({"name": "b", "state": "Accepted", "samples": 6, "loss": "0.5",
            "metrics": [{"key": "f1", "value": "-1e-3"}], "norm": "2", "weight": "0"});
        let refused = json!({"name": "b", "state": "Refused", "reason": "NotFinite"});
        let absent = json!({"name": "c", "state": "Absent"});
        let history =
            [round(1, 1, json!([accepted, refused, absent])), round(1, 2, json!([other]))];
        let expected = "\
round,worker,samples,loss,metric_accuracy,metric_f1,norm,weight,state,reason,run
1,a,600,0.25,0.9,,1.5,1,Accepted,,1
1,b,,,,,,,Refused,NotFinite,1
1,c,,,,,,,Absent,,1
2,b,6,0.5,,-1e-3,2,0,Accepted,,1
";
        assert_eq!(csv(&history), expected);
        assert_eq!(notes("digits", &history), [""; 0]);
    }

    #[test]
    fn hostile_values_stay_in_their_cell_and_are_no_formulas() {
        for (text, expected) in [
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\r\nb\u{7}", "a  b "),
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("＝1", "'＝1"),
            ("-0.5", "-0.5"),
            ("-inf", "'-inf"),
        ] {
            let row = json!({"name": text, "state": "Accepted",
                "metrics": [{"key": text, "value": text}]});
            let table = csv(&[round(1, 1, json!([row]))]);
            let (header, rows) = table.split_once('\n').unwrap();
            assert_eq!(rows, format!("1,{expected},,,{expected},,,Accepted,,1\n"), "{text:?}");
            assert!(header.starts_with("round,worker,samples,loss,"), "{header}");
            let mut reader = csv::Reader::from_reader(table.as_bytes());
            let metric = reader.headers().unwrap()[4].to_owned();
            assert!(metric.starts_with("metric_"), "{metric}");
            assert_eq!(reader.records().count(), 1);
        }
    }

    #[test]
    fn training_without_rounds_has_a_header_and_a_note() {
        let header = "round,worker,samples,loss,norm,weight,state,reason,run\n";
        assert_eq!(csv(&[]), header);
        let note = "no round is closed yet; see kubectl neptune status tm/digits";
        assert_eq!(notes("digits", &[]), [note]);
    }

    #[test]
    fn missing_rows_are_counted_by_their_cause() {
        let row = TrainingRoundWorker {
            name: "a".to_owned(),
            state: TrainingRoundWorkerState::Absent,
            samples: None,
            loss: None,
            metrics: Vec::new(),
            omitted_metrics: None,
            norm: None,
            weight: None,
            reason: None,
        };
        let many = TrainingRoundWorker { omitted_metrics: Some(3), ..row.clone() };
        let none = |run, number| round(run, number, json!([]));
        let with = |run, number| TrainingRound { workers: vec![row.clone()], ..none(run, number) };
        let dropped = |round| TrainingRound { omitted_workers: Some(256), ..round };
        let engine = |round| TrainingRound { sha256sum: String::new(), ..round };
        let kept = |rounds: i64| (2..rounds + 2).map(|round| with(3, round)).collect::<Vec<_>>();
        for (history, expected) in [
            (vec![with(1, 1), with(1, 2), with(2, 1)], vec![]),
            (
                vec![dropped(none(1, 1)), dropped(none(1, 2)), dropped(with(1, 3))],
                vec![
                    "rounds without rows: 2 of 3; truncated to the newest rows that fit into 64 KiB",
                    "round 3 of run 1 is truncated: 256 more workers have no row",
                ],
            ),
            (
                vec![engine(none(1, 1)), none(2, 1), with(3, 1)],
                vec![
                    "rounds without rows: 1 of 3; an engine decided them (strategy Worker), and reports no workers",
                    "rounds without rows: 1 of 3; the aggregator, its agent or the CRD is of an earlier version",
                ],
            ),
            (
                kept(100),
                vec![
                    "rounds of runs before run 3 may be missing: the last 100 rounds are kept",
                    "missing rounds of run 3: 1; the last 100 rounds are kept",
                ],
            ),
            (
                vec![TrainingRound { workers: vec![many.clone(), many], ..none(1, 1) }],
                vec!["metrics without a cell: 6; a row has the first 8 short ones"],
            ),
            (vec![with(1, 40)], vec!["missing rounds of run 1: 39; the last 100 rounds are kept"]),
        ] {
            assert_eq!(notes("digits", &history), expected);
        }
    }
}
