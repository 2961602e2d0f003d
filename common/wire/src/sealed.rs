//! The Secrets and `ConfigMap`s of containers at agents: values are sealed to the key of the node, and
//! bound to the program that may get them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::NodeName;

/// An environment variable whose value is in a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretVariable {
    /// Name of the variable.
    pub name: String,
    /// Name of the Secret, which is in [`ContainerProgram::secrets`](crate::ContainerProgram::secrets).
    pub secret: String,
    /// The key of the Secret with the value.
    pub key: String,
}

/// The keys of a Secret that a container uses. Only the node can read their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedSecret {
    /// Name of the Secret.
    pub name: String,
    /// The version of the Secret: `UID/RESOURCE_VERSION`.
    pub version: String,
    /// The sealed keys, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The key to which the values are sealed.
    pub seal_key: SealKeyId,
    /// The values in base64: the encapsulated key and the ciphertext of a JSON object with a base64
    /// value per key. Not part of [`ObjectContent::hash`](crate::ObjectContent::hash), because each
    /// sealing gives another text. Empty in a plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sealed: String,
}

/// The keys of a `ConfigMap` that a container mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigContent {
    /// Name of the `ConfigMap`.
    pub name: String,
    /// The version of the `ConfigMap`: `UID/RESOURCE_VERSION`.
    pub version: String,
    /// The values that are text, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Other values by key, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
}

/// The public key to which the secrets of a node are sealed (X25519). In messages it is base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SealPublicKey([u8; 32]);

/// The text is not a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a public seal key must be 32 bytes in base64")]
pub struct SealPublicKeyError;

impl SealPublicKey {
    /// Returns the key with these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the name of the key in messages.
    pub fn id(&self) -> SealKeyId {
        SealKeyId(format!("sha256:{:x}", HexBytes(&Sha256::digest(self.0))))
    }
}

struct HexBytes<'a>(&'a [u8]);

impl fmt::LowerHex for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SealPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl FromStr for SealPublicKey {
    type Err = SealPublicKeyError;

    fn from_str(text: &str) -> Result<Self, SealPublicKeyError> {
        let bytes = STANDARD.decode(text).map_err(|_| SealPublicKeyError)?;
        bytes.try_into().map(Self).map_err(|_| SealPublicKeyError)
    }
}

impl TryFrom<String> for SealPublicKey {
    type Error = SealPublicKeyError;

    fn try_from(text: String) -> Result<Self, SealPublicKeyError> {
        text.parse()
    }
}

impl From<SealPublicKey> for String {
    fn from(key: SealPublicKey) -> Self {
        key.to_string()
    }
}

/// The SHA-256 of the 32 bytes of a [`SealPublicKey`]: `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SealKeyId(pub String);

impl fmt::Display for SealKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The seal key of a node, signed by the key that the controller trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealKeyReport {
    /// The key to which secrets of the node are sealed.
    pub public_key: SealPublicKey,
    /// The public key whose digest is the pin of the node: its `SubjectPublicKeyInfo` in base64.
    pub tls_key: String,
    /// The signature of [`SealKeyReport::statement`] by `tls_key` in base64: ECDSA on P-256 with
    /// SHA-256, in ASN.1.
    pub signature: String,
}

impl SealKeyReport {
    /// Returns the bytes that the node signs.
    pub fn statement(node: &NodeName, key: &SealPublicKey) -> Vec<u8> {
        [b"neptune/seal-key/v1\0", node.as_str().as_bytes(), b"\0", key.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn public_keys_are_base64_and_named_by_their_digest() {
        let key = SealPublicKey::new([7; 32]);
        let text = serde_json::to_value(key).unwrap();
        assert_eq!(text, json!("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="));
        assert_eq!(serde_json::from_value::<SealPublicKey>(text).unwrap(), key);
        assert_eq!(
            key.id().0,
            "sha256:4bb06f8e4e3a7715d201d573d0aa423762e55dabd61a2c02278fa56cc6d294e0"
        );
        for wrong in ["", "BwcH", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw==", "%"] {
            assert_eq!(wrong.parse::<SealPublicKey>(), Err(SealPublicKeyError), "{wrong}");
        }
        let statement = SealKeyReport::statement(&"edge0".parse().unwrap(), &key);
        assert_eq!(statement, [b"neptune/seal-key/v1\0edge0\0".as_slice(), &[7; 32]].concat());
    }
}
