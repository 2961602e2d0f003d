//! Compares pages of the documentation with what generates them, and writes them on request.

use std::fs;

use crate::workspace;

/// The variable with which a test writes its page.
const UPDATE: &str = "UPDATE_DOCS";

/// The first line of a generated page.
const NOTE: &str =
    "<!-- Generated: a test compares this page, and writes it with UPDATE_DOCS=1. -->\n\n";

/// Checks that a page, whose path is relative to the repository, has this text below a line that
/// it is generated.
///
/// # Panics
/// The page differs, and the variable is not set.
pub fn check(page: &str, text: &str) {
    let path = workspace::root().join(page);
    let expected = format!("{NOTE}{text}");
    if std::env::var_os(UPDATE).is_some() {
        return fs::write(&path, expected).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let mut lines = expected.lines().zip(committed.lines()).enumerate();
    let line = lines.find(|(_, (expected, committed))| expected != committed);
    let at = line.map_or_else(
        || format!("line {}", expected.lines().count().min(committed.lines().count()) + 1),
        |(index, (expected, _))| format!("line {}, which should be: {expected}", index + 1),
    );
    assert!(
        committed == expected,
        "{page} differs from its source at {at}\nrun this test with {UPDATE}=1"
    );
}
