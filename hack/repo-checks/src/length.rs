//! Lists long files and functions: a report for reviews, not a limit.

use crate::{TextFile, source::Source};

/// Lines of a file before its tests, above which it is listed.
pub const MAX_FILE_LINES: usize = 300;
/// Lines of a function, above which it is listed.
pub const MAX_FUNCTION_LINES: usize = 60;

/// A file or function that is longer than its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Long {
    pub lines: usize,
    /// `path`, or `path:line: name` for a function.
    pub place: String,
}

/// The file, if it has too many lines before its tests.
pub fn long_file(file: &TextFile) -> Option<Long> {
    let code = Source::new(&file.text).code();
    let tests = code.lines().position(|line| line == "#[cfg(test)]");
    let lines = tests.unwrap_or_else(|| code.lines().count());
    (lines > MAX_FILE_LINES).then(|| Long { lines, place: file.path.clone() })
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
    use super::{long_file, long_functions};
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
