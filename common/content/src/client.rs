//! Uploads a file in blocks, and continues where the receiver has it after each failure.

use std::{io, path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{StatusCode, header::RETRY_AFTER};
use neptune_backoff::{Backoff, Retries};
use reqwest::{Client, Response};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use crate::{
    Digest,
    body::text,
    headers::{Block, Progress, UPLOAD_OFFSET, integer},
    uploads::MAX_BLOCK,
};

/// The delays between attempts that suit a link that is down for seconds or for days.
pub const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// A receiver that is busy for longer is asked again after this.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Bytes of a block at least, after a receiver that did not wait for larger ones: at 35 kbit/s it
/// arrives in a minute.
const MIN_BLOCK: u64 = 256 * 1024;
/// Longest error text that is kept.
const MAX_TEXT: usize = 64 * 1024;

/// A content to upload.
#[derive(Debug, Clone)]
pub struct Upload {
    /// The address of this content.
    pub url: String,
    /// Path of the file to upload.
    pub path: PathBuf,
    /// Length of the content in bytes.
    pub length: u64,
    /// Bytes per request, at most [`MAX_BLOCK`]. What a cut costs at most.
    pub block: u64,
    /// The delays between attempts, usually [`RETRY`].
    pub backoff: Backoff,
}

/// The end of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has the whole content. Its answer, if it sent one with this request.
    Accepted(String),
    /// The receiver does not want it. The status, and its reason.
    Refused(StatusCode, String),
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the receiver answered {0}")]
    Status(StatusCode),
    #[error("the receiver's answer is malformed: {0}")]
    Malformed(String),
    #[error("the receiver is busy for {0:?}")]
    Busy(Duration),
}

/// What an upload reports while it runs.
#[derive(Debug)]
pub enum Observation<'a> {
    /// The receiver has this many bytes.
    Confirmed(u64),
    /// An attempt failed and is repeated: the status that the receiver answered, if it did, and why.
    Interrupted(Option<StatusCode>, &'a dyn std::error::Error),
}

/// Uploads a file. Retries until the receiver accepts or refuses it; to stop, drop the future. Sends
/// smaller blocks to a receiver that answers 408.
/// `random` returns any number and selects the delays.
///
/// # Errors
/// The file cannot be read, or became shorter.
pub async fn upload(
    client: &Client,
    upload: &Upload,
    random: impl FnMut() -> u64,
) -> io::Result<Outcome> {
    upload_observed(client, upload, random, |_| {}).await
}

