//! The location of an artifact: a parsed [`ArtifactAddress`] with an absolute URL.
//!
//! Which addresses and paths are allowed is decided by the model store.

use std::path::{Path, PathBuf};

use neptune_wire::{AddressError, ArtifactAddress, HubAddress, OciAddress};
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
    /// A file or a set of files in a repository of a model hub.
    Hub(HubAddress),
    /// The files of an artifact in a container registry.
    Oci(OciAddress),
    /// One file of an artifact in a container registry. The digest of the request names it.
    OciLayer(OciAddress),
    /// An absolute path on the node, without `.` and `..`.
    File(PathBuf),
}

impl ArtifactLocation {
    /// Parses `http://`, `https://`, `s3://bucket/key`, `hf://organization/repository`,
    /// `oci://host/repository`, `file:///path`, or an absolute path.
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
            Ok(ArtifactAddress::Hub(address)) => Ok(Self::Hub(address)),
            Ok(ArtifactAddress::Oci(address)) => Ok(Self::Oci(address)),
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
            Self::Hub(address) => address.to_string(),
            Self::Oci(address) | Self::OciLayer(address) => address.to_string(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// The commit of a hub, or the digest of a registry's manifest as `sha256:<hex>`, if the location
    /// names one, so that its files never change.
    pub fn fixed_revision(&self) -> Option<String> {
        match self {
            Self::Hub(address) => address.commit().map(str::to_owned),
            Self::Oci(address) if !address.is_moving() => Some(address.reference()),
            _ => None,
        }
    }

    /// The complete URL, including secrets. Only for hashing.
    pub fn full_url(&self) -> String {
        match self {
            Self::Http(url) => url.to_string(),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::Hub(address) => address.to_string(),
            Self::Oci(address) | Self::OciLayer(address) => address.to_string(),
            Self::File(path) => format!("file://{}", path.display()),
        }
    }

    /// The path of the URL, the key of the object, the path of the file, or the name of the repository
    /// of a set of files. Empty if the path of the file is not UTF-8.
    pub fn path(&self) -> &str {
        match self {
            Self::Http(url) => url.path(),
            Self::S3 { key, .. } => key,
            Self::Hub(address) => address.path.as_deref().unwrap_or(&address.repository),
            Self::Oci(address) | Self::OciLayer(address) => address.name(),
            Self::File(path) => path.to_str().unwrap_or_default(),
        }
    }

    /// Whether the location names a set of files and not one file.
    pub fn is_set(&self) -> bool {
        match self {
            Self::Hub(address) => address.is_set(),
            Self::Oci(_) => true,
            Self::Http(_) | Self::S3 { .. } | Self::OciLayer(_) | Self::File(_) => false,
        }
    }

    /// The last segment of the path. Empty if there is none.
    pub fn last_segment(&self) -> String {
        match self {
            Self::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Http(_) | Self::S3 { .. } | Self::Hub(_) | Self::Oci(_) | Self::OciLayer(_) => {
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
