//! The clients of a gateway: their keys, their limits, and what is wrong with a list of them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::is_default;

/// The most clients of a gateway.
pub const MAX_CLIENTS: usize = 64;
/// The most keys of a client: the present ones, and those of a rotation.
pub const MAX_KEYS: usize = 4;
/// The most models of a client, and the length of their names in bytes.
pub const MAX_MODELS: (usize, usize) = (32, 253);
/// The greatest value of [`Client::requests_per_minute`].
pub const MAX_REQUESTS_PER_MINUTE: u32 = 1_000_000;
/// The length of a name in bytes.
const MAX_NAME: usize = 63;

/// A client of the gateway, which shows one of its keys with each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    /// Name of the client in metrics and in the status: 1 to 63 lower case letters, digits and `-`.
    pub name: String,
    /// SHA-256 of each key of the client, as 64 lower case hexadecimal digits: 1 to 4.
    pub key_sha256: Vec<String>,
    /// Maximum number of requests in any 60 seconds, 1 to 1000000. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Whether the cloud may answer samples of the client. Defaults to `Allow`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uploads: Uploads,
    /// Names of the models that the client may use, at most 32. Without names: all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub models: Vec<String>,
}

/// Whether the cloud may answer samples of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Uploads {
    /// Hard samples go to the cloud.
    #[default]
    Allow,
    /// All samples stay at the edge.
    Never,
}

impl Client {
    /// The SHA-256 of each key; those that are none are left out, which a check refuses.
    pub fn digests(&self) -> impl Iterator<Item = [u8; 32]> {
        self.key_sha256.iter().filter_map(|text| digest(text))
    }

    /// Whether the client may use a model.
    pub fn may_use(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|name| name == model)
    }
}

/// What is wrong with a list of clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientsError {
    /// The list is too long.
    #[error("clients has {0} entries; a gateway has at most {MAX_CLIENTS}")]
    TooMany(usize),
    /// A name is not valid.
    #[error(
        "clients: name {0:?} has to be 1 to {MAX_NAME} lower case letters, digits and '-', with a letter or digit at both ends"
    )]
    Name(String),
    /// Two clients have the same name.
    #[error("clients: duplicate name {0:?}; remove one, or give both keys to one client")]
    SameName(String),
    /// A client has no keys, or too many.
    #[error("client {name:?}: keySha256 has {keys} entries; give 1 to {MAX_KEYS}")]
    Keys {
        /// Name of the client.
        name: String,
        /// Number of its keys.
        keys: usize,
    },
    /// The SHA-256 of a key is none.
    #[error(
        "client {name:?}: keySha256 {text:?} is not 64 lower case hexadecimal digits; use the line that `neptune-cloud client-key {name}` prints"
    )]
    Key {
        /// Name of the client.
        name: String,
        /// The text instead of a digest; never a key, which is replaced.
        text: String,
    },
    /// Two clients, or one client twice, have the same key.
    #[error(
        "clients {first:?} and {second:?} have the same keySha256 {start}...; give each client a key of its own"
    )]
    SameKey {
        /// Name of the first client.
        first: String,
        /// Name of the second client.
        second: String,
        /// The beginning of the digest.
        start: String,
    },
    /// The rate is 0 or too high.
    #[error("client {name:?}: requestsPerMinute {value} has to be 1 to {MAX_REQUESTS_PER_MINUTE}")]
    Rate {
        /// Name of the client.
        name: String,
        /// The rate as given.
        value: u32,
    },
    /// The names of models are too many, or one is empty or too long.
    #[error("client {name:?}: models has to be at most {} names of 1 to {} bytes", MAX_MODELS.0, MAX_MODELS.1)]
    Models {
        /// Name of the client.
        name: String,
    },
}

/// Checks the clients of a gateway. The controller and the gateway use this one function.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_clients(clients: &[Client]) -> Result<(), ClientsError> {
    if clients.len() > MAX_CLIENTS {
        return Err(ClientsError::TooMany(clients.len()));
    }
    let mut owners: BTreeMap<[u8; 32], &str> = BTreeMap::new();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for client in clients {
        let name = || client.name.clone();
        if !is_name(&client.name) {
            return Err(ClientsError::Name(name()));
        }
        if !names.insert(&client.name) {
            return Err(ClientsError::SameName(name()));
        }
        check_keys(client, &mut owners)?;
        match client.requests_per_minute {
            Some(value) if !(1..=MAX_REQUESTS_PER_MINUTE).contains(&value) => {
                return Err(ClientsError::Rate { name: name(), value });
            }
            _ => {}
        }
        let (most, longest) = MAX_MODELS;
        let is_model = |model: &String| (1..=longest).contains(&model.len());
        if client.models.len() > most || !client.models.iter().all(is_model) {
            return Err(ClientsError::Models { name: name() });
        }
    }
    Ok(())
}

