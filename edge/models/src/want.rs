//! What is wanted: a URL, read once, and the digest that it should have. Which addresses may be
//! asked is address.rs's, which local paths are offered local.rs's.

use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::{Digest, ModelError};

/// A model that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    pub(crate) source: Source,
    pub(crate) sha256: Option<Digest>,
    pub(crate) form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Http(Url),
    S3 { bucket: String, key: String },
    File(PathBuf),
}

/// How the bytes are packed: told by the end of the URL's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Tar,
    TarGz,
    TarZst,
    Zip,
}

impl Form {
    fn of(path: &str) -> Self {
        let path = path.to_ascii_lowercase();
        for (end, form) in [
            (".tar", Self::Tar),
            (".tar.gz", Self::TarGz),
            (".tgz", Self::TarGz),
            (".tar.zst", Self::TarZst),
            (".zip", Self::Zip),
        ] {
            if path.ends_with(end) {
                return form;
            }
        }
        Self::Plain
    }

    /// The name of the directory below a digest: one digest can be wanted packed and unpacked.
    pub(crate) fn shelf(self) -> &'static str {
        if self == Self::Plain { "plain" } else { "unpacked" }
    }
}

impl Want {
    /// Reads `http://`, `https://`, `s3://bucket/key`, `file:///path`, or an absolute path. What ends
    /// in `.tar`, `.tar.gz`, `.tgz`, `.tar.zst` or `.zip` is unpacked.
    ///
    /// # Errors
    /// `UnknownScheme`, and `BadUrl` for what is no URL or lacks its parts.
    pub fn parse(url: &str, sha256: Option<Digest>) -> Result<Self, ModelError> {
        let source = Source::parse(url)?;
        let form = Form::of(match &source {
            Source::Http(url) => url.path(),
            Source::S3 { key, .. } => key,
            Source::File(path) => path.to_str().unwrap_or_default(),
        });
        Ok(Self { source, sha256, form })
    }

    /// For logs and status: without user, password, query and fragment.
    pub fn printable(&self) -> String {
        match &self.source {
            Source::Http(url) => printable(url),
            Source::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Source::File(path) => path.display().to_string(),
        }
    }

    pub fn sha256(&self) -> Option<Digest> {
        self.sha256
    }

    /// The last part of the path as a file name that cannot leave its directory; `model` if there is none.
    pub fn file_name(&self) -> String {
        let last = match &self.source {
            Source::Http(url) => url.path().rsplit('/').next().unwrap_or_default().to_owned(),
            Source::S3 { key, .. } => key.rsplit('/').next().unwrap_or_default().to_owned(),
            Source::File(path) => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        };
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' }
        };
        let name: String = last.chars().map(plain).take(128).collect();
        if name.trim_matches('.').is_empty() { "model".to_owned() } else { name }
    }

    /// Stands for the whole URL, secrets included, without telling them.
    pub(crate) fn fingerprint(&self) -> Digest {
        let text = match &self.source {
            Source::Http(url) => url.to_string(),
            Source::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Source::File(path) => format!("file://{}", path.display()),
        };
        Digest::of_bytes(format!("{} {text}", self.form.shelf()).as_bytes())
    }

    /// Wants with one key are fetched once.
    pub(crate) fn key(&self) -> String {
        match self.sha256 {
            Some(digest) => format!("{digest}-{}", self.form.shelf()),
            None => format!("url-{}", self.fingerprint()),
        }
    }
}

