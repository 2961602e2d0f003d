//! One version of a model server: its identity, its directory, its health check path, and whether a
//! running server loads it without a restart. Which version runs is decided in
//! `model_server/rollout`.

use std::path::{Path, PathBuf};

use neptune_wire::{
    ContainerProgram, ContentHash, ModelServer, SealKeyId, ServedModel, ServerUpdateMode,
};
use serde::{Deserialize, Serialize};

use crate::domain::{
    node_program::NodeProgram,
    server_part::{ServerPart, Slot},
};

/// Placeholder for the version in arguments and health check paths.
const VERSION: &str = "{version}";
/// Placeholder for the path of the version's one file in arguments.
const FILE: &str = "{file}";
/// Directory below the data directory with one directory per object whose server watches versions.
pub const VERSIONS_DIR: &str = "serving";

/// A model server with one version of its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    pub serving: ModelServer,
    /// The number of its version directory. Versions in the same directory share a container.
    #[serde(rename = "lineage")]
    pub directory_generation: u64,
    /// The place of its transformer.
    #[serde(default, skip_serializing_if = "Slot::is_first")]
    pub slot: Slot,
    /// The ID of `serving`, as [`id`] computes it.
    id: String,
}

impl ServedVersion {
    /// Creates the version of a server's spec. A switch that is on hold and a restart give the same
    /// version.
    pub fn new(serving: &ModelServer, directory_generation: u64) -> Self {
        let serving = identifying(serving);
        Self { id: id(&serving), serving, directory_generation, slot: Slot::First }
    }

    /// The version with its transformer in this place.
    #[must_use]
    pub fn in_slot(self, slot: Slot) -> Self {
        Self { slot, ..self }
    }

    /// Identifies the version: the hash of everything that defines the server and its model. Values of
    /// Secrets and `ConfigMap`s are no part of it: the same version gets new ones.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Replaces the values of Secrets and `ConfigMap`s by those of the same version.
    pub fn take_values(&mut self, program: &ContainerProgram) {
        let own = &mut self.serving.program;
        *own = with_values_of(own, program);
    }

    /// Returns the program of the server, for the object with this UID.
    pub fn node_program<'a>(&'a self, uid: &'a str) -> NodeProgram<'a> {
        node_program(&self.serving, uid)
    }

    /// The version for users: that of the model, or the image that contains the model.
    pub fn version(&self) -> &str {
        version(&self.serving)
    }

    /// The version as a number, by which servers rank several versions.
    pub fn number(&self) -> Option<u64> {
        self.version().parse().ok()
    }

    /// Whether its health check path identifies the version.
    pub fn has_own_health_path(&self) -> bool {
        self.serving.health.http_path.as_ref().is_some_and(|path| path.contains(VERSION))
    }

    /// Whether its server loads other versions while it runs. A server with the version in its
    /// arguments does not.
    pub fn watches(&self) -> bool {
        watched_model(&self.serving).is_some()
    }

    /// The directory on the node that its server watches.
    pub fn versions_dir(&self, uid: &str, data_dir: &Path) -> PathBuf {
        versions_dir(uid, data_dir).join(self.directory_generation.to_string())
    }

    /// The path of its health check.
    pub fn health_path(&self) -> Option<String> {
        self.serving.health.http_path.as_ref().map(|path| self.fill(path))
    }

    /// The health checks of the server and of its transformer, in the order of the requests: the
    /// part, its port and its path. The proxy is checked if it passes requests to this transformer.
    pub fn checks(&self, is_routed: bool) -> Vec<(ServerPart, u16, Option<String>)> {
        let mut checks = vec![(ServerPart::Server, self.server_port(), self.health_path())];
        if let (Some(transformer), Some(port)) = (&self.serving.transformer, self.listen_port()) {
            let path = transformer.health_path.as_ref().map(|path| self.fill(path));
            checks.push((ServerPart::Transformer(self.slot), port, path.clone()));
            if transformer.proxy.is_some() && is_routed {
                checks.push((ServerPart::Proxy, self.serving.port, path));
            }
        }
        checks
    }

    /// The port on which its transformer listens, if it has one.
    pub fn listen_port(&self) -> Option<u16> {
        let proxy = self.serving.transformer.as_ref()?.proxy.as_ref();
        Some(proxy.map_or(self.serving.port, |proxy| self.slot.select(proxy.ports)))
    }

