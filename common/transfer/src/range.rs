//! Byte ranges of HTTP (RFC 9110, section 14): a request has at most one, which may be open at one
//! end. Pure.

use std::fmt;

/// The bytes of a content that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All of them: there is no range, or one that a server may ignore.
    Whole,
    /// Those from the first to the last, both included.
    Part(u64, u64),
    /// The range has no byte of the content.
    Unsatisfiable,
}

impl Selection {
    /// Returns the selection of the header `Range` in a content of `length` bytes. The range counts
    /// only if `If-Range` is absent or the entity tag of the content.
    #[must_use]
    pub fn new(range: Option<&str>, if_range: Option<&str>, tag: &str, length: u64) -> Self {
        if if_range.is_some_and(|it| it.trim() != tag) {
            return Self::Whole;
        }
        let set = range.and_then(|it| it.trim().strip_prefix("bytes="));
        let Some((first, last)) = set.and_then(|it| it.trim().split_once('-')) else {
            return Self::Whole;
        };
        let number = |text: &str| digits(text).then(|| text.parse().unwrap_or(u64::MAX));
        match (number(first), number(last)) {
            (Some(first), _) if first >= length && (last.is_empty() || number(last).is_some()) => {
                Self::Unsatisfiable
            }
            (Some(first), Some(last)) if first <= last => Self::Part(first, last.min(length - 1)),
            (Some(first), None) if last.is_empty() => Self::Part(first, length - 1),
            (None, Some(0)) if first.is_empty() => Self::Unsatisfiable,
            (None, Some(_)) if first.is_empty() && length == 0 => Self::Unsatisfiable,
            (None, Some(suffix)) if first.is_empty() => {
                Self::Part(length.saturating_sub(suffix), length - 1)
            }
            _ => Self::Whole,
        }
    }

    /// Returns the status, the first byte and the number of bytes of the response for a content of
    /// `length` bytes.
    #[must_use]
    pub fn response(self, length: u64) -> (u16, u64, u64) {
        match self {
            Self::Whole => (200, 0, length),
            Self::Part(first, last) => (206, first, last - first + 1),
            Self::Unsatisfiable => (416, 0, 0),
        }
    }

    /// Returns the header `Content-Range` of the response, if it has one.
    #[must_use]
    pub fn content_range(self, length: u64) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Part(first, last) => {
                Some(ContentRange { first, last, total: Some(length) }.to_string())
            }
            Self::Unsatisfiable => Some(format!("{UNSATISFIED}{length}")),
        }
    }
}

/// The beginning of `Content-Range` in a response with status 416; the length of the content follows.
const UNSATISFIED: &str = "bytes */";

/// Returns the header `Range` for all bytes from `offset` on.
#[must_use]
pub fn from_offset(offset: u64) -> String {
    format!("bytes={offset}-")
}

/// The header `Content-Range` of a response with a part of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRange {
    /// Offset of the first byte in the content.
    pub first: u64,
    /// Offset of the last byte, which belongs to the part.
    pub last: u64,
    /// The length of the content; `None` if the server does not know it.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Parses `bytes 0-9/10`. Returns `None` if it is malformed or contradicts itself.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let total = if total == "*" { None } else { Some(number(total)?) };
        let (first, last) = (number(first)?, number(last)?);
        let is_valid = first <= last && total.is_none_or(|total| last < total);
        is_valid.then_some(Self { first, last, total })
    }

    /// Returns the number of bytes of the part.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.last - self.first + 1
    }
}

impl fmt::Display for ContentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}-{}/", self.first, self.last)?;
        match self.total {
            Some(total) => write!(f, "{total}"),
            None => f.write_str("*"),
        }
    }
}

/// Parses `Content-Range` of a response with status 416. Returns the length of the content.
#[must_use]
pub fn unsatisfied_length(text: &str) -> Option<u64> {
    number(text.strip_prefix(UNSATISFIED)?)
}

fn number(text: &str) -> Option<u64> {
    // `parse` alone would accept a sign.
    digits(text).then(|| text.parse().ok())?
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const TAG: &str = "\"aa\"";

    #[test]
    fn each_form_of_a_range_is_read() {
        for (range, length, expected) in [
            ("bytes=0-9", 100, Selection::Part(0, 9)),
            ("bytes=90-200", 100, Selection::Part(90, 99)),
            ("bytes=99-", 100, Selection::Part(99, 99)),
            ("bytes=-10", 100, Selection::Part(90, 99)),
            ("bytes=-200", 100, Selection::Part(0, 99)),
            ("bytes=100-", 100, Selection::Unsatisfiable),
            ("bytes=100-200", 100, Selection::Unsatisfiable),
            ("bytes=-0", 100, Selection::Unsatisfiable),
            ("bytes=0-", 0, Selection::Unsatisfiable),
            ("bytes=-5", 0, Selection::Unsatisfiable),
            ("bytes=99999999999999999999999-", 100, Selection::Unsatisfiable),
            ("bytes=5-99999999999999999999999", 100, Selection::Part(5, 99)),
            ("bytes=9-0", 100, Selection::Whole),
            ("bytes=0-1,5-6", 100, Selection::Whole),
            ("bytes=a-b", 100, Selection::Whole),
            ("bytes=+1-", 100, Selection::Whole),
            ("bytes=-", 100, Selection::Whole),
            ("bytes=", 100, Selection::Whole),
            ("bytes", 100, Selection::Whole),
            ("lines=0-1", 100, Selection::Whole),
            ("", 100, Selection::Whole),
        ] {
            let selection = Selection::new(Some(range), None, TAG, length);
            assert_eq!(selection, expected, "{range} of {length}");
        }
        assert_eq!(Selection::new(None, None, TAG, 10), Selection::Whole);
    }

    #[test]
    fn range_of_another_content_is_ignored() {
        let selection = |if_range| Selection::new(Some("bytes=5-"), Some(if_range), TAG, 10);
        assert_eq!(selection(TAG), Selection::Part(5, 9));
        assert_eq!(selection("\"bb\""), Selection::Whole);
        assert_eq!(selection("W/\"aa\""), Selection::Whole);
    }

    #[test]
    fn only_a_consistent_content_range_is_parsed() {
        let part = ContentRange { first: 4, last: 9, total: Some(10) };
        for range in [part, ContentRange { total: None, ..part }] {
            assert_eq!(ContentRange::parse(&range.to_string()), Some(range));
        }
        for bad in [
            "",
            "bytes 4-9",
            "bytes 4-3/10",
            "bytes 4-10/10",
            "bytes +4-9/10",
            "bytes -/",
            "items 4-9/10",
        ] {
            assert_eq!(ContentRange::parse(bad), None, "{bad}");
        }
        assert_eq!(unsatisfied_length("bytes */10"), Some(10));
        for bad in ["", "bytes */", "bytes */+1", "bytes 0-1/2"] {
            assert_eq!(unsatisfied_length(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_header_selects_bytes_of_the_content(
            text in "bytes=[0-9]{0,21}-[0-9]{0,21}",
            length in 1..100_u64,
        ) {
            let selection = Selection::new(Some(&text), None, TAG, length);
            if let Selection::Part(first, last) = selection {
                prop_assert!(first <= last && last < length);
            }
            let (_, first, bytes) = selection.response(length);
            prop_assert!(first + bytes <= length);
        }
    }
}
