//! Checks the line and the headers of a request, beyond what the HTTP library does. Pure.

use hyper::{
    HeaderMap, Method, StatusCode, Uri, Version,
    header::{HOST, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING},
    http::request::Parts,
};
use neptune_program::listen::Refusal;

use crate::config::{AllowedHosts, host_of};

/// Why a request is refused before anything reads its body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request has no Host, which HTTP/1.1 needs.
    #[error("the request has no Host")]
    NoHost,
    /// The request has several Hosts, which may name different servers.
    #[error("the request has more than one Host")]
    SeveralHosts,
    /// The Host is not `host[:port]`.
    #[error("the Host {0:?} is not a host with an optional port")]
    BadHost(String),
    /// The target is `*` with a method other than OPTIONS.
    #[error("the request target * is of OPTIONS only; name a path")]
    Star,
    /// The request is `OPTIONS *`, which no server answers the same.
    #[error("OPTIONS of the whole server is not supported; name a path")]
    ServerOptions,
    /// The request is a CONNECT, which asks for a tunnel.
    #[error("CONNECT is not supported: the gateway is no proxy for other servers")]
    Connect,
    /// The body has a coding that would be lost.
    #[error("the transfer coding {0:?} is not supported; only chunked is")]
    TransferCoding(String),
    /// The host is not allowed on this listener.
    #[error("the host {0:?} is not allowed here; add it to allowedHosts of the gateway")]
    ForeignHost(String),
    /// The request is of a page of another origin.
    #[error("the origin {0:?} is not allowed here; add its host to allowedHosts of the gateway")]
    ForeignOrigin(String),
}

impl RequestError {
    /// The status of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NoHost | Self::SeveralHosts | Self::BadHost(_) | Self::Star => {
                StatusCode::BAD_REQUEST
            }
            Self::ServerOptions | Self::Connect | Self::TransferCoding(_) => {
                StatusCode::NOT_IMPLEMENTED
            }
            Self::ForeignHost(_) | Self::ForeignOrigin(_) => StatusCode::FORBIDDEN,
        }
    }

    /// The cause in the counter of refusals, if it is one.
    pub const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::ForeignHost(_) => Some(Refusal::ForeignHost),
            Self::ForeignOrigin(_) => Some(Refusal::ForeignOrigin),
            _ => None,
        }
    }
}

/// Checks a request. `hosts` are those that the listener answers; `None` for all.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_request(head: &Parts, hosts: Option<&AllowedHosts>) -> Result<(), RequestError> {
    let named = host(head)?;
    target(&head.method, &head.uri)?;
    codings(&head.headers)?;
    let Some(hosts) = hosts else { return Ok(()) };
    // The authority of an absolute target counts instead of Host; both have to be allowed.
    let target = head.uri.authority().and_then(|authority| host_of(authority.as_str()));
    for host in named.into_iter().chain(target) {
        if !hosts.has(&host) {
            return Err(RequestError::ForeignHost(host));
        }
    }
    for origin in head.headers.get_all(ORIGIN) {
        if !is_allowed(origin, hosts) {
            return Err(RequestError::ForeignOrigin(text(origin)));
        }
    }
    Ok(())
}

/// Whether the answer shows pages of other origins that they may read it. Then a browser gives them
/// the answer, although the gateway refuses their requests. `hosts` as with [`check_request`].
pub fn hides_cors(headers: &HeaderMap, hosts: Option<&AllowedHosts>) -> bool {
    hosts.is_some() && !headers.contains_key(ORIGIN)
}

/// Removes what permits pages of other origins to read an answer.
pub fn remove_cors(headers: &mut HeaderMap) {
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let names: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Whether a body has a content coding, which the gateway cannot read.
pub fn has_content_coding(values: &[&HeaderValue]) -> bool {
    let coded = |value: &&HeaderValue| {
        let is_coded =
            |coding: &str| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity");
        value.to_str().map_or(true, |value| value.split(',').map(str::trim).any(is_coded))
    };
    values.iter().any(coded)
}

/// The host of the header. HTTP/1.0 and HTTP/2 may have none.
fn host(head: &Parts) -> Result<Option<String>, RequestError> {
    let mut values = head.headers.get_all(HOST).iter();
    match (values.next(), values.next()) {
        (None, _) if head.version == Version::HTTP_11 => Err(RequestError::NoHost),
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(RequestError::SeveralHosts),
        (Some(value), None) => {
            let host = value.to_str().ok().and_then(host_of);
            host.map(Some).ok_or_else(|| RequestError::BadHost(text(value)))
        }
    }
}

fn target(method: &Method, uri: &Uri) -> Result<(), RequestError> {
    match (method, uri.path()) {
        (&Method::OPTIONS, "*") => Err(RequestError::ServerOptions),
        (_, "*") => Err(RequestError::Star),
        (&Method::CONNECT, _) => Err(RequestError::Connect),
        _ => Ok(()),
    }
}

/// The library removes the coding `chunked`, and the header is not passed on.
fn codings(headers: &HeaderMap) -> Result<(), RequestError> {
    let values: Vec<String> = headers.get_all(TRANSFER_ENCODING).iter().map(text).collect();
    let all = values.join(", ");
    if values.is_empty() || all.trim().eq_ignore_ascii_case("chunked") {
        return Ok(());
    }
    Err(RequestError::TransferCoding(all))
}

/// Whether the host of an origin such as `http://localhost:3000` is allowed. `null` has none.
fn is_allowed(origin: &HeaderValue, hosts: &AllowedHosts) -> bool {
    let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    host.and_then(|(_, host)| host_of(host)).is_some_and(|host| hosts.has(&host))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hyper::Request;

    use super::*;

    fn head(method: &str, target: &str, version: Version, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn absolute_target_of_another_host_is_foreign_although_host_is_local() {
        let hosts = AllowedHosts::default();
        let headers = [("host", "localhost")];
        let head = head("GET", "http://evil.example/v2", Version::HTTP_11, &headers);
        let expected = Err(RequestError::ForeignHost("evil.example".to_owned()));
        assert_eq!(check_request(&head, Some(&hosts)), expected);
        assert_eq!(check_request(&head, None), Ok(()));
    }

    #[test]
    fn only_http_1_1_needs_a_host() {
        let checked = |version| {
            check_request(&head("GET", "/", version, &[]), Some(&AllowedHosts::default()))
        };
        assert_eq!(checked(Version::HTTP_11), Err(RequestError::NoHost));
        assert_eq!((checked(Version::HTTP_10), checked(Version::HTTP_2)), (Ok(()), Ok(())));
    }

    #[test]
    fn chunked_is_the_only_transfer_coding() {
        let accepts = |value| {
            let headers = [("host", "a"), ("transfer-encoding", value)];
            check_request(&head("POST", "/", Version::HTTP_11, &headers), None).is_ok()
        };
        assert!(accepts("chunked") && accepts("Chunked "));
        assert!(!accepts("gzip, chunked") && !accepts("chunked, chunked") && !accepts("identity"));
    }

    #[test]
    fn identity_is_no_content_coding() {
        let has_coding =
            |text: &'static str| has_content_coding(&[&HeaderValue::from_static(text)]);
        assert!(!has_coding("identity") && !has_coding("Identity, identity") && !has_coding(""));
        assert!(has_coding("gzip") && has_coding("identity, br"));
        assert!(!has_content_coding(&[]));
    }
}
