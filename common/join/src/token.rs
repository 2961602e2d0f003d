//! The token that permits one node to join once.

use data_encoding::{BASE64URL_NOPAD, Encoding, HEXLOWER, Specification};
use neptune_wire::{KeyPin, NodeName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr, sync::LazyLock};
use zeroize::Zeroizing;

/// The first part of each token, with the version of its form.
const SCHEME: &str = "npt1";

/// Random bytes of an ID, and of a secret.
const ID_BYTES: usize = 5;
const SECRET_BYTES: usize = 16;

/// Base32 of RFC 4648 in lower case, without padding.
static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification.encoding().expect("32 different symbols")
});

/// The permission to join as one node: `npt1:NODE:ID:SECRET:PIN`.
///
/// ```
/// # use neptune_join::JoinToken;
/// let pin = neptune_wire::KeyPin(format!("sha256:{}", "00".repeat(32)));
/// let token = JoinToken::new("edge0".parse().unwrap(), &pin, [7; 21]).unwrap();
/// let text = token.to_text();
/// assert!(text.starts_with("npt1:edge0:a4dqobyh:"));
/// assert_eq!(text.parse::<JoinToken>().unwrap(), token);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The node that may join.
    pub node: NodeName,
    /// The name of the token in the cluster.
    pub id: TokenId,
    /// What proves the permission.
    pub secret: JoinSecret,
    /// SHA-256 of the public key of the authority, which the join server must prove.
    pub authority: KeyPin,
}

impl JoinToken {
    /// Makes a token from random bytes that are cryptographically secure.
    ///
    /// # Errors
    /// The pin is not valid.
    pub fn new(
        node: NodeName,
        authority: &KeyPin,
        random: [u8; ID_BYTES + SECRET_BYTES],
    ) -> Result<Self, TokenError> {
        if !authority.is_valid() {
            return Err(TokenError::Authority);
        }
        let (id, secret) = random.split_at(ID_BYTES);
        Ok(Self {
            node,
            id: TokenId(BASE32.encode(id)),
            secret: JoinSecret(Zeroizing::new(BASE32.encode(secret))),
            authority: authority.clone(),
        })
    }

    /// Returns the text that the operator copies. It contains the secret.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let digest = self.authority.0.trim_start_matches("sha256:");
        let digest = HEXLOWER.decode(digest.as_bytes()).unwrap_or_default();
        let pin = BASE64URL_NOPAD.encode(&digest);
        Zeroizing::new(format!("{SCHEME}:{}:{}:{}:{pin}", self.node, self.id, *self.secret.0))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [scheme, node, id, secret, pin] = parts[..] else {
            return Err(TokenError::Parts { parts: parts.len() });
        };
        if scheme != SCHEME {
            return Err(TokenError::Scheme);
        }
        let pin = BASE64URL_NOPAD.decode(pin.as_bytes()).map_err(|_| TokenError::Authority)?;
        if pin.len() != Sha256::output_size() {
            return Err(TokenError::Authority);
        }
        Ok(Self {
            node: node.parse().map_err(|_| TokenError::Node)?,
            id: id.parse()?,
            secret: secret.parse()?,
            authority: KeyPin(format!("sha256:{}", HEXLOWER.encode(&pin))),
        })
    }
}

/// The name of a token in the cluster: 8 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// Returns the 8 characters of the ID.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TokenId {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        has_bytes(text, ID_BYTES).then(|| Self(text.to_owned())).ok_or(TokenError::Id)
    }
}

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The secret of a token: 128 random bits as 26 characters. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(Zeroizing<String>);

impl JoinSecret {
    /// Returns the SHA-256 of the secret as 64 lower-case hex digits, which is what the cluster
    /// stores. A hash of 128 random bits needs no salt.
    #[must_use]
    pub fn sha256(&self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

impl Serialize for JoinSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl FromStr for JoinSecret {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        has_bytes(text, SECRET_BYTES)
            .then(|| Self(Zeroizing::new(text.to_owned())))
            .ok_or(TokenError::Secret)
    }
}

impl<'de> Deserialize<'de> for JoinSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Zeroizing::new(String::deserialize(deserializer)?).parse().map_err(serde::de::Error::custom)
    }
}

/// Why a text is no token. The text of the token is in no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The number of parts differs.
    #[error("a join token has 5 parts, npt1:NODE:ID:SECRET:PIN; this text has {parts}")]
    Parts {
        /// How many parts the text has.
        parts: usize,
    },
    /// The first part differs.
    #[error("a join token begins with npt1: ; tokens of other versions need another neptune-edge")]
    Scheme,
    /// The second part is no name of a node.
    #[error("the second part of a join token is the name of a node")]
    Node,
    /// The third part has another length or other characters.
    #[error("the third part of a join token is its ID: 8 characters of a-z and 2-7")]
    Id,
    /// The fourth part has another length or other characters.
    #[error(
        "the fourth part of a join token is its secret: 26 characters of a-z and 2-7; copy the whole line"
    )]
    Secret,
    /// The fifth part is no SHA-256.
    #[error(
        "the last part of a join token is the pin of the authority: 43 characters; copy the whole line"
    )]
    Authority,
}

/// Whether a text is the base32 of this number of bytes.
fn has_bytes(text: &str, bytes: usize) -> bool {
    BASE32.decode(text.as_bytes()).is_ok_and(|decoded| decoded.len() == bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn pin() -> KeyPin {
        KeyPin(format!("sha256:{}", "5a".repeat(32)))
    }

    proptest! {
        #[test]
        fn token_is_read_as_it_was_written(node in "[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", random: [u8; 21]) {
            let Ok(node) = node.parse() else { return Ok(()) };
            let token = JoinToken::new(node, &pin(), random).unwrap();
            let text = token.to_text();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":.-_".contains(&byte)));
            prop_assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        }

        #[test]
        fn no_cut_of_a_token_is_a_token(cut in 0_usize..96, random: [u8; 21]) {
            let token = JoinToken::new("edge0".parse().unwrap(), &pin(), random).unwrap().to_text();
            prop_assert!(token[..cut.min(token.len() - 1)].parse::<JoinToken>().is_err());
        }
    }

    #[test]
    fn text_that_is_no_token_is_described() {
        let token = JoinToken::new("edge0".parse().unwrap(), &pin(), [1; 21]).unwrap().to_text();
        let error =
            |from: &str, to: &str| token.replacen(from, to, 1).parse::<JoinToken>().unwrap_err();
        assert_eq!(error("npt1", "npt2"), TokenError::Scheme);
        assert_eq!(error("npt1:", ""), TokenError::Parts { parts: 4 });
        assert_eq!(error("edge0", "Edge_0"), TokenError::Node);
        assert_eq!(error("aeaqcaib", "aeaqcai"), TokenError::Id);
        assert_eq!(error("aeaqcaib:aea", "aeaqcaib:AEA"), TokenError::Secret);
        assert_eq!(error("WlpaWlpa", "WlpaWl"), TokenError::Authority);
    }

    #[test]
    fn secret_is_only_in_the_text() {
        let token = JoinToken::new("edge0".parse().unwrap(), &pin(), [1; 21]).unwrap();
        let secret = token.to_text().split(':').nth(3).unwrap().to_owned();
        assert!(!format!("{token:?}").contains(&secret));
        assert_eq!(token.secret.sha256().len(), 64);
    }
}
