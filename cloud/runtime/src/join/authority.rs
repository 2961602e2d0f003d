//! The authority of the fleet, in a Secret that the manifests create empty. The first controller
//! fills it; of two, one fails and reads the authority of the other.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use neptune_backoff::Backoff;
use neptune_cloud_kinds::error_class::Class;
use neptune_pinned_tls::Authority;

use crate::{error::Error, kubernetes::FIELD_MANAGER};

/// The keys of the data of the Secret, as in a Secret of cert-manager.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The delay before another attempt to read the Secret.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));

/// Reads the authority from a Secret, and waits until it has one. `may_generate` is whether to make
/// one if the Secret is empty.
///
/// # Errors
/// The Secret has something that is no authority. It is not replaced: each node trusts the
/// authority with which it joined.
pub async fn await_authority(
    client: &Client,
    (namespace, name): (&str, &str),
    may_generate: bool,
) -> Result<Authority, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let origin = format!("Secret {namespace}/{name}");
    let mut failures = 0;
    loop {
        match read(&secrets, (name, &origin), may_generate).await {
            Ok(Some(authority)) => return Ok(authority),
            Ok(None) if failures == 0 => {
                tracing::info!(secret = origin, "waiting for the controller to make the authority");
            }
            Err(error) if error.class() == Class::Configuration => return Err(error),
            Err(error) if failures == 0 && error.class() != Class::Conflict => {
                tracing::warn!(%error, "cannot read the authority; retrying. The manifests create its Secret, empty");
            }
            Ok(None) | Err(_) => {}
        }
        failures = u32::saturating_add(failures, 1);
        tokio::time::sleep(RETRY.step(failures)).await;
    }
}

/// Reads the authority from a Secret; `None` if the Secret is empty.
///
/// # Errors
/// The API server rejects the request, or the Secret has something that is no authority.
pub async fn read_authority(
    client: &Client,
    (namespace, name): (&str, &str),
) -> Result<Option<Authority>, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    read(&secrets, (name, &format!("Secret {namespace}/{name}")), false).await
}

/// The authority of the Secret, which is made if it is empty and may be; `None` if it is empty.
async fn read(
    secrets: &Api<Secret>,
    (name, origin): (&str, &str),
    may_generate: bool,
) -> Result<Option<Authority>, Error> {
    let secret = secrets.get(name).await.map_err(Error::api(format!("get {origin}")))?;
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        String::from_utf8_lossy(bytes.map_or(&[], |bytes| &bytes.0)).into_owned()
    };
    let (certificate, key) = (text(CERTIFICATE), text(KEY));
    if !certificate.is_empty() || !key.is_empty() {
        return Ok(Some(Authority::from_pem(&certificate, &key, origin)?));
    }
    if !may_generate {
        return Ok(None);
    }
    let authority = Authority::generate(now_seconds());
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let data = BTreeMap::from([
        (CERTIFICATE.to_owned(), bytes(authority.certificate())),
        (KEY.to_owned(), bytes(&authority.key_pem())),
    ]);
    let secret = Secret { data: Some(data), ..secret };
    let params =
        PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    // The version that was read: of two replicas, one gets a conflict.
    let written = secrets.replace(name, &params, &secret).await;
    written.map_err(Error::api(format!("update {origin}")))?;
    tracing::info!(secret = origin, pin = authority.pin().0, "authority of the fleet created");
    Ok(Some(authority))
}

/// Seconds since 1970; 0 if the clock is before.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub fn now_seconds() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}
