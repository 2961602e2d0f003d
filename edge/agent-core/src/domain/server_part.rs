//! The programs behind an endpoint: a model server and, if it has one, its transformer with the
//! proxy in front of it.

use std::collections::BTreeMap;

use neptune_wire::WorkerName;
use serde::{Deserialize, Serialize};

use crate::domain::observed_container::ObservedContainer;

/// Maximum length of a worker's name in bytes.
const MAX_NAME_LENGTH: usize = 63;

/// The programs behind an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerPart {
    Server,
    Transformer(Slot),
    /// Passes the requests of the endpoint to one of the transformers.
    Proxy,
}

/// The place of a transformer: its container's name, and its port behind the proxy. Two places, so
/// that another transformer starts beside the present one.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum Slot {
    #[default]
    First,
    Second,
}

impl Slot {
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    pub fn is_first(&self) -> bool {
        *self == Self::First
    }

    /// Which of two values is that of this place.
    pub fn select<T>(self, [first, second]: [T; 2]) -> T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }
}

impl ServerPart {
    pub const ALL: [Self; 4] = [
        Self::Server,
        Self::Transformer(Slot::First),
        Self::Transformer(Slot::Second),
        Self::Proxy,
    ];

    fn suffix(self) -> &'static str {
        match self {
            Self::Server => "",
            Self::Transformer(Slot::First) => "-transformer",
            Self::Transformer(Slot::Second) => "-transformer-2",
            Self::Proxy => "-proxy",
        }
    }
}

/// The name of a program of this model server. The end of the server's name, which has the hash, is
/// kept.
pub fn part_name(server: &WorkerName, part: ServerPart) -> WorkerName {
    let (server, suffix) = (server.as_str(), part.suffix());
    let excess = (server.len() + suffix.len()).saturating_sub(MAX_NAME_LENGTH);
    let name = format!("{}{suffix}", server[excess..].trim_start_matches('-'));
    name.parse().expect("the end of a worker's name and a suffix are a worker's name")
}

/// A health check of a model server that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFailure {
    pub part: ServerPart,
    /// The request and what is wrong.
    pub message: String,
}

/// The observed containers of a server, by part.
pub type ObservedServer<'a> = BTreeMap<ServerPart, Vec<&'a ObservedContainer>>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn transformer_and_proxy_are_named_after_their_server() {
        let name = |server: &str, part| part_name(&server.parse().unwrap(), part).to_string();
        let names = ServerPart::ALL.map(|part| name("m-serving-00c0ffee", part));
        let expected = ["", "-transformer", "-transformer-2", "-proxy"];
        assert_eq!(names, expected.map(|suffix| format!("m-serving-00c0ffee{suffix}")));
        let first = ServerPart::Transformer(Slot::First);
        let long = name(&format!("{}-serving-00c0ffee", "m".repeat(46)), first);
        assert!(long.len() == 63 && long.ends_with("-serving-00c0ffee-transformer"), "{long}");
        let cut = name(&format!("{}-{}", "m".repeat(11), "c".repeat(51)), first);
        assert!(cut.starts_with('c'));
        let full = "m".repeat(63);
        assert_eq!(name(&full, ServerPart::Server), full);
    }
}
