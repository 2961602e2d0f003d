//! The header fields of a resumable upload: those of `draft-ietf-httpbis-resumable-upload` (interop
//! version 8) for an upload whose address both sides know, and the digests of RFC 9530. Pure.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};

use crate::Digest;

/// Bytes that the receiver has.
pub const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// Whether the content ends with this request: `?1` or `?0`.
pub const UPLOAD_COMPLETE: HeaderName = HeaderName::from_static("upload-complete");
/// Bytes of the whole content.
pub const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");
/// The largest content and the largest block that the receiver accepts.
pub const UPLOAD_LIMIT: HeaderName = HeaderName::from_static("upload-limit");
/// The digest of this request's body.
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
/// The version of the draft.
pub const INTEROP_VERSION: HeaderName = HeaderName::from_static("upload-draft-interop-version");
/// The media type of a block.
pub const PARTIAL_UPLOAD: HeaderValue = HeaderValue::from_static("application/partial-upload");

/// The header of a `PATCH` with one block of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Position of the block's first byte in the content.
    pub offset: u64,
    /// Whether the block is the last one of the content.
    pub is_last: bool,
    /// Bytes of the whole content.
    pub length: u64,
    /// The digest of the block.
    pub digest: Digest,
}

/// A header field that is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField(HeaderName);

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header field {} is missing or malformed", self.0)
    }
}

impl std::error::Error for InvalidField {}

impl Block {
    /// Reads the header of a request.
    ///
    /// # Errors
    /// A field is missing or malformed.
    pub fn parse(headers: &HeaderMap) -> Result<Self, InvalidField> {
        if headers.get(CONTENT_TYPE) != Some(&PARTIAL_UPLOAD) {
            return Err(InvalidField(CONTENT_TYPE));
        }
        Ok(Self {
            offset: integer(headers, &UPLOAD_OFFSET)?,
            is_last: boolean(headers, &UPLOAD_COMPLETE)?,
            length: integer(headers, &UPLOAD_LENGTH)?,
            digest: digest(headers, &CONTENT_DIGEST)?,
        })
    }

    /// Returns the header for a request.
    pub fn headers(&self) -> HeaderMap {
        let digest = format!("sha-256=:{}:", STANDARD.encode(self.digest));
        let digest = HeaderValue::try_from(digest).expect("base64 is visible ASCII");
        HeaderMap::from_iter([
            (CONTENT_TYPE, PARTIAL_UPLOAD),
            (INTEROP_VERSION, HeaderValue::from(8)),
            (UPLOAD_OFFSET, HeaderValue::from(self.offset)),
            (UPLOAD_COMPLETE, bool_value(self.is_last)),
            (UPLOAD_LENGTH, HeaderValue::from(self.length)),
            (CONTENT_DIGEST, digest),
        ])
    }
}

/// What a receiver has of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes from the start.
    pub offset: u64,
    /// Whether the content is complete and verified.
    pub is_complete: bool,
}

impl Progress {
    /// Reads the header of a response.
    ///
    /// # Errors
    /// A field is missing or malformed.
    pub fn parse(headers: &HeaderMap) -> Result<Self, InvalidField> {
        let offset = integer(headers, &UPLOAD_OFFSET)?;
        Ok(Self { offset, is_complete: boolean(headers, &UPLOAD_COMPLETE)? })
    }

    /// Returns the header for a response.
    pub fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([
            (UPLOAD_OFFSET, HeaderValue::from(self.offset)),
            (UPLOAD_COMPLETE, bool_value(self.is_complete)),
        ])
    }
}

fn bool_value(value: bool) -> HeaderValue {
    HeaderValue::from_static(if value { "?1" } else { "?0" })
}

/// Reads a number of at most 15 digits (RFC 9651, 3.3.1).
pub(crate) fn integer(headers: &HeaderMap, name: &HeaderName) -> Result<u64, InvalidField> {
    let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    let is_number = (1..=15).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or_else(|| InvalidField(name.clone()))
}

fn boolean(headers: &HeaderMap, name: &HeaderName) -> Result<bool, InvalidField> {
    match headers.get(name).map(HeaderValue::as_bytes) {
        Some(b"?1") => Ok(true),
        Some(b"?0") => Ok(false),
        _ => Err(InvalidField(name.clone())),
    }
}

/// Reads the `sha-256` of a dictionary of digests. Others are ignored.
fn digest(headers: &HeaderMap, name: &HeaderName) -> Result<Digest, InvalidField> {
    let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut entries = text.split(',').map(str::trim);
    let encoded = entries.find_map(|it| it.strip_prefix("sha-256=:")?.strip_suffix(':'));
    let bytes = encoded.and_then(|it| STANDARD.decode(it).ok());
    let bytes: Option<[u8; 32]> = bytes.and_then(|it| it.try_into().ok());
    bytes.map(Digest::from).ok_or_else(|| InvalidField(name.clone()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn block() -> Block {
        Block { offset: 3, is_last: true, length: 8, digest: Digest::of_bytes(b"x") }
    }

    #[test]
    fn each_missing_or_malformed_field_is_named() {
        for (name, values) in [
            (CONTENT_TYPE, &["text/plain"][..]),
            (UPLOAD_OFFSET, &["", "-1", "+1", "1.0", "1000000000000000"]),
            (UPLOAD_COMPLETE, &["", "1", "true", "?2"]),
            (UPLOAD_LENGTH, &["eight"]),
            (CONTENT_DIGEST, &["sha-256=abc", "sha-256=:AAAA:", "md5=:AAAA:"]),
        ] {
            let mut headers = block().headers();
            headers.remove(&name);
            assert_eq!(Block::parse(&headers), Err(InvalidField(name.clone())));
            for value in values {
                headers.insert(&name, HeaderValue::from_static(value));
                assert_eq!(Block::parse(&headers), Err(InvalidField(name.clone())), "{value}");
            }
        }
    }

    #[test]
    fn digest_of_another_algorithm_is_ignored() {
        let mut headers = block().headers();
        let own = headers[CONTENT_DIGEST].to_str().unwrap().to_owned();
        let both = HeaderValue::try_from(format!("sha-512=:AAAA:, {own}")).unwrap();
        headers.insert(CONTENT_DIGEST, both);
        assert_eq!(Block::parse(&headers), Ok(block()));
    }

    proptest! {
        #[test]
        fn header_of_a_block_is_read_back(
            offset in 0..999_999_999_999_999_u64,
            length in 0..999_999_999_999_999_u64,
            is_last in any::<bool>(),
            content in any::<Vec<u8>>(),
        ) {
            let block = Block { offset, is_last, length, digest: Digest::of_bytes(&content) };
            prop_assert_eq!(Block::parse(&block.headers()), Ok(block));
            let progress = Progress { offset, is_complete: is_last };
            prop_assert_eq!(Progress::parse(&progress.headers()), Ok(progress));
        }
    }
}
