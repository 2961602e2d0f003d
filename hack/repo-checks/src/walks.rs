//! Checks the walks through the code in `docs/architecture.md`: each file and function of a step
//! exists, and a walk visits no more files than it may.
//!
//! A walk is a table below a heading. Its first column names files; one without a folder is in the
//! folder of the file before it. The second column names functions, each of which one of these files
//! defines, and each file defines one of them. Other words of the second column are not checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::{TextFile, extension};

/// One walk through the code, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The heading above its table.
    pub heading: String,
    /// The files that it visits.
    pub files: BTreeSet<String>,
}

/// Reads the walks of a page below the heading `## Walks through the code`. Returns them, and what is
/// wrong with their steps.
pub fn walks(page: &TextFile, sources: &[TextFile]) -> (Vec<Walk>, Vec<String>) {
    let sources: BTreeMap<&str, &str> =
        sources.iter().map(|source| (&*source.path, &*source.text)).collect();
    let (mut walks, mut problems): (Vec<Walk>, _) = (Vec::new(), Vec::new());
    let section = page.text.lines().enumerate().skip_while(|(_, line)| !is_section(line));
    for (number, line) in section.skip(1).take_while(|(_, line)| !line.starts_with("## ")) {
        if let Some(heading) = line.strip_prefix("### ") {
            walks.push(Walk { heading: heading.to_owned(), files: BTreeSet::new() });
        }
        let (Some((files, functions)), Some(walk)) = (step(line), walks.last_mut()) else {
            continue;
        };
        let problem = |text: String| format!("{}:{}: {text}", page.path, number + 1);
        let missing = files.iter().filter(|file| !sources.contains_key(&***file));
        problems.extend(missing.map(|file| problem(format!("no file {file}"))));
        let texts: Vec<_> =
            files.iter().filter_map(|file| Some((file, *sources.get(&**file)?))).collect();
        for function in &functions {
            if !texts.iter().any(|(_, text)| defines(text, function)) {
                problems.push(problem(format!("no function {function} in {}", files.join(", "))));
            }
        }
        for (file, text) in texts {
            if !functions.iter().any(|function| defines(text, function)) {
                problems.push(problem(format!("{file} has no function of this step")));
            }
        }
        walk.files.extend(files);
    }
    (walks, problems)
}

fn is_section(line: &str) -> bool {
    line == "## Walks through the code"
}

/// The files and functions of a row; `None` for other lines.
fn step(line: &str) -> Option<(Vec<String>, Vec<String>)> {
    let mut cells = line.strip_prefix('|')?.split('|');
    let (first, second) = (cells.next()?, cells.next()?);
    let mut files: Vec<String> = Vec::new();
    for name in quoted(first).filter(|name| extension(name) == "rs") {
        let folder = files.last().and_then(|file| file.rsplit_once('/'));
        files.push(match folder {
            Some((folder, _)) if !name.contains('/') => format!("{folder}/{name}"),
            _ => name.to_owned(),
        });
    }
    let is_function = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let functions = quoted(second).filter(is_function).map(str::to_owned).collect();
    (!files.is_empty()).then_some((files, functions))
}

/// The texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn defines(text: &str, function: &str) -> bool {
    let after = |at: usize| text[at + "fn ".len() + function.len()..].chars().next();
    let start = format!("fn {function}");
    text.match_indices(&start).any(|(at, _)| matches!(after(at), Some('(' | '<')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn steps_name_files_and_functions_that_exist() {
        let page = file(
            "docs/a.md",
            "## Other\n| `x.rs` | `no` |\n## Walks through the code\n### One\n| File | Functions |\n\
             |---|---|\n| `a/b.rs`, `c.rs` | `first`, `second` → the broker |\n\
             | `a/c.rs`, `d.rs` | `second`, `third` |\n| `a/b.rs` | `second` |\n\
             | `a/b.rs`, `c.rs` | `second` |\n## Next\n| `y.rs` | `no` |\n",
        );
        let sources = [
            file("a/b.rs", "pub fn first() {}"),
            file("a/c.rs", "async fn second<T>() {}\nfn thirds()"),
        ];
        let (walks, problems) = walks(&page, &sources);
        let files = ["a/b.rs", "a/c.rs", "a/d.rs"].map(str::to_owned).into();
        assert_eq!(walks, [Walk { heading: "One".to_owned(), files }]);
        assert_eq!(
            problems,
            [
                "docs/a.md:8: no file a/d.rs",
                "docs/a.md:8: no function third in a/c.rs, a/d.rs",
                "docs/a.md:9: no function second in a/b.rs",
                "docs/a.md:9: a/b.rs has no function of this step",
                "docs/a.md:10: a/b.rs has no function of this step",
            ]
        );
    }
}
