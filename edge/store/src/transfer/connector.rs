//! Connects to servers and sends http(s) requests. It resolves host names itself, and connects only
//! to addresses that `address_policy` allows, also after each redirect. The checked address is the
//! one it connects to.
//!
//! With a proxy, the client connects to the proxy only, and resolves and checks no other name: https
//! passes through it in a tunnel (`CONNECT`), and http as a request for the whole URL.

use std::{
    error::Error as StdError,
    fmt, fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use neptune_hub::Transport;
use neptune_program::{causes, chain};
use neptune_sources::redacted;
use reqwest::{
    Certificate, Client, Method, Proxy, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, LOCATION},
    redirect,
};

use super::access::Access;
use crate::{
    DownloadProxy, ModelError,
    address_policy::{AllowedAddress, refused_kind},
    proxy::bare_host,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;

/// An HTTP client with address checks.
pub struct Connector {
    client: Client,
    allowed: Arc<[AllowedAddress]>,
    proxy: Option<DownloadProxy>,
    /// Maximum time without data from the server, after which the attempt fails.
    pub stall_timeout: Duration,
}

impl Connector {
    /// Trusts the authorities of the system (`SSL_CERT_FILE` replaces them) and those in `ca_file`.
    /// Ignores the proxies of the environment. Blocking.
    pub fn new(
        allowed: &Arc<[AllowedAddress]>,
        ca_file: Option<&Path>,
        proxy: Option<&DownloadProxy>,
        stall_timeout: Duration,
    ) -> Result<Self, ModelError> {
        // Fails if the process already has a provider, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let extra = ca_file.map(certificates).transpose()?.unwrap_or_default();
        #[expect(clippy::disallowed_methods, reason = "the one HTTP client of the store")]
        let builder = || {
            let builder = Client::builder()
                .user_agent(concat!("neptune-models/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(redirect::Policy::none())
                .no_proxy()
                .http1_only()
                .dns_resolver(CheckedResolver { allowed: Arc::clone(allowed) })
                .pool_max_idle_per_host(0);
            match proxy.cloned() {
                Some(proxy) => builder.proxy(Proxy::custom(move |url| {
                    proxy.covers(url).then(|| proxy.url().clone())
                })),
                None => builder,
            }
        };
        let client = builder().tls_certs_merge(extra.clone()).build();
        // A machine without system authorities can still use http and the authorities in `ca_file`.
        let client =
            client.or_else(|_| builder().tls_certs_only(extra).build()).map_err(|error| {
                ModelError::Unreachable {
                    url: "http client".into(),
                    reason: causes(&error.without_url()),
                }
            })?;
        let proxy = proxy.cloned();
        Ok(Self { client, allowed: Arc::clone(allowed), proxy, stall_timeout })
    }

    /// Sends a GET request. Returns the response of the last server after redirects, which may have
    /// an error status.
    pub async fn get(
        &self,
        url: &Url,
        headers: &HeaderMap,
        access: &Access,
    ) -> Result<Response, ModelError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = headers.clone();
            access.permit(&url, &mut headers);
            let response = self.request(Method::GET, &url, headers).await?;
            if access.is_signed() || !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).map(|value| value.to_str());
            let Some(Ok(location)) = location else {
                let reason = "response has no valid Location header".to_owned();
                return Err(ModelError::Redirect { url: redacted(&url), reason });
            };
            url = redirect_target(&url, location)?;
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        Err(ModelError::Redirect { url: redacted(&url), reason })
    }

    /// Sends one request. Follows no redirect.
    async fn request(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
    ) -> Result<Response, ModelError> {
        self.check_ip_host(url, url)?;
        let proxy = self.proxy.as_ref().filter(|proxy| proxy.covers(url));
        if let Some(proxy) = proxy {
            self.check_ip_host(proxy.url(), url)?;
        }
        let unreachable = |reason: String| {
            let reason = match proxy {
                Some(proxy) => format!("proxy {}: {reason}", proxy.shown()),
                None => reason,
            };
            ModelError::Unreachable { url: redacted(url), reason }
        };
        let request = self.client.request(method, url.clone()).headers(headers).send();
        let response = tokio::time::timeout(self.stall_timeout, request)
            .await
            .map_err(|_| self.stalled(&redacted(url)))?;
        let response = response.map_err(|error| match find_refused(&error) {
            Some(RefusedAddress { host, address, kind }) => ModelError::AddressRefused {
                url: redacted(url),
                host: host.clone(),
                address: *address,
                kind,
            },
            None => unreachable(causes(&error.without_url())),
        })?;
        if proxy.is_some() && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            let reason = "HTTP 407; give the proxy's user and password in --download-proxy";
            return Err(unreachable(reason.to_owned()));
        }
        Ok(response)
    }

    pub fn stalled(&self, url: &str) -> ModelError {
        ModelError::Stalled { url: url.to_owned(), seconds: self.stall_timeout.as_secs() }
    }

    /// Checks a server whose host is an IP address, because the resolver does not see it. The URL
    /// parser has normalized all spellings. `url` is that of the download.
    fn check_ip_host(&self, server: &Url, url: &Url) -> Result<(), ModelError> {
        let bare = bare_host(server);
        let Ok(address) = bare.parse::<IpAddr>() else { return Ok(()) };
        match refused_kind(address, bare, &self.allowed) {
            None => Ok(()),
            Some(kind) => Err(ModelError::AddressRefused {
                url: redacted(url),
                host: bare.to_owned(),
                address,
                kind,
            }),
        }
    }
}

