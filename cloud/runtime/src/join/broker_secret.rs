//! The Secret with the files of the broker: its certificate, and the list of revoked certificates
//! of nodes. Decides which of them to write; no I/O except random numbers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use neptune_pinned_tls::{Authority, Serial};

use crate::error::Error;

/// The name of the Secret.
pub const BROKER_SECRET: &str = "neptune-broker-tls";

/// The keys of its data, which are the names of the files.
const AUTHORITY: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const REVOKED: &str = "crl.pem";

/// The serial numbers of the list in the Secret; none without a list of this authority.
pub fn listed_serials(secret: &Secret, authority: &Authority) -> BTreeSet<String> {
    let listed = authority.revoked_serials(text(secret, REVOKED));
    listed.into_iter().flatten().map(|serial| serial.to_string()).collect()
}

/// The next version of the Secret; `None` if it has the right files: the authority, a certificate
/// with at least these names, and a list with exactly these serial numbers. `number` is that of the
/// list.
pub fn next_broker_secret(
    secret: &Secret,
    authority: &Authority,
    names: &BTreeSet<String>,
    revoked: &BTreeSet<String>,
    number: u64,
) -> Result<Option<Secret>, Error> {
    let mut changes: BTreeMap<&str, String> = BTreeMap::new();
    if text(secret, AUTHORITY) != authority.certificate() {
        changes.insert(AUTHORITY, authority.certificate().to_owned());
    }
    let present = authority.server_names(text(secret, CERTIFICATE));
    if !present.is_some_and(|present| names.is_subset(&present)) || text(secret, KEY).is_empty() {
        let what = || format!("the certificate of the broker for {names:?}");
        let signed = authority.sign_server(names.iter().cloned());
        let signed = signed.map_err(|source| Error::Sign { what: what(), source })?;
        changes.insert(CERTIFICATE, signed.certificate);
        changes.insert(KEY, signed.key);
    }
    // The CRD admits no other serial numbers.
    let revoked: BTreeSet<Serial> = revoked.iter().filter_map(|it| it.parse().ok()).collect();
    if authority.revoked_serials(text(secret, REVOKED)).as_ref() != Some(&revoked) {
        let what = "the list of revoked certificates".to_owned();
        let list = authority.revocation_list(&revoked, number);
        changes.insert(REVOKED, list.map_err(|source| Error::Sign { what, source })?);
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let mut next = secret.clone();
    let data = next.data.get_or_insert_default();
    for (key, text) in changes {
        data.insert(key.to_owned(), ByteString(text.into_bytes()));
    }
    Ok(Some(next))
}

fn text<'a>(secret: &'a Secret, key: &str) -> &'a str {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn set(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn empty_secret_is_filled_once() {
        let authority = Authority::generate(1_800_000_000);
        let (names, revoked) = (set(&["b.example", "192.0.2.1"]), set(&["0000000000000007"]));
        let next =
            |secret: &Secret| next_broker_secret(secret, &authority, &names, &revoked, 1).unwrap();
        let filled = next(&Secret::default()).unwrap();
        let keys: Vec<_> = filled.data.as_ref().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, [AUTHORITY, REVOKED, CERTIFICATE, KEY]);
        assert_eq!(next(&filled), None);
        assert_eq!(listed_serials(&filled, &authority), revoked);
    }

    #[test]
    fn only_what_is_missing_is_written() {
        let authority = Authority::generate(1_800_000_000);
        let (names, none) = (set(&["a", "b"]), BTreeSet::new());
        let next = |secret: &Secret, names: &[&str], revoked: &[&str]| {
            next_broker_secret(secret, &authority, &set(names), &set(revoked), 2).unwrap()
        };
        let filled = next_broker_secret(&Secret::default(), &authority, &names, &none, 1);
        let filled = filled.unwrap().unwrap();
        let file = |secret: &Secret, key: &str| text(secret, key).to_owned();
        assert_eq!(next(&filled, &["a"], &[]), None, "a name more does no harm");
        let renamed = next(&filled, &["a", "c"], &[]).unwrap();
        assert_ne!(file(&renamed, CERTIFICATE), file(&filled, CERTIFICATE));
        assert_eq!(file(&renamed, REVOKED), file(&filled, REVOKED));
        let revoked = next(&filled, &["a"], &["0000000000000007"]).unwrap();
        assert_eq!(file(&revoked, CERTIFICATE), file(&filled, CERTIFICATE));
        assert_ne!(file(&revoked, REVOKED), file(&filled, REVOKED));
        // Another authority replaces all.
        let other = Authority::generate(0);
        let replaced = next_broker_secret(&filled, &other, &names, &none, 3).unwrap().unwrap();
        assert_eq!(other.server_names(text(&replaced, CERTIFICATE)), Some(names));
        assert!(listed_serials(&revoked, &other).is_empty());
    }
}
