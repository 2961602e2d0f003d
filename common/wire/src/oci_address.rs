//! Parses addresses of artifacts in a container registry:
//! `oci://host[:port]/repository[:tag][@sha256:digest]`. A part of
//! [`ArtifactAddress`](crate::ArtifactAddress).

use std::fmt;

use crate::{
    AddressError,
    hub_address::{checked_patterns, patterns, write_patterns},
};

/// The tag of an address without tag and digest.
pub const DEFAULT_TAG: &str = "latest";

/// Maximum length of the host and of the repository.
const MAX_NAME: usize = 255;

/// The files of an artifact in a container registry.
///
/// `Display` is the complete address, which has no secrets and parses to an equal value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OciAddress {
    /// Host of the registry, with its port if it has one. Lower case.
    pub registry: String,
    /// Name of the repository, which may have several parts.
    pub repository: String,
    /// A tag, which may name another artifact later.
    pub tag: Option<String>,
    /// SHA-256 of the manifest as 64 hexadecimal digits. The tag is ignored beside it.
    pub digest: Option<String>,
    /// Patterns of the files, sorted and without duplicates. Empty: all files.
    pub files: Vec<String>,
}

impl OciAddress {
    /// Parses what follows `oci:`.
    pub(crate) fn parse(rest: &str) -> Result<Self, AddressError> {
        let rest = rest.strip_prefix("//").ok_or(AddressError::Oci)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (registry, rest) = rest.split_once('/').ok_or(AddressError::Oci)?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => {
                let digest = digest.strip_prefix("sha256:").ok_or(AddressError::Oci)?;
                (rest, Some(digest))
            }
            None => (rest, None),
        };
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let is_valid = is_registry(registry)
            && is_repository(repository)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        if !is_valid {
            return Err(AddressError::Oci);
        }
        Ok(Self {
            registry: registry.to_ascii_lowercase(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
            files: query.map(patterns).transpose()?.unwrap_or_default(),
        })
    }

    /// Selects files of the artifact by patterns. Patterns of the address remain.
    pub(crate) fn with_files(mut self, files: &[String]) -> Result<Self, AddressError> {
        self.files.extend_from_slice(files);
        self.files = checked_patterns(self.files)?;
        Ok(self)
    }

    /// Whether the artifact is named by a tag only, which may name another one later.
    pub fn is_moving(&self) -> bool {
        self.digest.is_none()
    }

    /// The digest or the tag, as requests to the registry name it.
    pub fn reference(&self) -> String {
        match &self.digest {
            Some(digest) => format!("sha256:{digest}"),
            None => self.tag.as_deref().unwrap_or(DEFAULT_TAG).to_owned(),
        }
    }

    /// The registry and the repository, as `host/repository`.
    pub fn repository_id(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The last part of the repository's name.
    pub fn name(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }

    /// The same files of the artifact with this digest of its manifest.
    #[must_use]
    pub fn at(&self, digest: &str) -> Self {
        Self { digest: Some(digest.to_owned()), ..self.clone() }
    }
}

impl fmt::Display for OciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, tag, digest, files } = self;
        write!(f, "oci://{registry}/{repository}")?;
        if let Some(tag) = tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = digest {
            write!(f, "@sha256:{digest}")?;
        }
        write_patterns(f, files)
    }
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let is_port = |port: &str| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    (1..=MAX_NAME).contains(&host.len())
        && host.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        })
        && port.is_none_or(is_port)
}

fn is_repository(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= MAX_NAME
        && text.split('/').all(|part| {
            part.starts_with(is_alphanumeric)
                && part.ends_with(is_alphanumeric)
                && part.chars().all(|c| is_alphanumeric(c) || matches!(c, '.' | '_' | '-'))
                && !part.contains("..")
        })
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ArtifactAddress;

    fn parse(text: &str) -> Result<OciAddress, AddressError> {
        match text.parse()? {
            ArtifactAddress::Oci(address) => Ok(address),
            other => Err(AddressError::Scheme(other.to_string())),
        }
    }

    #[test]
    fn address_names_an_artifact_by_tag_or_digest() {
        let digest = "0f".repeat(32);
        let pinned = format!("sha256:{digest}");
        for (text, registry, repository, reference, is_moving) in [
            ("oci://ghcr.io/o/m", "ghcr.io", "o/m", "latest", true),
            ("OCI://Ghcr.io:443/m:v1", "ghcr.io:443", "m", "v1", true),
            (
                &*format!("oci://127.0.0.1:5000/a/b_c@{pinned}"),
                "127.0.0.1:5000",
                "a/b_c",
                &pinned,
                false,
            ),
            (&*format!("oci://h/m:v1@{pinned}?files=*.json"), "h", "m", &pinned, false),
        ] {
            let address = parse(text).unwrap();
            assert_eq!((&*address.registry, &*address.repository), (registry, repository));
            assert_eq!(address.repository_id(), format!("{registry}/{repository}"));
            assert_eq!((&*address.reference(), address.is_moving()), (reference, is_moving));
            assert_eq!(parse(&address.to_string()).unwrap(), address, "{text}");
        }
    }

    #[test]
    fn invalid_address_is_refused_with_the_reason() {
        let short = format!("oci://h/m@sha256:{}", "0".repeat(63));
        let upper = format!("oci://h/m@sha256:{}", "A".repeat(64));
        for text in [
            "oci:h/m",
            "oci://h",
            "oci://h/",
            "oci:///m",
            "oci://h//m",
            "oci://h/M",
            "oci://h/../m",
            "oci://h/a/../m",
            "oci://u:p@h/m",
            "oci://h:0/m",
            "oci://h:99999/m",
            "oci://h:+1/m",
            "oci://h/m:",
            "oci://h/m:.a",
            "oci://h/m@sha512:00",
            "oci://h/m#x",
            "oci://h/a%2f..",
            "oci://-h/m",
            &short,
            &upper,
        ] {
            assert_eq!(parse(text), Err(AddressError::Oci), "{text}");
        }
        assert_eq!(parse("oci://h/m?x=1"), Err(AddressError::FilePatterns));
    }
}
