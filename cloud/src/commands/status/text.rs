//! Layout of the status page, and of its tables and values alone, for a terminal. Pure.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;

use super::{
    format::age,
    page::Page,
    section::{Section, Value},
};

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
    for section in page.sections(now) {
        match section {
            Section::Table { head, rows } => table(&mut text, head, &rows, &mut shown),
            Section::Values(named) => values(&mut text, &named, &mut shown),
        }
    }
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
fn table(text: &mut String, head: &[&str], rows: &[Vec<String>], shown: &mut LongTexts<'_>) {
    if rows.is_empty() {
        return;
    }
    let head = head.iter().map(ToString::to_string).collect();
    let once = |row: &Vec<String>| row.iter().map(|cell| shown.once(cell)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(once)).collect();
    text.push_str(&columns(&rows, &mut Vec::new()));
    text.push('\n');
}

/// The rows with a line each. A column is as wide as its widest cell, and not less than `widths`, which
/// becomes its width.
pub fn columns(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&*widths) {
            let _ = write!(line, "{cell:width$}   ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Values behind a column with their names, without a page around them.
pub fn plain(named: &[Value]) -> String {
    let mut text = String::new();
    values(&mut text, named, &mut LongTexts { advice: &[], shown: Vec::new() });
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The narrowest column of names, so that the values of most sections begin in the same column.
const NAMES: usize = 8;

/// Appends the values behind a column with their names.
fn values(text: &mut String, values: &[Value], shown: &mut LongTexts<'_>) {
    let names = values.iter().map(|value| value.name.chars().count());
    let width = names.max().unwrap_or_default().max(NAMES);
    for Value { name, lines } in values {
        for (number, line) in lines.iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            let _ = writeln!(text, "{name:width$}  {}", shown.once(line));
        }
    }
    text.push('\n');
}
