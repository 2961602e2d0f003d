//! Which client a request is from, by its key. Pure.

use std::hint::black_box;

use hyper::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest as _, Sha256};

use crate::config::Client;

/// The longest key in bytes. Its length is no secret.
const MAX_KEY: usize = 512;
/// The scheme of a bearer token, in lower case.
const SCHEME: &[u8] = b"bearer ";

/// The digests of the keys of all clients.
#[derive(Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    /// The position of the client in the configuration.
    client: usize,
    digest: [u8; 32],
}

/// Why a request shows no key of a client. The texts have nothing of what was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is no key.
    #[error("the request has no key; send \"Authorization: Bearer\" with the key of your client")]
    Missing,
    /// There are several headers, which other servers may read differently.
    #[error("the request has more than one Authorization; send one")]
    Several,
    /// The header is not of a bearer token.
    #[error("the Authorization is not \"Bearer\" with a key; send the key of your client so")]
    NotBearer,
    /// No client has the key.
    #[error("the key is not that of a client of this gateway; ask its operator for one")]
    Unknown,
}

impl Keys {
    /// The keys of a checked list of clients.
    pub fn new(clients: &[Client]) -> Self {
        let keys = |(client, entry): (usize, &Client)| {
            entry.digests().map(move |digest| Key { client, digest }).collect::<Vec<_>>()
        };
        Self(clients.iter().enumerate().flat_map(keys).collect())
    }

    /// Whether requests need no key.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The position of the client whose key a request shows.
    ///
    /// # Errors
    /// Why there is none.
    pub fn client(&self, headers: &HeaderMap) -> Result<usize, KeyError> {
        let shown = Sha256::digest(bearer(headers)?);
        // Every key is compared as a whole, so that the time shows neither which one is similar nor
        // how similar it is. The digest is that of the key, so its bytes cannot be chosen either.
        let mut matched = None;
        for key in &self.0 {
            let pairs = key.digest.iter().zip(shown.iter());
            let difference = pairs.fold(0, |all, (one, other)| all | (one ^ other));
            matched = if black_box(difference) == 0 { Some(key.client) } else { matched };
        }
        matched.ok_or(KeyError::Unknown)
    }
}

/// The token of the one header `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Result<&[u8], KeyError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(KeyError::Missing)?;
    if values.next().is_some() {
        return Err(KeyError::Several);
    }
    let (scheme, token) =
        value.as_bytes().split_at_checked(SCHEME.len()).ok_or(KeyError::NotBearer)?;
    let token = token.trim_ascii();
    if !scheme.eq_ignore_ascii_case(SCHEME) || token.is_empty() {
        return Err(KeyError::NotBearer);
    }
    if token.len() > MAX_KEY { Err(KeyError::Unknown) } else { Ok(token) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hyper::header::HeaderValue;
    use serde_json::json;

    use super::*;
    use crate::config::digest_text;

    fn digest(key: &str) -> String {
        digest_text(Sha256::digest(key).into())
    }

    fn keys() -> Keys {
        let clients: Vec<Client> = serde_json::from_value(json!([
            {"name": "hall", "keySha256": [digest("npk_a"), digest("npk_b")]},
            {"name": "notebook", "keySha256": [digest("npk_c")]},
        ]))
        .unwrap();
        Keys::new(&clients)
    }

    fn shown(values: &[&str]) -> Result<usize, KeyError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        keys().client(&headers)
    }

    #[test]
    fn each_key_of_a_client_is_that_of_the_client() {
        for (value, client) in [("Bearer npk_a", 0), ("bearer npk_b", 0), ("BEARER  npk_c ", 1)] {
            assert_eq!(shown(&[value]), Ok(client), "{value}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_cause() {
        let long = format!("Bearer {}", "a".repeat(MAX_KEY + 1));
        for (values, error) in [
            (vec![], KeyError::Missing),
            (vec!["Bearer npk_a", "Bearer npk_a"], KeyError::Several),
            (vec!["Bearer npk_a", "Bearer other"], KeyError::Several),
            (vec!["npk_a"], KeyError::NotBearer),
            (vec!["Basic bnBrX2E6"], KeyError::NotBearer),
            (vec!["Bearer"], KeyError::NotBearer),
            (vec!["Bearer  "], KeyError::NotBearer),
            (vec!["Bearer NPK_A"], KeyError::Unknown),
            (vec!["Bearer npk_a2"], KeyError::Unknown),
            (vec!["Bearer npk_a, Bearer npk_a"], KeyError::Unknown),
            (vec![&*long], KeyError::Unknown),
        ] {
            assert_eq!(shown(&values), Err(error), "{values:?}");
        }
        assert_eq!(shown(&[&format!("Bearer {}", digest("npk_a"))]), Err(KeyError::Unknown));
    }

    #[test]
    fn none_of_a_hundred_thousand_random_keys_passes() {
        let keys = keys();
        let mut random = fastrand::Rng::with_seed(95);
        let alphabet = b"abcdefghijklmnopqrstuvwxyz234567";
        for _ in 0..100_000 {
            let key: String =
                (0..32).map(|_| char::from(alphabet[random.usize(..alphabet.len())])).collect();
            let value = HeaderValue::from_str(&format!("Bearer npk_{key}")).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            assert_eq!(keys.client(&headers), Err(KeyError::Unknown), "{key}");
        }
    }
}
