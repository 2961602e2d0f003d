//! One version of a model server: its identity, its health path and its directory of versions.

use std::path::{Path, PathBuf};

use neptune_wire::{ContentHash, ModelServer, ServedModel, ServerUpdateMode};
use serde::{Deserialize, Serialize};

/// Stands in arguments and health paths for the version.
const VERSION: &str = "{version}";
/// Below the data directory, a directory for each object that has a server which watches one.
pub const VERSIONS_DIR: &str = "serving";

/// A model server with one version of its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    pub serving: ModelServer,
    /// Which directory of versions it is in. Editions that share one share a container.
    #[serde(rename = "lineage")]
    pub directory_generation: u64,
    /// As [`id`] of `serving`.
    id: String,
}

impl ServedVersion {
    /// The server as it is wanted now, whether or not a switch is held.
    pub fn new(serving: &ModelServer, directory_generation: u64) -> Self {
        let serving = ModelServer { hold: false, ..serving.clone() };
        Self { id: id(&serving), serving, directory_generation }
    }

    /// Tells it from every other: all that makes another server or another model.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The version for people: of the model, or the image that brings it.
    pub fn version(&self) -> &str {
        version(&self.serving)
    }

    /// The version as a number, by which servers that have several rank them.
    pub fn number(&self) -> Option<u64> {
        self.version().parse().ok()
    }

    /// Whether its health check is of this version alone.
    pub fn has_own_health_path(&self) -> bool {
        self.serving.health.http_path.as_ref().is_some_and(|path| path.contains(VERSION))
    }

    /// Whether its server takes other versions while it runs. What names the version in its
    /// arguments does not.
    pub fn watches(&self) -> bool {
        watched_model(&self.serving).is_some()
    }

    /// The directory of the node that its server watches.
    pub fn versions_dir(&self, uid: &str, data_dir: &Path) -> PathBuf {
        versions_dir(uid, data_dir).join(self.directory_generation.to_string())
    }

    /// The path of its health check.
    pub fn health_path(&self) -> Option<String> {
        self.serving.health.http_path.as_ref().map(|path| self.fill(path))
    }

    pub fn fill(&self, text: &str) -> String {
        match &self.serving.model {
            Some(model) => text.replace(VERSION, &model.version),
            None => text.to_owned(),
        }
    }
}

/// The directory of all that an object's servers watch.
pub fn versions_dir(uid: &str, data_dir: &Path) -> PathBuf {
    data_dir.join(VERSIONS_DIR).join(uid)
}

/// As [`ServedVersion::id`]: holding makes no other edition.
pub fn id(serving: &ModelServer) -> String {
    ContentHash::of(&ModelServer { hold: false, ..serving.clone() }).to_string()
}

/// As [`ServedVersion::version`].
pub fn version(serving: &ModelServer) -> &str {
    serving.model.as_ref().map_or(&serving.image, |model| &model.version)
}

pub fn watched_model(serving: &ModelServer) -> Option<&ServedModel> {
    let names_it = serving.args.iter().any(|arg| arg.contains(VERSION));
    serving.model.as_ref().filter(|_| serving.reload == ServerUpdateMode::Watch && !names_it)
}

/// Whether this can name a directory.
pub fn is_plain_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(known)
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fixtures::serving;

    #[test]
    fn hold_does_not_change_the_version_id() {
        let on_hold = ModelServer { hold: true, ..serving("4", "watch") };
        assert_eq!(id(&on_hold), id(&serving("4", "watch")));
        assert_ne!(id(&serving("3", "watch")), id(&serving("4", "watch")));
    }
}
