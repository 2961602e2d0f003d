//! How a server permits a download, and to which servers the permission is sent. Pure.

use neptune_hub::{HubEndpoint, Registry};
use neptune_wire::{HubAddress, OciAddress};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};

/// How a server permits a download.
pub enum Access {
    /// Without anything but the URL.
    Open,
    /// By the headers of a signed request. The signature is valid for one host, so redirects are not
    /// followed.
    Signed(HeaderMap),
    /// By the token of the hub, which no other server gets. The address is for messages.
    Hub(Box<(HubEndpoint, HubAddress)>),
    /// By the login or the token of the registry, which no other server gets.
    Registry(Box<RegistryAccess>),
}

/// A registry that permits downloads from the repository of an address.
pub struct RegistryAccess {
    /// The registry, with what it gets with each request.
    pub registry: Registry,
    /// The artifact, for messages.
    pub address: OciAddress,
    /// Whether an earlier request got the permission, which may have expired since.
    pub is_kept: bool,
}

impl Access {
    /// Whether the request is valid for one host only.
    pub fn is_signed(&self) -> bool {
        matches!(self, Self::Signed(_))
    }

    /// Adds the headers for a request to `url`.
    pub fn permit(&self, url: &Url, headers: &mut HeaderMap) {
        match self {
            Self::Open => {}
            Self::Signed(signature) => headers.extend(signature.clone()),
            Self::Registry(access) => {
                if let Some(value) = access.registry.authorization(url) {
                    headers.insert(AUTHORIZATION, value);
                }
            }
            Self::Hub(hub) => {
                let value = hub.0.authorization(url).map(HeaderValue::try_from);
                if let Some(Ok(mut value)) = value {
                    value.set_sensitive(true);
                    headers.insert(AUTHORIZATION, value);
                }
            }
        }
    }
}
