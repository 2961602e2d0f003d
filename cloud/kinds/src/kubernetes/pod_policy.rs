//! What the operator allows in Pods: host paths and control-plane nodes. An agent has its own rules
//! for the paths of its node.

use std::path::{Component, Path, PathBuf};

use crate::{
    finding::Finding,
    kubernetes::{
        labels::{CONTROL_PLANE_LABELS, RUNTIME_LABEL},
        node_view::NodeView,
    },
    reason::Reason,
};

/// What the operator allows in Pods. By default nothing of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPolicy {
    /// Directories below which Pods may mount host paths. Empty: no host paths.
    pub host_paths: Vec<PathBuf>,
    /// Whether Pods may run on control-plane nodes.
    pub allow_control_plane: bool,
}

impl PodPolicy {
    /// The finding if `field` mounts a path of a node that the operator does not allow.
    ///
    /// The controller cannot resolve symbolic links on a node. Therefore only administrators may
    /// be able to write to an allowed directory.
    pub fn check_host_path(&self, field: &str, given: &str) -> Option<Finding> {
        let plain = |path: &Path| {
            path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        };
        let path = Path::new(given);
        let is_allowed = plain(path) && self.host_paths.iter().any(|dir| path.starts_with(dir));
        (!is_allowed).then(|| {
            let allowed = match &self.host_paths[..] {
                [] => "none is allowed".to_owned(),
                dirs => {
                    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                    format!("allowed are {}", dirs.join(", "))
                }
            };
            let message = format!(
                "{field}: a Pod may not mount {given:?} of its node ({allowed}); use a model at a URL and an image with the program, label the node {}={} to use its agent, or start neptune-cloud with --allow-host-path",
                RUNTIME_LABEL.0, RUNTIME_LABEL.1
            );
            Finding::new(Reason::HostPathNotAllowed, message)
        })
    }

    /// The finding if `field` names a control-plane node and the operator does not allow it.
    pub fn check_node(&self, field: &str, node: &NodeView) -> Option<Finding> {
        let is_control_plane = CONTROL_PLANE_LABELS.iter().any(|name| node.label(name).is_some());
        (is_control_plane && !self.allow_control_plane).then(|| {
            let name = &node.name;
            let message = format!(
                "{field}: node {name} is a control-plane node, on which no Pod may run; use another node, or start neptune-cloud with --allow-control-plane"
            );
            Finding::new(Reason::NodeIsControlPlane, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_an_allowed_directory_are_mounted() {
        let allows = |dirs: &[&str], path: &str| {
            let host_paths = dirs.iter().map(PathBuf::from).collect();
            let policy = PodPolicy { host_paths, ..PodPolicy::default() };
            policy.check_host_path("spec.x", path).is_none()
        };
        assert!(!allows(&[], "/code"), "none by default");
        for (path, allowed) in [
            ("/code", true),
            ("/code/a/b", true),
            ("//code/a", true),
            ("/code/./a", true),
            ("/code/../run", false),
            ("/codes", false),
            ("/run", false),
            ("/", false),
            ("code", false),
            ("", false),
        ] {
            assert_eq!(allows(&["/data", "/code"], path), allowed, "{path}");
        }
    }

    #[test]
    fn finding_names_the_field_and_the_remedy() {
        let finding = PodPolicy::default().check_host_path("spec.x", "/run");
        let message = finding.map(|finding| finding.message).unwrap_or_default();
        assert!(message.starts_with("spec.x: a Pod may not mount \"/run\""), "{message}");
        assert!(message.contains("--allow-host-path"), "{message}");
    }
}
