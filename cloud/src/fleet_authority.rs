//! The authority of the fleet in the controller: read from its Secret at the start, and used for the
//! controller's own certificate at the broker, which exists in memory only.

use std::sync::Arc;

use kube::Client;
use neptune_cloud_runtime::{
    self as runtime,
    join::{JoinSettings, await_authority},
};
use neptune_link::{ClientIdentity, LinkOptions};
use neptune_pinned_tls::Authority;

use crate::{cli::Run, error::Error};

/// The user of the controller at the broker, as the access list names it.
const USER: &str = "neptune_cloud";

/// Waits for the authority of `--ca-secret`, and makes it if its Secret is empty; `None` without the
/// flag.
///
/// # Errors
/// The Secret has something that is no authority.
pub async fn load(flags: &Run, client: &Client) -> Result<Option<Arc<Authority>>, Error> {
    let Some(secret) = &flags.ca_secret else { return Ok(None) };
    let authority = await_authority(client, (&flags.namespace, secret), true).await?;
    Ok(Some(Arc::new(authority)))
}

/// Returns what the controller needs to keep joins; `None` without an authority.
pub fn join_settings(flags: &Run, authority: Option<&Arc<Authority>>) -> Option<JoinSettings> {
    Some(JoinSettings {
        authority: Arc::clone(authority?),
        namespace: flags.namespace.clone(),
        broker_addresses: flags.broker_address.clone(),
    })
}

/// Adds the authority and a certificate of the controller, if the broker has TLS and the flags give
/// neither.
///
/// # Errors
/// The authority cannot sign.
pub fn with_identity(
    options: LinkOptions,
    authority: Option<&Arc<Authority>>,
) -> Result<LinkOptions, Error> {
    let Some(authority) = authority.filter(|_| options.url.is_tls()) else { return Ok(options) };
    let mut options = options;
    if options.ca_file.is_none() {
        options.ca = Some(authority.certificate().to_owned());
    }
    if options.certificate_file.is_none() && options.key_file.is_none() {
        let signed = authority.sign_user(USER).map_err(|source| {
            let what = format!("the certificate of the user {USER}");
            Error::Runtime(runtime::Error::Sign { what, source })
        })?;
        let (certificate, key) = (signed.certificate, signed.key.into());
        options.identity = Some(ClientIdentity { certificate, key });
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn certificate_is_added_where_the_flags_give_none_and_the_broker_has_tls() {
        let authority = Arc::new(Authority::generate(0));
        let options = |url: &str| LinkOptions::new(url.parse().unwrap(), "me");
        let added = with_identity(options("mqtts://broker"), Some(&authority)).unwrap();
        assert!(added.identity.is_some() && added.ca.as_deref() == Some(authority.certificate()));
        let plain = with_identity(options("mqtt://localhost"), Some(&authority)).unwrap();
        assert!(plain.identity.is_none() && plain.ca.is_none());
        let files = LinkOptions {
            ca_file: Some("ca.crt".into()),
            certificate_file: Some("tls.crt".into()),
            key_file: Some("tls.key".into()),
            ..options("mqtts://broker")
        };
        let kept = with_identity(files, Some(&authority)).unwrap();
        assert!(kept.identity.is_none() && kept.ca.is_none());
    }
}
