//! What the cluster has of a join token: a value of the `ConfigMap` `neptune-join-tokens`, in JSON,
//! by the ID of the token. The secret itself is not in it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use neptune_join::{JoinSecret, TokenId};
use neptune_wire::{KeyPin, NodeName};
use serde::{Deserialize, Serialize};

/// Wrong secrets after which a token is refused.
pub const MAX_FAILURES: u32 = 5;

/// Bytes of all entries together: a `ConfigMap` has at most 1 MiB, and each entry grows when it is
/// used.
pub const MAX_ENTRY_BYTES: usize = 700 * 1024;

/// A join token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenEntry {
    /// The node that may join.
    pub node: NodeName,
    /// SHA-256 of the secret, 64 lower-case hex digits.
    pub secret_sha256: String,
    /// When the token ends.
    pub expires: Timestamp,
    /// Whether the node may have another key, or be revoked: the token replaces it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// How many requests had a wrong secret.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Who used the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<TokenUse>,
}

/// The use of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenUse {
    /// The key of the node that joined.
    pub pin: KeyPin,
    /// The serial number of its certificate, 16 hex digits.
    pub serial: String,
    /// When it joined first.
    pub time: Timestamp,
}

impl TokenEntry {
    /// A token that nobody has used.
    pub fn new(node: NodeName, secret: &JoinSecret, expires: Timestamp, replace: bool) -> Self {
        let secret_sha256 = secret.sha256();
        Self { node, secret_sha256, expires, replace, failures: 0, used_by: None }
    }

    /// Whether this is the secret of the token, in a time that does not depend on where they
    /// differ.
    pub fn matches(&self, secret: &JoinSecret) -> bool {
        let (own, other) = (self.secret_sha256.as_bytes(), secret.sha256());
        let differing = own.iter().zip(other.as_bytes()).fold(0, |bits, (a, b)| bits | (a ^ b));
        std::hint::black_box(differing) == 0 && own.len() == other.len()
    }

    /// Whether the token is refused because of too many wrong secrets.
    pub fn is_closed(&self) -> bool {
        self.failures >= MAX_FAILURES
    }

    /// Whether the token can be removed: it has ended or is closed, and `is_recorded` is whether
    /// the `EdgeNode` has its use.
    pub fn is_spent(&self, is_recorded: bool, now: Timestamp) -> bool {
        (self.expires <= now || self.is_closed()) && (self.used_by.is_none() || is_recorded)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The entries of a `ConfigMap`. Keys that are no IDs are other data; values that cannot be read
/// are in the second list, by key.
pub fn entries(
    data: &BTreeMap<String, String>,
) -> (BTreeMap<TokenId, TokenEntry>, Vec<(TokenId, String)>) {
    let (mut entries, mut invalid) = (BTreeMap::new(), Vec::new());
    for (key, value) in data {
        let Ok(id) = key.parse::<TokenId>() else { continue };
        match serde_json::from_str(value) {
            Ok(entry) => drop(entries.insert(id, entry)),
            Err(error) => invalid.push((id, error.to_string())),
        }
    }
    (entries, invalid)
}

/// The value of an entry in a `ConfigMap`.
pub fn value(entry: &TokenEntry) -> String {
    serde_json::to_string(entry).expect("a token entry is JSON")
}

/// The longest and the shortest time that a token may be valid.
pub const TTL: std::ops::RangeInclusive<SignedDuration> =
    SignedDuration::from_mins(1)..=SignedDuration::from_hours(90 * 24);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::fixtures::pin;

    use super::*;

    fn secret(character: char) -> JoinSecret {
        format!("{}a", character.to_string().repeat(25)).parse().unwrap()
    }

    fn entry() -> TokenEntry {
        let expires = Timestamp::from_second(1000).unwrap();
        TokenEntry::new("edge0".parse().unwrap(), &secret('b'), expires, false)
    }

    #[test]
    fn entry_is_read_as_it_was_written_and_has_no_secret() {
        let used = TokenUse { pin: pin(1), serial: "1".repeat(16), time: Timestamp::UNIX_EPOCH };
        for entry in [entry(), TokenEntry { failures: 2, used_by: Some(used), ..entry() }] {
            let text = value(&entry);
            assert!(!text.contains("bbbb"), "{text}");
            let data = BTreeMap::from([
                ("abcdefgh".to_owned(), text),
                ("ca.crt".to_owned(), "PEM".to_owned()),
                ("bbbbbbbb".to_owned(), "no JSON".to_owned()),
            ]);
            let (read, invalid) = entries(&data);
            assert_eq!(read.into_values().collect::<Vec<_>>(), [entry]);
            assert_eq!(invalid.len(), 1);
        }
    }

    #[test]
    fn only_the_whole_secret_matches() {
        assert!(entry().matches(&secret('b')));
        assert!(!entry().matches(&secret('c')));
        let cut = TokenEntry { secret_sha256: secret('b').sha256()[..10].to_owned(), ..entry() };
        assert!(!cut.matches(&secret('b')));
    }

    #[test]
    fn spent_token_is_kept_until_its_use_is_recorded() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let used = Some(TokenUse { pin: pin(1), serial: String::new(), time: at(0) });
        let closed = TokenEntry { failures: MAX_FAILURES, ..entry() };
        assert!(!entry().is_spent(false, at(999)) && entry().is_spent(false, at(1000)));
        assert!(closed.is_spent(false, at(0)));
        let used = TokenEntry { used_by: used, ..closed };
        assert!(!used.is_spent(false, at(2000)) && used.is_spent(true, at(0)));
    }
}
