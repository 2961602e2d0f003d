//! Finds files that use the type of Kubernetes' Nodes. What a node is depends on its `EdgeNode` too, so
//! all others use the view of both.

use crate::{TextFile, extension};

/// The files that need real Nodes: the view and its watch, what has to reach a kubelet or `KubeEdge`,
/// and requests to the API server.
pub const ALLOWED: [&str; 12] = [
    "cloud/fleet/src/transport/eventbus",
    "cloud/fleet/src/transport/mod.rs",
    "cloud/kinds/src/cluster_keys.rs",
    "cloud/kinds/src/join/addresses.rs",
    "cloud/kinds/src/kubernetes/node_view.rs",
    "cloud/kinds/src/kubernetes/nodes.rs",
    "cloud/runtime/src/admission/reviewer.rs",
    "cloud/runtime/src/cache/node_views.rs",
    "cloud/runtime/src/join/request.rs",
    "cloud/src/commands/enroll/mod.rs",
    "cloud/src/commands/status/build.rs",
    "cloud/src/commands/status/mod.rs",
];

/// Whether a file may not use the type.
pub fn is_checked(path: &str) -> bool {
    let is_test = path.ends_with("tests.rs");
    let is_allowed = ALLOWED.iter().any(|allowed| path.starts_with(allowed));
    let is_source = path.starts_with("cloud/") && path.contains("/src/");
    is_source && extension(path) == "rs" && !is_test && !is_allowed
}

/// The lines of a file that name the type.
pub fn imports(file: &TextFile) -> Vec<String> {
    const MODULE: &str = "core::v1::";
    let mut lines = Vec::new();
    for (at, _) in file.text.match_indices(MODULE) {
        let names = &file.text[at + MODULE.len()..];
        let names = match names.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => names.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default(),
        };
        if names.split(',').any(|name| name.trim() == "Node") {
            let number = file.text[..at].matches('\n').count() + 1;
            lines.push(format!("{}:{number}: names Node", file.path));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        imports(&TextFile { path: "a.rs".to_owned(), text: text.to_owned() })
    }

    #[test]
    fn import_of_the_type_is_recognized_in_each_form() {
        for text in [
            "use k8s_openapi::api::core::v1::Node;",
            "use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};",
            "    core::v1::{\n        ConfigMap, Namespace, Node, Pod,\n    },",
            "let api: Api<k8s_openapi::api::core::v1::Node> = all();",
        ] {
            assert_eq!(lines(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn other_types_and_names_are_no_import() {
        for text in [
            "use k8s_openapi::api::core::v1::{NodeStatus, Pod};\nfn a(node: Node) {}",
            "use k8s_openapi::api::core::v1::Pod;\nuse crate::Node;",
            "Change::Node(name)",
        ] {
            assert_eq!(lines(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn sources_of_the_controller_are_checked_but_for_the_allowed_files() {
        for (path, expected) in [
            ("cloud/runtime/src/controllers/runtime/events.rs", true),
            ("cloud/runtime/src/cache/node_views.rs", false),
            ("cloud/fleet/src/transport/eventbus/mod.rs", false),
            ("cloud/runtime/src/controllers/runtime/cost_tests.rs", false),
            ("cloud/tests/nodes.rs", false),
            ("hack/bench/src/controller.rs", false),
        ] {
            assert_eq!(is_checked(path), expected, "{path}");
        }
    }
}
