//! Counts lines: every line of `txt`, and the lines of `jsonl` that are not blank. Pure.

use serde::{Deserialize, Serialize};

/// `txt`: one sample per line. A line ends with LF; a CR before it is content. Empty lines count,
/// as in `wc -l`. A last line without LF counts, and does not count again when it is completed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Txt {
    ended: u64,
    open: bool,
}

impl Txt {
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        let Some(last) = chunk.last() else { return };
        self.ended += memchr::memchr_iter(b'\n', chunk).count() as u64;
        self.open = *last != b'\n';
    }

    pub(crate) fn samples(&self) -> u64 {
        self.ended + u64::from(self.open)
    }
}

/// `jsonl`: one JSON value per line. Lines of only white space are skipped. Values are not
/// validated. A last line without LF counts only if its brackets and texts are closed: a program
/// that writes a line, or was killed while it did, leaves a part of a sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Jsonl {
    ended: u64,
    /// Whether the current line has content.
    open: bool,
    /// The brackets that the current line has open.
    #[serde(default)]
    depth: u64,
    /// The text that the current line has open.
    #[serde(default)]
    text: OpenText,
}

/// Whether a line ends within a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum OpenText {
    #[default]
    No,
    Yes,
    /// The last byte is a backslash, so the next one does not end the text.
    Escape,
}

impl Jsonl {
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.ended += u64::from(self.open || has_content(&rest[..end]));
            *self = Self { ended: self.ended, ..Self::default() };
            rest = &rest[end + 1..];
        }
        self.open = self.open || has_content(rest);
        self.follow(rest);
    }

    pub(crate) fn samples(&self) -> u64 {
        let is_complete = self.depth == 0 && self.text == OpenText::No;
        self.ended + u64::from(self.open && is_complete)
    }

    /// Follows the brackets and texts of the current line.
    fn follow(&mut self, part: &[u8]) {
        for byte in part {
            self.text = match (self.text, byte) {
                (OpenText::No, b'"') => OpenText::Yes,
                (OpenText::No, b'{' | b'[') => {
                    self.depth += 1;
                    OpenText::No
                }
                (OpenText::No, b'}' | b']') => {
                    self.depth = self.depth.saturating_sub(1);
                    OpenText::No
                }
                (OpenText::Yes, b'\\') => OpenText::Escape,
                (OpenText::Yes, b'"') | (OpenText::No, _) => OpenText::No,
                (OpenText::Yes | OpenText::Escape, _) => OpenText::Yes,
            };
        }
    }
}

fn has_content(line: &[u8]) -> bool {
    line.iter().any(|byte| !matches!(byte, b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txt(chunks: &[&str]) -> u64 {
        let mut count = Txt::default();
        for chunk in chunks {
            count.feed(chunk.as_bytes());
        }
        count.samples()
    }

    fn jsonl(chunks: &[&str]) -> u64 {
        let mut count = Jsonl::default();
        for chunk in chunks {
            count.feed(chunk.as_bytes());
        }
        count.samples()
    }

    #[test]
    fn every_line_counts_with_or_without_final_newline() {
        for (expected, chunks) in [
            (0, &[][..]),
            (0, &[""]),
            (1, &["a"]),
            (1, &["a\n"]),
            (2, &["a\nb"]),
            (3, &["a\n\nb\n"]),
            (2, &["a\r\nb\r\n"]),
            (1, &["a", "b", "", "\n"]),
            (2, &["a\n", "b", ""]),
        ] {
            assert_eq!(txt(chunks), expected, "{chunks:?}");
        }
    }

    #[test]
    fn line_of_any_length_is_one_sample() {
        let long = "x".repeat(300_000) + "\n";
        assert_eq!(txt(&[&long, &long, "end"]), 3);
    }

    #[test]
    fn part_of_a_jsonl_record_never_counts() {
        let record = r#"{"id":"1","request":{"inputs":[{"data":[1,2]}]},"label":"}\\\"]"}"#;
        let whole = format!("{record}\n{record}\n");
        for cut in 0..=whole.len() {
            let expected = cut / (record.len() + 1);
            // Its line feed adds nothing to a record.
            let is_complete = cut % (record.len() + 1) == record.len();
            let (one, other) = whole[..cut].split_at(cut / 2);
            assert_eq!(jsonl(&[one, other]), (expected + usize::from(is_complete)) as u64, "{cut}");
        }
    }

    #[test]
    fn blank_jsonl_lines_are_not_counted() {
        for (expected, chunks) in [
            (0, &["", "\n \t\r\n"][..]),
            (1, &["{}"]),
            (2, &["{\"a\":1}\n\n{\"a\":2}\n"]),
            (1, &["  ", "{", "}", "  ", "\n", " "]),
            (1, &["1\n{\"a\":"]),
            (2, &["1\n{\"a\":", "\"}\\\"}", "\"}"]),
            (0, &["[[1]"]),
            (0, &["[[1]", ",2"]),
            (1, &["7"]),
        ] {
            assert_eq!(jsonl(chunks), expected, "{chunks:?}");
        }
    }
}
