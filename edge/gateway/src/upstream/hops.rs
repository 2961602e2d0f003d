//! What a request carries through a chain of gateways: by which of them it came, and why. Pure.

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

/// The gateways that passed the request on, the first one first.
pub const VIA: HeaderName = HeaderName::from_static("x-neptune-via");
/// Why the request is sent, if it is no sample of a client.
pub const PURPOSE: HeaderName = HeaderName::from_static("x-neptune-purpose");
/// The value of [`PURPOSE`] for a comparison.
pub const SHADOW: HeaderValue = HeaderValue::from_static("shadow");
/// Gateways that may pass a request on.
const MAX_HOPS: usize = 8;

/// The gateways through which a request came here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hops {
    via: Vec<String>,
    /// Whether another gateway compares answers: the request is no sample, and stays here.
    pub is_shadow: bool,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HopsError {
    /// This gateway passed it on before.
    #[error(
        "this request came back over {0}: the services are a loop; point cloudWorker.service of \
         one of them elsewhere"
    )]
    Loop(String),
    /// Too many gateways passed it on.
    #[error(
        "this request passed {0} gateways, and at most {MAX_HOPS} are permitted; shorten the chain"
    )]
    TooMany(usize),
}

impl Hops {
    /// Reads the headers of a request. `own` is the identity of this gateway, if it has one.
    ///
    /// # Errors
    /// The request came back, or passed too many gateways.
    pub fn from_headers(headers: &HeaderMap, own: Option<&str>) -> Result<Self, HopsError> {
        let texts = headers.get_all(VIA).iter().filter_map(|value| value.to_str().ok());
        let via: Vec<String> = texts
            .flat_map(|text| text.split(','))
            .map(|id| id.trim().to_owned())
            .filter(|id| !id.is_empty())
            .collect();
        if own.is_some_and(|own| via.iter().any(|id| id == own)) {
            return Err(HopsError::Loop(via.join(", ")));
        }
        if via.len() > MAX_HOPS {
            return Err(HopsError::TooMany(via.len()));
        }
        let is_shadow = headers.get(PURPOSE).is_some_and(|purpose| purpose == SHADOW);
        Ok(Self { via, is_shadow })
    }

    /// Whether another gateway passed the request on.
    pub fn is_passed_on(&self) -> bool {
        !self.via.is_empty()
    }

    /// Adds the headers for the next gateway.
    pub fn describe(&self, own: Option<&str>, headers: &mut HeaderMap) {
        let via: Vec<&str> = self.via.iter().map(String::as_str).chain(own).collect();
        if let Ok(via) = HeaderValue::from_str(&via.join(","))
            && !via.is_empty()
        {
            headers.insert(VIA, via);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_gateway_adds_itself_and_none_passes_a_request_twice() {
        let mut headers = HeaderMap::new();
        for number in 0..=MAX_HOPS {
            let own = format!("id{number}");
            let hops = Hops::from_headers(&headers, Some(&own)).unwrap();
            hops.describe(Some(&own), &mut headers);
            let error = Hops::from_headers(&headers, Some(&own)).unwrap_err();
            assert!(matches!(error, HopsError::Loop(_)), "{error}");
        }
        let error = Hops::from_headers(&headers, Some("last")).unwrap_err();
        assert_eq!(error, HopsError::TooMany(MAX_HOPS + 1));
    }

    #[test]
    fn gateway_without_an_identity_passes_the_others_on() {
        let mut headers = HeaderMap::new();
        Hops::default().describe(None, &mut headers);
        assert!(headers.is_empty());
        headers.append(VIA, HeaderValue::from_static("a, b"));
        headers.append(VIA, HeaderValue::from_static("c"));
        let hops = Hops::from_headers(&headers, None).unwrap();
        let mut next = HeaderMap::new();
        hops.describe(None, &mut next);
        assert_eq!(next[VIA], "a,b,c");
        assert!(!hops.is_shadow);
        headers.insert(PURPOSE, SHADOW);
        assert!(Hops::from_headers(&headers, None).unwrap().is_shadow);
    }
}
