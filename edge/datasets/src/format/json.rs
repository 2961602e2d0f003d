//! Counts the elements of the top-level JSON array, or of the array in one member of the top-level
//! object. Pure, with constant memory.
//!
//! It follows brackets and strings, and does not validate anything else. An element counts as soon
//! as the comma or bracket after it is read, so that a file that is being written has a count of
//! its complete samples.

use serde::{Deserialize, Serialize};

use crate::{counts::MAX_NAME, error::DatasetError};

/// Maximum number of open brackets. Programs that read the samples accept no more: the default
/// limits are 128 of `serde_json`, 512 of PHP and 1000 of Python.
const MAX_DEPTH: u64 = 512;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Json {
    /// The member that has the samples. `None`: the top-level value is the array.
    member: Option<String>,
    samples: u64,
    /// Number of bytes read.
    offset: u64,
    /// Number of open brackets.
    depth: u64,
    string: InString,
    #[serde(rename = "place")]
    position: JsonPosition,
    /// The string at depth 1 that may be the key of a member, truncated.
    key: Vec<u8>,
    /// Whether the configured member was found.
    #[serde(rename = "found")]
    is_found: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum InString {
    #[default]
    No,
    Yes,
    /// The last byte is a backslash, so the next one does not end the string.
    Escape,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum JsonPosition {
    /// The next value is the top-level one.
    #[default]
    Top,
    /// The next string is a key of the top-level object.
    Key,
    /// The key was read, and its colon follows.
    Colon,
    /// The next value is that of the configured member.
    Wanted,
    /// The position is in another member, or after the configured one.
    Other,
    /// The position is in the array of samples.
    Array {
        /// Depth of the elements.
        depth: u64,
        /// Whether an element has started and is not counted.
        pending: bool,
    },
    Done,
}

impl Json {
    pub(crate) fn new(member: Option<String>) -> Self {
        Self { member, ..Self::default() }
    }

    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), DatasetError> {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            match self.string {
                InString::No => {
                    self.step(*byte)?;
                    rest = after;
                    self.offset += 1;
                }
                InString::Escape => {
                    self.keep_key(&[*byte]);
                    self.string = InString::Yes;
                    rest = after;
                    self.offset += 1;
                }
                InString::Yes => {
                    let end = memchr::memchr2(b'"', b'\\', rest);
                    let until = end.unwrap_or(rest.len());
                    self.keep_key(&rest[..until]);
                    if let Some(end) = end {
                        self.string =
                            if rest[end] == b'"' { InString::No } else { InString::Escape };
                    }
                    let used = until + usize::from(end.is_some());
                    rest = &rest[used..];
                    self.offset += used as u64;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Whether the top-level value is incomplete.
    pub(crate) fn unfinished(&self) -> bool {
        self.position != JsonPosition::Done
    }

    /// Takes one byte outside strings.
    fn step(&mut self, byte: u8) -> Result<(), DatasetError> {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
            || (self.offset < 3 && matches!(byte, 0xef | 0xbb | 0xbf))
        {
            return Ok(());
        }
        if let JsonPosition::Array { depth, pending: false } = self.position
            && byte != b']'
        {
            self.position = JsonPosition::Array { depth, pending: true };
        }
        match self.position {
            JsonPosition::Top => return self.begin(byte),
            JsonPosition::Done => {
                return Err(self.error("unexpected data after the top-level value"));
            }
            JsonPosition::Colon if byte == b':' => {
                let wanted =
                    self.member.as_ref().is_some_and(|member| member.as_bytes() == self.key);
                self.position = if wanted { JsonPosition::Wanted } else { JsonPosition::Other };
                return Ok(());
            }
            JsonPosition::Key if byte == b'"' => {
                self.key.clear();
                self.position = JsonPosition::Colon;
            }
            JsonPosition::Wanted if byte == b'[' => {
                self.depth += 1;
                (self.is_found, self.samples) = (true, 0);
                self.position = JsonPosition::Array { depth: self.depth, pending: false };
                return Ok(());
            }
            JsonPosition::Wanted => {
                return Err(self.error("the configured member is not an array"));
            }
            _ => {}
        }
        match byte {
            b'"' => self.string = InString::Yes,
            b'{' | b'[' if self.depth == MAX_DEPTH => {
                return Err(self.error("values are nested deeper than 512 levels"));
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.close()?,
            b',' => match self.position {
                JsonPosition::Array { depth, .. } if depth == self.depth => {
                    self.samples += 1;
                    self.position = JsonPosition::Array { depth, pending: false };
                }
                JsonPosition::Other if self.depth == 1 => self.position = JsonPosition::Key,
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, byte: u8) -> Result<(), DatasetError> {
        self.depth = 1;
        self.position = match (byte, &self.member) {
            (b'[', None) => JsonPosition::Array { depth: 1, pending: false },
            (b'{', Some(_)) => JsonPosition::Key,
            (b'{', None) => {
                return Err(self.error(
                    "top-level value is an object; set option member to the member that holds the samples",
                ));
            }
            (b'[', Some(_)) => {
                return Err(self.error(
                    "top-level value is an array, which has no members; remove option member",
                ));
            }
            _ => return Err(self.error("top-level value is neither an array nor an object")),
        };
        Ok(())
    }

    fn close(&mut self) -> Result<(), DatasetError> {
        if let JsonPosition::Array { depth, pending } = self.position
            && depth == self.depth
        {
            self.samples += u64::from(pending);
            self.position = JsonPosition::Other;
        }
        self.depth -= 1;
        if self.depth > 0 {
            return Ok(());
        }
        self.position = JsonPosition::Done;
        match &self.member {
            Some(member) if !self.is_found => {
                Err(DatasetError::NoSuchMember { member: member.clone() })
            }
            _ => Ok(()),
        }
    }

    fn keep_key(&mut self, part: &[u8]) {
        if self.position == JsonPosition::Colon {
            let room = (MAX_NAME + 1).saturating_sub(self.key.len()).min(part.len());
            self.key.extend_from_slice(&part[..room]);
        }
    }

    fn error(&self, reason: &'static str) -> DatasetError {
        DatasetError::MalformedJson { offset: self.offset, reason }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn count(member: Option<&str>, text: &str) -> Result<(u64, bool), DatasetError> {
        let mut json = Json::new(member.map(str::to_owned));
        json.feed(text.as_bytes())?;
        Ok((json.samples(), json.unfinished()))
    }

    #[test]
    fn elements_of_the_top_level_array_are_counted() {
        for (expected, text) in [
            (0, "[]"),
            (0, " [ \n ] "),
            (1, "[1]"),
            (1, "[[1,2,3]]"),
            (3, "[1, \"a,]\", {\"b\": [1, 2], \"c\": \"\\\"]\"}]\n"),
            (2, "\u{feff}[null,\n{}]"),
        ] {
            assert_eq!(count(None, text), Ok((expected, false)), "{text:?}");
        }
    }

    #[test]
    fn array_of_the_configured_member_is_counted_at_any_position() {
        let coco = r#"{"info": {"images": [1,2,3]}, "images": [{"id": 1}, {"id": 2}], "annotations": [1,2,3], "a": "images"}"#;
        assert_eq!(count(Some("images"), coco), Ok((2, false)));
        assert_eq!(count(Some("annotations"), coco), Ok((3, false)));
        assert_eq!(
            count(Some("none"), coco),
            Err(DatasetError::NoSuchMember { member: "none".into() })
        );
    }

    #[test]
    fn deeply_nested_value_is_malformed() {
        for (depth, is_valid) in [(512, true), (513, false), (100_000, false)] {
            let counted = count(None, &"[".repeat(depth));
            assert_eq!(counted.is_ok(), is_valid, "{depth}: {counted:?}");
        }
        let closed = format!("{}{}", "[".repeat(512), "]".repeat(512));
        assert_eq!(count(None, &closed).unwrap(), (1, false));
    }

    #[test]
    fn unfinished_file_counts_its_complete_samples() {
        for (expected, text) in
            [(0, ""), (0, "["), (0, "[1"), (1, "[1,"), (1, "[1,{\"a\":[2,3"), (2, "[1,2,\"")]
        {
            assert_eq!(count(None, text), Ok((expected, true)), "{text:?}");
        }
    }

    #[test]
    fn data_without_samples_is_reported_with_its_offset() {
        for (member, text, offset) in [
            (None, " {\"a\": 1}", 1),
            (None, "7", 0),
            (Some("a"), "[1]", 0),
            (None, "[1] x", 4),
            (Some("a"), "{\"a\": 1}", 6),
        ] {
            let error = count(member, text).unwrap_err();
            assert!(
                matches!(error, DatasetError::MalformedJson { offset: at, .. } if at == offset),
                "{text:?}: {error}"
            );
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i32>().prop_map(Into::into),
            "[a\\[\\]{},:\"\\\\ ]{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::vec(("[ab\\[\"]{1,3}", inner), 0..4)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn count_equals_that_of_serde_json_for_any_chunks(
            values in proptest::collection::vec(value(), 0..8),
            pretty: bool,
            cut: prop::sample::Index,
        ) {
            let whole = serde_json::Value::from(values.clone());
            let text = if pretty { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) }.unwrap();
            let (head, tail) = text.as_bytes().split_at(cut.index(text.len() + 1));
            let mut json = Json::new(None);
            json.feed(head).unwrap();
            json.feed(tail).unwrap();
            prop_assert_eq!((json.samples(), json.unfinished()), (values.len() as u64, false));

            let object = serde_json::json!({"x": whole, "samples": values, "y": whole});
            let text = object.to_string();
            let (head, tail) = text.as_bytes().split_at(cut.index(text.len() + 1));
            let mut json = Json::new(Some("samples".into()));
            json.feed(head).unwrap();
            json.feed(tail).unwrap();
            prop_assert_eq!((json.samples(), json.unfinished()), (values.len() as u64, false));
        }
    }
}
