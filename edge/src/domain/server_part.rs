//! The programs behind an endpoint: a model server and, if it has one, its transformer.

use neptune_wire::WorkerName;

/// Suffix of the name of a transformer.
const TRANSFORMER: &str = "-transformer";
/// Maximum length of a worker's name.
const MAX_NAME_LENGTH: usize = 63;

/// The programs behind an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPart {
    Server,
    Transformer,
}

/// The name of the transformer before a model server. The end of the server's name, which has the
/// hash, is kept.
pub fn transformer_name(server: &WorkerName) -> WorkerName {
    let server = server.as_str();
    let excess = (server.len() + TRANSFORMER.len()).saturating_sub(MAX_NAME_LENGTH);
    let name = format!("{}{TRANSFORMER}", server[excess..].trim_start_matches('-'));
    name.parse().expect("the end of a worker's name and a suffix are a worker's name")
}

/// A failed health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFailure {
    pub part: ServerPart,
    /// The request and what is wrong.
    pub message: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn transformer_is_named_after_its_server() {
        let name = |server: &str| transformer_name(&server.parse().unwrap()).to_string();
        assert_eq!(name("m-serving-00c0ffee"), "m-serving-00c0ffee-transformer");
        let long = name(&format!("{}-serving-00c0ffee", "m".repeat(46)));
        assert!(long.len() == 63 && long.ends_with("-serving-00c0ffee-transformer"), "{long}");
        assert!(name(&format!("{}-{}", "m".repeat(11), "c".repeat(51))).starts_with('c'));
    }
}
