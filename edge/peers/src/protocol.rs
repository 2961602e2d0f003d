//! Paths and header fields that both sides use. Pure.
//!
//! ```text
//! HEAD /v1/content/<sha256>  -> 200  Content-Length, ETag: "<sha256>"
//!                            -> 404  Neptune-Content-State: absent | wanted | fetching <bytes>
//! GET  /v1/content/<sha256>  Range: bytes=<from>-, If-Range: "<sha256>"
//!                            -> 200, 206 | 404 | 416 | 503 Retry-After: 1
//! POST /v1/want/<sha256>     -> 202 | 403
//! POST /v1/scrub/<sha256>    -> 202
//! GET  /v1/dataset/<sha256>  -> 200 | 404
//! ```

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{CONTENT_RANGE, IF_RANGE, RANGE},
};
use neptune_content::Digest;

use crate::fetch_state::Availability;

/// What a node that does not have a content has instead.
pub const CONTENT_STATE: HeaderName = HeaderName::from_static("neptune-content-state");

/// A request to a peer, from its method and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `HEAD /v1/content/<sha256>`: whether the peer has the content.
    Head(Digest),
    /// `GET /v1/content/<sha256>`: the bytes of the content, or a range of them.
    Get(Digest),
    /// `POST /v1/want/<sha256>`: the peer is asked to fetch the content from the origin.
    Want(Digest),
    /// `POST /v1/scrub/<sha256>`: the peer is asked to check its copy.
    Scrub(Digest),
    /// `GET /v1/dataset/<sha256>`: the newest state of a dataset, which is named by a digest.
    Dataset(Digest),
}

impl Route {
    /// Parses a method and a path.
    pub fn parse(method: &Method, path: &str) -> Option<Self> {
        let (kind, digest) = path.strip_prefix("/v1/")?.split_once('/')?;
        let digest = digest.parse().ok()?;
        match (method, kind) {
            (&Method::HEAD, "content") => Some(Self::Head(digest)),
            (&Method::GET, "content") => Some(Self::Get(digest)),
            (&Method::POST, "want") => Some(Self::Want(digest)),
            (&Method::POST, "scrub") => Some(Self::Scrub(digest)),
            (&Method::GET, "dataset") => Some(Self::Dataset(digest)),
            _ => None,
        }
    }

    /// Returns the method and the path.
    pub fn format(self) -> (Method, String) {
        match self {
            Self::Head(digest) => (Method::HEAD, format!("/v1/content/{digest}")),
            Self::Get(digest) => (Method::GET, format!("/v1/content/{digest}")),
            Self::Want(digest) => (Method::POST, format!("/v1/want/{digest}")),
            Self::Scrub(digest) => (Method::POST, format!("/v1/scrub/{digest}")),
            Self::Dataset(digest) => (Method::GET, format!("/v1/dataset/{digest}")),
        }
    }
}

/// Returns the `ETag` of a content.
pub fn etag(digest: &Digest) -> HeaderValue {
    HeaderValue::try_from(format!("\"{digest}\"")).expect("hex digits are visible ASCII")
}

/// Formats [`CONTENT_STATE`]; `None` if the peer has the content.
pub fn format_state(availability: Availability) -> Option<HeaderValue> {
    match availability {
        Availability::Held => None,
        Availability::Fetching(received) => {
            let text = format!("fetching {received}");
            Some(HeaderValue::try_from(text).expect("it is visible ASCII"))
        }
        Availability::Wanted => Some(HeaderValue::from_static("wanted")),
        Availability::Absent => Some(HeaderValue::from_static("absent")),
    }
}

/// Parses [`CONTENT_STATE`]. A state of a newer version is [`Availability::Absent`].
pub fn parse_state(headers: &HeaderMap) -> Availability {
    let text = headers.get(CONTENT_STATE).and_then(|it| it.to_str().ok()).unwrap_or_default();
    match text.split_once(' ') {
        Some(("fetching", received)) => {
            received.parse().map_or(Availability::Absent, Availability::Fetching)
        }
        None if text == "wanted" => Availability::Wanted,
        _ => Availability::Absent,
    }
}

