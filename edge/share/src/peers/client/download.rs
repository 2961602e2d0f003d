//! Downloads a content from one peer to a partial file.

use std::{
    io,
    time::{Duration, Instant},
};

use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{IF_RANGE, RANGE},
};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use neptune_transfer::{
    Digest,
    range::{from_offset, unsatisfied_length},
};
use neptune_wire::NodeName;
use tokio::time::timeout;

use super::{
    connection::{PeerConnection, PeerError},
    partial::PeerPartial,
};
use crate::peers::{
    MAX_DESCRIPTION,
    limits::{IDLE_TIMEOUT, SpeedWatch},
    protocol::{Route, content_range, etag},
};

/// Time between two checks of the speed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a download ended before the end of the content.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The peer or the connection to it failed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The partial file is longer than the peer's copy.
    #[error("{received} bytes are here, the peer's copy has {length}")]
    LengthDiffers {
        /// Bytes of the partial file.
        received: u64,
        /// Bytes of the peer's copy.
        length: u64,
    },
    /// The content has more bytes than the caller accepts.
    #[error("the content has {length} bytes, at most {limit} are accepted")]
    TooLarge {
        /// Bytes of the peer's copy.
        length: u64,
        /// Bytes that the caller accepts at most.
        limit: u64,
    },
    /// The partial file cannot be written.
    #[error("partial file: {0}")]
    File(#[source] io::Error),
}

/// Downloads the bytes that the partial file does not have. The peer's copy is complete afterwards;
/// whether it has the digest is for the caller to check.
///
/// # Errors
/// See [`DownloadError`]. The partial file has what was received.
pub async fn download(
    connection: &mut PeerConnection,
    from: &NodeName,
    digest: &Digest,
    partial: &mut PeerPartial,
    limit: u64,
) -> Result<(), DownloadError> {
    let received = partial.file.length();
    let mut headers = HeaderMap::new();
    if received > 0 {
        headers.insert(RANGE, range_from(received));
        headers.insert(IF_RANGE, etag(digest));
    }
    let response = connection.send(Route::Get(*digest), headers).await?;
    let range = content_range(response.headers());
    let expected = response.body().size_hint().exact();
    let expected = expected.ok_or(PeerError::Invalid("it has no length"))?;
    let total = match (response.status(), range) {
        (StatusCode::OK, _) if received == 0 => expected,
        (StatusCode::PARTIAL_CONTENT, Some(range))
            if range.first == received
                && range.total == Some(range.last + 1)
                && range.bytes() == expected =>
        {
            range.last + 1
        }
        (StatusCode::OK | StatusCode::PARTIAL_CONTENT, _) => {
            return Err(PeerError::Invalid("it has another range than requested").into());
        }
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => {
            return complete_or_longer(response.headers(), received);
        }
        (StatusCode::SERVICE_UNAVAILABLE, _) => return Err(PeerError::Busy.into()),
        (status, _) => return Err(PeerError::Status(status).into()),
    };
    if total > limit {
        return Err(DownloadError::TooLarge { length: total, limit });
    }
    let received = receive(response.into_body(), from, partial).await;
    partial.file.flush().await.map_err(DownloadError::File)?;
    received
}

/// Reads a small content of at most `limit` bytes into memory. `prefix` is what the caller has of it,
/// less than the whole. Returns `None` if the bytes together do not have the digest.
///
/// # Errors
/// See [`DownloadError`].
pub async fn read(
    connection: &mut PeerConnection,
    digest: &Digest,
    prefix: Vec<u8>,
    limit: u64,
) -> Result<Option<Vec<u8>>, DownloadError> {
    let mut headers = HeaderMap::new();
    let present = prefix.len() as u64;
    if present > 0 {
        headers.insert(RANGE, range_from(present));
    }
    let response = connection.send(Route::Get(*digest), headers).await?;
    match (response.status(), content_range(response.headers())) {
        (StatusCode::OK, _) if prefix.is_empty() => {}
        (StatusCode::PARTIAL_CONTENT, Some(range)) if range.first == present => {}
        (StatusCode::OK | StatusCode::PARTIAL_CONTENT, _) => {
            return Err(PeerError::Invalid("it has another range than requested").into());
        }
        (StatusCode::SERVICE_UNAVAILABLE, _) => return Err(PeerError::Busy.into()),
        (status, _) => return Err(PeerError::Status(status).into()),
    }
    let content = collect(response.into_body(), prefix, limit).await?;
    Ok((Digest::of_bytes(&content) == *digest).then_some(content))
}

/// Reads what the peer describes of a dataset, see
/// [`ContentSource::describe`](crate::peers::ContentSource::describe). `None` if it does not offer it.
///
/// # Errors
/// See [`DownloadError`].
pub async fn describe(
    connection: &mut PeerConnection,
    dataset: &Digest,
) -> Result<Option<Vec<u8>>, DownloadError> {
    let response = connection.send(Route::Dataset(*dataset), HeaderMap::new()).await?;
    match response.status() {
        StatusCode::OK => {
            collect(response.into_body(), Vec::new(), MAX_DESCRIPTION).await.map(Some)
        }
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(PeerError::Status(status).into()),
    }
}

/// Reads a body into memory, after `prefix`.
async fn collect(
    mut body: Incoming,
    prefix: Vec<u8>,
    limit: u64,
) -> Result<Vec<u8>, DownloadError> {
    let length = body.size_hint().exact().ok_or(PeerError::Invalid("it has no length"))?;
    let length = length.saturating_add(prefix.len() as u64);
    if length > limit {
        return Err(DownloadError::TooLarge { length, limit });
    }
    let mut content = prefix;
    while let Some(frame) =
        timeout(IDLE_TIMEOUT, body.frame()).await.map_err(PeerError::NoAnswer)?
    {
        if let Ok(bytes) = frame.map_err(PeerError::Http)?.into_data() {
            content.extend_from_slice(&bytes);
        }
    }
    Ok(content)
}

/// The partial file has at least as many bytes as the peer's copy.
fn complete_or_longer(headers: &HeaderMap, received: u64) -> Result<(), DownloadError> {
    let text = headers.get(http::header::CONTENT_RANGE).and_then(|it| it.to_str().ok());
    match text.and_then(unsatisfied_length) {
        Some(length) if length == received => Ok(()),
        Some(length) => Err(DownloadError::LengthDiffers { received, length }),
        None => Err(PeerError::Invalid("it has no length").into()),
    }
}

fn range_from(offset: u64) -> HeaderValue {
    HeaderValue::try_from(from_offset(offset)).expect("it is visible ASCII")
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn receive(
    mut body: Incoming,
    from: &NodeName,
    partial: &mut PeerPartial,
) -> Result<(), DownloadError> {
    let mut speed = SpeedWatch::new(Instant::now());
    let mut received = 0;
    loop {
        if let Ok(frame) = timeout(CHECK_INTERVAL, body.frame()).await {
            let Some(frame) = frame else { return Ok(()) };
            if let Ok(bytes) = frame.map_err(PeerError::Http)?.into_data() {
                received += bytes.len() as u64;
                partial.append(&bytes, from).await.map_err(DownloadError::File)?;
            }
        }
        speed.observe(received, Instant::now()).map_err(PeerError::TooSlow)?;
    }
}
