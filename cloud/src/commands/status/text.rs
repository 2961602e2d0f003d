//! Layout of the status page for a terminal. Pure.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;

use super::page::{FileLine, Page, ReplicaLine};

/// Formats the page; ages are relative to `now`.
pub fn text(page: &Page, now: Timestamp) -> String {
    let mut text = String::new();
    let Page { kind, namespace, name, state, reason, message, .. } = page;
    let since = page.since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    let written = page
        .written
        .map(|written| format!(", updated {} ago", age(written, now)))
        .unwrap_or_default();
    let _ = writeln!(text, "{kind} {namespace}/{name}: {state} ({reason}){since}{written}");
    let mut shown = LongTexts { advice: &page.advice, shown: Vec::new() };
    let _ = writeln!(text, "  {}\n", shown.once(message));
    let workers = page.workers.iter().map(|worker| {
        [
            worker.role,
            &worker.name,
            &worker.node,
            worker.run_by,
            &worker.state,
            &worker.model,
            &worker.version,
        ]
        .map(str::to_owned)
    });
    table(&mut text, ["ROLE", "WORKER", "NODE", "RUN BY", "STATE", "MODEL", "VERSION"], workers);
    let nodes = page.nodes.iter().map(|node| {
        let seen = node.last_seen.map_or("-".to_owned(), |at| format!("{} ago", age(at, now)));
        [node.name.clone(), node.ready.clone(), seen]
    });
    table(&mut text, ["NODE", "READY", "LAST SEEN"], nodes);
    if let Some(dataset) = &page.dataset {
        text.push_str(&dataset.text());
        text.push('\n');
        let head = ["REPLICA", "STATE", "BYTES BEHIND", "LAG", "GENERATION", "SAMPLES"];
        table(&mut text, head, dataset.replicas.iter().map(ReplicaLine::cells));
    }
    if let Some(model) = &page.model {
        text.push_str(&model.text());
        text.push('\n');
        let head = ["NODE", "STATE", "SOURCE", "VERSION", "BYTES"];
        table(&mut text, head, model.nodes.iter().map(FileLine::cells));
    }
    if let Some(serving) = &page.serving {
        let _ = writeln!(text, "URL       {}", serving.url);
        let _ = writeln!(text, "Serving   {}", serving.serving_version);
        let progress =
            serving.progress.as_ref().map(|progress| format!(", downloaded: {progress}"));
        let _ =
            writeln!(text, "Target    {}{}", serving.target_version, progress.unwrap_or_default());
        if let Some(failure) = &serving.last_failure {
            let _ = writeln!(text, "Failed    {}", shown.once(failure));
        }
        if let Some(transformer) = &serving.transformer {
            let _ = writeln!(text, "Before it {transformer}");
        }
        text.push('\n');
    }
    if let Some(counted) = &page.counted {
        let _ = writeln!(
            text,
            "Counters  {} inferences, {} hard examples answered by the cloud (ratio {})",
            counted.inferences, counted.hard_examples, counted.upload_ratio
        );
        if let Some(fallbacks) = &counted.fallbacks {
            let _ = writeln!(
                text,
                "          {fallbacks} hard examples not answered by the cloud: the edge's results were used"
            );
        }
        for report in &counted.reports {
            let _ = writeln!(
                text,
                "          {}: {} inferences, {} hard examples (epoch {}, message {})",
                report.node, report.inferences, report.hard_examples, report.epoch, report.seq
            );
        }
        text.push('\n');
    }
    if let Some(training) = &page.training {
        text.push_str(&training.text());
        text.push('\n');
    }
    if let Some(cascade) = &page.cascade {
        text.push_str(&cascade.text(|text| shown.once(text)));
        text.push('\n');
    }
    let events = page.events.iter().map(|event| {
        let time = event.time.map_or("-".to_owned(), |at| age(at, now));
        [time, event.kind.clone(), event.reason.clone(), shown.once(&event.message)]
    });
    table(&mut text, ["LAST SEEN", "TYPE", "REASON", "EVENT"], events);
    text.push_str("Next steps\n");
    if page.advice.is_empty() {
        text.push_str("  none\n");
    }
    for advice in &page.advice {
        let _ = writeln!(text, "  {advice}");
    }
    text
}

/// Texts of at most this length are always printed as a whole, in characters.
const SHORT: usize = 120;

/// The end of a text by which it is recognized, and what is left of it, in characters. The beginning
/// names where a text is from.
const PART: usize = 80;

/// The long texts of a page. A condition, an Event and a next step often say the same: then the next
/// step has the text.
struct LongTexts<'a> {
    advice: &'a [String],
    shown: Vec<String>,
}

impl LongTexts<'_> {
    /// The text, or its beginning if the page has it elsewhere.
    fn once(&mut self, text: &str) -> String {
        let end = text.char_indices().rev().nth(PART - 1).map_or(0, |(at, _)| at);
        let has_end = |known: &String| known.contains(&text[end..]);
        let place = if text.chars().count() <= SHORT {
            return text.to_owned();
        } else if self.advice.iter().any(has_end) {
            "next steps"
        } else if self.shown.iter().any(has_end) {
            "above"
        } else {
            self.shown.push(text.to_owned());
            return text.to_owned();
        };
        let beginning: String = text.chars().take(PART).collect();
        format!("{}... (see {place})", beginning.trim_end())
    }
}

/// Appends a table whose columns are as wide as their widest cell; nothing if there are no rows.
fn table<const N: usize>(
    text: &mut String,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let all = || std::iter::once(head.map(str::to_owned)).chain(rows.iter().cloned());
    let widths: Vec<usize> = (0..N)
        .map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}   ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
}

/// Age in the unit that kubectl would use: seconds, minutes, hours or days.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(since.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn age_uses_the_unit_that_kubectl_uses() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (seconds, shown) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            let since = Timestamp::from_second(1_000_000 - seconds).unwrap();
            assert_eq!(age(since, now), shown);
        }
    }
}
