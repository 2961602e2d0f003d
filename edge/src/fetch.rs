//! Downloads one file over http(s), hashing what arrives, and puts it in its place only when it is
//! whole and right. One attempt; when to try again is the caller's.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Client, Response, Url, redirect};
use sha2::{Digest as _, Sha256};
use tokio::{fs, io::AsyncWriteExt as _};

use crate::Error;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A download may take days; a server that sends nothing for so long is taken for gone.
const STALLED_AFTER: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 5;

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    pub size: u64,
    /// 64 hex digits.
    pub sha256: String,
}

/// Downloads files.
pub struct Fetcher {
    client: Client,
    stalled_after: Duration,
}

impl Fetcher {
    /// A client that follows at most five redirects, to http and https only, and trusts the system's
    /// authorities (`SSL_CERT_FILE` names others). Reads them from disk, blocking.
    pub fn new() -> Result<Self, Error> {
        Self::with_stall(STALLED_AFTER)
    }

    fn with_stall(stalled_after: Duration) -> Result<Self, Error> {
        let builder = || {
            Client::builder()
                .user_agent(concat!("neptune-edge/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_WITHIN)
                .redirect(redirect::Policy::custom(follow))
                .pool_max_idle_per_host(0)
        };
        // A machine without any authorities can still download over http.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        let client = client.map_err(|error| Error::Unreachable {
            url: "http client".into(),
            why: reasons(&error),
        })?;
        Ok(Self { client, stalled_after })
    }

    /// Downloads to `part`, then renames to `target`. Both have to be on one file system; the
    /// directory of `target` has to exist. `progress` hears the number of bytes that are there.
    ///
    /// # Guarantees
    /// `target` is never there incomplete or with another digest, and once this returns it survives
    /// a power cut. `part` is gone when this fails or is cancelled after the next attempt began.
    pub async fn fetch(
        &self,
        url: &str,
        sha256: Option<&str>,
        part: &Path,
        target: &Path,
        progress: impl Fn(u64),
    ) -> Result<Fetched, Error> {
        let result = self.download(url, part, progress).await.and_then(|fetched| match sha256 {
            Some(expected) if !expected.eq_ignore_ascii_case(&fetched.sha256) => {
                Err(Error::DigestMismatch {
                    what: printable(url),
                    expected: expected.to_ascii_lowercase(),
                    got: fetched.sha256,
                })
            }
            _ => Ok(fetched),
        });
        match result {
            Ok(fetched) => {
                place(part, target)
                    .await
                    .map_err(|source| Error::File { path: target.to_owned(), source })?;
                Ok(fetched)
            }
            Err(error) => {
                // It may not have been made yet.
                let _ = fs::remove_file(part).await;
                Err(error)
            }
        }
    }

    async fn download(
        &self,
        url: &str,
        part: &Path,
        progress: impl Fn(u64),
    ) -> Result<Fetched, Error> {
        let shown = printable(url);
        let parsed = Url::parse(url)
            .map_err(|error| Error::BadUrl { url: shown.clone(), why: error.to_string() })?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(Error::BadUrl {
                url: shown,
                why: "only http and https are downloaded".into(),
            });
        }
        let unreachable =
            |error: reqwest::Error| Error::Unreachable { url: shown.clone(), why: reasons(&error) };
        let stalled = |_| Error::Unreachable {
            url: shown.clone(),
            why: format!("nothing came for {} s", self.stalled_after.as_secs_f32()),
        };
        let request = tokio::time::timeout(self.stalled_after, self.client.get(parsed).send());
        let mut response = request.await.map_err(stalled)?.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(Error::Refused { url: shown, status: response.status().as_u16() });
        }
        let on_disk = |source| Error::File { path: part.to_owned(), source };
        let mut file = fs::File::create(part).await.map_err(on_disk)?;
        let mut hash = Sha256::new();
        let mut size = 0;
        while let Some(chunk) =
            self.chunk(&mut response).await.map_err(stalled)?.map_err(unreachable)?
        {
            hash.update(&chunk);
            file.write_all(&chunk).await.map_err(on_disk)?;
            size += chunk.len() as u64;
            progress(size);
        }
        file.flush().await.map_err(on_disk)?;
        file.sync_all().await.map_err(on_disk)?;
        Ok(Fetched { size, sha256: hex(&hash.finalize()) })
    }

    async fn chunk(
        &self,
        response: &mut Response,
    ) -> Result<reqwest::Result<Option<bytes::Bytes>>, tokio::time::error::Elapsed> {
        tokio::time::timeout(self.stalled_after, response.chunk()).await
    }
}

/// The sha256 of a file's content, as 64 hex digits. Blocking.
pub fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = io::Read::read(&mut file, &mut buffer)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..read]);
    }
}

/// The last part of a URL's path as a file name that cannot leave its directory; `model` if there is none.
pub fn file_name(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let last = parsed.as_ref().and_then(|url| url.path_segments()?.next_back()).unwrap_or_default();
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let name: String = last.chars().map(plain).take(128).collect();
    if name.trim_matches('.').is_empty() { "model".to_owned() } else { name }
}

/// A URL for logs and status: without user, password and query, which may hold secrets.
pub fn printable(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "the URL".to_owned() };
    // Fails only for URLs that have no host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    if attempt.previous().len() > REDIRECTS {
        attempt.error(format!("more than {REDIRECTS} redirects"))
    } else if matches!(attempt.url().scheme(), "http" | "https") {
        attempt.follow()
    } else {
        attempt.error("a redirect leads away from http and https")
    }
}

async fn place(part: &Path, target: &Path) -> io::Result<()> {
    fs::rename(part, target).await?;
    let dir = target.parent().map_or_else(
        || PathBuf::from("."),
        |dir| if dir.as_os_str().is_empty() { ".".into() } else { dir.to_owned() },
    );
    // The name is on the disk when its directory is.
    fs::File::open(dir).await?.sync_all().await
}

fn reasons(error: &reqwest::Error) -> String {
    // The chain's own first text repeats the URL, which may hold secrets.
    let mut cause = std::error::Error::source(error);
    let mut text = String::new();
    while let Some(inner) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    if text.is_empty() { "the transfer failed".to_owned() } else { text }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
