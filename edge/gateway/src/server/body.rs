//! Bodies: with a limit of bytes, a limit of time between two pieces, and something that lives as
//! long as they do.

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap,
    body::{Body, Frame, SizeHint},
};
use neptune_program::listen::{ByteBudget, HeldBytes, MinSpeed};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep_until},
};

use crate::clock;

/// Bytes per second that a request has to reach on average, beside the time for a pause.
const MIN_SPEED: u32 = 16 * 1024;
/// Bytes at the beginning of each body that are counted apart, so that large bodies leave room for
/// small ones.
const SMALL: usize = 64 * 1024;
/// Bytes of the beginnings of all bodies.
const MAX_SMALL: usize = 64 * 1024 * 1024;
/// Bytes of the rest of all bodies, at least.
const MIN_LARGE: usize = 192 * 1024 * 1024;

/// Any body of requests and answers.
pub type AnyBody = UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>;

/// The reason why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than this limit in bytes.
    #[error("the body has more than {0} bytes; maxBodyBytes is the limit")]
    TooLong(usize),
    /// No byte of the body came for this time.
    #[error("the body did not continue for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// The body is slower than [`MIN_SPEED`].
    #[error("the body is slower than {} KiB/s", MIN_SPEED / 1024)]
    Slow,
    /// The bodies of all requests together are too large.
    #[error("the gateway holds as many bytes of requests as it can; try again")]
    NoRoom,
    /// The connection broke before the end of the body.
    #[error("the body ended early: {0}")]
    Broken(Box<dyn StdError + Send + Sync>),
}

/// Hides the type of a body.
pub fn boxed<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Counts the bytes of a body while it is read.
pub trait Hold: fmt::Debug + Send + Sync {
    /// Counts `more` bytes after the first `read` ones. Returns whether there is room.
    fn grow(&self, read: usize, more: usize) -> bool;
}

/// The bytes of requests that a gateway keeps in memory at a time.
#[derive(Debug)]
pub struct BodyRoom {
    small: ByteBudget,
    large: ByteBudget,
}

impl BodyRoom {
    /// Room for many small bodies and for two of the largest.
    pub fn new(max_body_bytes: usize) -> Self {
        let large = MIN_LARGE.max(max_body_bytes.saturating_mul(2));
        Self { small: ByteBudget::new(MAX_SMALL), large: ByteBudget::new(large) }
    }

    /// The bytes of one request, which has none yet.
    pub fn hold(&self) -> HeldBody {
        HeldBody(Arc::new(Mutex::new((self.small.hold(), self.large.hold()))))
    }
}

/// The bytes of one request. They count until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct HeldBody(Arc<Mutex<(HeldBytes, HeldBytes)>>);

impl Hold for HeldBody {
    fn grow(&self, read: usize, more: usize) -> bool {
        let small = SMALL.saturating_sub(read).min(more);
        let mut held = self.0.lock();
        held.0.grow(small) && held.1.grow(more - small)
    }
}

/// A body that fails when it is too long, or does not continue.
#[derive(Debug)]
pub struct Paced<B> {
    body: B,
    max: usize,
    read: usize,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Time at which a request began; `None` without a minimum speed.
    began: Option<Instant>,
    held: Option<Arc<dyn Hold>>,
}

impl<B: Body<Data = Bytes> + Unpin> Paced<B> {
    /// Limits a body.
    ///
    /// # Errors
    /// Its length is known, and too long.
    pub fn new(body: B, max: usize, stall: Duration) -> Result<Self, BodyError> {
        if body.size_hint().lower() > max as u64 {
            return Err(BodyError::TooLong(max));
        }
        Ok(Self { body, max, read: 0, stall, timer: None, began: None, held: None })
    }

    /// Limits the whole time of the body of a request: it has to have a minimum speed.
    #[must_use]
    pub fn with_min_speed(self) -> Self {
        Self { began: Some(clock::now()), ..self }
    }

    /// Counts the bytes, for a body that is read as a whole.
    #[must_use]
    pub fn holding(self, held: impl Hold + 'static) -> Self {
        Self { held: Some(Arc::new(held)), ..self }
    }

    /// Returns when the bytes so far are too few; `None` without a minimum speed.
    fn deadline(&self) -> Option<Instant> {
        let speed = MinSpeed { allowance: self.stall, bytes_per_second: MIN_SPEED };
        self.began.map(|began| began + speed.time_for(self.read))
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.timer = None;
                let more = frame.data_ref().map_or(0, Bytes::len);
                let is_held = this.held.as_ref().is_none_or(|held| held.grow(this.read, more));
                this.read += more;
                let is_slow = this.deadline().is_some_and(|deadline| clock::now() > deadline);
                Poll::Ready(Some(if this.read > this.max {
                    Err(BodyError::TooLong(this.max))
                } else if is_slow {
                    Err(BodyError::Slow)
                } else if is_held {
                    Ok(frame)
                } else {
                    Err(BodyError::NoRoom)
                }))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(BodyError::Broken(error.into()))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let (stall, deadline) = (this.stall, this.deadline());
                let timer = this.timer.get_or_insert_with(|| {
                    let stalled = clock::now() + stall;
                    let until = deadline.map_or(stalled, |deadline| deadline.min(stalled));
                    Box::pin(sleep_until(until.into()))
                });
                ready!(timer.as_mut().poll(cx));
                // With nothing read, both are the same.
                let is_slow =
                    this.read > 0 && deadline.is_some_and(|deadline| clock::now() >= deadline);
                let error = if is_slow { BodyError::Slow } else { BodyError::Stalled(stall) };
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a whole body.
///
/// # Errors
/// The errors of the body, by the limits of [`Paced`].
pub async fn collect<B>(body: Paced<B>) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    collect_all(body).await.map(|(bytes, _)| bytes)
}

/// Reads a whole body, and the trailers after it.
///
/// # Errors
/// The errors of the body, by the limits of [`Paced`].
pub async fn collect_all<B>(mut body: Paced<B>) -> Result<(Bytes, HeaderMap), BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let data = match frame?.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().unwrap_or_default();
                continue;
            }
        };
        if first.is_empty() && more.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
    }
    Ok((if more.is_empty() { first } else { more.freeze() }, trailers))
}

