//! The location of an artifact: a parsed [`ArtifactAddress`] with an absolute URL.
//!
//! Which addresses and paths are allowed is decided by the model store.

use std::path::{Path, PathBuf};

use neptune_wire::{AddressError, ArtifactAddress};
use url::Url;

use crate::LocationError;

/// The place from which an artifact is downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactLocation {
    /// An http or https URL.
    Http(Url),
    /// A link to an object in an S3 bucket.
    S3 {
        /// Name of the S3 bucket.
        bucket: String,
        /// Key of the object in the bucket.
        key: String,
    },
    /// An absolute path on the node, without `.` and `..`.
    File(PathBuf),
}

impl ArtifactLocation {
    /// Parses `http://`, `https://`, `s3://bucket/key`, `file:///path`, or an absolute path.
    ///
    /// # Errors
    /// [`LocationError::UnknownScheme`], [`LocationError::InvalidUrl`].
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        let invalid =
            |reason: String| LocationError::InvalidUrl { url: redacted_text(text), reason };
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
            Err(AddressError::Scheme(scheme)) => Err(LocationError::UnknownScheme { scheme }),
            Err(error) => Err(invalid(error.to_string())),
        }
    }

    /// Returns the location for logs and statuses, without user, password, query and fragment.
    pub fn redacted(&self) -> String {
        match self {
            Self::Http(url) => redacted(url),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// The complete URL, including secrets. Only for hashing.
    pub fn full_url(&self) -> String {
        match self {
            Self::Http(url) => url.to_string(),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::File(path) => format!("file://{}", path.display()),
        }
    }

    /// The path of the URL, the key of the object, or the path of the file. Empty if the path of
    /// the file is not UTF-8.
    pub fn path(&self) -> &str {
        match self {
            Self::Http(url) => url.path(),
            Self::S3 { key, .. } => key,
            Self::File(path) => path.to_str().unwrap_or_default(),
        }
    }

    /// The last segment of the path. Empty if there is none.
    pub fn last_segment(&self) -> String {
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
pub fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}
