//! Downloads a content by its digest, and continues where an earlier attempt ended.

use std::{
    io,
    path::{Path, PathBuf},
};

use http::{StatusCode, header};
use neptune_program::causes;
use neptune_transfer::durable::{self, Survives};
use reqwest::{Client, Response};
use sha2::{Digest as _, Sha256};
use tokio::{
    fs::{File, OpenOptions},
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
    task::spawn_blocking,
};

use crate::Digest;

/// Bytes of a file that are read at a time.
const CHUNK: usize = 256 * 1024;
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
    let error = |path: &Path| {
        let path = path.to_owned();
        move |error| DownloadError::File { path, error }
    };
    if tokio::fs::try_exists(path).await.map_err(error(path))? {
        let (hash, _) = hash(path).await.map_err(error(path))?;
        if Digest::from(hash) == download.content {
            return Ok(());
        }
        tokio::fs::remove_file(path).await.map_err(error(path))?;
    }
    let mut partial = path.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let (mut hash, mut offset) = match hash(&partial).await {
        Ok((hash, length)) if length <= download.length.max() => (hash, length),
        Ok(_) => (Sha256::new(), 0),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => (Sha256::new(), 0),
        Err(failed) => return Err(error(&partial)(failed)),
    };
    let mut file = OpenOptions::new();
    let file = file.create(true).truncate(false).write(true).open(&partial).await;
    let mut file = file.map_err(error(&partial))?;
    let has_all = Digest::from(hash.clone()) == download.content
        || download.length == Length::Exactly(offset) && offset > 0;
    if !has_all {
        receive(client, download, &partial, &mut file, (&mut hash, &mut offset)).await?;
    }
    let got = Digest::from(hash);
    if got != download.content {
        tokio::fs::remove_file(&partial).await.map_err(error(&partial))?;
        return Err(DownloadError::Digest { got, expected: download.content });
    }
    file.sync_all().await.map_err(error(&partial))?;
    has_length(&file, offset).await.map_err(error(&partial))?;
    let (from, to) = (partial.clone(), path.clone());
    let adopted = spawn_blocking(move || durable::adopt(&from, &to, Survives::PowerLoss)).await;
    adopted.map_err(io::Error::from).flatten().map_err(error(path))
}

/// The digest is that of the received bytes: fails if the file does not have as many.
async fn has_length(file: &File, expected: u64) -> io::Result<()> {
    let length = file.metadata().await?.len();
    if length == expected {
        return Ok(());
    }
    Err(io::Error::other(format!("it has {length} bytes after {expected} were written")))
}

/// Receives what is missing from `offset` on.
async fn receive(
    client: &Client,
    download: &Download,
    partial: &Path,
    file: &mut File,
    (hash, offset): (&mut Sha256, &mut u64),
) -> Result<(), DownloadError> {
    let error = |error| DownloadError::File { path: partial.to_owned(), error };
    let max = download.length.max();
    let mut request = client.get(&download.url);
    if *offset > 0 {
        request = request.header(header::RANGE, format!("bytes={offset}-"));
    }
    let mut response = request.send().await?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT if starts_at(&response, *offset) => {}
        StatusCode::OK => {
            *hash = Sha256::new();
            *offset = 0;
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            // What is here is longer than what the server has.
            file.set_len(0).await.map_err(error)?;
            return Err(DownloadError::Status(response.status(), text(response).await?));
        }
        status => return Err(DownloadError::Status(status, text(response).await?)),
    }
    // What was there beyond the offset, or all of it.
    file.set_len(*offset).await.map_err(error)?;
    file.seek(io::SeekFrom::Start(*offset)).await.map_err(error)?;
    if matches!(download.length, Length::AtMost(_))
        && response.content_length().is_some_and(|it| it > max - *offset)
    {
        file.set_len(0).await.map_err(error)?;
        return Err(DownloadError::TooLarge { limit: max });
    }
    while let Some(chunk) = response.chunk().await? {
        let got = *offset + chunk.len() as u64;
        match download.length {
            Length::Exactly(expected) if got > expected => {
                return Err(DownloadError::Length { got, expected });
            }
            Length::AtMost(limit) if got > limit => {
                // Waits for the last write.
                file.flush().await.map_err(error)?;
                file.set_len(0).await.map_err(error)?;
                return Err(DownloadError::TooLarge { limit });
            }
            _ => {}
        }
        file.write_all(&chunk).await.map_err(error)?;
        hash.update(&chunk);
        *offset = got;
    }
    // An error of the last write is reported here only.
    file.flush().await.map_err(error)?;
    match download.length {
        Length::Exactly(expected) if *offset < expected => {
            Err(DownloadError::Length { got: *offset, expected })
        }
        _ => Ok(()),
    }
}

/// Whether a partial response begins at this offset.
fn starts_at(response: &Response, offset: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|it| it.to_str().ok());
    let start =
        range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    start == Some(offset)
}

async fn text(mut response: Response) -> Result<String, DownloadError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_TEXT - body.len())]);
        if body.len() == MAX_TEXT {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// The hash of a file, and its length.
async fn hash(path: &Path) -> io::Result<(Sha256, u64)> {
    let mut file = File::open(path).await?;
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = file.read(&mut buffer).await?;
        if count == 0 {
            return Ok((hash, length));
        }
        hash.update(&buffer[..count]);
        length += count as u64;
    }
}
