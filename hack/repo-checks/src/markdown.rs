//! Finds broken relative links and overlong lines in Markdown files.

use std::collections::{BTreeMap, BTreeSet};

/// The most columns of a line of prose.
pub const MAX_COLUMNS: usize = 120;

/// A line of a Markdown file that is not in a code block, with its number from 1.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<String> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let trimmed = line.trim_start();
        let marks: String = trimmed.chars().take_while(|&c| c == '`' || c == '~').collect();
        match &fence {
            Some(open) => {
                if marks.starts_with(open.as_str()) && trimmed.trim_end() == marks {
                    fence = None;
                }
                None
            }
            None if marks.len() >= 3 => {
                fence = Some(marks);
                None
            }
            None => Some((index + 1, line)),
        }
    })
}

/// A link's target, with its line from 1.
pub type Link = (usize, String);

/// The targets of all links and images, and of link definitions. Code is left out.
pub fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        if let Some(target) = definition(&line) {
            links.push((number, target));
        }
        let mut rest = &*line;
        while let Some((_, after)) = rest.split_once("](") {
            let (target, _) = after.split_at(target_end(after));
            let target = target.split_whitespace().next().unwrap_or_default();
            links.push((number, target.trim_matches(['<', '>']).to_owned()));
            rest = after;
        }
    }
    links
}

/// Where the target ends that begins here: at the closing parenthesis.
fn target_end(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return at,
            ')' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// The target of `[name]: target`.
fn definition(line: &str) -> Option<String> {
    let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    let is_name = !name.contains([']', '[']) && !name.starts_with('^');
    is_name.then(|| target.split_whitespace().next().unwrap_or_default().to_owned())
}

/// The line without what is between backticks.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An odd number of backticks: the last one is a character.
    if parts.len().is_multiple_of(2) {
        return line.to_owned();
    }
    parts.into_iter().step_by(2).collect::<Vec<_>>().join("``")
}

/// The anchors of a page: its headings as the usual hosts name them, and explicit ones.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut times) = (BTreeSet::new(), BTreeMap::new());
    for (_, line) in prose(text) {
        if let Some(heading) = heading(line) {
            let anchor = slug(heading);
            let count = times.entry(anchor.clone()).or_insert(0);
            anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
            *count += 1;
        }
        for attribute in ["id=\"", "name=\""] {
            let values = line.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
            anchors.extend(values.map(str::to_owned));
        }
    }
    anchors
}

fn heading(line: &str) -> Option<&str> {
    let marks = line.chars().take_while(|&c| c == '#').count();
    let text = line.get(marks..)?.strip_prefix(' ')?;
    (1..=6).contains(&marks).then(|| text.trim().trim_end_matches('#').trim_end())
}

/// Lower case, spaces become hyphens, and all but letters, digits, hyphens and underscores goes.
/// Of a link only its text counts.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.get(target_end(after) + 1..).unwrap_or_default();
    }
    text.push_str(rest);
    let kept = text.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The path that a relative target names, seen from the file that links, and its anchor. `None` if
/// the target is an address.
pub fn resolve(file: &str, target: &str) -> Option<(String, Option<String>)> {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')
    });
    if has_scheme || target.starts_with("//") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.is_empty() {
        return Some((file.to_owned(), anchor));
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    if path.starts_with('/') {
        parts.clear();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some((parts.join("/"), anchor))
}

/// The lines that are too wide, with their columns. Code blocks and tables are left out; of a link
/// only its text counts, and a bare address not at all.
pub fn wide_lines(text: &str) -> Vec<(usize, usize)> {
    let lines = prose(text).filter(|(_, line)| !line.trim_start().starts_with('|'));
    let columns = lines.map(|(number, line)| (number, columns(line)));
    columns.filter(|&(_, columns)| columns > MAX_COLUMNS).collect()
}

fn columns(line: &str) -> usize {
    if definition(line).is_some() {
        return 0;
    }
    let (mut count, mut rest) = (0, line);
    while let Some((before, after)) = rest.split_once("](") {
        count += before.chars().count() + 1;
        rest = after.get(target_end(after) + 1..).unwrap_or_default();
    }
    count += rest.chars().count();
    let addresses =
        line.split_whitespace().filter(|word| word.contains("://") && !word.contains("]("));
    count.saturating_sub(addresses.map(|address| address.chars().count()).sum())
}

#[cfg(test)]
mod tests {
    use super::{anchors, links, resolve, wide_lines};

    #[test]
    fn links_in_code_are_not_links() {
        let text = "[a](b.md) `[c](d)` ![e](f_(g).png \"title\")\n```md\n[h](i)\n```\n[j]: k.md\n";
        let expected = [(1, "b.md"), (1, "f_(g).png"), (5, "k.md")];
        assert_eq!(links(text), expected.map(|(line, target)| (line, target.to_owned())));
    }

    #[test]
    fn anchors_are_named_as_hosts_name_them() {
        let text = "# Without a broker: `--transport eventbus`\n## A\n## A\n```sh\n# no\n```\n## [B c](d) `e`\n";
        let expected = ["a", "a-1", "b-c-e", "without-a-broker---transport-eventbus"];
        assert!(anchors(text).iter().eq(&expected), "{:?}", anchors(text));
    }

    #[test]
    fn targets_are_relative_to_the_file() {
        let resolved = |target| resolve("docs/adr/1.md", target);
        let path = |path: &str| (path.to_owned(), None);
        assert_eq!(resolved("../security.md"), Some(path("docs/security.md")));
        assert_eq!(resolved("../../LICENSE"), Some(path("LICENSE")));
        assert_eq!(resolved("/README.md"), Some(path("README.md")));
        assert_eq!(resolved("#why"), Some(("docs/adr/1.md".to_owned(), Some("why".to_owned()))));
        assert_eq!(resolved("https://example.org/a"), None);
        assert_eq!(resolved("mailto:a@example.org"), None);
    }

    #[test]
    fn only_prose_has_a_width() {
        let long = "x".repeat(121);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n[x]({long})\nhttps://{long}\n");
        assert_eq!(wide_lines(&text), [(1, 121)]);
    }
}
