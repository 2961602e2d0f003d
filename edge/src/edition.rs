//! Decides what one version of a model server is: whether its spec can work, what its container looks
//! like, where its health is asked, and whether a running server can take it without a restart. Which
//! version is to run is serving.rs's.

use std::path::{Component, Path, PathBuf};

use neptune_wire::{ContentHash, ModelServer, ServedModel, ServerUpdateMode};
use serde::{Deserialize, Serialize};

use crate::container::{ContainerSpec, Mount, Site};

/// Stands in arguments and health paths for the version.
const VERSION: &str = "{version}";
/// Seconds between the request to stop a model server and its kill: a request that it answers takes
/// less, and the next version waits for its port.
const STOP_GRACE: u32 = 1;
/// Below the data directory, a directory for each object that has a server which watches one.
pub const VERSIONS: &str = "serving";

/// A model server with one version of its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edition {
    pub serving: ModelServer,
    /// Which directory of versions it is in. Editions that share one share a container.
    pub lineage: u64,
    /// As [`id`] of `serving`.
    id: String,
}

/// A model that is on the node: where, and the file's name if it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supplied {
    pub path: PathBuf,
    /// None for an unpacked archive.
    pub file: Option<String>,
}

impl Edition {
    /// The server as it is wanted now, whether or not a switch is held.
    pub fn new(serving: &ModelServer, lineage: u64) -> Self {
        let serving = ModelServer { hold: false, ..serving.clone() };
        Self { id: id(&serving), serving, lineage }
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
    pub fn is_told_apart(&self) -> bool {
        self.serving.health.http_path.as_ref().is_some_and(|path| path.contains(VERSION))
    }

    /// Whether its server takes other versions while it runs. What names the version in its arguments does not.
    pub fn watches(&self) -> bool {
        watched(&self.serving).is_some()
    }

    /// The directory of the node that its server watches.
    pub fn versions_dir(&self, uid: &str, data_dir: &Path) -> PathBuf {
        versions_dir(uid, data_dir).join(self.lineage.to_string())
    }

    /// Its container. `model` is there if it has one.
    pub fn container(&self, uid: &str, model: Option<&Supplied>, site: &Site) -> ContainerSpec {
        let ModelServer { image, command, args, env, resources, .. } = &self.serving;
        let mut env = env.clone();
        env.insert("NODE_NAME".to_owned(), site.node.to_string());
        let mut mount = None;
        if let (Some(served), Some(supplied)) = (&self.serving.model, model) {
            let url = if self.watches() {
                let source = self.versions_dir(uid, &site.data_dir);
                mount = Some(Mount { source, target: served.directory.clone() });
                served.directory.clone()
            } else {
                let target = in_container(served, supplied);
                mount = Some(Mount { source: supplied.path.clone(), target: target.clone() });
                target
            };
            env.insert("MODEL_URL".to_owned(), url);
        }
        ContainerSpec {
            uid: uid.to_owned(),
            image: image.clone(),
            command: command.clone(),
            args: args.iter().map(|arg| self.fill(arg)).collect(),
            env,
            scripts: None,
            model: mount,
            dataset: None,
            cpu_millis: resources.cpu_millis.filter(|limit| *limit > 0),
            memory_bytes: resources.memory_bytes.filter(|limit| *limit > 0),
            stop_grace_seconds: Some(STOP_GRACE),
            start: None,
            dns: site.dns.clone(),
        }
    }

    /// The path of its health check.
    pub fn health_path(&self) -> Option<String> {
        self.serving.health.http_path.as_ref().map(|path| self.fill(path))
    }

    fn fill(&self, text: &str) -> String {
        match &self.serving.model {
            Some(model) => text.replace(VERSION, &model.version),
            None => text.to_owned(),
        }
    }
}

/// The directory of all that an object's servers watch.
pub fn versions_dir(uid: &str, data_dir: &Path) -> PathBuf {
    data_dir.join(VERSIONS).join(uid)
}

/// As [`Edition::id`]: holding makes no other edition.
pub fn id(serving: &ModelServer) -> String {
    ContentHash::of(&ModelServer { hold: false, ..serving.clone() }).to_string()
}

/// As [`Edition::version`].
pub fn version(serving: &ModelServer) -> &str {
    serving.model.as_ref().map_or(&serving.image, |model| &model.version)
}

/// Whether a server that runs the one takes the other while it runs.
pub fn can_follow(running: &ModelServer, next: &ModelServer) -> bool {
    let (Some(from), Some(to)) = (watched(running), watched(next)) else { return false };
    let as_running = ModelServer {
        model: running.model.clone(),
        health: running.health.clone(),
        hold: running.hold,
        ..next.clone()
    };
    from.version != to.version && from.directory == to.directory && as_running == *running
}

fn watched(serving: &ModelServer) -> Option<&ServedModel> {
    let names_it = serving.args.iter().any(|arg| arg.contains(VERSION));
    serving.model.as_ref().filter(|_| serving.reload == ServerUpdateMode::Watch && !names_it)
}

/// The version's directory, or the file in it if the model is one plain file.
fn in_container(served: &ServedModel, supplied: &Supplied) -> String {
    let ServedModel { directory, version, .. } = served;
    match &supplied.file {
        Some(file) => format!("{directory}/{version}/{file}"),
        None => format!("{directory}/{version}"),
    }
}

/// Whether this can name a directory.
pub fn is_plain_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(known)
}

