//! The HTTP proxy of downloads, and the hosts that are reached without it. Pure.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use neptune_sources::redacted;
use reqwest::Url;

/// An HTTP proxy, and the hosts that are reached without it. Its `Debug` output contains no
/// password.
#[derive(Clone, PartialEq, Eq)]
pub struct DownloadProxy {
    url: Url,
    bypassed: Vec<BypassedHost>,
}

/// An entry of the list of hosts that are reached without the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BypassedHost {
    All,
    Net(IpNet),
    /// A host name or a suffix of host names, in lower case and without a dot at its ends.
    Domain(String),
}

/// The text is not the URL of an HTTP proxy. The text may contain a password, so it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProxy {
    /// The text is not a URL.
    #[error("not a URL")]
    NotUrl,
    /// The URL has another scheme than `http`.
    #[error("the proxy is not an HTTP proxy")]
    NotHttp,
    /// The URL has a path, a query or a fragment.
    #[error("the URL has more than a host and a port")]
    NotOnlyHost,
}

impl DownloadProxy {
    /// Returns the proxy of a URL such as `http://user:password@proxy:3128` or `proxy:3128`.
    /// `bypassed` is a comma-separated list of host names, suffixes of host names, IP addresses and
    /// networks; `*` stands for all hosts.
    ///
    /// # Errors
    /// The URL is not that of an HTTP proxy.
    pub fn new(url: &str, bypassed: &str) -> Result<Self, InvalidProxy> {
        let url = url.trim();
        let with_scheme =
            if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let url: Url = with_scheme.parse().map_err(|_| InvalidProxy::NotUrl)?;
        if url.scheme() != "http" {
            return Err(InvalidProxy::NotHttp);
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(InvalidProxy::NotOnlyHost);
        }
        let entries = bypassed.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Ok(Self { url, bypassed: entries.map(BypassedHost::new).collect() })
    }

    /// The URL without user and password.
    pub fn shown(&self) -> String {
        redacted(&self.url)
    }

    /// Whether a request for this URL is sent to the proxy.
    pub(crate) fn covers(&self, url: &Url) -> bool {
        let host = bare_host(url);
        !self.bypassed.iter().any(|entry| entry.contains(host))
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }
}

impl fmt::Debug for DownloadProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, bypassed } = self;
        f.debug_struct("DownloadProxy")
            .field("url", &self.shown())
            .field("bypassed", bypassed)
            .finish()
    }
}

impl BypassedHost {
    fn new(entry: &str) -> Self {
        if entry == "*" {
            return Self::All;
        }
        if let Ok(net) = entry.parse::<IpNet>() {
            return Self::Net(net);
        }
        let bare = entry.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>() {
            Ok(address) => Self::Net(address.into()),
            Err(_) => {
                Self::Domain(entry.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase())
            }
        }
    }

    fn contains(&self, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Net(net) => host.parse().is_ok_and(|address: IpAddr| net.contains(&address)),
            Self::Domain(domain) => {
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                let before = host.strip_suffix(domain.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
        }
    }
}

/// The host of a URL, without the brackets of an IPv6 address.
pub(crate) fn bare_host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hosts_of_the_list_are_reached_without_the_proxy() {
        let list = "localhost, .example.org,*.corp,10.0.0.0/8,192.168.1.7,[fd00::1],fd01::/64,,";
        let proxy = DownloadProxy::new("http://proxy:3128", list).unwrap();
        for (host, is_covered) in [
            ("localhost", false),
            ("LOCALHOST.", false),
            ("a.localhost", false),
            ("notlocalhost", true),
            ("example.org", false),
            ("models.example.org", false),
            ("badexample.org", true),
            ("example.org.evil", true),
            ("a.corp", false),
            ("10.1.2.3", false),
            ("11.1.2.3", true),
            ("192.168.1.7", false),
            ("192.168.1.8", true),
            ("[fd00::1]", false),
            ("[fd00::2]", true),
            ("[fd01::2]", false),
            ("models.example", true),
        ] {
            for url in [format!("http://{host}/m"), format!("https://{host}:8443/m")] {
                assert_eq!(proxy.covers(&url.parse().unwrap()), is_covered, "{url}");
            }
        }
        let none = DownloadProxy::new("proxy:3128", "*").unwrap();
        assert!(!none.covers(&"http://models.example/m".parse().unwrap()));
    }

    #[test]
    fn only_http_proxies_are_accepted_and_no_error_contains_the_password() {
        for url in ["http://u:secret@proxy:3128", "proxy:3128", " http://10.0.0.1 "] {
            DownloadProxy::new(url, "").unwrap();
        }
        for (url, problem) in [
            ("https://u:secret@proxy:3128", InvalidProxy::NotHttp),
            ("socks5://u:secret@proxy:1080", InvalidProxy::NotHttp),
            ("http://u:secret@proxy:3128/path", InvalidProxy::NotOnlyHost),
            ("http://proxy/?secret", InvalidProxy::NotOnlyHost),
            ("http://u:secret@", InvalidProxy::NotUrl),
            ("", InvalidProxy::NotUrl),
            ("u:secret@proxy:99999", InvalidProxy::NotUrl),
        ] {
            assert_eq!(DownloadProxy::new(url, ""), Err(problem), "{url}");
            assert!(!problem.to_string().contains("secret"));
        }
    }

    #[test]
    fn shown_proxy_has_no_user_and_no_password() {
        let proxy = DownloadProxy::new("http://ann:secret@proxy:3128", "localhost").unwrap();
        assert_eq!(proxy.shown(), "http://proxy:3128/");
        let debug = format!("{proxy:?}");
        assert!(!debug.contains("secret") && !debug.contains("ann"), "{debug}");
    }
}
