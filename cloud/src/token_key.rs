//! The key from which tokens are derived: its format, and the tokens. Only [`TokenKey::read`] does
//! I/O.

use std::{
    fmt::{self, Write as _},
    path::Path,
    str::FromStr,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// What precedes the subject in the HMAC, so that a token of one kind is none of another.
const NODE_CONTEXT: &str = "neptune-upstream-node:";
const WORKER_CONTEXT: &str = "neptune-worker:";

/// A key of letters, digits, '-' and '_'.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey(String);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(...)")
    }
}

impl FromStr for TokenKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if !(16..=256).contains(&text.len()) {
            return Err("must have 16 to 256 characters; create one with `openssl rand -hex 32`");
        }
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return Err("must contain only letters, digits, '-' and '_'");
        }
        Ok(Self(text.to_owned()))
    }
}

impl TokenKey {
    /// Reads the key from the file that `flag` names.
    ///
    /// # Errors
    /// [`Error::TokenFile`]: the file cannot be read, or does not contain a valid key.
    pub fn read(flag: &'static str, path: &Path) -> Result<Self, Error> {
        let error = |why: String| Error::TokenFile { flag, path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|source| error(source.to_string()))?;
        text.parse().map_err(|why: &str| error(why.to_owned()))
    }

    /// The token in the URL of a node's Rule.
    pub fn node_token(&self, node: &NodeName) -> String {
        self.token(NODE_CONTEXT, node.as_str())
    }

    /// The token of the cloud worker of the service with this uid.
    pub fn worker_token(&self, uid: &str) -> String {
        self.token(WORKER_CONTEXT, uid)
    }

    /// 64 hexadecimal digits.
    fn token(&self, context: &str, subject: &str) -> String {
        let hmac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes());
        let mut hmac = hmac.expect("a key of an HMAC may have any length");
        hmac.update(context.as_bytes());
        hmac.update(subject.as_bytes());
        hmac.finalize().into_bytes().iter().fold(String::new(), |mut token, byte| {
            write!(token, "{byte:02x}").expect("a String takes any text");
            token
        })
    }
}

/// Compares digests, so that the duration does not depend on the token.
pub fn is_equal(token: &str, given: &str) -> bool {
    Sha256::digest(token.as_bytes()) == Sha256::digest(given.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn key_is_long_enough_and_printable() {
        assert_eq!("0123456789abcDEF\n".parse::<TokenKey>().unwrap().0, "0123456789abcDEF");
        for wrong in ["", "short", "0123456789abcdef/", "0123456789abc def", &"a".repeat(257)] {
            assert!(wrong.parse::<TokenKey>().is_err(), "{wrong:?}");
        }
        let key: TokenKey = "0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{key:?}"), "TokenKey(...)");
        assert_ne!(key.worker_token("edge0"), key.node_token(&"edge0".parse().unwrap()));
    }
}
