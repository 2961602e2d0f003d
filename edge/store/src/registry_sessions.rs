//! The registries that permitted downloads to this store, with their tokens: the files of an artifact
//! need one login together. A registry that denies access is asked for another token once.

use std::{collections::BTreeMap, net::IpAddr};

use neptune_hub::{HubError, HubProblem, Login, Registry, is_loopback};
use neptune_wire::OciAddress;
use parking_lot::Mutex;

use crate::{
    AllowedAddress, ModelError, StorePolicy,
    transfer::{access::RegistryAccess, connector::Connector},
};

/// Maximum number of repositories whose tokens are kept.
const MAX_SESSIONS: usize = 64;

/// The tokens of repositories, by registry and repository.
#[derive(Debug, Default)]
pub struct RegistrySessions(Mutex<BTreeMap<(String, String), RegistrySession>>);

#[derive(Debug, Clone)]
struct RegistrySession {
    /// The login for which the registry issued the token.
    login: Option<Login>,
    registry: Registry,
}

impl RegistrySessions {
    /// The registry of an address, with the token of an earlier request that had the same login, or a
    /// new one.
    ///
    /// # Errors
    /// [`ModelError::RegistryLogin`], and those of the registry.
    pub async fn open(
        &self,
        policy: &StorePolicy,
        connector: &Connector,
        address: &OciAddress,
    ) -> Result<RegistryAccess, ModelError> {
        let login = login(policy, address).await?;
        let access =
            |registry, is_kept| RegistryAccess { registry, address: address.clone(), is_kept };
        let kept = self.0.lock().get(&key(address)).cloned();
        if let Some(session) = kept.filter(|session| session.login == login) {
            return Ok(access(session.registry, true));
        }
        let registry = ask(policy, connector, address, login.as_ref()).await?;
        let session = RegistrySession { login, registry: registry.clone() };
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_SESSIONS {
            sessions.clear();
        }
        sessions.insert(key(address), session);
        Ok(access(registry, false))
    }

    /// Forgets the token if the registry denied access with it. Returns whether another token may
    /// help: that one was of an earlier request, and may have expired since.
    pub fn forget_if_denied(&self, access: &RegistryAccess, error: &ModelError) -> bool {
        let ModelError::Hub(HubError { problem: HubProblem::RegistryDenied, .. }) = error else {
            return false;
        };
        self.0.lock().remove(&key(&access.address));
        access.is_kept
    }
}

fn key(address: &OciAddress) -> (String, String) {
    (address.registry.clone(), address.repository.clone())
}

/// The login of the node for the repository of an address.
///
/// # Errors
/// [`ModelError::RegistryLogin`].
async fn login(policy: &StorePolicy, address: &OciAddress) -> Result<Option<Login>, ModelError> {
    let Some(logins) = &policy.registry_logins else { return Ok(None) };
    let failed = |reason| ModelError::RegistryLogin { url: address.to_string(), reason };
    logins.find(address.repository_id()).await.map_err(failed)
}

/// Asks the registry of an address for access, and gets a token for the repository if it wants one.
///
/// # Errors
/// Those of the registry.
async fn ask(
    policy: &StorePolicy,
    connector: &Connector,
    address: &OciAddress,
    login: Option<&Login>,
) -> Result<Registry, ModelError> {
    let is_plain_http = is_plain_http(&address.registry, &policy.allowed_addresses);
    Registry::open(connector, address, is_plain_http, login).await
}

/// Whether a registry is reached over plain HTTP: it is on a loopback address, or the operator
/// allows its address or name (`--allow-address`) and its port is not that of https.
fn is_plain_http(registry: &str, allowed: &[AllowedAddress]) -> bool {
    let (host, port) = registry.split_once(':').unwrap_or((registry, ""));
    let address = host.parse::<IpAddr>().ok();
    let is_allowed = allowed.iter().any(|allowed| match allowed {
        AllowedAddress::Net(net) => address.is_some_and(|address| net.contains(&address)),
        AllowedAddress::Host(name) => name == host,
    });
    (is_loopback(registry) || is_allowed) && port != "443"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn plain_http_is_for_loopback_and_allowed_addresses_only() {
        let allowed = ["169.254.1.0/24", "registry.local"].map(|text| text.parse().unwrap());
        for (registry, is_plain) in [
            ("127.0.0.1:5000", true),
            ("localhost", true),
            ("169.254.1.2:5000", true),
            ("registry.local:5000", true),
            ("registry.local:443", false),
            ("other.local:5000", false),
            ("10.0.0.1:5000", false),
            ("ghcr.io", false),
        ] {
            assert_eq!(is_plain_http(registry, &allowed), is_plain, "{registry}");
        }
    }
}
