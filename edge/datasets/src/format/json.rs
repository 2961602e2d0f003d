//! Counting the elements of a JSON array at the top, or of one member of an object at the top. Pure, flat memory.
//!
//! It counts and does not validate: brackets and strings are followed, everything else is taken as it comes. An element
//! counts once the comma or bracket after it is there, so a file that is being written shows its complete samples.

use serde::{Deserialize, Serialize};

use crate::{error::Error, tally::MAX_NAME};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Json {
    /// The member that holds the samples; none: the top itself does.
    member: Option<String>,
    samples: u64,
    /// Bytes seen.
    offset: u64,
    /// Open brackets.
    depth: u64,
    string: InString,
    place: Place,
    /// The string at depth 1 that may be the key of a member; cut.
    key: Vec<u8>,
    found: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum InString {
    #[default]
    No,
    Yes,
    /// After a backslash.
    Escape,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// Before the value at the top.
    #[default]
    Top,
    /// In the object at the top, where a key is next.
    Key,
    /// After a key.
    Colon,
    /// After the colon of the wanted member.
    Wanted,
    /// In a member that is not wanted, or behind the wanted one.
    Other,
    /// In the array, whose elements stand at this depth.
    Array {
        depth: u64,
        pending: bool,
    },
    Done,
}

impl Json {
    pub(crate) fn new(member: Option<String>) -> Self {
        Self { member, ..Self::default() }
    }

    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            match self.string {
                InString::No => {
                    self.outside(*byte)?;
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

    /// The value at the top is not complete.
    pub(crate) fn unfinished(&self) -> bool {
        self.place != Place::Done
    }

    fn outside(&mut self, byte: u8) -> Result<(), Error> {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
            || (self.offset < 3 && matches!(byte, 0xef | 0xbb | 0xbf))
        {
            return Ok(());
        }
        if let Place::Array { depth, pending: false } = self.place
            && byte != b']'
        {
            self.place = Place::Array { depth, pending: true };
        }
        match self.place {
            Place::Top => return self.begin(byte),
            Place::Done => return Err(self.error("something follows the value at the top")),
            Place::Colon if byte == b':' => {
                let wanted =
                    self.member.as_ref().is_some_and(|member| member.as_bytes() == self.key);
                self.place = if wanted { Place::Wanted } else { Place::Other };
                return Ok(());
            }
            Place::Key if byte == b'"' => {
                self.key.clear();
                self.place = Place::Colon;
            }
            Place::Wanted if byte == b'[' => {
                self.depth += 1;
                (self.found, self.samples) = (true, 0);
                self.place = Place::Array { depth: self.depth, pending: false };
                return Ok(());
            }
            Place::Wanted => {
                return Err(self.error("the member that should hold the samples is no array"));
            }
            _ => {}
        }
        match byte {
            b'"' => self.string = InString::Yes,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.close()?,
            b',' => match self.place {
                Place::Array { depth, .. } if depth == self.depth => {
                    self.samples += 1;
                    self.place = Place::Array { depth, pending: false };
                }
                Place::Other if self.depth == 1 => self.place = Place::Key,
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, byte: u8) -> Result<(), Error> {
        self.depth = 1;
        self.place = match (byte, &self.member) {
            (b'[', None) => Place::Array { depth: 1, pending: false },
            (b'{', Some(_)) => Place::Key,
            (b'{', None) => {
                return Err(self.error(
                    "the top is an object: name the member that holds the samples (option member)",
                ));
            }
            (b'[', Some(_)) => {
                return Err(self.error("the top is an array and has no members (option member)"));
            }
            _ => return Err(self.error("the top is neither an array nor an object")),
        };
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        if let Place::Array { depth, pending } = self.place
            && depth == self.depth
        {
            self.samples += u64::from(pending);
            self.place = Place::Other;
        }
        self.depth -= 1;
        if self.depth > 0 {
            return Ok(());
        }
        self.place = Place::Done;
        match &self.member {
            Some(member) if !self.found => Err(Error::NoSuchMember { member: member.clone() }),
            _ => Ok(()),
        }
    }

    fn keep_key(&mut self, part: &[u8]) {
        if self.place == Place::Colon {
            let room = (MAX_NAME + 1).saturating_sub(self.key.len()).min(part.len());
            self.key.extend_from_slice(&part[..room]);
        }
    }

    fn error(&self, reason: &'static str) -> Error {
        Error::Json { offset: self.offset, reason }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn count(member: Option<&str>, text: &str) -> Result<(u64, bool), Error> {
        let mut json = Json::new(member.map(str::to_owned));
        json.feed(text.as_bytes())?;
        Ok((json.samples(), json.unfinished()))
    }

    #[test]
    fn the_elements_of_the_array_at_the_top_are_counted() {
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
    fn the_array_of_a_member_is_counted_wherever_it_stands() {
        let coco = r#"{"info": {"images": [1,2,3]}, "images": [{"id": 1}, {"id": 2}], "annotations": [1,2,3], "a": "images"}"#;
        assert_eq!(count(Some("images"), coco), Ok((2, false)));
        assert_eq!(count(Some("annotations"), coco), Ok((3, false)));
        assert_eq!(count(Some("none"), coco), Err(Error::NoSuchMember { member: "none".into() }));
    }

    #[test]
    fn a_file_that_is_being_written_shows_its_complete_samples() {
        for (expected, text) in
            [(0, ""), (0, "["), (0, "[1"), (1, "[1,"), (1, "[1,{\"a\":[2,3"), (2, "[1,2,\"")]
        {
            assert_eq!(count(None, text), Ok((expected, true)), "{text:?}");
        }
    }

    #[test]
    fn what_has_no_samples_is_told_with_its_place() {
        for (member, text, offset) in [
            (None, " {\"a\": 1}", 1),
            (None, "7", 0),
            (Some("a"), "[1]", 0),
            (None, "[1] x", 4),
            (Some("a"), "{\"a\": 1}", 6),
        ] {
            let error = count(member, text).unwrap_err();
            assert!(
                matches!(error, Error::Json { offset: at, .. } if at == offset),
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
        fn serde_json_counts_the_same_and_chunks_may_end_anywhere(
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
