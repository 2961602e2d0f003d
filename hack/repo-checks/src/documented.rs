//! Compares the rows of documentation tables with their tests. The section `Tests` at the end of a
//! page is a table with an entry for each row above it: the beginning of the row's first cell, and
//! the names of test functions or the reason why there is none.

use std::collections::BTreeSet;

use crate::{TextFile, markdown::prose};

/// The pages with such a section.
pub const PAGES: &[&str] = &["docs/limitations.md", "docs/security.md"];

/// The reasons, which the first page explains.
const REASONS: [&str; 4] = ["not ours", "not built", "earlier version", "measured"];
/// The beginning of a reason in words of its own.
const NO_TEST: &str = "no test: ";
const HEADING: &str = "## Tests";

/// A row of a table, with its line from 1.
struct Row {
    line: usize,
    cells: Vec<String>,
}

/// `file:line: problem` of each row without an entry, entry without a row, and entry that names
/// neither tests nor a reason.
pub fn problems(page: &TextFile, tests: &BTreeSet<String>) -> Vec<String> {
    let at = |row: &Row, problem: &str| format!("{}:{}: {problem}", page.path, row.line);
    let (rows, entries) = rows_and_entries(&page.text);
    let of_entries = entries.iter().flat_map(|entry| {
        let wrong = wrong_tests(entry, tests).into_iter();
        wrong.map(|problem| at(entry, &problem))
    });
    let begins = |row: &Row, entry: &Row| row.cells[0].starts_with(&entry.cells[0]);
    let equal = rows.iter().zip(&entries).take_while(|(row, entry)| begins(row, entry)).count();
    let unpaired = match (rows.get(equal), entries.get(equal)) {
        (Some(row), _) => Some(at(row, "the row has no entry in its place below Tests")),
        (None, Some(entry)) => Some(at(entry, "the entry is of no row")),
        (None, None) => None,
    };
    unpaired.into_iter().chain(of_entries).collect()
}

/// The rows of the tables before the section, and the entries of the section.
fn rows_and_entries(text: &str) -> (Vec<Row>, Vec<Row>) {
    let (mut rows, mut entries) = (Vec::new(), Vec::new());
    let (mut lines_of_table, mut is_section) = (0, false);
    for (line, text) in prose(text) {
        is_section |= text == HEADING;
        lines_of_table = if text.starts_with('|') { lines_of_table + 1 } else { 0 };
        // The first two lines are the head of the table.
        if lines_of_table > 2 {
            let cells = text.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
            let row = Row { line, cells: cells.collect() };
            if is_section { entries.push(row) } else { rows.push(row) }
        }
    }
    (rows, entries)
}

/// What is wrong with the tests that an entry names.
fn wrong_tests(entry: &Row, tests: &BTreeSet<String>) -> Vec<String> {
    let [beginning, test] = &entry.cells[..] else {
        return vec!["the entry has not two cells".to_owned()];
    };
    if beginning.is_empty() {
        return vec!["the entry has no beginning of a row".to_owned()];
    }
    let has_own_reason = test.strip_prefix(NO_TEST).is_some_and(|why| why.split(' ').count() > 3);
    if has_own_reason || REASONS.contains(&&**test) {
        return Vec::new();
    }
    let problem = |name: &str| match name.strip_prefix('`').and_then(|it| it.strip_suffix('`')) {
        Some(name) if tests.contains(name) => None,
        Some(name) => Some(format!("no test function has the name {name}")),
        None => Some(format!(
            "{name:?} is neither a test in backticks, nor one of {REASONS:?}, nor \"{NO_TEST}\" with \
             the reason in words"
        )),
    };
    test.split(", ").filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn each_row_has_an_entry_with_tests_or_a_reason() {
        let tests: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        let above = "| What | Why |\n|---|---|\n| one `x` | y |\n| two | |\n\ntext\n\n| A |\n|---|\n\
            | three |\n\n## Tests\n\n| Row | Test |\n|---|---|\n";
        for (entries, expected) in [
            ("| one | `a` |\n| two | not ours |\n| three | `a`, `b` |\n", &[][..]),
            ("| one | `a` |\n| two | no test: it needs a cluster |\n| three | `a` |\n", &[]),
            (
                "| one | `a` |\n| two | no test |\n| three | no test: missing |\n",
                &[
                    "p.md:17: \"no test\" is neither a test in backticks, nor one of \
                    [\"not ours\", \"not built\", \"earlier version\", \"measured\"], nor \
                    \"no test: \" with the reason in words",
                    "p.md:18: \"no test: missing\" is neither a test in backticks, nor one of \
                    [\"not ours\", \"not built\", \"earlier version\", \"measured\"], nor \
                    \"no test: \" with the reason in words",
                ],
            ),
            (
                "| one | `a` |\n| three | `b` |\n",
                &["p.md:4: the row has no entry in its place below Tests"],
            ),
            (
                "| one | `a` |\n| two | `a` |\n",
                &["p.md:10: the row has no entry in its place below Tests"],
            ),
            (
                "| one | `a` |\n| two | `a` |\n| three | `a` |\n| four | `a` |\n",
                &["p.md:19: the entry is of no row"],
            ),
            (
                "| one | `c` |\n| two | no tests |\n| three |\n",
                &[
                    "p.md:16: no test function has the name c",
                    "p.md:17: \"no tests\" is neither a test in backticks, nor one of \
                    [\"not ours\", \"not built\", \"earlier version\", \"measured\"], nor \
                    \"no test: \" with the reason in words",
                    "p.md:18: the entry has not two cells",
                ],
            ),
        ] {
            assert_eq!(problems(&file("p.md", &format!("{above}{entries}")), &tests), expected);
        }
    }
}
