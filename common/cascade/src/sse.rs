//! Parses server-sent events, so that frames can be passed on byte for byte.
//!
//! A frame is everything up to and including the empty line that ends an event. Lines end with LF,
//! CR or CRLF. The format is that of the HTML standard, "Server-sent events".
//!
//! # Guarantees
//! - Frames joined are the stream, byte for byte: comments, unknown fields and all.
//! - Frames and events do not depend on how the stream is divided into chunks.
//!
//! A frame that ends with CR is complete when the next byte, or the end of the stream, is known:
//! the byte may be the LF of a CRLF.

use std::fmt;
use std::ops::Range;

/// An event of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// The type (`event`); `message` if it is empty.
    pub name: String,
    /// The lines of `data`, joined by LF.
    pub data: String,
    /// The last `id` of this event, if it has one.
    pub id: Option<String>,
    /// The time after which to reconnect, in milliseconds, if the event has one.
    pub retry: Option<u64>,
}

/// A frame of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The bytes of the frame.
    pub bytes: &'a [u8],
    /// The position of the bytes in the stream.
    pub range: Range<u64>,
    /// The event of the frame; `None` if it has no data: comments, a `retry` alone, or the rest of
    /// a stream that ended within an event.
    pub event: Option<Event>,
}

/// A frame is longer than the parser accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameTooLong {
    /// The maximum size in bytes.
    pub max: usize,
}

impl fmt::Display for FrameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event of the stream has more than {} bytes", self.max)
    }
}

impl std::error::Error for FrameTooLong {}

/// The parser of one stream. Pass chunks to [`Parser::push`], and take frames with
/// [`Parser::next_frame`] after each; at the end of the stream, take the rest with
/// [`Parser::finish`].
#[derive(Debug, Clone)]
pub struct Parser {
    max: usize,
    /// Bytes of frames that are not complete. What is before `start` was handed out.
    buffer: Vec<u8>,
    /// Where the current frame begins, its current line, and what was not searched yet.
    start: usize,
    line: usize,
    searched: usize,
    /// Where the buffer begins in the stream.
    offset: u64,
    has_ended: bool,
}

impl Parser {
    /// A parser that accepts frames of at most `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self {
            max,
            buffer: Vec::new(),
            start: 0,
            line: 0,
            searched: 0,
            offset: 0,
            has_ended: false,
        }
    }

    /// Appends a chunk of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.drain(..self.start);
        self.offset += self.start as u64;
        self.line -= self.start;
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// The next complete frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameTooLong`]. The frame is not handed out, and there is no next one.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameTooLong> {
        match self.end_of_frame() {
            Some(end) => self.hand_out(end, true),
            None if self.buffer.len() - self.start > self.max => {
                Err(FrameTooLong { max: self.max })
            }
            None => Ok(None),
        }
    }

    /// After the end of the stream: a frame that waited for the byte after its CR, or the rest
    /// without its event, which is incomplete. `None` if there is none, and after it.
    ///
    /// # Errors
    /// As [`Parser::next_frame`].
    pub fn finish(&mut self) -> Result<Option<Frame<'_>>, FrameTooLong> {
        self.has_ended = true;
        match self.end_of_frame() {
            Some(end) => self.hand_out(end, true),
            None if self.start == self.buffer.len() => Ok(None),
            None => self.hand_out(self.buffer.len(), false),
        }
    }

    fn hand_out(
        &mut self,
        end: usize,
        is_complete: bool,
    ) -> Result<Option<Frame<'_>>, FrameTooLong> {
        let begin = self.start;
        if end - begin > self.max {
            return Err(FrameTooLong { max: self.max });
        }
        (self.start, self.line, self.searched) = (end, end, end);
        let bytes = &self.buffer[begin..end];
        let range = self.offset + begin as u64..self.offset + end as u64;
        let content = if range.start == 0 { without_mark(bytes) } else { bytes };
        let event = if is_complete { event(content) } else { None };
        Ok(Some(Frame { bytes, range, event }))
    }

    /// The end of the current frame in the buffer, after its empty line.
    fn end_of_frame(&mut self) -> Option<usize> {
        loop {
            let unread = &self.buffer[self.searched..];
            let Some(line_end) = unread.iter().position(|byte| matches!(byte, b'\r' | b'\n'))
            else {
                self.searched = self.buffer.len();
                return None;
            };
            let end = self.searched + line_end;
            let Some(next) = next_line(&self.buffer, end, self.has_ended) else {
                self.searched = end;
                return None;
            };
            let line = &self.buffer[self.line..end];
            let is_first = self.offset == 0 && self.line == 0;
            let is_empty = if is_first { without_mark(line).is_empty() } else { line.is_empty() };
            (self.line, self.searched) = (next, next);
            if is_empty {
                return Some(next);
            }
        }
    }
}

