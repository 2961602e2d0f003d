//! Bodies: with a limit of bytes, a limit of time between two pieces, and something that lives as
//! long as they do.

use std::{
    convert::Infallible,
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap,
    body::{Body, Frame, SizeHint},
};
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep},
};

/// Any body of requests and answers.
pub type AnyBody = UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is longer than allowed.
    #[error("the body has more than {0} bytes; maxBodyBytes is the limit")]
    TooLong(usize),
    /// Nothing came for this time.
    #[error("the body did not continue for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// The connection broke.
    #[error("the body ended early: {0}")]
    Broken(Box<dyn StdError + Send + Sync>),
}

/// A body of one type.
pub fn boxed<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body that fails when it is too long, or does not continue.
#[derive(Debug)]
pub struct Paced<B> {
    body: B,
    max: usize,
    read: usize,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
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
        Ok(Self { body, max, read: 0, stall, timer: None })
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
                this.read += frame.data_ref().map_or(0, Bytes::len);
                let is_long = this.read > this.max;
                Poll::Ready(Some(if is_long {
                    Err(BodyError::TooLong(this.max))
                } else {
                    Ok(frame)
                }))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(BodyError::Broken(error.into()))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let stall = this.stall;
                let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(stall)));
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Some(Err(BodyError::Stalled(stall))))
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
/// As of [`Paced`].
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
/// As of [`Paced`].
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

/// A body that keeps something until its end, such as a place among the requests in flight.
#[derive(Debug)]
pub struct Held<T> {
    body: AnyBody,
    _kept: T,
}

impl<T> Held<T> {
    /// Keeps it as long as the body.
    pub const fn new(body: AnyBody, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> Body for Held<T> {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