fn check_keys<'a>(
    client: &'a Client,
    owners: &mut BTreeMap<[u8; 32], &'a str>,
) -> Result<(), ClientsError> {
    let keys = client.key_sha256.len();
    if !(1..=MAX_KEYS).contains(&keys) {
        return Err(ClientsError::Keys { name: client.name.clone(), keys });
    }
    for text in &client.key_sha256 {
        let Some(digest) = digest(text) else {
            // A key in the place of its digest stays out of messages.
            let is_key = text.starts_with(KEY_PREFIX);
            let text = if is_key { "npk_..." } else { text };
            let text = text.chars().take(64).collect();
            return Err(ClientsError::Key { name: client.name.clone(), text });
        };
        if let Some(first) = owners.insert(digest, &client.name) {
            return Err(ClientsError::SameKey {
                first: first.to_owned(),
                second: client.name.clone(),
                start: text.chars().take(8).collect(),
            });
        }
    }
    Ok(())
}

/// The beginning of the keys that `neptune-cloud client-key` makes.
pub const KEY_PREFIX: &str = "npk_";

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = (name.bytes().next(), name.bytes().next_back());
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && ends.0.is_some_and(is_plain)
        && ends.1.is_some_and(is_plain)
}

/// The text of a SHA-256 in [`Client::key_sha256`].
pub fn digest_text(digest: [u8; 32]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    digest.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes of 64 lower case hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? * 16 + value(pair[1])?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn list(clients: &Value) -> Vec<Client> {
        serde_json::from_value(clients.clone()).unwrap()
    }

    fn key(number: usize) -> String {
        format!("{number:064x}")
    }

    #[test]
    fn full_list_with_all_fields_is_valid() {
        let clients: Vec<Value> = (0..MAX_CLIENTS)
            .map(|number| {
                json!({
                    "name": format!("c-{number}"), "requestsPerMinute": 600, "uploads": "Never",
                    "keySha256": (0..MAX_KEYS).map(|k| key(number * 4 + k)).collect::<Vec<_>>(),
                    "models": (0..MAX_MODELS.0).map(|m| format!("m{m}")).collect::<Vec<_>>(),
                })
            })
            .collect();
        let clients = list(&json!(clients));
        assert_eq!(check_clients(&clients), Ok(()));
        assert_eq!(clients[1].digests().count(), MAX_KEYS);
        assert_eq!(check_clients(&[]), Ok(()));
    }

    #[test]
    fn each_mistake_names_the_client_and_the_remedy() {
        let client = |name: &str, keys: Value| json!({"name": name, "keySha256": keys});
        let with = |field: &str, value: Value| {
            let mut client = client("a", json!([key(1)]));
            client[field] = value;
            json!([client])
        };
        let many: Vec<Value> = (0..65).map(|n| client(&format!("c{n}"), json!([key(n)]))).collect();
        for (clients, message) in [
            (json!(many), "clients has 65 entries; a gateway has at most 64"),
            (json!([client("A", json!([key(1)]))]), "name \"A\" has to be 1 to 63 lower case"),
            (json!([client("-a", json!([key(1)]))]), "with a letter or digit at both ends"),
            (json!([client("", json!([key(1)]))]), "name \"\""),
            (
                json!([client("a", json!([key(1)])), client("a", json!([key(2)]))]),
                "duplicate name \"a\"",
            ),
            (
                json!([client("a", json!([key(1)])), client("b", json!([key(2), key(1)]))]),
                "clients \"a\" and \"b\" have the same keySha256 00000000...",
            ),
            (
                json!([client("a", json!([key(1), key(1)]))]),
                "clients \"a\" and \"a\" have the same keySha256",
            ),
            (json!([client("a", json!([]))]), "keySha256 has 0 entries; give 1 to 4"),
            (
                json!([client("a", json!([key(1), key(2), key(3), key(4), key(5)]))]),
                "keySha256 has 5 entries; give 1 to 4",
            ),
            (json!([client("a", json!([key(10).to_uppercase()]))]), "is not 64 lower case hexa"),
            (json!([client("a", json!(["npk_secret"]))]), "keySha256 \"npk_...\" is not 64"),
            (with("requestsPerMinute", json!(0)), "requestsPerMinute 0 has to be 1 to 1000000"),
            (with("models", json!([""])), "client \"a\": models has to be at most 32 names"),
            (with("models", json!(vec!["m"; 33])), "models has to be at most 32 names"),
        ] {
            let error = check_clients(&list(&clients)).unwrap_err().to_string();
            assert!(error.contains(message), "{message}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn models_of_a_client_are_names_as_they_are() {
        let clients = list(&json!([{"name": "a", "keySha256": [key(1)], "models": ["m"]}]));
        assert!(clients[0].may_use("m"));
        assert!(!clients[0].may_use("M") && !clients[0].may_use("") && !clients[0].may_use("m2"));
        let all = list(&json!([{"name": "a", "keySha256": [key(1)]}]));
        assert!(all[0].may_use("m2"));
    }

    proptest! {
        #[test]
        fn only_the_text_of_a_digest_is_one(digest_bytes in any::<[u8; 32]>(), text in ".{0,70}") {
            prop_assert_eq!(digest(&digest_text(digest_bytes)), Some(digest_bytes));
            if let Some(bytes) = digest(&text) {
                prop_assert_eq!(digest_text(bytes), text);
            }
        }
    }
}
