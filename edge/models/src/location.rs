//! The location of an artifact: a parsed [`ArtifactAddress`] with an absolute URL. Pure.
//!
//! Which addresses and paths are allowed is decided in `address_policy` and `transfer::local`.

use std::path::{Path, PathBuf};

use neptune_wire::{AddressError, ArtifactAddress};
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
        let invalid = |reason: String| ModelError::InvalidUrl { url: redacted_text(text), reason };
        match text.parse::<ArtifactAddress>() {
            Ok(ArtifactAddress::Http(url)) => {
                let url = Url::parse(url.as_str()).map_err(|error| invalid(error.to_string()))?;
                Ok(Self::Http(url))
            }
            Ok(ArtifactAddress::S3 { bucket, key }) => Ok(Self::S3 { bucket, key }),
            // Iterating over the components drops `.` and repeated slashes.
            Ok(ArtifactAddress::Path(path)) => {
                Ok(Self::File(Path::new(&path).components().collect()))
            }
            Err(AddressError::Scheme(scheme)) => Err(ModelError::UnknownScheme { scheme }),
            Err(error) => Err(invalid(error.to_string())),
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
