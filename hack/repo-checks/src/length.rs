//! Refuses files that are too long, and lists long files and functions: a report for reviews.

use crate::{TextFile, source::Source};

/// Lines of a file before its tests, above which it is listed.
pub const MAX_FILE_LINES: usize = 300;
/// Lines of a function, above which it is listed.
pub const MAX_FUNCTION_LINES: usize = 60;

/// Lines of a file before its tests, above which it is refused.
pub const MOST_LINES: usize = 400;
/// Lines of a file with its tests, above which it is refused.
pub const MOST_LINES_WITH_TESTS: usize = 900;

/// A file or function that is longer than its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Long {
    pub lines: usize,
    /// `path`, or `path:line: name` for a function.
    pub place: String,
}

/// The file, if it has too many lines before its tests.
pub fn long_file(file: &TextFile) -> Option<Long> {
    let lines = lines_before_tests(file);
    (lines > MAX_FILE_LINES).then(|| Long { lines, place: file.path.clone() })
}

/// Why a file is refused, if it is. A file of tests only has no lines before them.
pub fn too_long(file: &TextFile) -> Option<String> {
    let is_test = file.path.contains("/tests/") || file.path.ends_with("tests.rs");
    let (before, all) = (lines_before_tests(file), file.text.lines().count());
    let path = &file.path;
    if before > MOST_LINES && !is_test {
        return Some(format!("{path}: {before} lines before its tests, at most {MOST_LINES}"));
    }
    (all > MOST_LINES_WITH_TESTS)
        .then(|| format!("{path}: {all} lines, at most {MOST_LINES_WITH_TESTS}"))
}

/// The lines before the module with the tests.
fn lines_before_tests(file: &TextFile) -> usize {
    let code = Source::new(&file.text).code();
    let lines: Vec<&str> = code.lines().collect();
    let begins_tests = |pair: &[&str]| {
        let module = pair[1].strip_prefix("pub ").unwrap_or(pair[1]);
        pair[0] == "#[cfg(test)]" && module.starts_with("mod ") && !module.ends_with(';')
    };
    lines.windows(2).position(begins_tests).unwrap_or(lines.len())
}

/// The functions of the file that have too many lines.
pub fn long_functions(file: &TextFile) -> Vec<Long> {
    let code = Source::new(&file.text).code();
    let lines: Vec<&str> = code.lines().collect();
    let starts =
        lines.iter().enumerate().filter_map(|(index, line)| Some((index, function_name(line)?)));
    let long = starts.filter_map(|(index, name)| {
        let count = body_lines(&lines[index..])?;
        let place = format!("{}:{}: {name}", file.path, index + 1);
        (count > MAX_FUNCTION_LINES).then_some(Long { lines: count, place })
    });
    long.collect()
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_declaration = before.split_whitespace().all(|word| {
        matches!(word, "async" | "const" | "extern" | "unsafe") || word.starts_with("pub")
    });
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_declaration && !name.is_empty()).then_some(name)
}

/// The lines from a declaration to the brace that closes its body; `None` without a body.
fn body_lines(lines: &[&str]) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, line) in lines.iter().enumerate() {
        for c in line.chars() {
            match c {
                '{' | '(' | '[' => depth += 1,
                ';' if depth == 0 => return None,
                '}' | ')' | ']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && c == '}' {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{long_file, long_functions, too_long};
    use crate::TextFile;

    fn file(text: String) -> TextFile {
        TextFile { path: "a.rs".to_owned(), text }
    }

    #[test]
    fn lines_before_the_tests_count() {
        let tests = "#[cfg(test)]\nmod tests {}\n";
        assert_eq!(long_file(&file(format!("{}{tests}", "x;\n".repeat(300)))), None);
        let long = long_file(&file(format!("{}{tests}", "x;\n".repeat(301))));
        assert_eq!(long.map(|long| long.lines), Some(301));
    }

    #[test]
    fn file_is_refused_by_its_lines_before_and_with_the_tests() {
        let before = |count: usize, tests: usize| {
            format!(
                "#[cfg(test)]\nmod fixtures;\n{}#[cfg(test)]\npub mod tests {{\n{}}}\n",
                "x;\n".repeat(count),
                "    y;\n".repeat(tests)
            )
        };
        let at = |path: &str, text: String| too_long(&TextFile { path: path.to_owned(), text });
        for (count, tests, expected) in [
            (398, 0, None),
            (399, 0, Some("a.rs: 401 lines before its tests, at most 400")),
            (398, 497, None),
            (398, 498, Some("a.rs: 901 lines, at most 900")),
        ] {
            assert_eq!(at("a.rs", before(count, tests)).as_deref(), expected, "{count} {tests}");
        }
        assert_eq!(at("x/tests/a.rs", "x;\n".repeat(900)), None);
        assert!(at("x/src/tests.rs", "x;\n".repeat(901)).is_some());
    }

    #[test]
    fn function_is_measured_from_its_first_line_to_its_brace() {
        let body = "    x[{1}];\n".repeat(59);
        let text =
            format!("trait T {{ fn f(&self); }}\npub async fn g(\n) {{\n{body}}}\nfn h() {{}}\n");
        let long = long_functions(&file(text));
        assert_eq!(
            long.iter().map(|l| (l.lines, &*l.place)).collect::<Vec<_>>(),
            [(62, "a.rs:2: g")]
        );
    }
}
