//! Selects files of a repository by patterns: `*` matches within a name, `**` also across
//! directories. Pure.

/// Endings of texts, images and videos in repositories, which a default selection leaves out.
const NOT_LOADED: [&str; 10] =
    [".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".bmp", ".mp4", ".ico"];

/// Whether a file belongs to a set. Without patterns: every file except `.gitattributes`, Markdown
/// and images, which no program loads.
#[must_use]
pub fn is_selected(path: &str, patterns: &[String]) -> bool {
    if !patterns.is_empty() {
        return patterns.iter().any(|pattern| matches(pattern, path));
    }
    let name = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let is_text = matches!(&*name, ".gitattributes" | ".gitignore");
    !is_text && !NOT_LOADED.iter().any(|end| name.ends_with(end))
}

/// Whether a pattern matches the whole path. `*` matches any characters of one name, `**` matches any
/// characters and slashes, and `**/` also nothing.
#[must_use]
pub fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.as_bytes(), path.as_bytes());
    // `row[at]`: whether the rest of the pattern matches `path[at..]`, from the last part on.
    let mut row = vec![false; path.len() + 1];
    row[path.len()] = true;
    let mut end = pattern.len();
    while end > 0 {
        let is_many = end >= 2 && &pattern[end - 2..end] == b"**";
        let is_dirs = end >= 3 && &pattern[end - 3..end] == b"**/";
        let before = row.clone();
        let byte = pattern[end - 1];
        for at in (0..=path.len()).rev() {
            let next = at < path.len();
            row[at] = if is_dirs {
                // Nothing, or a directory and its slash.
                before[at] || slash_then(&before, path, at)
            } else if is_many {
                before[at] || (next && row[at + 1])
            } else if byte == b'*' {
                before[at] || (next && path[at] != b'/' && row[at + 1])
            } else {
                next && path[at] == byte && before[at + 1]
            };
        }
        end -= if is_dirs {
            3
        } else if is_many {
            2
        } else {
            1
        };
    }
    row[0]
}

/// Whether the rest matches behind any slash at or after `at`.
fn slash_then(rest: &[bool], path: &[u8], at: usize) -> bool {
    (at..path.len()).any(|slash| path[slash] == b'/' && rest[slash + 1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn star_stays_in_a_name_and_two_stars_cross_directories() {
        for (pattern, path, expected) in [
            ("m.bin", "m.bin", true),
            ("m.bin", "a/m.bin", false),
            ("*.bin", "m.bin", true),
            ("*.bin", "a/m.bin", false),
            ("*.bin", ".bin", true),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/**", "a/b/c", true),
            ("**/*.bin", "m.bin", true),
            ("**/*.bin", "a/b/m.bin", true),
            ("**/*.bin", "a/b/m.bin.txt", false),
            ("a/**/m.bin", "a/m.bin", true),
            ("a/**/m.bin", "a/b/c/m.bin", true),
            ("a/**/m.bin", "am.bin", false),
            ("**", "a/b", true),
            ("a**c", "a/b/c", true),
            ("*-of-*", "model-00001-of-00002.safetensors", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn default_selection_leaves_out_what_no_program_loads() {
        let none: [String; 0] = [];
        for (path, expected) in [
            ("config.json", true),
            ("onnx/model.onnx", true),
            (".gitattributes", false),
            ("README.md", false),
            ("docs/plot.PNG", false),
            ("LICENSE", true),
        ] {
            assert_eq!(is_selected(path, &none), expected, "{path}");
        }
        assert!(is_selected("README.md", &["*.md".to_owned()]));
        assert!(!is_selected("config.json", &["*.md".to_owned()]));
    }

    /// Matches by trying every split.
    fn slow(pattern: &str, path: &str) -> bool {
        if let Some(rest) = pattern.strip_prefix("**/") {
            let behind = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
            return std::iter::once(path).chain(behind).any(|path| slow(rest, path));
        }
        if let Some(rest) = pattern.strip_prefix("**") {
            return (0..=path.len()).any(|at| slow(rest, &path[at..]));
        }
        if let Some(rest) = pattern.strip_prefix('*') {
            let end = path.find('/').unwrap_or(path.len());
            return (0..=end).any(|at| slow(rest, &path[at..]));
        }
        match pattern.chars().next() {
            None => path.is_empty(),
            Some(first) => path.starts_with(first) && slow(&pattern[1..], &path[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_equals_the_trial_of_every_split(
            pattern in "([a/]|[*][a/]|[*][*]/|[*][*]a){0,5}[*]{0,2}", path in "[a/]{0,8}"
        ) {
            prop_assert_eq!(matches(&pattern, &path), slow(&pattern, &path), "{} {}", pattern, path);
        }
    }
}
