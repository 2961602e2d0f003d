//! Which addresses of a cloud are valid. The controller checks those of the resource with it too.

use std::{fmt, net::IpAddr};

use http::Uri;

/// What is wrong with an address of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlProblem {
    /// The text is not a URL.
    Malformed,
    /// The URL has no host.
    NoHost,
    /// The URL contains a user.
    Credentials,
    /// The URL has a query or a fragment.
    Query,
    /// The URL has the scheme `http`, without permission, and not to a loopback address.
    PlainHttp,
    /// The URL has another scheme than `http` and `https`.
    Scheme,
    /// One of gRPC has no port.
    NoPort,
    /// One of gRPC has a path.
    Path,
}

impl UrlProblem {
    /// What is wrong with the address of a server of REST.
    pub fn of_rest(url: &str, allows_http: bool) -> Option<Self> {
        let Ok(uri) = url.parse::<Uri>() else { return Some(Self::Malformed) };
        let Some(authority) = uri.authority() else { return Some(Self::NoHost) };
        if authority.as_str().contains('@') {
            return Some(Self::Credentials);
        }
        if uri.query().is_some() || url.contains('#') {
            return Some(Self::Query);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        match uri.scheme_str() {
            Some("https") => None,
            Some("http") if is_loopback || allows_http => None,
            Some("http") => Some(Self::PlainHttp),
            _ => Some(Self::Scheme),
        }
    }

    /// What is wrong with the address of a server of gRPC: `http(s)://host:port`.
    pub fn of_grpc(url: &str, allows_http: bool) -> Option<Self> {
        Self::of_rest(url, allows_http).or_else(|| {
            let uri: Uri = url.parse().ok()?;
            let has_path = !matches!(uri.path(), "" | "/");
            uri.port_u16().is_none().then_some(Self::NoPort).or(has_path.then_some(Self::Path))
        })
    }
}

impl fmt::Display for UrlProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "it is not a URL",
            Self::NoHost => "it has no host",
            Self::Credentials => "credentials belong into tokenFile",
            Self::Query => "a query or fragment is not supported",
            Self::PlainHttp => "use https, or permit it with allowPlainHttp",
            Self::Scheme => "use https",
            Self::NoPort => "it has no port",
            Self::Path => "gRPC has no base path",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_grpc_has_a_port_and_no_path() {
        for url in ["https://a:8001", "http://127.0.0.1:1/", "https://[2001:db8::1]:8001"] {
            assert_eq!(UrlProblem::of_grpc(url, false), None, "{url}");
        }
        for (url, problem) in [
            ("", UrlProblem::Malformed),
            ("a:8001", UrlProblem::Scheme),
            ("https://a", UrlProblem::NoPort),
            ("http://10.0.0.1:1", UrlProblem::PlainHttp),
            ("https://a:1/v2", UrlProblem::Path),
            ("https://u@a:1", UrlProblem::Credentials),
        ] {
            assert_eq!(UrlProblem::of_grpc(url, false), Some(problem), "{url}");
        }
        assert_eq!(UrlProblem::of_grpc("http://10.0.0.1:1", true), None);
    }

    #[test]
    fn plain_http_is_only_for_loopback_or_with_permission() {
        for url in [
            "https://a",
            "https://a:8443/v1",
            "http://127.0.0.1:1/v1",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert_eq!(UrlProblem::of_rest(url, false), None, "{url}");
        }
        for (url, problem) in [
            ("", UrlProblem::Malformed),
            ("llm", UrlProblem::Scheme),
            ("/llm", UrlProblem::NoHost),
            ("ftp://a", UrlProblem::Scheme),
            ("http://10.0.0.1", UrlProblem::PlainHttp),
            ("https://u:p@a", UrlProblem::Credentials),
            ("https://a/?k=1", UrlProblem::Query),
            ("https://a/#f", UrlProblem::Query),
        ] {
            assert_eq!(UrlProblem::of_rest(url, false), Some(problem), "{url}");
        }
        assert_eq!(UrlProblem::of_rest("http://10.0.0.1", true), None);
    }
}
