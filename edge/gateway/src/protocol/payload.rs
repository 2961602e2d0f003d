//! The body of a request or of an answer, with what is needed to read it.

use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

use super::error::Malformed;

/// The length of the JSON before binary tensors.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// A body: JSON, JSON with binary tensors after it, or a message of gRPC without its frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload {
    /// All bytes of the body.
    pub body: Bytes,
    /// The length of the JSON at its beginning, if the header states it.
    json_length: Option<usize>,
}

impl Payload {
    /// A body, and what the headers state about it.
    ///
    /// # Errors
    /// The header is not a number, or beyond the end of the body.
    pub fn new(headers: &HeaderMap, body: Bytes) -> Result<Self, Malformed> {
        let Some(value) = headers.get(JSON_LENGTH) else { return Ok(Self::from(body)) };
        let parsed = value.to_str().ok().and_then(|text| text.trim().parse::<usize>().ok());
        let Some(length) = parsed else {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            return Err(Malformed::HeaderText(text));
        };
        if length > body.len() {
            return Err(Malformed::Header { length, body: body.len() });
        }
        Ok(Self { body, json_length: Some(length) })
    }

    /// JSON with these pieces after it. Without `is_binary` there are none.
    pub fn assembled<'a>(
        json: Vec<u8>,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        is_binary: bool,
    ) -> Self {
        let json_length = is_binary.then_some(json.len());
        let mut body = json;
        for piece in pieces {
            body.extend_from_slice(piece);
        }
        Self { body: body.into(), json_length }
    }

    /// Whether the body is one tensor without JSON.
    pub fn is_raw(headers: &HeaderMap) -> bool {
        headers.get(JSON_LENGTH).is_some_and(|value| value == "0")
    }

    /// Whether the header is there.
    pub const fn is_binary(&self) -> bool {
        self.json_length.is_some()
    }

    /// Returns the JSON, which is the whole body without binary tensors.
    pub fn json(&self) -> &[u8] {
        &self.body[..self.json_length.unwrap_or(self.body.len())]
    }

    /// What follows the JSON.
    pub fn tail(&self) -> &[u8] {
        &self.body[self.json_length.unwrap_or(self.body.len())..]
    }

    /// The content type of an answer with this body.
    pub const fn content_type(&self) -> HeaderValue {
        HeaderValue::from_static(if self.is_binary() {
            "application/octet-stream"
        } else {
            "application/json"
        })
    }

    /// Corrects the header for this body.
    pub fn describe(&self, headers: &mut HeaderMap) {
        match self.json_length {
            Some(length) => headers.insert(JSON_LENGTH, HeaderValue::from(length)),
            None => headers.remove(JSON_LENGTH),
        };
    }
}

impl From<Bytes> for Payload {
    fn from(body: Bytes) -> Self {
        Self { body, json_length: None }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(body: Vec<u8>) -> Self {
        Self::from(Bytes::from(body))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(length: &str) -> HeaderMap {
        HeaderMap::from_iter([(JSON_LENGTH, HeaderValue::from_str(length).unwrap())])
    }

    #[test]
    fn header_divides_the_body() {
        let body = Bytes::from_static(b"{}abc");
        let payload = Payload::new(&headers("2"), body.clone()).unwrap();
        assert_eq!((payload.json(), payload.tail()), (&b"{}"[..], &b"abc"[..]));
        let built = Payload::assembled(b"{}".to_vec(), [&b"a"[..], b"bc"], true);
        assert_eq!(built, payload);
        let mut described = headers("77");
        built.describe(&mut described);
        assert_eq!(described, headers("2"));
        let plain = Payload::new(&HeaderMap::new(), body.clone()).unwrap();
        assert_eq!((plain.json(), plain.tail()), (&body[..], &b""[..]));
        plain.describe(&mut described);
        assert!(described.is_empty());
        assert!(Payload::is_raw(&headers("0")) && !Payload::is_raw(&headers("2")));
    }

    #[test]
    fn header_beyond_the_body_is_refused_with_the_numbers() {
        for (length, message) in [
            ("6", "Inference-Header-Content-Length is 6, but the body has 5 bytes"),
            ("-1", "Inference-Header-Content-Length \"-1\" is not a number of bytes"),
            ("x", "Inference-Header-Content-Length \"x\" is not a number of bytes"),
        ] {
            let error = Payload::new(&headers(length), Bytes::from_static(b"{}abc")).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