/// Why this can be served on no node.
pub fn refusal(uid: &str, serving: &ModelServer) -> Option<String> {
    if !is_plain_name(uid) {
        return Some(format!("metadata.uid {uid:?} cannot name a directory"));
    }
    if serving.port == 0 {
        return Some("servingPort 0 is none; give the port on which the server answers".to_owned());
    }
    let path = serving.health.http_path.as_deref().unwrap_or("/");
    if !path.starts_with('/') || path.bytes().any(|b| !b.is_ascii_graphic()) {
        return Some(format!("health check path {path:?} is no path; write /like/this"));
    }
    let model = serving.model.as_ref()?;
    if !is_plain_name(&model.version) {
        let version = &model.version;
        return Some(format!(
            "version {version:?} cannot name a directory; use letters, digits, '.', '-', '_' and '+', and no '.' first"
        ));
    }
    let directory = Path::new(&model.directory);
    let is_plain = directory.components().collect::<PathBuf>().as_os_str()
        == model.directory.as_str()
        && directory.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !directory.is_absolute() || !is_plain || directory.parent().is_none() {
        let directory = &model.directory;
        return Some(format!("model directory {directory:?} is no absolute path of a container"));
    }
    None
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::container::tests::site;

    /// A server of a version, as `reload` says.
    pub fn serving(version: &str, reload: &str) -> ModelServer {
        serde_json::from_value(json!({
            "name": "m-server-1", "modelName": "m", "image": "i", "port": 8501, "reload": reload,
            "env": {"A": "b"},
            "model": {"version": version, "url": format!("http://h/{version}.tar"), "directory": "/models/m"},
            "health": {"httpPath": "/v/{version}", "periodMs": 1000, "timeoutMs": 500, "startWithinMs": 60_000, "probationMs": 30_000},
        }))
        .unwrap()
    }

    pub fn edition(version: &str, reload: &str) -> Edition {
        Edition::new(&serving(version, reload), 1)
    }

    fn supplied(file: Option<&str>) -> Supplied {
        Supplied { path: "/data/x".into(), file: file.map(str::to_owned) }
    }

    #[test]
    fn a_replaced_server_sees_its_version_alone_and_a_watching_one_the_directory() {
        let mut replaced = edition("4", "replace");
        replaced.serving.args = vec!["--model=/models/m/{version}".into()];
        let spec = replaced.container("uid", Some(&supplied(None)), &site());
        assert_eq!(spec.args, ["--model=/models/m/4"]);
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4");
        assert_eq!(spec.model.unwrap().target, "/models/m/4");
        let spec = replaced.container("uid", Some(&supplied(Some("m.onnx"))), &site());
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4/m.onnx");
        assert_eq!(replaced.health_path().unwrap(), "/v/4");

        let of =
            |version| edition(version, "watch").container("uid", Some(&supplied(None)), &site());
        assert_eq!(of("4").hash(), of("3").hash(), "one container for all versions");
        let mount = of("4").model.unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/serving/uid/1"));
        assert_eq!(
            (mount.target.as_str(), of("4").env["MODEL_URL"].as_str()),
            ("/models/m", "/models/m")
        );
    }

    #[test]
    fn an_image_that_brings_its_model_has_no_mount() {
        let mut edition = edition("4", "replace");
        edition.serving.model = None;
        let spec = edition.container("uid", None, &site());
        assert_eq!((spec.model, spec.env.get("MODEL_URL")), (None, None));
        assert_eq!(edition.version(), "i");
        assert_eq!(refusal("uid", &edition.serving), None);
    }

    #[test]
    fn a_server_follows_to_another_version_and_to_nothing_else() {
        let three = serving("3", "watch");
        let four = serving("4", "watch");
        assert!(can_follow(&three, &four));
        assert!(!can_follow(&three, &three), "a version's directory is never changed");
        let changed = |change: fn(&mut ModelServer)| {
            let mut four = four.clone();
            change(&mut four);
            can_follow(&three, &four)
        };
        assert!(changed(|s| s.health.period_ms = 5) && changed(|s| s.hold = true));
        assert!(
            !changed(|s| s.image.push('2'))
                && !changed(|s| s.port = 5)
                && !changed(|s| s.model = None)
        );
        assert!(!changed(|s| s.reload = ServerUpdateMode::Replace));
        assert!(!changed(|s| s.args.push("{version}".into())));
        assert!(!changed(|s| s.model.as_mut().unwrap().directory.push('2')));
    }

    #[test]
    fn holding_makes_no_other_edition() {
        let held = ModelServer { hold: true, ..serving("4", "watch") };
        assert_eq!(id(&held), id(&serving("4", "watch")));
        assert_ne!(id(&serving("3", "watch")), id(&serving("4", "watch")));
    }

    #[test]
    fn what_would_leave_its_directory_is_refused() {
        let with = |change: &dyn Fn(&mut ModelServer)| {
            let mut serving = serving("4", "watch");
            change(&mut serving);
            refusal("uid", &serving)
        };
        assert_eq!(with(&|_| ()), None);
        for version in ["", ".", "..", "../4", "4/5", ".4", "a b", "a\n"] {
            let why = with(&|s| version.clone_into(&mut s.model.as_mut().unwrap().version));
            assert!(why.is_some_and(|why| why.contains("version")), "{version:?}");
        }
        for directory in ["", "/", "models", "/models/", "/a/../b", "//a"] {
            let why = with(&|s| directory.clone_into(&mut s.model.as_mut().unwrap().directory));
            assert!(why.is_some_and(|why| why.contains("directory")), "{directory:?}");
        }
        assert!(with(&|s| s.port = 0).is_some());
        assert!(with(&|s| s.health.http_path = Some("/a b".into())).is_some());
        assert!(refusal("../uid", &serving("4", "watch")).is_some());
    }
}