/// A body that keeps a place until its end, and the count of its bytes until they are sent: the
/// library takes pieces from a body long before a slow client does.
#[derive(Debug)]
pub struct Held<P, M> {
    body: AnyBody,
    _place: P,
    memory: Arc<M>,
}

/// Bytes that are counted until they are dropped.
struct Counted<M> {
    bytes: Bytes,
    _memory: Arc<M>,
}

impl<M> AsRef<[u8]> for Counted<M> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<P, M> Held<P, M> {
    /// Keeps the place as long as the body, and the memory as long as its bytes.
    pub fn new(body: AnyBody, place: P, memory: M) -> Self {
        Self { body, _place: place, memory: Arc::new(memory) }
    }
}

impl<P: Unpin, M: Send + Sync + 'static> Body for Held<P, M> {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map(|frame| frame.map(|frame| frame.map(|frame| self.counted(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<P, M: Send + Sync + 'static> Held<P, M> {
    fn counted(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        frame.map_data(|bytes| {
            Bytes::from_owner(Counted { bytes, _memory: Arc::clone(&self.memory) })
        })
    }
}

/// Pieces that wait for a slow client, at most.
const QUEUE: usize = 16;

/// Takes the pieces of a [`StreamBody`].
pub type StreamSender = mpsc::Sender<Bytes>;

/// A body whose pieces a task sends.
#[derive(Debug)]
pub struct StreamBody(mpsc::Receiver<Bytes>);

/// A body, and what takes its pieces.
pub fn stream_body() -> (StreamSender, StreamBody) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (sender, StreamBody(receiver))
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn body_that_does_not_continue_is_given_up() {
        let (sender, body) = stream_body();
        sender.send(Bytes::from_static(b"a")).await.unwrap();
        let paced = Paced::new(body, 10, Duration::from_millis(20)).unwrap();
        let error = collect(paced).await.unwrap_err();
        assert_eq!(error.to_string(), "the body did not continue for 0.02 s");
        drop(sender);
    }

    #[tokio::test]
    async fn body_of_single_bytes_is_given_up_though_it_continues() {
        let (sender, body) = stream_body();
        let sending = tokio::spawn(async move {
            while sender.send(Bytes::from_static(b"a")).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let paced = Paced::new(body, 1 << 20, Duration::from_millis(100)).unwrap();
        let error = collect(paced.with_min_speed()).await.unwrap_err();
        assert_eq!(error.to_string(), "the body is slower than 16 KiB/s");
        sending.await.unwrap();
    }

    #[test]
    fn image_of_16_megabytes_may_take_17_minutes() {
        let body = Full::new(Bytes::new());
        let mut paced =
            Paced::new(body, usize::MAX, Duration::from_secs(10)).unwrap().with_min_speed();
        paced.read = 16 << 20;
        let began = paced.began.unwrap();
        assert_eq!(paced.deadline(), Some(began + Duration::from_secs(10 + 1_024)));
    }

    #[tokio::test]
    async fn large_bodies_leave_room_for_small_ones() {
        let room = BodyRoom::new(1 << 20);
        let read = async |length: usize, held: &HeldBody| {
            let body = Full::new(Bytes::from(vec![0; length]));
            let paced = Paced::new(body, usize::MAX, Duration::from_secs(10)).unwrap();
            collect(paced.holding(held.clone())).await
        };
        let mut large = Vec::new();
        let problem = loop {
            let held = room.hold();
            match read(30 << 20, &held).await {
                Ok(_) => large.push(held),
                Err(problem) => break problem.to_string(),
            }
        };
        assert!(problem.contains("holds as many bytes"), "{problem}");
        assert_eq!(large.len(), MIN_LARGE / (30 << 20));
        assert!(read(SMALL, &room.hold()).await.is_ok());
        large.pop();
        assert!(read(30 << 20, &room.hold()).await.is_ok());
    }

    #[tokio::test]
    async fn bytes_that_are_not_sent_yet_are_counted_after_the_end_of_their_body() {
        let (place, memory) = (Arc::new(()), Arc::new(()));
        let body = boxed(Full::new(Bytes::from_static(b"answer")));
        let mut body = Held::new(body, Arc::clone(&place), Arc::clone(&memory));
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!((Arc::strong_count(&place), Arc::strong_count(&memory)), (1, 2));
        assert_eq!(piece, "answer");
        drop(piece);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[tokio::test]
    async fn body_that_is_too_long_is_refused_with_and_without_a_length() {
        let stall = Duration::from_secs(10);
        let text = "the body has more than 3 bytes; maxBodyBytes is the limit";
        let error = Paced::new(Full::new(Bytes::from_static(b"abcd")), 3, stall).unwrap_err();
        assert_eq!(error.to_string(), text);
        let (sender, body) = stream_body();
        for _ in 0..2 {
            sender.send(Bytes::from_static(b"ab")).await.unwrap();
        }
        drop(sender);
        let error = collect(Paced::new(body, 3, stall).unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), text);
        let whole = Paced::new(Full::new(Bytes::from_static(b"abc")), 3, stall).unwrap();
        assert_eq!(collect(whole).await.unwrap(), "abc");
    }
}
