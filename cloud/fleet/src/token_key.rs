//! The key from which tokens are derived: its format, its rotation, and the tokens. Only
//! [`TokenKey::read`] and [`follow`] do I/O.

use std::{
    fmt::{self, Write as _},
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use neptune_wire::NodeName;
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// What precedes the subject in the HMAC, so that a token of one kind is none of another.
const NODE_CONTEXT: &str = "neptune-upstream-node:";
const WORKER_CONTEXT: &str = "neptune-worker:";
const BROKER_CONTEXT: &str = "neptune-worker-broker:";

/// How long tokens of the previous key stay valid: until everything that has one is recreated, and
/// messages in flight have arrived.
pub const GRACE: Duration = Duration::from_secs(600);

/// The interval between two reads of a key's file: a mounted Secret changes without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

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

    /// The password at the broker in the Pod of that cloud worker.
    pub fn broker_password(&self, uid: &str) -> String {
        self.token(BROKER_CONTEXT, uid)
    }

    /// Returns an HMAC of the context and subject, as 64 hexadecimal digits.
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

/// A key, and the previous one while its tokens stay valid.
#[derive(Debug, Clone)]
pub struct RotatingKey {
    current: TokenKey,
    former: Option<(TokenKey, Instant)>,
}

impl RotatingKey {
    /// Makes a key that has no previous one.
    pub fn new(current: TokenKey) -> Self {
        Self { current, former: None }
    }

    /// The key of new tokens.
    pub fn current(&self) -> &TokenKey {
        &self.current
    }

    /// Replaces the key. Returns whether it differs from the current one.
    pub fn replace(&mut self, key: TokenKey, now: Instant) -> bool {
        if self.current == key {
            return false;
        }
        let former = std::mem::replace(&mut self.current, key);
        self.former = Some((former, now + GRACE));
        true
    }

    /// Whether this is the token that a valid key derives.
    pub fn admits(&self, given: &str, now: Instant, token: impl Fn(&TokenKey) -> String) -> bool {
        let former = self.former.as_ref().filter(|(_, until)| now < *until);
        let matches = |key: &TokenKey| is_equal(&token(key), given);
        matches(&self.current) | former.is_some_and(|(former, _)| matches(former))
    }
}

/// Reads the key again whenever its file may have changed, indefinitely. A file that cannot be read
/// is logged once, and the previous key stays valid.
pub async fn follow(flag: &'static str, path: &Path, mut on_key: impl FnMut(TokenKey)) {
    let mut is_invalid = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        match TokenKey::read(flag, path) {
            Ok(key) => {
                is_invalid = false;
                on_key(key);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_invalid, true) {
                    tracing::warn!(%error, "cannot read a key of tokens; keeping the previous one");
                }
            }
        }
    }
}

/// Compares digests, so that the duration does not depend on the token.
fn is_equal(token: &str, given: &str) -> bool {
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
        let node = key.node_token(&"edge0".parse().unwrap());
        assert_ne!(key.worker_token("edge0"), node);
        assert_ne!(key.worker_token("edge0"), key.broker_password("edge0"));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any time serves")]
    fn tokens_of_the_previous_key_stay_valid_for_a_while() {
        let now = Instant::now();
        let [old, new]: [TokenKey; 2] =
            ["old-old-old-old-old", "new-new-new-new-new"].map(|key| key.parse().unwrap());
        let tokens = [&old, &new].map(|key| key.worker_token("uid"));
        let mut keys = RotatingKey::new(old.clone());
        let admitted = |keys: &RotatingKey, now| {
            tokens.each_ref().map(|token| keys.admits(token, now, |key| key.worker_token("uid")))
        };
        assert!(!keys.replace(old, now));
        assert_eq!(admitted(&keys, now), [true, false]);
        assert!(keys.replace(new.clone(), now));
        assert_eq!((keys.current(), admitted(&keys, now)), (&new, [true, true]));
        assert_eq!(admitted(&keys, now + GRACE), [false, true]);
        assert!(!keys.admits(&tokens[1], now, |key| key.worker_token("other")));
    }
}
