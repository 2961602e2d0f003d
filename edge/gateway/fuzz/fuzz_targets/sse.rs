//! Streams of server-sent events, and the completions in them. The first byte of an input is the size
//! of the pieces in which the rest arrives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neptune_cascade::{
    sse::{Event, Parser},
    tokens::TokenSignal,
};
use neptune_gateway_fuzz::protocol::{
    completion::{Kind, Probed, Reply, Request, without_logprobs},
    frames::Frames,
};

/// Bytes of a frame, at most.
const MAX: usize = 1 << 20;

/// The bytes of a frame, and its event.
type Parsed = (Vec<u8>, Option<Event>);

fn parsed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Parsed> {
    let (mut parser, mut frames) = (Parser::new(MAX), Vec::new());
    for piece in pieces {
        parser.push(piece);
        while let Some(frame) = parser.next_frame().expect("the input is shorter than the limit") {
            frames.push((frame.bytes.to_vec(), frame.event));
        }
    }
    while let Some(frame) = parser.finish().expect("the input is shorter than the limit") {
        frames.push((frame.bytes.to_vec(), frame.event));
    }
    frames
}

fn passed(stream: &[u8], size: usize, is_stripped: bool) -> (Vec<u8>, Reply) {
    let mut frames = Frames::new(MAX, is_stripped);
    let mut all = Vec::new();
    for piece in stream.chunks(size) {
        all.extend_from_slice(&frames.push(piece).expect("shorter than the limit"));
    }
    all.extend_from_slice(&frames.finish().expect("shorter than the limit"));
    (all, frames.reply)
}

fuzz_target!(|input: &[u8]| {
    let Some((size, stream)) = input.split_first() else { return };
    let size = usize::from(*size).max(1);
    let whole = parsed(std::iter::once(stream));
    let joined: Vec<u8> = whole.iter().flat_map(|(bytes, _)| bytes).copied().collect();
    assert_eq!(joined, stream, "the frames joined are the stream");
    assert_eq!(parsed(stream.chunks(size)), whole, "frames depend on the pieces");

    let (same, reply) = passed(stream, size, false);
    assert_eq!(same, stream, "the stream is passed byte for byte");
    // NaN is not equal to itself, so the texts of the values are compared.
    let (_, other) = passed(stream, stream.len().max(1), true);
    assert_eq!(format!("{reply:?}"), format!("{other:?}"), "the answer depends on the pieces");
    for signal in [
        TokenSignal::Mean,
        TokenSignal::Min,
        TokenSignal::Quantile(0.1),
        TokenSignal::Margin,
        TokenSignal::Choice(vec!["yes".to_owned(), "no".to_owned()]),
    ] {
        if let Ok(confidence) = reply.signal(&signal) {
            assert!((-1e-6..=1.0 + 1e-6).contains(&confidence), "{signal:?} {confidence}");
        }
    }
    // The same bytes as a request, and as an answer that is not streamed.
    for kind in [Kind::Chat, Kind::Text] {
        let Some(request) = Request::parse(kind, stream) else { continue };
        let _ = request.edge_body(Some("m"), Some(&TokenSignal::Margin), Probed::Top2);
        let sent = request.cloud_body(Some("big"), false);
        let sent = Request::parse(kind, &sent).expect("the request to the cloud can be read");
        assert_eq!((sent.model.as_deref(), sent.is_stream), (Some("big"), false));
    }
    if let Some(stripped) = without_logprobs(stream) {
        assert!(without_logprobs(&stripped).is_none(), "log-probabilities are left");
    }
    let _ = Reply::from_body(stream).signal(&TokenSignal::Mean);
});
