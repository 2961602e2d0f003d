//! Keeps the end of a log within the size of an answer, and removes what could change a terminal.

use std::collections::VecDeque;

use jiff::Timestamp;
use neptune_wire::{MAX_ANSWER_BYTES, is_shown};

/// The end of a log, while the engine sends it. Its size is bounded.
#[derive(Debug)]
pub struct LogLines {
    /// Lines until this time are left out.
    since: Option<Timestamp>,
    max_lines: usize,
    lines: VecDeque<String>,
    /// The length of all lines as JSON, in bytes.
    bytes: usize,
    truncated: bool,
    last: Option<Timestamp>,
    /// Whether the part before was the beginning of a longer line.
    is_continued: bool,
}

/// The end of a log, as an answer has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogText {
    /// The last lines that fit.
    pub text: String,
    /// Whether earlier lines were left out that were requested.
    pub truncated: bool,
    /// The time of the last line.
    pub next: Option<String>,
}

impl LogLines {
    /// No line. `since`: lines until this time are left out. Only the last `max_lines` are kept.
    pub fn new(since: Option<Timestamp>, max_lines: usize) -> Self {
        Self {
            since,
            max_lines,
            lines: VecDeque::new(),
            bytes: 0,
            truncated: false,
            last: None,
            is_continued: false,
        }
    }

    /// Adds what the engine sent: a line with its time and a space before it, a part of a long line,
    /// or several of them.
    pub fn add(&mut self, sent: &[u8]) {
        for line in sent.split_inclusive(|byte| *byte == b'\n') {
            let (time, text) = timed(line);
            self.last = time.or(self.last);
            if self.since.is_some_and(|since| time.or(self.last).is_some_and(|at| at <= since)) {
                continue;
            }
            self.push(String::from_utf8_lossy(text).chars().filter(|char| is_shown(*char)));
        }
    }

    /// Whether no line was added that is kept.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn push(&mut self, text: impl Iterator<Item = char>) {
        let text: String = text.collect();
        self.bytes += text.chars().map(json_bytes).sum::<usize>();
        let is_continued = !text.ends_with('\n');
        match self.lines.back_mut().filter(|_| self.is_continued) {
            Some(line) => line.push_str(&text),
            None => self.lines.push_back(text),
        }
        self.is_continued = is_continued;
        if self.lines.len() > self.max_lines {
            // Without a time, the number of lines is what was requested.
            self.truncated |= self.since.is_some();
            self.drop_first();
        }
        while self.bytes > MAX_ANSWER_BYTES && self.lines.len() > 1 {
            self.truncated = true;
            self.drop_first();
        }
        // One line may be longer than an answer.
        let excess = self.bytes.saturating_sub(MAX_ANSWER_BYTES);
        if excess > 0
            && let Some(line) = self.lines.front_mut()
        {
            self.truncated = true;
            let (mut dropped, mut end) = (0, 0);
            for char in line.chars() {
                if dropped >= excess {
                    break;
                }
                dropped += json_bytes(char);
                end += char.len_utf8();
            }
            line.drain(..end);
            self.bytes -= dropped;
        }
    }

    fn drop_first(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.chars().map(json_bytes).sum::<usize>();
        }
    }

    /// The text. `is_incomplete`: the engine did not send all of the lines.
    pub fn finish(self, is_incomplete: bool) -> LogText {
        LogText {
            text: self.lines.into_iter().collect(),
            truncated: self.truncated || is_incomplete,
            next: self.last.map(|time| time.to_string()),
        }
    }
}

/// The time before a line, and the line.
fn timed(line: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let Some(at) = line.iter().position(|byte| *byte == b' ') else { return (None, line) };
    let time = str::from_utf8(&line[..at]).ok().and_then(|text| text.parse().ok());
    if time.is_some() { (time, &line[at + 1..]) } else { (None, line) }
}

/// The length of a character in a JSON text. Other control characters are left out.
fn json_bytes(char: char) -> usize {
    if matches!(char, '"' | '\\' | '\n' | '\t') { 2 } else { char.len_utf8() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn read(since: Option<&str>, max_lines: usize, sent: &[&str]) -> LogText {
        let mut lines = LogLines::new(since.map(|text| text.parse().unwrap()), max_lines);
        for sent in sent {
            lines.add(sent.as_bytes());
        }
        lines.finish(false)
    }

    #[test]
    fn lines_lose_their_time_and_control_characters() {
        let sent = [
            "2026-11-24T06:00:00.000000001Z a\tb\u{1b}[31m\r\n",
            "2026-11-24T06:00:01Z \n",
            "not a time\n",
        ];
        let expected = LogText {
            text: "a\tb[31m\n\nnot a time\n".to_owned(),
            truncated: false,
            next: Some("2026-11-24T06:00:01Z".to_owned()),
        };
        assert_eq!(read(None, 100, &sent), expected);
        let mut lines = LogLines::new(None, 1);
        lines.add(b"2026-11-24T06:00:00Z \xff\xfe\0x\n");
        assert_eq!(lines.finish(false).text, "\u{fffd}\u{fffd}x\n");
    }

    #[test]
    fn lines_until_the_time_are_left_out() {
        let sent = [
            "2026-11-24T06:00:00.1Z a\n2026-11-24T06:00:00.2Z b\n",
            "2026-11-24T06:00:00.3Z c\n",
            "2026-11-24T06:00:00.4Z d\n",
        ];
        let read = |since, max| read(Some(since), max, &sent);
        let after = read("2026-11-24T06:00:00.2Z", 9);
        assert_eq!((after.text.as_str(), after.truncated), ("c\nd\n", false));
        assert_eq!(after.next.as_deref(), Some("2026-11-24T06:00:00.4Z"));
        let few = read("2026-11-24T06:00:00.1Z", 2);
        assert_eq!((few.text.as_str(), few.truncated), ("c\nd\n", true), "b was requested");
        let none = read("2026-11-24T07:00:00Z", 2);
        assert_eq!((none.text.as_str(), none.truncated), ("", false));
    }

    #[test]
    fn parts_of_a_long_line_are_one_line() {
        let time = "2026-11-24T06:00:00Z";
        let sent = [format!("{time} first\n"), format!("{time} aaa"), format!("{time} bbb\n")];
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        assert_eq!(read(None, 1, &sent).text, "aaabbb\n");
        assert_eq!(read(None, 2, &sent).text, "first\naaabbb\n");
    }

    #[test]
    fn end_is_kept_of_what_is_too_long() {
        let line = format!("2026-11-24T06:00:00Z {}\n", "x".repeat(999));
        let sent = vec![line.as_str(); 60];
        let many = read(None, 100, &sent);
        assert!(many.truncated && many.text.lines().count() == 49, "{}", many.text.len());
        let long = format!("2026-11-24T06:00:00Z {}end\n", "ä".repeat(MAX_ANSWER_BYTES));
        let one = read(None, 100, &[&long]);
        assert!(one.truncated && one.text.ends_with("end\n"));
        assert!(one.text.len() > MAX_ANSWER_BYTES - 8 && one.text.len() <= MAX_ANSWER_BYTES);
    }

    proptest! {
        #[test]
        fn text_is_bounded_and_changes_no_terminal(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..12),
            max_lines in 1..1000_usize,
        ) {
            let mut lines = LogLines::new(None, max_lines);
            for sent in &sent {
                lines.add(sent);
            }
            let text = lines.finish(false).text;
            prop_assert!(serde_json::to_string(&text).unwrap().len() <= MAX_ANSWER_BYTES + 2);
            prop_assert!(text.chars().all(is_shown));
            prop_assert!(text.lines().count() <= max_lines);
        }
    }
}