/// The bytes of a content that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All bytes of the content.
    Whole,
    /// The bytes from the first to the last, both included.
    Part(u64, u64),
    /// The range begins behind the end.
    Unsatisfiable,
}

/// Selects bytes of a content with `length` bytes. A range that is malformed, of several parts or
/// of another content is ignored (RFC 9110, 14.2).
pub fn select(headers: &HeaderMap, digest: &Digest, length: u64) -> Selection {
    let is_other = headers.get(IF_RANGE).is_some_and(|it| *it != etag(digest));
    let range = headers.get(RANGE).and_then(|it| it.to_str().ok()?.strip_prefix("bytes="));
    let Some((first, last)) = range.filter(|_| !is_other).and_then(|it| it.split_once('-')) else {
        return Selection::Whole;
    };
    let last = if last.is_empty() { Some(u64::MAX) } else { number(last) };
    match (number(first), last) {
        (Some(first), Some(last)) if first <= last && first < length => {
            Selection::Part(first, last.min(length - 1))
        }
        (Some(first), Some(last)) if first <= last => Selection::Unsatisfiable,
        _ => Selection::Whole,
    }
}

/// Parses `Content-Range: bytes first-last/total`.
pub fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some((first, last, total))
}

fn number(text: &str) -> Option<u64> {
    // `parse` alone would accept a sign.
    text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn routes_and_states_are_read_back_and_others_refused() {
        let digest = Digest::of_bytes(b"x");
        for route in [
            Route::Head(digest),
            Route::Get(digest),
            Route::Want(digest),
            Route::Scrub(digest),
            Route::Dataset(digest),
        ] {
            let (method, path) = route.format();
            assert_eq!(Route::parse(&method, &path), Some(route));
            for bad in [path.to_uppercase(), format!("{path}/"), path[..path.len() - 1].to_owned()]
            {
                assert_eq!(Route::parse(&method, &bad), None, "{bad}");
            }
            assert_eq!(Route::parse(&Method::PUT, &path), None);
        }
        for state in [Availability::Fetching(7), Availability::Wanted, Availability::Absent] {
            let headers = HeaderMap::from_iter([(CONTENT_STATE, format_state(state).unwrap())]);
            assert_eq!(parse_state(&headers), state);
        }
        for text in ["", "paused", "fetching", "fetching x", "wanted 5"] {
            let headers = HeaderMap::from_iter([(CONTENT_STATE, HeaderValue::from_static(text))]);
            assert_eq!(parse_state(&headers), Availability::Absent, "{text}");
        }
    }

    #[test]
    fn malformed_range_is_ignored() {
        let digest = Digest::of_bytes(b"x");
        let of = |range: &'static str| {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(range))]);
            select(&headers, &digest, 10)
        };
        for bad in [
            "",
            "bytes",
            "bytes=",
            "bytes=-5",
            "bytes=5-4",
            "bytes=0-1,4-5",
            "items=1-2",
            "bytes=+1-",
            "bytes=99999999999999999999-",
        ] {
            assert_eq!(of(bad), Selection::Whole, "{bad}");
        }
        assert_eq!(of("bytes=3-"), Selection::Part(3, 9));
        assert_eq!(of("bytes=9-9"), Selection::Part(9, 9));
        assert_eq!(of("bytes=2-5"), Selection::Part(2, 5));
        assert_eq!(of("bytes=10-"), Selection::Unsatisfiable);
        let headers = HeaderMap::from_iter([
            (RANGE, HeaderValue::from_static("bytes=3-")),
            (IF_RANGE, etag(&Digest::of_bytes(b"y"))),
        ]);
        assert_eq!(select(&headers, &digest, 10), Selection::Whole);
    }

    proptest! {
        #[test]
        fn any_header_selects_bytes_of_the_content(text in "bytes=[0-9]{0,21}-[0-9]{0,21}", length in 1..100_u64) {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::try_from(text).unwrap())]);
            if let Selection::Part(first, last) = select(&headers, &Digest::of_bytes(b""), length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