    /// The port of the server: that of the endpoint, unless a transformer listens there.
    pub fn server_port(&self) -> u16 {
        server_port(&self.serving)
    }

    /// Replaces the placeholder in an argument or a path by the version.
    pub fn fill(&self, text: &str) -> String {
        match &self.serving.model {
            Some(model) => text.replace(VERSION, &model.version),
            None => text.to_owned(),
        }
    }

    /// Replaces the placeholders in an argument by the version and the path of its file in the
    /// container.
    pub fn fill_argument(&self, text: &str, file: Option<&str>) -> String {
        self.fill(text).replace(FILE, file.unwrap_or_default())
    }
}

/// The directory of all version directories of an object.
pub fn versions_dir(uid: &str, data_dir: &Path) -> PathBuf {
    data_dir.join(VERSIONS_DIR).join(uid)
}

/// Computes [`ServedVersion::id`] of a specification. A switch on hold does not change the ID.
pub fn id(serving: &ModelServer) -> String {
    let mut identifying = identifying(serving);
    let program = &identifying.program;
    identifying.program = with_values_of(program, &ContainerProgram::default());
    ContentHash::compute(&identifying).to_string()
}

/// Identifies what a trial of a specification tries: the version with its values of Secrets and
/// `ConfigMap`s. A version that failed may succeed with others. The ciphertexts and their key are no
/// part of it: they differ each time that the same values are sealed.
pub fn trial_id(serving: &ModelServer) -> String {
    let mut tried = identifying(serving);
    for secret in &mut tried.program.secrets {
        secret.sealed.clear();
        secret.seal_key = SealKeyId(String::new());
    }
    ContentHash::compute(&tried).to_string()
}

/// A program with the values of Secrets and `ConfigMap`s of another one.
pub fn with_values_of(program: &ContainerProgram, other: &ContainerProgram) -> ContainerProgram {
    ContainerProgram {
        secrets: other.secrets.clone(),
        configs: other.configs.clone(),
        ..program.clone()
    }
}

/// The program of a server, for the object with this UID.
pub fn node_program<'a>(serving: &'a ModelServer, uid: &'a str) -> NodeProgram<'a> {
    NodeProgram { uid, name: &serving.name, program: &serving.program }
}

/// The part of a specification that makes another version of a server. Another mirror does not: the
/// content is the same.
fn identifying(serving: &ModelServer) -> ModelServer {
    let mut identifying = ModelServer { hold: false, restarted_at: None, ..serving.clone() };
    identifying.model.iter_mut().for_each(|model| model.mirrors.clear());
    identifying
}

/// Returns [`ServedVersion::server_port`] of a specification.
pub fn server_port(serving: &ModelServer) -> u16 {
    serving.transformer.as_ref().map_or(serving.port, |transformer| transformer.server_port)
}

/// Computes [`id`] without the transformer, which shares a container of the server with others.
pub fn server_id(serving: &ModelServer) -> String {
    id(&ModelServer { transformer: None, ..serving.clone() })
}

/// Returns [`ServedVersion::version`] of a specification.
pub fn version(serving: &ModelServer) -> &str {
    serving.model.as_ref().map_or(&serving.program.image, |model| &model.version)
}

/// The model whose versions the server loads from a watched directory, if it watches one.
pub fn watched_model(serving: &ModelServer) -> Option<&ServedModel> {
    let has_version =
        serving.program.args.iter().any(|arg| arg.contains(VERSION) || arg.contains(FILE));
    serving.model.as_ref().filter(|_| serving.reload == ServerUpdateMode::Watch && !has_version)
}

