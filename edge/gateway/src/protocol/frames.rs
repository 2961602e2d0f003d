//! The frames of a streamed completion: passed on byte for byte, but for log-probabilities that
//! only the gateway asked for.

use bytes::Bytes;
use neptune_cascade::sse::{Frame, FrameTooLong, Parser};

use super::completion::{Reply, without_logprobs};

/// Reads frames, and collects the answer.
#[derive(Debug)]
pub struct Frames {
    parser: Parser,
    is_stripped: bool,
    /// The answer as far as it was read.
    pub reply: Reply,
}

impl Frames {
    /// Reads frames of at most `max` bytes, and removes log-probabilities if `is_stripped`.
    pub fn new(max: usize, is_stripped: bool) -> Self {
        Self { parser: Parser::new(max), is_stripped, reply: Reply::default() }
    }

    /// The frames that a piece of the stream completes.
    ///
    /// # Errors
    /// A frame is too long.
    pub fn push(&mut self, piece: &[u8]) -> Result<Bytes, FrameTooLong> {
        self.parser.push(piece);
        let mut frames = Vec::new();
        while let Some(frame) = self.parser.next_frame()? {
            read(&frame, self.is_stripped, &mut self.reply, &mut frames);
        }
        Ok(frames.into())
    }

    /// The rest, after the end of the stream.
    ///
    /// # Errors
    /// A frame is too long.
    pub fn finish(&mut self) -> Result<Bytes, FrameTooLong> {
        let mut frames = Vec::new();
        while let Some(frame) = self.parser.finish()? {
            read(&frame, self.is_stripped, &mut self.reply, &mut frames);
        }
        Ok(frames.into())
    }
}

fn read(frame: &Frame<'_>, is_stripped: bool, reply: &mut Reply, frames: &mut Vec<u8>) {
    let data = frame.event.as_ref().map_or("", |event| &*event.data);
    reply.add(data.as_bytes());
    match without_logprobs(data.as_bytes()).filter(|_| is_stripped) {
        Some(stripped) => {
            frames.extend_from_slice(b"data: ");
            frames.extend_from_slice(&stripped);
            frames.extend_from_slice(b"\n\n");
        }
        None => frames.extend_from_slice(frame.bytes),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const STREAM: &[u8] =
        b": hello\r\n\r\ndata: {\"x\":1.0,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\
        \"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.5}]}}]}\n\ndata: [DONE]\n\n";

    fn pushed(frames: &mut Frames, size: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in STREAM.chunks(size) {
            all.extend_from_slice(&frames.push(piece).unwrap());
        }
        all.extend_from_slice(&frames.finish().unwrap());
        all
    }

    #[test]
    fn frames_are_passed_byte_for_byte_or_without_log_probabilities() {
        for size in [1, 7, 1_000] {
            let mut frames = Frames::new(10_000, false);
            assert_eq!(pushed(&mut frames, size), STREAM);
            assert_eq!((frames.reply.text(), frames.reply.tokens()), ("a", 1));
            let mut frames = Frames::new(10_000, true);
            assert_eq!(
                String::from_utf8(pushed(&mut frames, size)).unwrap(),
                ": hello\r\n\r\ndata: {\"x\":1.0,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"
            );
            assert_eq!(frames.reply.tokens(), 1);
        }
        assert!(Frames::new(10, false).push(STREAM).is_err());
    }
}
