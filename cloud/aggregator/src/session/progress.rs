//! Parses the rounds that the server of a session reports in `progress.jsonl`: one JSON object per
//! line. The file is the user's program's, so all of it is limited. Pure.

use std::collections::BTreeMap;

use neptune_wire::Metric;
use serde::Deserialize;

use crate::run::{MAX_HISTORY, Problem, SessionRound};

/// Bytes of the end of the file that are read.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// Longest line in bytes.
const MAX_LINE: usize = 16 * 1024;
/// Metrics of a round.
const MAX_METRICS: usize = 32;
/// Longest name of a metric in bytes.
const MAX_KEY: usize = 64;

/// A line. Other fields, such as the number of rounds, are not used.
#[derive(Debug, Deserialize)]
struct Line {
    round: u32,
    #[serde(default)]
    participants: u32,
    #[serde(default)]
    loss: Option<f64>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

/// Returns the newest rounds in their order, and what is wrong with the first line that is ignored.
/// The last line of a round counts. `is_cut`: the text does not begin at the beginning of the file.
pub fn parse(text: &[u8], is_cut: bool) -> (Vec<SessionRound>, Option<Problem>) {
    // What follows the last line end is not written yet.
    let complete = text.iter().rposition(|it| *it == b'\n').map_or(&[][..], |end| &text[..end]);
    let lines = complete.split(|it| *it == b'\n').enumerate().skip(usize::from(is_cut));
    let (mut rounds, mut problem) = (BTreeMap::new(), None);
    for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        match parse_line(line) {
            Ok(round) => drop(rounds.insert(round.round, round)),
            Err(why) if problem.is_none() => {
                let which = if is_cut { "a line".to_owned() } else { format!("line {}", at + 1) };
                let message = format!(
                    "progress.jsonl of the session: {which} is ignored: {why}; write one object per line, such as {{\"round\":1,\"loss\":0.5,\"participants\":2}}"
                );
                problem = Some(Problem::new("OutputMissing", message));
            }
            Err(_) => {}
        }
    }
    let excess = rounds.len().saturating_sub(MAX_HISTORY);
    (rounds.into_values().skip(excess).collect(), problem)
}

fn parse_line(line: &[u8]) -> Result<SessionRound, String> {
    if line.len() > MAX_LINE {
        return Err(format!("it has more than {MAX_LINE} bytes"));
    }
    let Line { round, participants, loss, metrics } =
        serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if round == 0 {
        return Err("rounds begin with 1".to_owned());
    }
    if metrics.len() > MAX_METRICS {
        return Err(format!("it has more than {MAX_METRICS} metrics"));
    }
    let is_name = |key: &String| {
        !key.is_empty() && key.len() <= MAX_KEY && !key.chars().any(char::is_control)
    };
    if let Some(key) = metrics.keys().find(|key| !is_name(key)) {
        let key: String = key.chars().take(MAX_KEY).collect();
        return Err(format!("{key:?} is not the name of a metric of at most {MAX_KEY} bytes"));
    }
    let metric = |(key, value): (String, f64)| Metric { key, value: value.to_string() };
    let metrics = metrics.into_iter().map(metric).collect();
    Ok(SessionRound { round, participants, loss, metrics })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn last_line_of_a_round_counts_and_an_unfinished_one_does_not() {
        let text = concat!(
            "{\"round\":2,\"rounds\":3,\"loss\":0.5,\"participants\":2}\n\n",
            "{\"round\":1,\"metrics\":{\"accuracy\":0.75}}\n",
            "{\"round\":2,\"loss\":0.25,\"participants\":3}\n",
            "{\"round\":3",
        );
        let (rounds, problem) = parse(text.as_bytes(), false);
        assert_eq!(problem, None);
        let metrics = vec![Metric { key: "accuracy".to_owned(), value: "0.75".to_owned() }];
        let first = SessionRound { round: 1, participants: 0, loss: None, metrics };
        let second =
            SessionRound { round: 2, participants: 3, loss: Some(0.25), metrics: Vec::new() };
        assert_eq!(rounds, [first, second]);
    }

    #[test]
    fn hostile_line_is_ignored_with_its_number_and_others_count() {
        let many: BTreeMap<_, _> = (0..33).map(|it| (it.to_string(), 1)).collect();
        for (line, text) in [
            ("[]".to_owned(), "invalid"),
            ("{\"round\":-1}".to_owned(), "invalid value"),
            ("{\"round\":0}".to_owned(), "begin with 1"),
            ("{\"round\":1,\"loss\":NaN}".to_owned(), "expected"),
            ("{\"round\":1,\"loss\":1e999}".to_owned(), "out of range"),
            (format!("{{\"round\":1,\"x\":\"{}\"}}", "a".repeat(MAX_LINE)), "more than"),
            (serde_json::json!({"round": 1, "metrics": many}).to_string(), "32 metrics"),
            ("{\"round\":1,\"metrics\":{\"a\\nb\":1}}".to_owned(), "name of a metric"),
            ("\u{0}\u{1}".to_owned(), "expected value"),
        ] {
            let file = format!("{{\"round\":7}}\n{line}\n");
            let (rounds, problem) = parse(file.as_bytes(), false);
            assert_eq!(rounds.iter().map(|it| it.round).collect::<Vec<_>>(), [7], "{line:.40}");
            let message = problem.unwrap().message;
            assert!(message.contains("line 2 is ignored"), "{message}");
            assert!(message.contains(text), "{text}: {message}");
        }
    }

    #[test]
    fn newest_rounds_are_kept_and_a_cut_line_is_no_problem() {
        let lines: Vec<_> = (1..=150).map(|round| format!("{{\"round\":{round}}}")).collect();
        let lines = lines.join("\n");
        let (rounds, problem) = parse(format!("ound\":9}}\n{lines}\n").as_bytes(), true);
        assert_eq!((rounds.len(), rounds[0].round, problem), (MAX_HISTORY, 51, None));
        assert_eq!(parse(b"", false), (Vec::new(), None));
    }
}
