//! Downloads one file over http(s), hashing what arrives, and puts it in its place only when it is
//! whole and right. One attempt; when to try again is the caller's.

use std::{
    fmt::Write as _,
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
    let Some(mut url) = Url::parse(url).ok().filter(|url| !url.cannot_be_a_base()) else {
        return "the URL".to_owned();
    };
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
    if text.contains("certificate") {
        text.push_str(
            "; its authority has to be among the system's (ca-certificates) or in SSL_CERT_FILE",
        );
    }
    if text.is_empty() { "the transfer failed".to_owned() } else { text }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::error::Class;

    /// A server that gives one answer after the other, the last one for ever. Each is raw bytes; one
    /// without a length hangs, open, when it is sent.
    async fn server(answers: &[&str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut answers: Vec<String> =
            answers.iter().rev().map(|answer| answer.replace("HERE", &url)).collect();
        tokio::spawn(async move {
            let mut hung = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer =
                    if answers.len() > 1 { answers.pop() } else { answers.first().cloned() }
                        .unwrap();
                answer_with(&mut stream, &answer).await;
                if answer.ends_with("HANG") {
                    hung.push(stream);
                }
            }
        });
        url
    }

    async fn answer_with(stream: &mut TcpStream, answer: &str) {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(answer.trim_end_matches("HANG").as_bytes()).await;
        let _ = stream.flush().await;
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn redirect(to: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
    }

    async fn fetch(url: &str, sha256: Option<&str>) -> (Result<Fetched, Error>, Option<String>) {
        // As main does.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let (part, target) = (dir.path().join("part"), dir.path().join("target"));
        let fetcher = Fetcher::with_stall(Duration::from_millis(300)).unwrap();
        let result = fetcher.fetch(url, sha256, &part, &target, |_| ()).await;
        assert!(!part.exists(), "nothing half is left");
        (result, std::fs::read_to_string(target).ok())
    }

    #[tokio::test]
    async fn a_file_is_placed_when_it_is_whole_and_right() {
        let url = format!("{}/m", server(&[&ok("hello")]).await);
        // printf hello | sha256sum
        let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        for expected in [None, Some(digest), Some(&*digest.to_uppercase())] {
            let (result, content) = fetch(&url, expected).await;
            assert_eq!(result.unwrap(), Fetched { size: 5, sha256: digest.into() });
            assert_eq!(content.as_deref(), Some("hello"));
        }
        let wrong = "0".repeat(64);
        let (result, content) = fetch(&url, Some(&wrong)).await;
        let error = result.unwrap_err();
        assert_eq!((error.class(), content), (Class::Permanent, None));
        assert!(
            error.to_string().contains(&wrong) && error.to_string().contains(digest),
            "{error}"
        );
    }

    #[tokio::test]
    async fn what_is_cut_or_stalls_is_an_error_and_leaves_nothing() {
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly so much";
        let stalls = format!("{cut}HANG");
        for (answer, why) in
            [(cut, ""), (stalls.as_str(), "nothing came for"), ("HANG", "nothing came for")]
        {
            let (result, content) = fetch(&server(&[answer]).await, None).await;
            let error = result.unwrap_err();
            assert_eq!((error.class(), content), (Class::Transient, None));
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn redirects_are_followed_five_times_and_never_away_from_http() {
        let to_itself = redirect("HERE/again");
        let five =
            server(&[&to_itself, &to_itself, &to_itself, &to_itself, &to_itself, &ok("x")]).await;
        assert_eq!(fetch(&five, None).await.1.as_deref(), Some("x"));
        let (result, _) = fetch(&server(&[&to_itself]).await, None).await;
        assert!(result.unwrap_err().to_string().contains("more than 5 redirects"));
        for away in ["file:///etc/passwd", "ftp://h/x"] {
            assert!(
                fetch(&server(&[&redirect(away)]).await, None).await.0.is_err(),
                "{away} was followed"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_tells_whether_to_come_again() {
        let refused = |status: u16| {
            format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        };
        let url = server(&[&refused(404), &refused(503), &refused(429), &ok("now")]).await;
        for class in [Class::Permanent, Class::Transient, Class::Transient] {
            assert_eq!(fetch(&url, None).await.0.unwrap_err().class(), class);
        }
        assert_eq!(fetch(&url, None).await.1.as_deref(), Some("now"));
        for bad in ["ftp://h/x", "nonsense", "file:///etc/passwd"] {
            assert_eq!(fetch(bad, None).await.0.unwrap_err().class(), Class::Permanent, "{bad}");
        }
    }

    #[test]
    fn file_names_stay_in_their_directory_and_secrets_out_of_logs() {
        for (url, name) in [
            ("http://h/a/small.onnx?x=/y", "small.onnx"),
            ("http://h/a%2f..%2fb", "a_2f.._2fb"),
            ("http://h/a/..", "model"),
            ("http://h/", "model"),
            ("http://h", "model"),
            ("nonsense", "model"),
        ] {
            assert_eq!(file_name(url), name, "{url}");
        }
        assert_eq!(printable("https://ann:secret@h/m?token=secret#x"), "https://h/m");
        assert!(!printable("ann:secret@").contains("secret"));
    }
}
