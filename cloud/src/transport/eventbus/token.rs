//! The token in the path of the receiver: its format, and which tokens are valid now. Pure;
//! `secret` reads the file.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

/// How long the previous token stays valid: until all Rules are recreated and messages in flight
/// have arrived.
const GRACE: Duration = Duration::from_secs(600);

/// A token of letters, digits, '-' and '_', which need no escaping in a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The valid tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    current: Option<Token>,
    former: Option<(Token, Instant)>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

impl FromStr for Token {
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

impl Token {
    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares digests, so that the duration does not depend on the token.
    fn matches(&self, given: &str) -> bool {
        Sha256::digest(self.0.as_bytes()) == Sha256::digest(given.as_bytes())
    }
}

impl Tokens {
    /// Requires this token, or none.
    pub fn new(current: Option<Token>) -> Self {
        Self { current, former: None }
    }

    /// The token in the Rules' URLs.
    pub fn current(&self) -> Option<&Token> {
        self.current.as_ref()
    }

    /// Replaces the token. Returns whether it differs from the current one.
    pub fn replace(&mut self, token: Token, now: Instant) -> bool {
        if self.current.as_ref() == Some(&token) {
            return false;
        }
        let former = self.current.replace(token);
        self.former = former.map(|former| (former, now + GRACE));
        true
    }

    /// Whether this path segment, or its absence, is valid.
    pub fn admit(&self, given: Option<&str>, now: Instant) -> bool {
        match (&self.current, given) {
            (None, given) => given.is_none(),
            (Some(_), None) => false,
            (Some(current), Some(given)) => {
                let former = self.former.as_ref().filter(|(_, until)| now < *until);
                current.matches(given) | former.is_some_and(|(former, _)| former.matches(given))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use super::*;

    #[test]
    fn token_is_long_enough_and_valid_in_a_path() {
        assert_eq!("0123456789abcDEF\n".parse::<Token>().unwrap().as_str(), "0123456789abcDEF");
        for wrong in ["", "short", "0123456789abcdef/", "0123456789abc def", &"a".repeat(257)] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong:?}");
        }
        let token: Token = "0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token(...)");
    }

    #[test]
    fn current_token_is_accepted_and_the_former_for_a_while() {
        let now = Instant::now();
        let (old, new) = ("old-old-old-old-old", "new-new-new-new-new");
        let mut tokens = Tokens::new(Some(old.parse().unwrap()));
        let admitted = |tokens: &Tokens, now| {
            [None, Some(old), Some(new), Some("")].map(|given| tokens.admit(given, now))
        };
        assert_eq!(admitted(&tokens, now), [false, true, false, false]);
        assert!(!tokens.replace(old.parse().unwrap(), now));
        assert!(tokens.replace(new.parse().unwrap(), now));
        assert_eq!(admitted(&tokens, now), [false, true, true, false]);
        assert_eq!(admitted(&tokens, now + GRACE), [false, false, true, false]);
    }

    #[test]
    fn request_with_a_token_is_rejected_if_none_is_configured() {
        let tokens = Tokens::new(None);
        assert!(tokens.admit(None, Instant::now()));
        assert!(!tokens.admit(Some("anything-at-all-here"), Instant::now()));
    }
}
