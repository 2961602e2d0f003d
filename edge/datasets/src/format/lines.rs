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
/// validated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Jsonl {
    ended: u64,
    /// Whether the current line has content.
    open: bool,
}

impl Jsonl {
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.ended += u64::from(self.open || has_content(&rest[..end]));
            self.open = false;
            rest = &rest[end + 1..];
        }
        self.open = self.open || has_content(rest);
    }

    pub(crate) fn samples(&self) -> u64 {
        self.ended + u64::from(self.open)
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
    fn blank_jsonl_lines_are_not_counted() {
        for (expected, chunks) in [
            (0, &["", "\n \t\r\n"][..]),
            (1, &["{}"]),
            (2, &["{\"a\":1}\n\n{\"a\":2}\n"]),
            (1, &["  ", "{", "}", "  ", "\n", " "]),
        ] {
            assert_eq!(jsonl(chunks), expected, "{chunks:?}");
        }
    }
}
