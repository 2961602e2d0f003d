//! The secret in the path of the receiver: what it may look like, which ones hold now. Pure; reading its file
//! is `secret`'s.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

/// How long the former one is taken yet: until then every Rule has been made anew, and what was on the way
/// has come.
const GRACE: Duration = Duration::from_secs(600);

/// Letters, digits, '-' and '_': it stands in URLs as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Whoever posts has to know one of these.
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
            return Err("give 16 to 256 characters, as of `openssl rand -hex 32`");
        }
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return Err("only letters, digits, '-' and '_' can stand in a path");
        }
        Ok(Self(text.to_owned()))
    }
}

impl Token {
    /// As it stands in a path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Digests are compared, so the time that it takes tells nothing of the token.
    fn is(&self, given: &str) -> bool {
        Sha256::digest(self.0.as_bytes()) == Sha256::digest(given.as_bytes())
    }
}

impl Tokens {
    /// This one, or that none is asked for.
    pub fn new(current: Option<Token>) -> Self {
        Self { current, former: None }
    }

    /// The one that Rules are made with.
    pub fn current(&self) -> Option<&Token> {
        self.current.as_ref()
    }

    /// Another one from now on. Returns whether it is another.
    pub fn replace(&mut self, token: Token, now: Instant) -> bool {
        if self.current.as_ref() == Some(&token) {
            return false;
        }
        let former = self.current.replace(token);
        self.former = former.map(|former| (former, now + GRACE));
        true
    }

    /// Whether this path segment, or its absence, is right.
    pub fn admit(&self, given: Option<&str>, now: Instant) -> bool {
        match (&self.current, given) {
            (None, given) => given.is_none(),
            (Some(_), None) => false,
            (Some(current), Some(given)) => {
                let former = self.former.as_ref().filter(|(_, until)| now < *until);
                current.is(given) | former.is_some_and(|(former, _)| former.is(given))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_can_stand_in_a_path_and_is_not_short() {
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
    fn without_a_token_none_is_taken() {
        let tokens = Tokens::new(None);
        assert!(tokens.admit(None, Instant::now()));
        assert!(!tokens.admit(Some("anything-at-all-here"), Instant::now()));
    }
}
