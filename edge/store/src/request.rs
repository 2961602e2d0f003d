//! What to fetch: a location, and optionally the digest of the content. Pure.

use neptune_hub::FileCheck;
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
    /// How the content is checked beside its digest, if the hub was asked for that already.
    pub(crate) check: Option<FileCheck>,
    /// Further locations of the same content, which are tried after `location`.
    pub(crate) mirrors: Vec<(u8, ArtifactLocation)>,
    /// The number of the mirror that `location` is; `None` for the first location.
    pub(crate) mirror: Option<u8>,
}

/// How the artifact is packed. The URL decides: a set of files, or the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packaging {
    Plain,
    Tar,
    TarGz,
    TarZst,
    Zip,
    /// Files that are contents of their own, in a directory of links to them.
    Set,
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

    /// The packagings, one for each directory below a digest.
    pub(crate) const DIRECTORIES: [Self; 3] = [Self::Plain, Self::Tar, Self::Set];

    /// The name of the directory below a digest. The same digest can be requested packed and
    /// unpacked, and that of a set is the digest of its list too.
    pub(crate) fn directory_name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Set => "set",
            Self::Tar | Self::TarGz | Self::TarZst | Self::Zip => "unpacked",
        }
    }
}

impl ArtifactRequest {
    /// Parses `http://`, `https://`, `s3://bucket/key`, `hf://organization/repository`,
    /// `oci://host/repository`, `file:///path`, or an absolute path. An artifact whose name ends with `.tar`, `.tar.gz`, `.tgz`,
    /// `.tar.zst` or `.zip` is unpacked. A repository without a path is a directory with its files.
    ///
    /// # Errors
    /// The text is not the location of an artifact.
    pub fn parse(url: &str, sha256: Option<Digest>) -> Result<Self, LocationError> {
        let location = ArtifactLocation::parse(url)?;
        let packaging =
            if location.is_set() { Packaging::Set } else { Packaging::from_path(location.path()) };
        let (namespace, check, mirrors, mirror) = (None, None, Vec::new(), None);
        Ok(Self { location, sha256, packaging, namespace, check, mirrors, mirror })
    }

    /// The revision that the location names, if it names one whose files never change: the commit of
    /// a hub, or the digest of a registry's manifest as `sha256:<hex>`.
    pub fn fixed_revision(&self) -> Option<String> {
        self.location.fixed_revision()
    }

    /// Adds a further location of the content. Locations are tried in the order in which they were
    /// added, after the first one. `number` is the place of the location for reports, from 1.
    ///
    /// Without a digest, by which the content is verified, it has no effect.
    ///
    /// # Errors
    /// The text is not the location of an artifact, it is a path on the node, or one of the two
    /// locations is a set of files and the other is not.
    pub fn add_mirror(&mut self, number: u8, url: &str) -> Result<(), LocationError> {
        let location = ArtifactLocation::parse(url)?;
        let unusable = |reason: &str| {
            let (url, reason) = (location.redacted(), reason.to_owned());
            Err(LocationError::InvalidUrl { url, reason })
        };
        if matches!(location, ArtifactLocation::File(_)) {
            return unusable("a path on the node cannot be a mirror");
        }
        if location.is_set() != self.is_set() {
            return unusable(
                "a mirror of a file must be a file, and one of a repository a repository",
            );
        }
        if self.sha256.is_some() {
            self.mirrors.push((number, location));
        }
        Ok(())
    }

    /// A request per location. That of a set is one request: its list and its files have the
    /// mirrors.
    pub(crate) fn per_location(&self) -> Vec<Self> {
        if self.is_set() {
            return vec![self.clone()];
        }
        let mirrors = self.mirrors.iter().map(|(number, location)| Self {
            location: location.clone(),
            mirror: Some(*number),
            mirrors: Vec::new(),
            ..self.clone()
        });
        let first = Self { mirrors: Vec::new(), ..self.clone() };
        std::iter::once(first).chain(mirrors).collect()
    }

    /// The request for the list of the files of a set, which has the digest of the set.
    pub(crate) fn list(&self) -> Self {
        Self { packaging: Packaging::Plain, ..self.clone() }
    }

    /// Whether the artifact is a set of files, each of which is a content of its own.
    pub fn is_set(&self) -> bool {
        self.packaging == Packaging::Set
    }

    /// Whether the artifact is the list of the files of a set.
    pub(crate) fn is_list(&self) -> bool {
        self.location.is_set() && self.packaging == Packaging::Plain
    }

    /// The request for a file of the set, for the same objects. Archives in a set are not unpacked.
    pub(crate) fn part(&self, location: ArtifactLocation, sha256: Option<Digest>) -> Self {
        let (packaging, namespace) = (Packaging::Plain, self.namespace.clone());
        let (check, mirrors, mirror) = (None, Vec::new(), None);
        Self { location, sha256, packaging, namespace, check, mirrors, mirror }
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
    fn mirrors_are_requests_of_the_same_content_and_packaging() {
        let digest = Some(Digest::of_bytes(b"x"));
        let request = |url, digest| ArtifactRequest::parse(url, digest).unwrap();
        let with = |url, digest, mirrors: &[&str]| {
            let mut request = request(url, digest);
            for (mirror, number) in mirrors.iter().zip(1..) {
                request.add_mirror(number, mirror)?;
            }
            Ok::<_, LocationError>(request)
        };
        let mirrors = ["https://b/blob?signed", "s3://bucket/m.zip"];
        let archive = with("http://a/m.tar", digest, &mirrors).unwrap();
        let all = archive.per_location();
        let urls: Vec<_> = all.iter().map(|it| (it.redacted_url(), it.mirror)).collect();
        let expected =
            [("http://a/m.tar", None), ("https://b/blob", Some(1)), ("s3://bucket/m.zip", Some(2))];
        assert_eq!(urls, expected.map(|(url, mirror)| (url.to_owned(), mirror)));
        assert!(all.iter().all(|it| it.key() == archive.key() && it.packaging == Packaging::Tar));
        // Nothing verifies that they have the same content.
        let unknown = with("http://a/m", None, &mirrors).unwrap();
        assert_eq!(unknown.per_location(), [request("http://a/m", None)]);
        let set = with("hf://o/r", digest, &["hf://p/q"]).unwrap();
        assert_eq!(set.per_location(), std::slice::from_ref(&set));
        for (url, mirror) in [
            ("http://a/m", "/m"),
            ("http://a/m", "file:///m"),
            ("http://a/m", "hf://o/r"),
            ("http://a/m", "b"),
            ("hf://o/r", "http://a/m"),
            ("hf://o/r", "hf://o/r/m"),
        ] {
            with(url, digest, &[mirror]).expect_err(mirror);
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
