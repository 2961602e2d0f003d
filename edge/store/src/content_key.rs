//! Names a content of the store. Pure.

use std::{fmt, str::FromStr};

use neptune_wire::Namespace;
use serde::{Deserialize, Serialize};

use crate::{Digest, InvalidDigest};

/// A content of the store: that of a digest, for all namespaces or for one.
///
/// Its text is a file name: `<digest>`, or `<digest>.<namespace>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentKey {
    /// The digest of the download.
    pub digest: Digest,
    /// The namespace that fetched it for itself; `None` if all namespaces may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
}

impl ContentKey {
    /// The content that all namespaces may use.
    pub fn shared(digest: Digest) -> Self {
        Self { digest, namespace: None }
    }
}

impl fmt::Display for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            None => write!(f, "{}", self.digest),
            Some(namespace) => write!(f, "{}.{namespace}", self.digest),
        }
    }
}

impl FromStr for ContentKey {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let Some((digest, namespace)) = text.split_once('.') else {
            return Ok(Self::shared(text.parse()?));
        };
        let namespace = namespace.parse().map_err(|_| InvalidDigest)?;
        Ok(Self { digest: digest.parse()?, namespace: Some(namespace) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn key_is_a_file_name_that_is_parsed_again() {
        let digest = Digest::of_bytes(b"x");
        for (namespace, expected) in
            [(None, digest.to_string()), (Some("a-plain"), format!("{digest}.a-plain"))]
        {
            let namespace = namespace.map(|text| text.parse().unwrap());
            let key = ContentKey { digest, namespace };
            assert_eq!((key.to_string(), expected.parse()), (expected, Ok(key)));
        }
        for text in ["", "a", "plain", &format!("{digest}."), &format!("{digest}.A")] {
            assert!(text.parse::<ContentKey>().is_err(), "{text}");
        }
    }
}
