//! Decides whether a model server's specification can work on any node. Pure.

use std::path::{Component, Path, PathBuf};

use neptune_wire::ModelServer;

use crate::domain::served_version::is_plain_name;

/// A model server as this node has to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedServer {
    pub uid: String,
    pub serving: Box<ModelServer>,
    /// Why it cannot be served before the spec is changed.
    pub refusal: Option<String>,
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::serving;

    #[test]
    fn path_traversal_in_spec_is_refused() {
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
        assert_eq!(with(&|s| s.model = None), None, "the image brings its model");
        assert!(with(&|s| s.port = 0).is_some());
        assert!(with(&|s| s.health.http_path = Some("/a b".into())).is_some());
        assert!(refusal("../uid", &serving("4", "watch")).is_some());
    }
}