impl Transport for Connector {
    type Error = ModelError;

    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
    ) -> Result<Response, ModelError> {
        self.request(method, url, headers).await
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate>, ModelError> {
    let failed = |reason: String| ModelError::CaFile { path: path.to_owned(), reason };
    let pem = fs::read(path).map_err(|error| failed(error.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(bundle) if bundle.is_empty() => Err(failed("file contains no certificate".to_owned())),
        Ok(bundle) => Ok(bundle),
        Err(error) => Err(failed(causes(&error.without_url()))),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The target of a redirect. It must have the same scheme, or change from http to https.
fn redirect_target(from: &Url, location: &str) -> Result<Url, ModelError> {
    let failed = |reason: String| ModelError::Redirect { url: redacted(from), reason };
    let to =
        from.join(location).map_err(|error| failed(format!("target is not a URL: {error}")))?;
    match (from.scheme(), to.scheme()) {
        (before, now) if before == now => Ok(to),
        ("http", "https") => Ok(to),
        (_, now) => Err(failed(format!("target has another scheme, {now:?}"))),
    }
}

/// Resolves host names only to allowed addresses.
struct CheckedResolver {
    allowed: Arc<[AllowedAddress]>,
}

/// All addresses of a host name are refused. Names one of them.
#[derive(Debug, Clone)]
struct RefusedAddress {
    host: String,
    address: IpAddr,
    kind: &'static str,
}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {} of host {} is {}", self.address, self.host, self.kind)
    }
}

impl StdError for RefusedAddress {}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, host) = (Arc::clone(&self.allowed), name.as_str().to_owned());
        Box::pin(async move {
            let mut accepted: Vec<SocketAddr> = Vec::new();
            let mut refused = None;
            for resolved in tokio::net::lookup_host((host.as_str(), 0)).await? {
                let address = resolved.ip();
                match refused_kind(address, &host, &allowed) {
                    None => accepted.push(resolved),
                    Some(kind) => {
                        refused = Some(RefusedAddress { host: host.clone(), address, kind });
                    }
                }
            }
            match refused {
                Some(refused) if accepted.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(accepted.into_iter()) as Addrs),
            }
        })
    }
}

fn find_refused(error: &reqwest::Error) -> Option<&RefusedAddress> {
    chain(error).find_map(|cause| cause.downcast_ref())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn redirect_keeps_its_scheme_or_upgrades_to_https() {
        let hop = |from: &str, to| redirect_target(&from.parse().unwrap(), to).map(String::from);
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

    #[tokio::test]
    async fn failed_call_is_named_by_its_causes_without_the_url() {
        let connector = Connector::new(&Arc::from([]), None, None, Duration::from_secs(5)).unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url: Url = format!("http://{closed}/m?signature=secret").parse().unwrap();
        let error = connector.client.get(url.clone()).send().await.unwrap_err();
        assert!(error.to_string().contains("secret"), "{error}");
        let reason = causes(&error.without_url());
        assert!(reason.contains("refused") && !reason.contains("secret"), "{reason}");
        // Without a cause its own text is all there is.
        let error = connector.client.get("nowhere:///secret").build().unwrap_err();
        let reason = causes(&error.without_url());
        assert!(!reason.contains("secret"), "{reason}");
    }
}
