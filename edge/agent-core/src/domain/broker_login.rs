//! A worker's login at the embedded broker. The password exists only in the environment of the
//! worker's container; a label of the container has its digest.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

/// Label of a container with the digest of its worker's password.
pub const PASSWORD_DIGEST: &str = "io.neptune.mqtt-password-sha256";

/// The login of a worker's next container at the embedded broker.
pub struct BrokerLogin {
    /// URL of the broker for the variable `MQTT_URL`, with user and password.
    pub mqtt_url: String,
    pub digest: PasswordDigest,
}

/// The SHA-256 digest of a password. Displayed as 64 lower-case hex digits.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct PasswordDigest([u8; 32]);

impl PasswordDigest {
    pub fn compute(password: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(password).into())
    }
}

impl PartialEq for PasswordDigest {
    /// Takes the same time wherever the digests differ.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

impl fmt::Display for PasswordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PasswordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordDigest({self})")
    }
}

impl FromStr for PasswordDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidDigest);
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidDigest)?;
        }
        Ok(Self(bytes))
    }
}

/// The text is not 64 hex digits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest must be 64 hex digits")]
pub struct InvalidDigest;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips_as_text() {
        let digest = PasswordDigest::compute("abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert_ne!(digest, PasswordDigest::compute("abd"));
        for invalid in ["", "ba78", &text[1..], &format!("{}xy", &text[2..])] {
            assert_eq!(invalid.parse::<PasswordDigest>(), Err(InvalidDigest), "{invalid:?}");
        }
    }
}
