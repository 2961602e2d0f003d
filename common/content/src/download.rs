//! Downloads a content by its digest, and continues where an earlier attempt ended.

use std::{
    io,
    path::{Path, PathBuf},
};

use http::{StatusCode, header};
use neptune_program::causes;
use neptune_transfer::{
    partial::PartialFile,
    range::{self, ContentRange},
};
use reqwest::{Client, Response};
use tokio::task::spawn_blocking;

use crate::{Digest, body::text};

/// Longest error text that is kept.
const MAX_TEXT: usize = 4096;

/// A content to download.
#[derive(Debug, Clone)]
pub struct Download {
    /// Address of the content at its server.
    pub url: String,
    /// The digest that the content must have.
    pub content: Digest,
    /// The known or the maximum length.
    pub length: Length,
    /// Where to put it. What an attempt received is kept in a file beside it.
    pub path: PathBuf,
}

/// The length of a content in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The exact length of the content.
    Exactly(u64),
    /// The maximum length, when the exact one is not known; a longer content is not received.
    AtMost(u64),
}

impl Length {
    fn max(self) -> u64 {
        let (Self::Exactly(bytes) | Self::AtMost(bytes)) = self;
        bytes
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The server cannot be reached, or the connection was cut.
    #[error("{}", causes(.0))]
    Http(#[from] reqwest::Error),
    /// The server does not send the content.
    #[error("the server answered {0}: {1}")]
    Status(StatusCode, String),
    /// The server sent another content. It is removed.
    #[error("the server sent another content: {got} instead of {expected}")]
    Digest {
        /// The digest of the content that it sent.
        got: Digest,
        /// The digest of the content.
        expected: Digest,
    },
    /// The server sent more or fewer bytes than the content has.
    #[error("the server sent {got} bytes instead of {expected}")]
    Length {
        /// The number of bytes that it sent, as far as it was read.
        got: u64,
        /// The length of the content.
        expected: u64,
    },
    /// The content is larger than [`Length::AtMost`]. It is removed.
    #[error("the server sent more than {limit} bytes")]
    TooLarge {
        /// The maximum length in bytes.
        limit: u64,
    },
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        error: io::Error,
    },
}

/// Downloads a content once; to stop, drop the future. When it returns, the file is complete, has
/// its digest, and survives a power failure: callers do not verify it again. A file that is there
/// already is verified.
///
/// # Errors
/// What was received is kept for the next attempt, unless it is not the content.
pub async fn download(client: &Client, download: &Download) -> Result<(), DownloadError> {
    let path = &download.path;
    let complete = |error| DownloadError::File { path: path.clone(), error };
    if tokio::fs::try_exists(path).await.map_err(complete)? {
        if digest_of(path).await.map_err(complete)? == download.content {
            return Ok(());
        }
        tokio::fs::remove_file(path).await.map_err(complete)?;
    }
    let mut partial_path = path.clone().into_os_string();
    partial_path.push(".partial");
    let partial_path = PathBuf::from(partial_path);
    let error = |error| DownloadError::File { path: partial_path.clone(), error };
    let mut partial = PartialFile::open(&partial_path).await.map_err(error)?;
    if partial.length() > download.length.max() {
        partial.restart().await.map_err(error)?;
    }
    let received = partial.length();
    let has_all = partial.digest() == download.content
        || download.length == Length::Exactly(received) && received > 0;
    if !has_all {
        receive(client, download, &mut partial, error).await?;
    }
    let got = partial.digest();
    if got != download.content {
        tokio::fs::remove_file(&partial_path).await.map_err(error)?;
        return Err(DownloadError::Digest { got, expected: download.content });
    }
    partial.adopt(path).await.map_err(error)
}

async fn digest_of(path: &Path) -> io::Result<Digest> {
    let path = path.to_owned();
    let hashed = spawn_blocking(move || Digest::of_reader(std::fs::File::open(path)?)).await;
    hashed.map_err(io::Error::from).flatten().map(|(digest, _)| digest)
}

/// Receives what the partial file does not have. `error` is for an error of the file.
async fn receive(
    client: &Client,
    download: &Download,
    partial: &mut PartialFile,
    error: impl Fn(io::Error) -> DownloadError,
) -> Result<(), DownloadError> {
    let (offset, max) = (partial.length(), download.length.max());
    let mut request = client.get(&download.url);
    if offset > 0 {
        request = request.header(header::RANGE, range::from_offset(offset));
    }
    let mut response = request.send().await?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT if starts_at(&response, offset) => {}
        StatusCode::OK => partial.restart().await.map_err(&error)?,
        status => {
            if status == StatusCode::RANGE_NOT_SATISFIABLE {
                // What is here is longer than what the server has.
                partial.restart().await.map_err(&error)?;
            }
            return Err(DownloadError::Status(status, text(response, MAX_TEXT).await?));
        }
    }
    if matches!(download.length, Length::AtMost(_))
        && response.content_length().is_some_and(|it| it > max - partial.length())
    {
        partial.restart().await.map_err(&error)?;
        return Err(DownloadError::TooLarge { limit: max });
    }
    while let Some(chunk) = response.chunk().await? {
        let got = partial.length() + chunk.len() as u64;
        match download.length {
            Length::Exactly(expected) if got > expected => {
                return Err(DownloadError::Length { got, expected });
            }
            Length::AtMost(limit) if got > limit => {
                partial.restart().await.map_err(&error)?;
                return Err(DownloadError::TooLarge { limit });
            }
            _ => partial.append(&chunk).await.map_err(&error)?,
        }
    }
    partial.flush().await.map_err(&error)?;
    match download.length {
        Length::Exactly(expected) if partial.length() < expected => {
            Err(DownloadError::Length { got: partial.length(), expected })
        }
        _ => Ok(()),
    }
}

/// Whether a partial response begins at this offset.
fn starts_at(response: &Response, offset: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|it| it.to_str().ok());
    range.and_then(ContentRange::parse).is_some_and(|range| range.first == offset)
}
