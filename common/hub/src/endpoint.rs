//! The address of a hub, and the token that only this hub gets.

use std::{fmt, str::FromStr};

use url::{Host, Url};

/// The URL of the public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The address of a hub. Its `Debug` output does not contain the token.
#[derive(Clone, PartialEq, Eq)]
pub struct HubEndpoint {
    url: Url,
    token: Option<String>,
}

/// Why a text is not the address of a hub, or why the hub gets no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// The text is not an http or https URL without user, query and fragment.
    #[error("not an http or https URL without user, query and fragment")]
    NotAUrl,
    /// The token is not a line of printable ASCII characters.
    #[error("the token is not one line of printable characters")]
    Token,
    /// A token would be sent without encryption.
    #[error("a token is sent to https:// only, or to a loopback address")]
    Unencrypted,
}

impl HubEndpoint {
    /// Adds the token of an account. White space around it is ignored, and an empty text is none.
    ///
    /// # Errors
    /// [`InvalidEndpoint::Token`]; [`InvalidEndpoint::Unencrypted`] for a hub that is reached over
    /// plain HTTP and is not on this machine.
    pub fn with_token(self, token: &str) -> Result<Self, InvalidEndpoint> {
        let token = token.trim();
        if token.is_empty() {
            return Ok(self);
        }
        if token.len() > 4096 || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(InvalidEndpoint::Token);
        }
        let is_loopback = match self.url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if self.url.scheme() != "https" && !is_loopback {
            return Err(InvalidEndpoint::Unencrypted);
        }
        Ok(Self { token: Some(token.to_owned()), ..self })
    }

    /// The URL of the hub.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The value of `Authorization` for a request to `url`. `None` without a token, and for every
    /// other server than the hub.
    pub fn authorization(&self, url: &Url) -> Option<String> {
        let token = self.token.as_ref().filter(|_| self.is_own(url))?;
        Some(format!("Bearer {token}"))
    }

    /// Whether a URL is of the hub's own server: same scheme, host and port.
    pub fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.url.origin()
    }
}

impl Default for HubEndpoint {
    fn default() -> Self {
        let url = Url::parse(DEFAULT_ENDPOINT).expect("the constant is a URL");
        Self { url, token: None }
    }
}

impl FromStr for HubEndpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let url = Url::parse(text.trim()).map_err(|_| InvalidEndpoint::NotAUrl)?;
        let is_plain = matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if is_plain { Ok(Self { url, token: None }) } else { Err(InvalidEndpoint::NotAUrl) }
    }
}

impl fmt::Debug for HubEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubEndpoint").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn token_goes_to_the_server_of_the_hub_only() {
        let hub: HubEndpoint = "https://hub.example/prefix".parse().unwrap();
        let hub = hub.with_token(" hf_secret\n").unwrap();
        let sent = |url: &str| hub.authorization(&url.parse().unwrap());
        assert_eq!(sent("https://hub.example/o/r").as_deref(), Some("Bearer hf_secret"));
        for other in [
            "https://cdn.hub.example/o/r",
            "https://hub.example:8443/o/r",
            "http://hub.example/o/r",
            "https://hub.example.evil/o",
        ] {
            assert_eq!(sent(other), None, "{other}");
        }
        assert!(!format!("{hub:?}").contains("secret"));
    }

    #[test]
    fn token_is_not_sent_in_clear_to_another_machine() {
        let with_token = |url: &str| url.parse::<HubEndpoint>().unwrap().with_token("t").map(drop);
        for url in ["https://h", "http://127.0.0.1:8080", "http://[::1]", "http://localhost:1"] {
            assert_eq!(with_token(url), Ok(()), "{url}");
        }
        assert_eq!(with_token("http://mirror.local"), Err(InvalidEndpoint::Unencrypted));
        let hub = HubEndpoint::default();
        assert_eq!(hub.clone().with_token("a b"), Err(InvalidEndpoint::Token));
        assert_eq!(hub.clone().with_token(" \n"), Ok(hub));
    }

    #[test]
    fn endpoint_is_a_url_without_user_and_query() {
        for bad in ["", "hub", "ftp://h", "https://u:p@h", "https://h?x", "https://h#x"] {
            assert_eq!(bad.parse::<HubEndpoint>(), Err(InvalidEndpoint::NotAUrl), "{bad}");
        }
    }
}
