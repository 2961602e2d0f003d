//! What to fetch: a location, and optionally the digest of the content. Pure.

use neptune_sources::{ArtifactLocation, LocationError};
use neptune_wire::Namespace;

use crate::{ContentKey, Digest};

/// An artifact to fetch: its location, its digest if known, and who may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRequest {
    pub(crate) location: ArtifactLocation,
    pub(crate) sha256: Option<Digest>,
    pub(crate) packaging: Packaging,
    /// The namespace whose file it is; `None` for one that all namespaces share.
    pub(crate) namespace: Option<Namespace>,
}

/// How the artifact is packed. The end of the URL's path decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packaging {
    Plain,
    Tar,
    TarGz,
    TarZst,
    Zip,
}

impl Packaging {
    fn from_path(path: &str) -> Self {
        let path = path.to_ascii_lowercase();
        for (end, packaging) in [
            (".tar", Self::Tar),
            (".tar.gz", Self::TarGz),
            (".tgz", Self::TarGz),
            (".tar.zst", Self::TarZst),
            (".zip", Self::Zip),
        ] {
            if path.ends_with(end) {
                return packaging;
            }
        }
        Self::Plain
    }

    /// The name of the directory below a digest. The same digest can be requested packed and
    /// unpacked.
    pub(crate) fn directory_name(self) -> &'static str {
        if self == Self::Plain { "plain" } else { "unpacked" }
    }
}

impl ArtifactRequest {
    /// Parses `http://`, `https://`, `s3://bucket/key`, `file:///path`, or an absolute path. An
    /// artifact whose name ends with `.tar`, `.tar.gz`, `.tgz`, `.tar.zst` or `.zip` is unpacked.
    ///
    /// # Errors
    /// The text is not the location of an artifact.
    pub fn parse(url: &str, sha256: Option<Digest>) -> Result<Self, LocationError> {
        let location = ArtifactLocation::parse(url)?;
        let packaging = Packaging::from_path(location.path());
        Ok(Self { location, sha256, packaging, namespace: None })
    }

    /// Returns the same artifact for the objects of a namespace. It counts if the store has files
    /// per namespace.
    #[must_use]
    pub fn for_namespace(self, namespace: Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// The URL for logs and statuses: without user, password, query and fragment.
    pub fn redacted_url(&self) -> String {
        self.location.redacted()
    }

    /// Returns the digest that the download must have; `None` if the caller does not know it.
    pub fn sha256(&self) -> Option<Digest> {
        self.sha256
    }

    /// Whether [`ModelStore::find`](crate::ModelStore::find) accesses a path that a user named, and
    /// may block as long as the file system there does.
    pub fn is_found_by_path(&self) -> bool {
        self.sha256.is_none() && matches!(self.location, ArtifactLocation::File(_))
    }

    /// The last segment of the URL's path as a file name without path separators, at most 128
    /// characters of it; `model` if there is none.
    pub fn file_name(&self) -> String {
        let replaced = |c: char| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' }
        };
        let name: String = self.location.last_segment().chars().map(replaced).take(128).collect();
        if name.trim_matches('.').is_empty() { "model".to_owned() } else { name }
    }

    /// Identifies the namespace and the complete URL, including secrets, without revealing it.
    pub(crate) fn fingerprint(&self) -> Digest {
        let text = format!("{} {}", self.packaging.directory_name(), self.location.full_url());
        let text = match &self.namespace {
            None => text,
            Some(namespace) => format!("{namespace} {text}"),
        };
        Digest::of_bytes(text.as_bytes())
    }

    /// The content of this digest that the request may use.
    pub(crate) fn content_key(&self, digest: Digest) -> ContentKey {
        ContentKey { digest, namespace: self.namespace.clone() }
    }

    /// Identifies the content to which received bytes belong. With a digest they are the same from
    /// each URL, and the digest is verified.
    pub(crate) fn content(&self) -> Digest {
        match self.sha256 {
            Some(digest) => digest,
            None => self.fingerprint(),
        }
    }

    /// Requests with the same key share one fetch.
    pub(crate) fn key(&self) -> String {
        match self.sha256 {
            Some(digest) => {
                format!("{}-{}", self.content_key(digest), self.packaging.directory_name())
            }
            None => format!("url-{}", self.fingerprint()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn url_path_defines_packaging_and_safe_file_name() {
        for (url, packaging, name) in [
            ("http://h/a/small.onnx?x=/y.tar", Packaging::Plain, "small.onnx"),
            ("HTTPS://user:pw@h/a.TAR.GZ", Packaging::TarGz, "a.TAR.GZ"),
            ("s3://bucket/a/b.tgz", Packaging::TarGz, "b.tgz"),
            ("file:///models/x.tar.zst", Packaging::TarZst, "x.tar.zst"),
            ("/models/x.zip", Packaging::Zip, "x.zip"),
            ("http://h/x.tar", Packaging::Tar, "x.tar"),
            ("http://h/a%2f..%2fb", Packaging::Plain, "a_2f.._2fb"),
            ("http://h/a/..", Packaging::Plain, "model"),
            ("http://h", Packaging::Plain, "model"),
        ] {
            let request = ArtifactRequest::parse(url, None).unwrap();
            assert_eq!(
                (request.packaging, request.file_name().as_str()),
                (packaging, name),
                "{url}"
            );
        }
    }

    #[test]
    fn redacted_url_omits_secrets_and_key_depends_on_them() {
        let request =
            ArtifactRequest::parse("https://ann:secret@h/m?token=secret#secret", None).unwrap();
        assert_eq!(request.redacted_url(), "https://h/m");
        assert_ne!(request.key(), ArtifactRequest::parse("https://h/m", None).unwrap().key());
        for bad in ["ann:secret@h", "http:ann:secret@h/", "secret"] {
            assert!(
                !ArtifactRequest::parse(bad, None).unwrap_err().to_string().contains("secret"),
                "{bad}"
            );
        }
    }

    #[test]
    fn requests_with_the_same_digest_share_a_key() {
        let digest = Some(Digest::of_bytes(b"x"));
        let key = |url| ArtifactRequest::parse(url, digest).unwrap().key();
        assert_eq!(key("http://a/m"), key("s3://bucket/m"));
        assert_ne!(key("http://a/m"), key("http://a/m.tar"), "packed and unpacked");
    }
}
