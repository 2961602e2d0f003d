//! Parses the address of an artifact. Pure. This is the only file of the crate that parses
//! `http(s)://`, `s3://`, `file://` and paths; everything else uses [`ArtifactLocation`].
//!
//! Which addresses and paths are allowed is decided in `address_policy` and `transfer::local`.

use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::ModelError;

/// Where an artifact is downloaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArtifactLocation {
    Http(Url),
    S3 {
        bucket: String,
        key: String,
    },
    /// Absolute path on the node, without `.` and `..`.
    File(PathBuf),
}

impl ArtifactLocation {
    /// Parses `http://`, `https://`, `s3://bucket/key`, `file:///path`, or an absolute path.
    ///
    /// # Errors
    /// [`ModelError::UnknownScheme`], [`ModelError::InvalidUrl`].
    pub(crate) fn parse(text: &str) -> Result<Self, ModelError> {
        let invalid = |reason: &str| ModelError::InvalidUrl {
            url: redacted_text(text),
            reason: reason.to_owned(),
        };
        if text.chars().any(char::is_control) {
            return Err(invalid("URL contains control characters"));
        }
        if text.starts_with('/') {
            return file(text).ok_or_else(|| invalid("path must not contain `.` or `..`"));
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(invalid("neither a URL nor an absolute path"));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => {
                // The parser accepts `http:host` and `http:/\host` as `http://host`. A reader does
                // not expect that, so they are refused.
                if !rest.starts_with("//") || rest.starts_with("///") {
                    return Err(invalid("scheme must be followed by `//` and a host"));
                }
                if rest.contains('\\') {
                    return Err(invalid("URL contains a backslash"));
                }
                let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
                Ok(Self::Http(url))
            }
            "file" => rest
                .strip_prefix("//localhost")
                .or_else(|| rest.strip_prefix("//"))
                .filter(|path| path.starts_with('/') && !path.starts_with("//"))
                .filter(|path| !path.contains(['%', '?', '#']))
                .and_then(file)
                .ok_or_else(|| {
                    invalid("URL must be file:///absolute/path, without escapes and `..`")
                }),
            "s3" => s3_object(rest).map_err(invalid),
            // Not the whole text: it may be a password with a colon.
            scheme
                if scheme.len() <= 20
                    && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
            {
                Err(ModelError::UnknownScheme { scheme: scheme.to_owned() })
            }
            _ => Err(invalid("neither a URL nor an absolute path")),
        }
    }

    /// For logs and statuses: without user, password, query and fragment.
    pub(crate) fn redacted(&self) -> String {
        match self {
            Self::Http(url) => redacted(url),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// The complete URL, including secrets. Only for hashing.
    pub(crate) fn full_url(&self) -> String {
        match self {
            Self::Http(url) => url.to_string(),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::File(path) => format!("file://{}", path.display()),
        }
    }

    /// The path of the URL, the key of the object, or the path of the file. Empty if the path of
    /// the file is not UTF-8.
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::Http(url) => url.path(),
            Self::S3 { key, .. } => key,
            Self::File(path) => path.to_str().unwrap_or_default(),
        }
    }

    /// The last segment of the path. Empty if there is none.
    pub(crate) fn last_segment(&self) -> String {
        match self {
            Self::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Http(_) | Self::S3 { .. } => {
                self.path().rsplit('/').next().unwrap_or_default().to_owned()
            }
        }
    }
}

fn file(path: &str) -> Option<ArtifactLocation> {
    let is_plain = path.split('/').all(|part| !matches!(part, "." | ".."));
    is_plain.then(|| ArtifactLocation::File(Path::new(path).to_owned()))
}

/// Parses what follows `s3:`.
fn s3_object(rest: &str) -> Result<ArtifactLocation, &'static str> {
    let (bucket, key) = rest
        .strip_prefix("//")
        .and_then(|rest| rest.split_once('/'))
        .ok_or("URL must be s3://bucket/key")?;
    let is_allowed =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    if !(3..=63).contains(&bucket.len())
        || !bucket.chars().all(is_allowed)
        || bucket.starts_with(['.', '-'])
        || bucket.contains("..")
    {
        return Err("bucket name must be 3 to 63 of a-z, 0-9, `.` and `-`");
    }
    if key.is_empty() || key.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("object key must not be empty and must not contain `.` or `..`");
    }
    Ok(ArtifactLocation::S3 { bucket: bucket.to_owned(), key: key.to_owned() })
}

fn redacted_text(text: &str) -> String {
    Url::parse(text)
        .ok()
        .filter(|url| !url.cannot_be_a_base())
        .map_or_else(|| "the URL".to_owned(), |url| redacted(&url))
}

/// A URL without user, password, query and fragment, which may contain secrets.
pub(crate) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}
