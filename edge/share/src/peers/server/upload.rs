//! The body of a response: a part of a file, read in small pieces at the rate of all uploads.

use std::{
    io::{self, SeekFrom},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, Stream, StreamExt as _, unfold};
use http_body_util::StreamBody;
use hyper::body::Frame;
use neptune_program::listen::Share;
use neptune_wire::KeyPin;
use std::task::{Context, Poll};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
};

use super::Shared;
use crate::peers::content::{ContentSource, FileRange};

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// Counts what the upload of a connection has sent. A connection has at most one at a time.
#[derive(Debug, Default)]
pub struct UploadMeter {
    number: AtomicU64,
    sent: AtomicU64,
    is_active: AtomicBool,
}

impl UploadMeter {
    /// Returns the number of the running upload, and its bytes so far.
    pub fn upload(&self) -> Option<(u64, u64)> {
        let is_active = self.is_active.load(Ordering::Relaxed);
        let upload = (self.number.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        is_active.then_some(upload)
    }
}

/// The pieces of an upload. Dropping it ends the upload.
pub struct Upload {
    pieces: BoxStream<'static, io::Result<Frame<Bytes>>>,
    meter: Arc<UploadMeter>,
    _place: Share<KeyPin>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.meter.is_active.store(false, Ordering::Relaxed);
    }
}

impl Stream for Upload {
    type Item = io::Result<Frame<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.poll_next_unpin(context)
    }
}

/// Opens a part of a file for an upload.
///
/// # Errors
/// The file cannot be read, or is shorter.
pub async fn open(
    shared: &Arc<Shared>,
    meter: &Arc<UploadMeter>,
    (range, source): (&FileRange, Arc<dyn ContentSource>),
    place: Share<KeyPin>,
) -> io::Result<StreamBody<Upload>> {
    let mut file = File::open(&range.path).await?;
    let metadata = file.metadata().await?;
    let end = range.offset.checked_add(range.length);
    if !metadata.is_file() || end.is_none_or(|end| end > metadata.len()) {
        return Err(io::Error::other("the file is shorter than its content"));
    }
    file.seek(SeekFrom::Start(range.offset)).await?;
    file.set_max_buf_size(PIECE);
    meter.number.fetch_add(1, Ordering::Relaxed);
    meter.sent.store(0, Ordering::Relaxed);
    meter.is_active.store(true, Ordering::Relaxed);
    let state = (file, range.length, (Arc::clone(shared), Arc::clone(meter), source));
    let pieces = unfold(state, |(mut file, left, shared)| async move {
        if left == 0 {
            return None;
        }
        // After an error nothing is left to read.
        let piece = read(&mut file, left, &shared.0).await;
        let read = piece.as_ref().map_or(left, |piece| piece.len() as u64);
        if piece.is_ok() {
            shared.2.on_sent(read);
        }
        shared.1.sent.fetch_add(read, Ordering::Relaxed);
        Some((piece.map(Frame::data), (file, left - read, shared)))
    });
    let meter = Arc::clone(meter);
    Ok(StreamBody::new(Upload { pieces: pieces.boxed(), meter, _place: place }))
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn read(file: &mut File, left: u64, shared: &Shared) -> io::Result<Bytes> {
    let size = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
    let mut piece = BytesMut::with_capacity(size);
    // `take`: the buffer may be larger than requested.
    if file.take(size as u64).read_buf(&mut piece).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let wait = {
        let mut rate = shared.rate.lock();
        rate.take(piece.len() as u64, Instant::now())
    };
    tokio::time::sleep(wait).await;
    Ok(piece.freeze())
}
