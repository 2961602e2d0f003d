//! Validates a model server's specification, independent of the node.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use neptune_wire::ModelServer;

use crate::domain::served_version::is_plain_name;

/// A model server that this node runs, or why its specification is invalid.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedServer {
    pub uid: String,
    pub serving: Box<ModelServer>,
    /// Why the spec is invalid; `None` for a valid one.
    pub refusal: Option<String>,
}

/// Why the spec is invalid on every node.
pub fn refusal(uid: &str, serving: &ModelServer) -> Option<String> {
    if !is_plain_name(uid) {
        return Some(format!("metadata.uid {uid:?} is not a valid directory name"));
    }
    if serving.port == 0 {
        return Some(
            "servingPort must not be 0; set the port on which the model server listens".to_owned(),
        );
    }
    let transformer = serving.transformer.as_deref();
    if transformer.is_some_and(|it| it.server_port == 0 || it.server_port == serving.port) {
        return Some(
            "the server behind a transformer needs a port of its own; set spec.transformer.port to a free port".to_owned(),
        );
    }
    let ports = transformer.and_then(|it| Some((it.proxy.as_ref()?.ports, it.server_port)));
    if ports.is_some_and(|([first, second], server_port)| {
        let all = BTreeSet::from([0, serving.port, server_port, first, second]);
        all.len() < 5
    }) {
        return Some(
            "the transformer behind a proxy needs two ports of its own; set spec.transformer.port to another port".to_owned(),
        );
    }
    let of_transformer = transformer.and_then(|it| it.health_path.as_deref());
    let paths = [serving.health.http_path.as_deref(), of_transformer];
    let is_invalid =
        |path: &&str| !path.starts_with('/') || path.bytes().any(|b| !b.is_ascii_graphic());
    if let Some(path) = paths.into_iter().flatten().find(is_invalid) {
        return Some(format!(
            "invalid health check path {path:?}; use an absolute path such as /healthz"
        ));
    }
    let model = serving.model.as_ref()?;
    if !is_plain_name(&model.version) {
        let version = &model.version;
        return Some(format!(
            "version {version:?} is not a valid directory name; use letters, digits, '.', '-', '_' and '+', without a leading '.'"
        ));
    }
    let directory = Path::new(&model.directory);
    let is_plain = directory.components().collect::<PathBuf>().as_os_str()
        == model.directory.as_str()
        && directory.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !directory.is_absolute() || !is_plain || directory.parent().is_none() {
        let directory = &model.directory;
        return Some(format!(
            "invalid model directory {directory:?}; use an absolute path in the container other than /"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{proxied, serving};

    #[test]
    fn spec_with_an_unsafe_name_or_path_is_invalid() {
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
        assert_eq!(with(&|s| s.model = None), None, "the image contains its model");
        assert!(with(&|s| s.port = 0).is_some());
        assert!(with(&|s| s.health.http_path = Some("/a b".into())).is_some());
        assert!(refusal("../uid", &serving("4", "watch")).is_some());
    }

    #[test]
    fn programs_behind_a_proxy_have_ports_of_their_own() {
        let with = |ports| {
            let mut serving = proxied("t", "4", "watch");
            let transformer = serving.transformer.as_mut().unwrap();
            transformer.proxy.as_mut().unwrap().ports = ports;
            refusal("uid", &serving)
        };
        assert_eq!(with([13_502, 13_503]), None);
        for ports in [[0, 1], [1, 1], [8501, 1], [1, 13_501]] {
            assert!(with(ports).is_some_and(|why| why.contains("two ports")), "{ports:?}");
        }
    }
}
