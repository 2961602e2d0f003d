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
use neptune_transfer::{
    Digest,
    range::{ContentRange, Selection},
};

use crate::peers::fetch_state::Availability;

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

/// Selects bytes of a content with `length` bytes.
pub fn select(headers: &HeaderMap, digest: &Digest, length: u64) -> Selection {
    let text = |name| headers.get(name).map(|it| it.to_str().unwrap_or_default());
    Selection::new(text(RANGE), text(IF_RANGE), &format!("\"{digest}\""), length)
}

/// Returns the `Content-Range` of a response with a part of a content.
pub fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    ContentRange::parse(headers.get(CONTENT_RANGE)?.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
}