/// Where the line after the line end at `end` begins. `None` if it depends on the next byte.
fn next_line(buffer: &[u8], end: usize, has_ended: bool) -> Option<usize> {
    match (buffer[end], buffer.get(end + 1)) {
        (b'\r', Some(b'\n')) => Some(end + 2),
        (b'\r', None) if !has_ended => None,
        _ => Some(end + 1),
    }
}

/// A byte order mark at the beginning of the stream is not part of the first line.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The event of a complete frame.
fn event(frame: &[u8]) -> Option<Event> {
    let (mut event, mut data) = (Event::default(), None::<String>);
    let mut begin = 0;
    while let Some(length) = frame[begin..].iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let end = begin + length;
        let line = String::from_utf8_lossy(&frame[begin..end]);
        begin = next_line(frame, end, true).unwrap_or(frame.len());
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut data {
                None => data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            "event" => value.clone_into(&mut event.name),
            "id" if !value.contains('\0') => event.id = Some(value.to_owned()),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                event.retry = value.parse().ok().or(event.retry);
            }
            _ => {}
        }
    }
    if event.name.is_empty() {
        "message".clone_into(&mut event.name);
    }
    data.map(|data| Event { data, ..event })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    type Parsed = (Vec<u8>, Range<u64>, Option<Event>);

    fn parsed(chunks: &[&[u8]], max: usize) -> Result<Vec<Parsed>, FrameTooLong> {
        let (mut parser, mut frames) = (Parser::new(max), Vec::new());
        let mut keep =
            |frame: Frame<'_>| frames.push((frame.bytes.to_vec(), frame.range, frame.event));
        for chunk in chunks {
            parser.push(chunk);
            while let Some(frame) = parser.next_frame()? {
                keep(frame);
            }
        }
        while let Some(frame) = parser.finish()? {
            keep(frame);
        }
        Ok(frames)
    }

    fn events(stream: &str) -> Vec<Event> {
        let frames = parsed(&[stream.as_bytes()], 10_000).unwrap();
        frames.into_iter().filter_map(|(.., event)| event).collect()
    }

    fn data(stream: &str) -> Vec<String> {
        events(stream).into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn frames_of_all_line_ends_have_their_exact_bytes() {
        for end in ["\n", "\r", "\r\n"] {
            let stream =
                ["data: a", "", ": c", "", "data: b", ""].map(|line| format!("{line}{end}"));
            let stream = stream.concat();
            let frames = parsed(&[stream.as_bytes()], 100).unwrap();
            let texts: Vec<_> = frames.iter().map(|(bytes, ..)| bytes.as_slice()).collect();
            let expected = ["data: a", ": c", "data: b"].map(|line| format!("{line}{end}{end}"));
            assert_eq!(texts, expected.each_ref().map(String::as_bytes), "{end:?}");
            assert_eq!(data(&stream), ["a", "b"], "{end:?}");
        }
    }

    #[test]
    fn fields_are_read_as_the_standard_requires() {
        let stream = "event: add\nid: 7\nretry: 30\nunknown: x\ndata:one\ndata:  two\ndata\n\n";
        let expected = Event {
            name: "add".to_owned(),
            data: "one\n two\n".to_owned(),
            id: Some("7".to_owned()),
            retry: Some(30),
        };
        assert_eq!(events(stream), [expected]);
        let plain = events("id: a\0b\nretry: 3s\ndata: x\n\n");
        assert_eq!(
            (plain[0].name.as_str(), &plain[0].id, plain[0].retry),
            ("message", &None, None)
        );
        assert_eq!(data("data\n\ndata:\ndata:\n\n"), ["", "\n"]);
        assert_eq!(data("event: x\n\n:data: y\n\nDATA: z\n\n"), [""; 0]);
    }

    #[test]
    fn byte_order_mark_is_skipped_at_the_beginning_only() {
        assert_eq!(data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
        assert_eq!(parsed(&["\u{feff}\ndata: a\n\n".as_bytes()], 100).unwrap().len(), 2);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_in_events_and_kept_in_frames() {
        let frames = parsed(&[b"data: \xff\n\n"], 100).unwrap();
        assert_eq!(frames[0].0, b"data: \xff\n\n");
        assert_eq!(frames[0].2.as_ref().unwrap().data, "\u{fffd}");
    }

    #[test]
    fn rest_of_a_stream_has_bytes_and_no_event() {
        let frames = parsed(&[b"data: a\n\ndata: b\n"], 100).unwrap();
        assert_eq!(frames[1], (b"data: b\n".to_vec(), 9..17, None));
        assert_eq!(parsed(&[], 100), Ok(vec![]));
    }

    #[test]
    fn bytes_after_the_end_begin_a_new_frame() {
        let mut parser = Parser::new(100);
        parser.push(b"data: a\nid");
        assert_eq!(parser.finish().unwrap().unwrap().bytes, b"data: a\nid");
        parser.push(b"data: b\n\n");
        let frame = parser.next_frame().unwrap().unwrap();
        assert_eq!((frame.range, frame.event.unwrap().data.as_str()), (10..19, "b"));
    }

    #[test]
    fn frame_that_ends_with_cr_waits_for_the_next_byte() {
        let mut parser = Parser::new(100);
        parser.push(b"data: a\r\n\r");
        assert_eq!(parser.next_frame(), Ok(None));
        parser.push(b"\ndata: b");
        assert_eq!(parser.next_frame().unwrap().unwrap().bytes, b"data: a\r\n\r\n");
        assert_eq!(parser.next_frame(), Ok(None));
    }

    #[test]
    fn long_frame_is_refused() {
        let long = b"data: 123456789\n\n";
        let error = Err(FrameTooLong { max: 10 });
        assert_eq!(parsed(&[long], 10), error);
        let bytes: Vec<&[u8]> = long.chunks(1).collect();
        assert_eq!(parsed(&bytes, 10), error);
        assert!(parsed(&[b"data: 1\n\n", b"data: 2\n\n"], 10).is_ok());
    }

    /// Streams of the bytes that matter.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("\n"),
            Just("\r"),
            Just("\r\n"),
            Just("data: x"),
            Just("data"),
            Just(":"),
            Just("id: 1"),
            Just(" "),
            Just("\u{feff}"),
            Just("event: e"),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter_and_frames_joined_are_the_stream(
            stream in streams(), sizes in prop::collection::vec(1_usize..9, 1..200), max in 5_usize..60,
        ) {
            let whole = parsed(&[&stream], 10_000).unwrap();
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(&parsed(&bytes, 10_000).unwrap(), &whole);
            let (mut chunks, mut rest) = (Vec::new(), stream.as_slice());
            for size in sizes {
                let (chunk, after) = rest.split_at(size.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            prop_assert_eq!(&parsed(&chunks, 10_000).unwrap(), &whole);
            prop_assert_eq!(parsed(&bytes, max), parsed(&[&stream], max));
            let joined: Vec<u8> = whole.iter().flat_map(|(bytes, ..)| bytes.clone()).collect();
            prop_assert_eq!(joined, stream);
            let mut at = 0;
            for (bytes, range, _) in &whole {
                prop_assert_eq!(range, &(at..at + bytes.len() as u64));
                at = range.end;
            }
        }

        #[test]
        fn no_stream_fails(stream in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parsed(&[&stream], 1_000).is_ok());
        }
    }
}
