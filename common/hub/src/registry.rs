//! Asks a container registry for the files of an artifact, through the transport of the caller.
//! Credentials go to the registry and its server of tokens only.

use std::net::IpAddr;

use neptune_transfer::Digest;
use neptune_wire::OciAddress;
use reqwest::{
    Method, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE},
};
use serde::Deserialize;
use url::Url;

use crate::{
    challenge::{Challenge, Login, challenge},
    client::{MAX_REDIRECTS, Transport, bounded_body, header},
    error::{HubError, HubProblem},
    failure::retry_after,
    manifest::{ACCEPTED, ArtifactFiles, files},
};

/// Maximum size of a manifest in bytes. Registries refuse larger ones.
const MAX_MANIFEST: usize = 4 << 20;
/// Maximum size of the answer with a token in bytes.
const MAX_TOKEN: usize = 64 << 10;
/// Docker Hub, and the host of its registry.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// The registry of an address: where it is, and what it gets with each request.
#[derive(Clone)]
pub struct Registry {
    base: Url,
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Asks a registry how it permits downloads from the repository of an address, and gets a token
    /// if it wants one.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the registry denies access.
    pub async fn open<T: Transport>(
        transport: &T,
        address: &OciAddress,
        is_plain_http: bool,
        login: Option<&Login>,
    ) -> Result<Self, T::Error> {
        let refused = |problem| T::Error::from(HubError { address: address.to_string(), problem });
        let (name, host) = DOCKER_HUB;
        let host = if address.registry == name { host } else { &address.registry };
        let scheme = if is_plain_http { "http" } else { "https" };
        let base: Url = format!("{scheme}://{host}/v2/").parse().map_err(|_| {
            refused(HubProblem::InvalidManifest { reason: "the host is invalid".to_owned() })
        })?;
        let response = transport.send(Method::GET, &base, HeaderMap::new()).await?;
        let mut registry = Self { base, authorization: None };
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(registry);
        }
        let text = header(&response, WWW_AUTHENTICATE.as_str()).unwrap_or_default();
        let value = match challenge(text, &registry.base, &address.repository) {
            None => return Err(refused(HubProblem::RegistryDenied)),
            Some(Challenge::Basic) => {
                login.ok_or_else(|| refused(HubProblem::RegistryDenied))?.basic()
            }
            Some(Challenge::Bearer(url)) => {
                let mut headers = HeaderMap::new();
                if let Some(value) = login.and_then(|login| secret(&login.basic())) {
                    headers.insert(AUTHORIZATION, value);
                }
                // Not redirected: the credentials are for this server.
                let response = transport.send(Method::GET, &url, headers).await?;
                if !response.status().is_success() {
                    return Err(refused(problem(&response, address)));
                }
                let body = bounded_body(response, MAX_TOKEN).await.map_err(refused)?;
                let answer: Option<TokenAnswer> = serde_json::from_slice(&body).ok();
                let token = answer.and_then(|answer| answer.token.or(answer.access_token));
                format!("Bearer {}", token.ok_or_else(|| refused(HubProblem::RegistryDenied))?)
            }
        };
        registry.authorization =
            Some(secret(&value).ok_or_else(|| refused(HubProblem::RegistryDenied))?);
        Ok(registry)
    }

    /// The value of `Authorization` for a request to `url`. `None` for every other server.
    pub fn authorization(&self, url: &Url) -> Option<HeaderValue> {
        self.authorization.clone().filter(|_| self.is_own(url))
    }

    /// Whether a URL is of the registry's own server: same scheme, host and port.
    pub fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// The URL of a file, which the registry may redirect to another server.
    pub fn blob_url(&self, address: &OciAddress, sha256: Digest) -> Url {
        self.url(address, "blobs", &format!("sha256:{sha256}"))
    }

    /// The selected files of an artifact.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the registry does not name them, or sends another
    /// manifest than that of the digest in the address.
    pub async fn files<T: Transport>(
        &self,
        transport: &T,
        address: &OciAddress,
    ) -> Result<ArtifactFiles, T::Error> {
        let refused = |problem| T::Error::from(HubError { address: address.to_string(), problem });
        let invalid = |reason: String| refused(HubProblem::InvalidManifest { reason });
        let mut url = self.url(address, "manifests", &address.reference());
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
            if let Some(value) = self.authorization(&url) {
                headers.insert(AUTHORIZATION, value);
            }
            let response = transport.send(Method::GET, &url, headers).await?;
            if response.status().is_redirection() {
                let target = header(&response, LOCATION.as_str()).and_then(|to| url.join(to).ok());
                let is_safe = |to: &Url| to.scheme() == "https" || to.scheme() == url.scheme();
                url = target.filter(is_safe).ok_or_else(|| {
                    invalid("the manifest redirects to an unsupported URL".to_owned())
                })?;
                continue;
            }
            if !response.status().is_success() {
                return Err(refused(problem(&response, address)));
            }
            let body = bounded_body(response, MAX_MANIFEST).await.map_err(refused)?;
            let actual = Digest::of_bytes(&body).to_string();
            if let Some(expected) = address.digest.as_ref().filter(|digest| **digest != actual) {
                return Err(invalid(format!(
                    "its digest is sha256:{actual} instead of sha256:{expected}"
                )));
            }
            return files(&body, &address.files, address.name()).map_err(refused);
        }
        Err(invalid(format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn url(&self, address: &OciAddress, kind: &str, reference: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("/v2/{}/{kind}/{reference}", address.repository));
        url
    }
}

/// The problem of a response with an error status.
fn problem(response: &Response, address: &OciAddress) -> HubProblem {
    match response.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => HubProblem::RegistryDenied,
        StatusCode::NOT_FOUND => HubProblem::ManifestNotFound { reference: address.reference() },
        StatusCode::TOO_MANY_REQUESTS => HubProblem::RateLimited {
            seconds: header(response, "retry-after").and_then(|text| retry_after(Some(text), None)),
        },
        status => HubProblem::Status { status: status.as_u16() },
    }
}

/// The problem of a response of a registry to a request for a file.
pub fn registry_error(response: &Response, address: &OciAddress) -> HubError {
    HubError { address: address.to_string(), problem: problem(response, address) }
}

/// Whether a registry, as host and port, is on this machine, where plain HTTP is safe.
pub fn is_loopback(registry: &str) -> bool {
    let host = registry.split_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