impl Source {
    fn parse(text: &str) -> Result<Self, ModelError> {
        let bad = |why: &str| ModelError::BadUrl { url: shown(text), why: why.to_owned() };
        if text.chars().any(char::is_control) {
            return Err(bad("it holds control characters"));
        }
        if text.starts_with('/') {
            return local(text).ok_or_else(|| bad("`.` and `..` are not followed"));
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(bad("it is neither a URL nor an absolute path"));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => {
                // The parser would read `http:host` and `http:/\host` as `http://host`; people do not.
                if !rest.starts_with("//") || rest.starts_with("///") {
                    return Err(bad("`//` and a host have to follow the scheme"));
                }
                if rest.contains('\\') {
                    return Err(bad("it holds a backslash"));
                }
                let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
                Ok(Self::Http(url))
            }
            "file" => rest
                .strip_prefix("//localhost")
                .or_else(|| rest.strip_prefix("//"))
                .filter(|path| path.starts_with('/') && !path.starts_with("//"))
                .filter(|path| !path.contains(['%', '?', '#']))
                .and_then(local)
                .ok_or_else(|| {
                    bad("it should read file:///absolute/path, without escapes and `..`")
                }),
            "s3" => {
                let (bucket, key) = rest
                    .strip_prefix("//")
                    .and_then(|rest| rest.split_once('/'))
                    .ok_or_else(|| bad("it should read s3://bucket/key"))?;
                let is_name = |c: char| {
                    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-')
                };
                if !(3..=63).contains(&bucket.len())
                    || !bucket.chars().all(is_name)
                    || bucket.starts_with(['.', '-'])
                    || bucket.contains("..")
                {
                    return Err(bad("a bucket is named by 3 to 63 of a-z, 0-9, `.` and `-`"));
                }
                if key.is_empty() || key.split('/').any(|part| matches!(part, "." | "..")) {
                    return Err(bad("the key is empty or holds `.` or `..`"));
                }
                Ok(Self::S3 { bucket: bucket.to_owned(), key: key.to_owned() })
            }
            // Not the whole text: it may be a password with a colon.
            scheme
                if scheme.len() <= 20
                    && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
            {
                Err(ModelError::UnknownScheme { scheme: scheme.to_owned() })
            }
            _ => Err(bad("it is neither a URL nor an absolute path")),
        }
    }
}

fn local(path: &str) -> Option<Source> {
    let is_plain = path.split('/').all(|part| !matches!(part, "." | ".."));
    is_plain.then(|| Source::File(Path::new(path).to_owned()))
}

fn shown(text: &str) -> String {
    Url::parse(text)
        .ok()
        .filter(|url| !url.cannot_be_a_base())
        .map_or_else(|| "the URL".to_owned(), |url| printable(&url))
}

/// A URL for logs and status: without user, password and query, which may hold secrets.
pub(crate) fn printable(url: &Url) -> String {
    let mut url = url.clone();
    // Fails only for URLs that have no host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_want_knows_its_source_its_form_and_a_safe_name() {
        for (url, form, name) in [
            ("http://h/a/small.onnx?x=/y.tar", Form::Plain, "small.onnx"),
            ("HTTPS://user:pw@h/a.TAR.GZ", Form::TarGz, "a.TAR.GZ"),
            ("s3://bucket/a/b.tgz", Form::TarGz, "b.tgz"),
            ("file:///models/x.tar.zst", Form::TarZst, "x.tar.zst"),
            ("/models/x.zip", Form::Zip, "x.zip"),
            ("http://h/x.tar", Form::Tar, "x.tar"),
            ("http://h/a%2f..%2fb", Form::Plain, "a_2f.._2fb"),
            ("http://h/a/..", Form::Plain, "model"),
            ("http://h", Form::Plain, "model"),
        ] {
            let want = Want::parse(url, None).unwrap();
            assert_eq!((want.form, want.file_name().as_str()), (form, name), "{url}");
        }
    }

    #[test]
    fn what_is_printed_holds_no_secret_and_what_is_compared_does() {
        let want = Want::parse("https://ann:secret@h/m?token=secret#secret", None).unwrap();
        assert_eq!(want.printable(), "https://h/m");
        assert_ne!(want.key(), Want::parse("https://h/m", None).unwrap().key());
        for bad in ["ann:secret@h", "http:ann:secret@h/", "secret"] {
            assert!(!Want::parse(bad, None).unwrap_err().to_string().contains("secret"), "{bad}");
        }
    }

    #[test]
    fn wants_of_one_digest_are_one_whatever_the_url() {
        let digest = Some(Digest::of_bytes(b"x"));
        let key = |url| Want::parse(url, digest).unwrap().key();
        assert_eq!(key("http://a/m"), key("s3://bucket/m"));
        assert_ne!(key("http://a/m"), key("http://a/m.tar"), "packed and unpacked are two things");
    }
}
