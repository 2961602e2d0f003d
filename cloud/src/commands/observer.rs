//! The `observer-certificate` command: writes a certificate that reads all messages at the broker.

use std::io::Write as _;

use neptune_cloud_runtime::{
    self as runtime,
    join::{now_seconds, read_authority},
};
use neptune_transfer::durable::{self, Access, Survives};

use crate::{cli::ObserverCertificate, commands::connect::connect, error::Error};

/// The user that reads everything and writes nothing, as the access list names it.
const USER: &str = "neptune_observer";

const SECONDS_OF_A_DAY: u64 = 24 * 60 * 60;

/// Writes the certificate, its key and the authority's certificate, readable by the caller alone.
///
/// # Errors
/// No usable kubeconfig, no right to read the Secret, a Secret without an authority, or a directory
/// that cannot be written.
pub async fn observer_certificate(flags: ObserverCertificate) -> Result<(), Error> {
    let (client, _) = connect(&flags.cluster).await?;
    let secret = (flags.namespace.as_str(), flags.ca_secret.as_str());
    let authority = read_authority(&client, secret).await?.ok_or_else(|| {
        Error::Enroll(format!(
            "Secret {}/{} is empty: the controller makes the authority when it runs with --ca-secret; check: kubectl -n {} get pods",
            flags.namespace, flags.ca_secret, flags.namespace
        ))
    })?;
    let end = now_seconds().saturating_add(u64::from(flags.days) * SECONDS_OF_A_DAY);
    let signed = authority.sign_user_until(USER, end).map_err(|source| {
        let what = format!("the certificate of the user {USER}");
        Error::Runtime(runtime::Error::Sign { what, source })
    })?;
    let (certificate, key) = (format!("{USER}.crt"), format!("{USER}.key"));
    for (file, text) in [
        ("ca.crt", authority.certificate()),
        (&*certificate, &*signed.certificate),
        (&*key, &*signed.key),
    ] {
        let path = flags.directory.join(file);
        let written = durable::replace(&path, text.as_bytes(), Access::OWNER, Survives::Kill);
        written.map_err(|source| Error::Write { path, source })?;
    }
    let text = format!(
        "wrote ca.crt, {certificate} and {key}, valid for {} days, to {}\n",
        flags.days,
        flags.directory.display()
    );
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
