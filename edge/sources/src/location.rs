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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// The results of all methods of a location.
    #[derive(Debug, PartialEq)]
    struct Parts<'a> {
        redacted: &'a str,
        full_url: &'a str,
        path: &'a str,
        last_segment: &'a str,
        is_set: bool,
        fixed_revision: Option<&'a str>,
    }

    fn assert_parts(location: &ArtifactLocation, expected: &Parts<'_>) {
        let (redacted, full_url) = (location.redacted(), location.full_url());
        let (last_segment, fixed_revision) = (location.last_segment(), location.fixed_revision());
        let parts = Parts {
            redacted: &redacted,
            full_url: &full_url,
            path: location.path(),
            last_segment: &last_segment,
            is_set: location.is_set(),
            fixed_revision: fixed_revision.as_deref(),
        };
        assert_eq!(&parts, expected);
    }

    #[test]
    fn url_and_bucket_name_one_file_whose_content_may_change() {
        let text = "https://user:s3cret@example.org/models/a.bin?token=s3cret#part";
        let expected = Parts {
            redacted: "https://example.org/models/a.bin",
            full_url: text,
            path: "/models/a.bin",
            last_segment: "a.bin",
            is_set: false,
            fixed_revision: None,
        };
        assert_parts(&ArtifactLocation::parse(text).unwrap(), &expected);
        let text = "s3://bucket/models/a.bin";
        let path = "models/a.bin";
        let expected = Parts { redacted: text, full_url: text, path, ..expected };
        assert_parts(&ArtifactLocation::parse(text).unwrap(), &expected);
    }

    #[test]
    fn file_has_no_dots_and_no_repeated_slashes() {
        let expected = Parts {
            redacted: "/models/a.bin",
            full_url: "file:///models/a.bin",
            path: "/models/a.bin",
            last_segment: "a.bin",
            is_set: false,
            fixed_revision: None,
        };
        for text in ["/models/./a.bin", "file:///models//a.bin"] {
            assert_parts(&ArtifactLocation::parse(text).unwrap(), &expected);
        }
    }

    #[test]
    fn file_and_set_of_a_hub_have_a_fixed_revision_if_a_commit_is_named() {
        let text = format!("hf://org/model@{COMMIT}/weights/a.gguf");
        let expected = Parts {
            redacted: &text,
            full_url: &text,
            path: "weights/a.gguf",
            last_segment: "a.gguf",
            is_set: false,
            fixed_revision: Some(COMMIT),
        };
        assert_parts(&ArtifactLocation::parse(&text).unwrap(), &expected);
        let location = ArtifactLocation::parse("hf://org/model@main").unwrap();
        assert!(location.is_set() && location.fixed_revision().is_none());
        assert_eq!([location.path(), &location.last_segment()], ["model", "model"]);
    }

    #[test]
    fn artifact_of_a_registry_is_a_set_and_its_layer_a_file() {
        let text = format!("oci://registry.example.org/team/model@{DIGEST}");
        let expected = Parts {
            redacted: &text,
            full_url: &text,
            path: "model",
            last_segment: "model",
            is_set: true,
            fixed_revision: Some(DIGEST),
        };
        let location = ArtifactLocation::parse(&text).unwrap();
        assert_parts(&location, &expected);
        let ArtifactLocation::Oci(address) = location else { unreachable!("it was parsed as one") };
        let expected = Parts { is_set: false, fixed_revision: None, ..expected };
        assert_parts(&ArtifactLocation::OciLayer(address), &expected);
        let moving = ArtifactLocation::parse("oci://registry.example.org/team/model:v1").unwrap();
        assert_eq!((moving.is_set(), moving.fixed_revision()), (true, None));
    }

    #[test]
    fn error_about_a_url_has_no_secret() {
        for (text, start) in [
            ("https://user:s3cret@example.org:99999/a", "the URL: the port"),
            ("s3://user:s3cret@/?token=s3cret", "the URL: the bucket name"),
            ("hf://user:s3cret@org", "hf://org: a hub URL"),
        ] {
            let error = ArtifactLocation::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(start) && !error.contains("s3cret"), "{error}");
        }
    }
}