/// As [`upload`], and reports its progress to `observe`.
///
/// # Errors
/// As [`upload`].
pub async fn upload_observed(
    client: &Client,
    upload: &Upload,
    mut random: impl FnMut() -> u64,
    mut observe: impl FnMut(Observation<'_>),
) -> io::Result<Outcome> {
    let mut retries = Retries::new(upload.backoff);
    let mut upload = upload.clone();
    let mut known = None;
    loop {
        let attempted = attempt(client, &upload, &mut known, &mut retries, &mut observe).await?;
        let error = match attempted {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        known = None;
        let mut delay = retries.failed(random());
        if let AttemptError::Busy(asked) = error {
            delay = delay.max(asked.min(MAX_RETRY_AFTER));
        }
        tracing::info!(url = upload.url, %error, ?delay, "upload is interrupted");
        let status = match &error {
            AttemptError::Status(status) => Some(*status),
            _ => None,
        };
        if status == Some(StatusCode::REQUEST_TIMEOUT) {
            upload.block = upload.block.min((upload.block / 2).max(MIN_BLOCK));
        }
        observe(Observation::Interrupted(status, &error));
        tokio::time::sleep(delay).await;
    }
}

/// Sends blocks until the end or a failure. The outer error is that of the file.
async fn attempt(
    client: &Client,
    upload: &Upload,
    known: &mut Option<u64>,
    retries: &mut Retries,
    observe: &mut impl FnMut(Observation<'_>),
) -> io::Result<Result<Outcome, AttemptError>> {
    let mut file = File::open(&upload.path).await?;
    loop {
        let offset = match *known {
            Some(offset) => offset,
            None => match head(client, upload).await {
                Ok(Ok(offset)) => offset,
                Ok(Err(outcome)) => return Ok(Ok(outcome)),
                Err(error) => return Ok(Err(error)),
            },
        };
        observe(Observation::Confirmed(offset));
        let (block, bytes) = read_block(&mut file, upload, offset).await?;
        let request = client.patch(&upload.url).headers(block.headers()).body(bytes);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error.into())),
        };
        match response.status() {
            StatusCode::NO_CONTENT => match Progress::parse(response.headers()) {
                Ok(progress) if progress.offset > offset && progress.offset <= upload.length => {
                    *known = Some(progress.offset);
                    retries.reset();
                }
                Ok(progress) => {
                    let text = format!("offset {} after a block at {offset}", progress.offset);
                    return Ok(Err(AttemptError::Malformed(text)));
                }
                Err(error) => return Ok(Err(AttemptError::Malformed(error.to_string()))),
            },
            StatusCode::OK | StatusCode::CREATED => {
                return Ok(text(response, MAX_TEXT)
                    .await
                    .map(Outcome::Accepted)
                    .map_err(Into::into));
            }
            // Another offset: an answer was lost, or a restarted receiver has less.
            StatusCode::CONFLICT if response.headers().contains_key(UPLOAD_OFFSET) => {
                let expected = integer(response.headers(), &UPLOAD_OFFSET).ok();
                match expected.filter(|it| *it != offset && *it <= upload.length) {
                    Some(expected) => *known = Some(expected),
                    None => return Ok(Err(AttemptError::Status(StatusCode::CONFLICT))),
                }
            }
            _ => return Ok(end(response).await),
        }
    }
}

/// Asks where to continue. An inner error is the end of the upload.
async fn head(client: &Client, upload: &Upload) -> Result<Result<u64, Outcome>, AttemptError> {
    let response = client.head(&upload.url).send().await?;
    match response.status() {
        StatusCode::NOT_FOUND => Ok(Ok(0)),
        StatusCode::NO_CONTENT | StatusCode::OK => {
            let progress = Progress::parse(response.headers());
            let progress = progress.map_err(|error| AttemptError::Malformed(error.to_string()))?;
            if progress.is_complete {
                return Ok(Err(Outcome::Accepted(String::new())));
            }
            // More than the whole file: the receiver answers with the expected offset.
            Ok(Ok(progress.offset.min(upload.length)))
        }
        _ => end(response).await.map(Err),
    }
}

/// What another status means: an end, or a reason to try again.
async fn end(response: Response) -> Result<Outcome, AttemptError> {
    let status = response.status();
    let asked = response.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
    let is_temporary = status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
    match asked.map(Duration::from_secs) {
        Some(asked) if is_temporary => Err(AttemptError::Busy(asked)),
        None if is_temporary => Err(AttemptError::Status(status)),
        // A block or the whole arrived damaged, or the receiver began again.
        _ if status == StatusCode::BAD_REQUEST => Err(AttemptError::Status(status)),
        _ => Ok(Outcome::Refused(status, text(response, MAX_TEXT).await?)),
    }
}

async fn read_block(file: &mut File, upload: &Upload, offset: u64) -> io::Result<(Block, Bytes)> {
    file.seek(io::SeekFrom::Start(offset)).await?;
    let size = upload.block.clamp(1, MAX_BLOCK).min(upload.length - offset);
    let mut bytes = vec![0; usize::try_from(size).expect("it is at most MAX_BLOCK")];
    file.read_exact(&mut bytes).await?;
    let is_last = offset + size == upload.length;
    let digest = Digest::of_bytes(&bytes);
    Ok((Block { offset, is_last, length: upload.length, digest }, bytes.into()))
}
