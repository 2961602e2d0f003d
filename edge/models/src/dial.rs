//! Connects and asks over http(s): names are resolved here, and only to addresses that address.rs
//! lets pass, so that what was checked is what is connected to; also after each redirect.

use std::{
    error::Error as StdError,
    fmt, fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Certificate, Client, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, LOCATION},
    redirect,
};

use crate::{
    ModelError,
    address::{Allowed, refused},
    want::printable,
};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const REDIRECTS: usize = 5;

/// Asks servers.
pub struct Dialer {
    client: Client,
    allowed: Arc<[Allowed]>,
    pub stalled_after: Duration,
}

impl Dialer {
    /// Trusts the system's authorities (`SSL_CERT_FILE` names others) and those in `ca_file`. Blocking.
    /// Proxies of the environment are not used: they would resolve names themselves.
    pub fn new(
        allowed: &Arc<[Allowed]>,
        ca_file: Option<&Path>,
        stalled_after: Duration,
    ) -> Result<Self, ModelError> {
        // Whoever came first decides for the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let extra = ca_file.map(authorities).transpose()?.unwrap_or_default();
        #[expect(clippy::disallowed_methods, reason = "the one HTTP client of the store")]
        let builder = || {
            Client::builder()
                .user_agent(concat!("neptune-models/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_WITHIN)
                .redirect(redirect::Policy::none())
                .no_proxy()
                .http1_only()
                .dns_resolver(Checked { allowed: Arc::clone(allowed) })
                .pool_max_idle_per_host(0)
        };
        let client = builder().tls_certs_merge(extra.clone()).build();
        // A machine without any authorities can still download over http, and with its own ones.
        let client =
            client.or_else(|_| builder().tls_certs_only(extra).build()).map_err(|error| {
                ModelError::Unreachable { url: "http client".into(), why: reasons(&error) }
            })?;
        Ok(Self { client, allowed: Arc::clone(allowed), stalled_after })
    }

    /// The answer of the last server in the chain, which may be an error status. `signed` requests are
    /// for one host: their redirects are not followed.
    pub async fn get(
        &self,
        url: &Url,
        headers: &HeaderMap,
        signed: bool,
    ) -> Result<Response, ModelError> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let response = self.ask(&url, headers.clone()).await?;
            if signed || !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).map(|value| value.to_str());
            let Some(Ok(location)) = location else {
                let why = "to nowhere".to_owned();
                return Err(ModelError::Redirect { url: printable(&url), why });
            };
            url = next_hop(&url, location)?;
        }
        Err(ModelError::Redirect {
            url: printable(&url),
            why: format!("more than {REDIRECTS} times"),
        })
    }

    async fn ask(&self, url: &Url, headers: HeaderMap) -> Result<Response, ModelError> {
        self.check_literal(url)?;
        let request = self.client.get(url.clone()).headers(headers).send();
        let answer = tokio::time::timeout(self.stalled_after, request)
            .await
            .map_err(|_| self.stalled(&printable(url)))?;
        answer.map_err(|error| match forbidden(&error) {
            Some(Forbidden { host, address, kind }) => ModelError::AddressRefused {
                url: printable(url),
                host: host.clone(),
                address: *address,
                kind,
            },
            None => ModelError::Unreachable { url: printable(url), why: reasons(&error) },
        })
    }

    pub fn stalled(&self, url: &str) -> ModelError {
        ModelError::Stalled { url: url.to_owned(), seconds: self.stalled_after.as_secs() }
    }

    /// Addresses in URLs never come to the resolver. All their spellings are one after parsing.
    fn check_literal(&self, url: &Url) -> Result<(), ModelError> {
        let host = url.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(address) = bare.parse::<IpAddr>() else { return Ok(()) };
        match refused(address, bare, &self.allowed) {
            None => Ok(()),
            Some(kind) => Err(ModelError::AddressRefused {
                url: printable(url),
                host: bare.to_owned(),
                address,
                kind,
            }),
        }
    }
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, ModelError> {
    let failed = |why: String| ModelError::Authorities { path: path.to_owned(), why };
    let pem = fs::read(path).map_err(|error| failed(error.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if found.is_empty() => Err(failed("it holds no certificate".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(failed(reasons(&error))),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// From http to https is an upgrade; everything else stays in its scheme.
fn next_hop(from: &Url, location: &str) -> Result<Url, ModelError> {
    let failed = |why: String| ModelError::Redirect { url: printable(from), why };
    let to = from.join(location).map_err(|error| failed(format!("to no URL: {error}")))?;
    match (from.scheme(), to.scheme()) {
        (before, now) if before == now => Ok(to),
        ("http", "https") => Ok(to),
        (_, now) => Err(failed(format!("to another scheme, `{now}`"))),
    }
}

/// Resolves to addresses that may be connected to, and to no others.
struct Checked {
    allowed: Arc<[Allowed]>,
}

/// All addresses of a name are refused; this is one of them.
#[derive(Debug, Clone)]
struct Forbidden {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, {}", self.host, self.address, self.kind)
    }
}

impl StdError for Forbidden {}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, host) = (Arc::clone(&self.allowed), name.as_str().to_owned());
        Box::pin(async move {
            let mut good: Vec<SocketAddr> = Vec::new();
            let mut bad = None;
            for found in tokio::net::lookup_host((host.as_str(), 0)).await? {
                match refused(found.ip(), &host, &allowed) {
                    None => good.push(found),
                    Some(kind) => {
                        bad = Some(Forbidden { host: host.clone(), address: found.ip(), kind });
                    }
                }
            }
            match bad {
                Some(bad) if good.is_empty() => Err(bad.into()),
                _ => Ok(Box::new(good.into_iter()) as Addrs),
            }
        })
    }
}

fn forbidden(error: &reqwest::Error) -> Option<&Forbidden> {
    let mut cause = StdError::source(error);
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref() {
            return Some(found);
        }
        cause = inner.source();
    }
    None
}

/// The chain of causes without its first text, which repeats the URL with its secrets.
pub fn reasons(error: &reqwest::Error) -> String {
    let mut cause = StdError::source(error);
    let mut text = String::new();
    while let Some(inner) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    if text.is_empty() { "the transfer failed".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_redirect_stays_in_its_scheme_or_becomes_safer() {
        let hop = |from: &str, to| next_hop(&from.parse().unwrap(), to).map(String::from);
        assert_eq!(hop("http://a/x", "/y").unwrap(), "http://a/y");
        assert_eq!(hop("http://a/x", "https://b/").unwrap(), "https://b/");
        assert_eq!(hop("https://a/x", "//b/y").unwrap(), "https://b/y");
        for (from, to) in [
            ("https://a", "http://a"),
            ("http://a", "file:///etc/passwd"),
            ("http://a", "ftp://a/x"),
            ("http://a", "data:,x"),
            ("http://a", "http://[bad"),
        ] {
            assert!(matches!(hop(from, to), Err(ModelError::Redirect { .. })), "{to}");
        }
    }
}