/// Whether the name is safe as a directory name.
pub fn is_plain_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// The images of a server, of its transformer and of the proxy.
pub fn images_of(serving: &ModelServer) -> impl Iterator<Item = &String> {
    let transformer = serving.transformer.iter().flat_map(|transformer| {
        [&transformer.program.image]
            .into_iter()
            .chain(transformer.proxy.iter().map(|proxy| &proxy.image))
    });
    [&serving.program.image].into_iter().chain(transformer)
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::fixtures::{proxied, serving, transformed};

    #[test]
    fn server_with_the_file_in_its_arguments_is_replaced() {
        let mut server = serving("4", "watch");
        server.program.args = vec!["--model={file}".to_owned(), "{version}".to_owned()];
        assert!(watched_model(&server).is_none());
        let version = ServedVersion::new(&server, 1);
        let fill = |text| version.fill_argument(text, Some("/models/m/4/m.gguf"));
        assert_eq!(fill("--model={file}"), "--model=/models/m/4/m.gguf");
        assert_eq!(fill("{version}"), "4");
        server.program.args.clear();
        assert!(watched_model(&server).is_some());
    }

    #[test]
    fn transformer_changes_the_version_id_and_not_that_of_the_server() {
        let (plain, transformed) = (serving("4", "watch"), transformed("4", "watch"));
        assert_ne!(id(&plain), id(&transformed));
        assert_eq!(server_id(&plain), server_id(&transformed));
        assert_eq!(server_id(&plain), id(&plain), "as agents without transformers stored it");
        let version = ServedVersion::new(&transformed, 1);
        let check = |part, port, path: &str| (part, port, Some(path.to_owned()));
        let first = ServerPart::Transformer(Slot::First);
        let expected = [check(ServerPart::Server, 13_501, "/v/4"), check(first, 8501, "/ready")];
        assert_eq!(version.checks(true), expected);
        let version = ServedVersion::new(&plain, 1);
        assert_eq!(version.checks(true), [check(ServerPart::Server, 8501, "/v/4")]);
    }

    #[test]
    fn proxy_is_checked_once_requests_reach_the_transformer() {
        let mut version = ServedVersion::new(&proxied("t", "4", "watch"), 1);
        version.slot = Slot::Second;
        let ports = |is_routed| version.checks(is_routed).into_iter().map(|it| it.1);
        assert_eq!(ports(false).collect::<Vec<_>>(), [13_501, 13_503]);
        assert_eq!(ports(true).collect::<Vec<_>>(), [13_501, 13_503, 8501]);
    }

    #[test]
    fn another_mirror_is_no_other_version() {
        let plain = serving("4", "watch");
        let mut mirrored = plain.clone();
        mirrored.model.as_mut().unwrap().mirrors = vec!["https://mirror/m".to_owned()];
        assert_ne!(mirrored, plain);
        assert_eq!((id(&mirrored), trial_id(&mirrored)), (id(&plain), trial_id(&plain)));
        assert_eq!(ServedVersion::new(&mirrored, 1), ServedVersion::new(&plain, 1));
    }

    #[test]
    fn values_are_part_of_a_trial_and_not_of_a_version() {
        let secret = |version: &str, key: &str| {
            let mut server = serving("4", "watch");
            let secret = json!([{"name": "s", "version": version, "sealKey": key, "sealed": key}]);
            server.program.secrets = serde_json::from_value(secret).unwrap();
            server
        };
        let (first, next, again) = (secret("1", "a"), secret("2", "a"), secret("1", "b"));
        let plain = serving("4", "watch");
        assert_eq!((id(&first), id(&first)), (id(&next), id(&plain)));
        assert_eq!(server_id(&first), server_id(&next));
        assert_ne!(trial_id(&first), trial_id(&next));
        assert_eq!(trial_id(&first), trial_id(&again), "sealed again");
        assert_eq!(trial_id(&plain), id(&plain), "as earlier agents stored it");
        let mut config = plain.clone();
        let content = json!([{"name": "c", "version": "1"}]);
        config.program.configs = serde_json::from_value(content).unwrap();
        assert_eq!(id(&config), id(&plain));
        assert_ne!(trial_id(&config), trial_id(&plain));
        let mut version = ServedVersion::new(&first, 1);
        version.take_values(&next.program);
        assert_eq!((&version.serving.program, version.id()), (&next.program, &*id(&first)));
    }

    #[test]
    fn held_switch_keeps_the_version_id() {
        let restarted_at = Some("2026-11-24T06:00:00.000Z".parse().unwrap());
        let held = ModelServer { hold: true, restarted_at, ..serving("4", "watch") };
        assert_eq!(id(&held), id(&serving("4", "watch")));
        assert_ne!(id(&serving("3", "watch")), id(&serving("4", "watch")));
    }
}
