//! Which tokens in the path of the receiver are valid now. Pure; `secret` reads the key.
//!
//! cloudcore logs the URLs of Rules. So each node has a token of its own, the HMAC of its name: who
//! reads one can speak as that node, and learns neither the key nor another node's token.

use std::time::Instant;

use neptune_wire::NodeName;

use crate::token_key::{RotatingKey, TokenKey};

/// The keys whose tokens are valid.
#[derive(Debug, Clone)]
pub struct Tokens(Option<RotatingKey>);

impl Tokens {
    /// Requires tokens of this key, or none.
    pub fn new(current: Option<TokenKey>) -> Self {
        Self(current.map(RotatingKey::new))
    }

    /// The key of the tokens in the Rules' URLs.
    pub fn current(&self) -> Option<&TokenKey> {
        self.0.as_ref().map(RotatingKey::current)
    }

    /// Replaces the key. Returns whether it differs from the current one.
    pub fn replace(&mut self, key: TokenKey, now: Instant) -> bool {
        if let Some(keys) = &mut self.0 {
            return keys.replace(key, now);
        }
        self.0 = Some(RotatingKey::new(key));
        true
    }

    /// Whether this path segment after the node, or its absence, is valid.
    pub fn admit(&self, node: &NodeName, given: Option<&str>, now: Instant) -> bool {
        match (&self.0, given) {
            (None, given) => given.is_none(),
            (Some(_), None) => false,
            (Some(keys), Some(given)) => keys.admits(given, now, |key| key.node_token(node)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use super::*;
    use crate::token_key::GRACE;

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn token_is_valid_for_one_node_and_does_not_contain_the_key() {
        let (key, now) = ("0123456789abcdef", Instant::now());
        let token = key.parse::<TokenKey>().unwrap().node_token(&node("edge0"));
        let tokens = Tokens::new(Some(key.parse().unwrap()));
        assert!(tokens.admit(&node("edge0"), Some(&token), now));
        assert!(!tokens.admit(&node("edge1"), Some(&token), now));
        assert!(!tokens.admit(&node("edge0"), Some(key), now), "the key itself is no token");
        assert!(token.len() == 64 && !token.contains(key));
        // printf neptune-upstream-node:edge0 | openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(token, "f0d6c92c84c736c3dbaa725567e5b60e7b0d6474657febda6dc24c49d35e38f9");
    }

    #[test]
    fn current_token_is_accepted_and_the_former_for_a_while() {
        let now = Instant::now();
        let [old, new]: [TokenKey; 2] =
            ["old-old-old-old-old", "new-new-new-new-new"].map(|key| key.parse().unwrap());
        let tokens_of = [&old, &new].map(|key| key.node_token(&node("edge0")));
        let mut tokens = Tokens::new(Some(old.clone()));
        let admitted = |tokens: &Tokens, now| {
            [None, Some(&*tokens_of[0]), Some(&*tokens_of[1]), Some("")]
                .map(|given| tokens.admit(&node("edge0"), given, now))
        };
        assert_eq!(admitted(&tokens, now), [false, true, false, false]);
        assert!(!tokens.replace(old, now));
        assert!(tokens.replace(new, now));
        assert_eq!(admitted(&tokens, now), [false, true, true, false]);
        assert_eq!(admitted(&tokens, now + GRACE), [false, false, true, false]);
    }

    #[test]
    fn request_with_a_token_is_rejected_if_none_is_configured() {
        let tokens = Tokens::new(None);
        assert!(tokens.admit(&node("edge0"), None, Instant::now()));
        assert!(!tokens.admit(&node("edge0"), Some("anything-at-all-here"), Instant::now()));
    }
}
