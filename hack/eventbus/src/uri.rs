//! The rule that matches a request to the router, and the topic that results: KubeEdge's string
//! operations with their faults. URIs are not parsed: cloudcore uses the raw request target.

use std::collections::BTreeMap;

use regex::Regex;

/// The pattern of a `{name}` in a rule's path.
const SEGMENT: &str = "[-A-Za-z0-9+&@#%?=~_|!:,.;]+";

/// A rule with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRule {
    /// The path without slashes at its ends.
    pub path: String,
    /// The topic to which messages are published.
    pub topic: String,
}

/// The node and topic of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downward {
    /// The first segment of the target, not validated.
    pub node: String,
    /// The topic on that node's broker.
    pub topic: String,
}

/// The route of a request target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// No rule matches the request.
    NoRule,
    /// A rule matches without a node and a namespace before it: cloudcore answers an empty 200
    /// (from its source).
    TooShort,
    Publish(Downward),
}

/// The key under which a rule's path is registered.
pub fn key(namespace: &str, path: &str) -> String {
    format!("/{namespace}/{path}")
}

/// The rule's path as cloudcore stores it: without one slash at each end.
pub fn normalize(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

/// The route of a request target. The match is not anchored: the key may be anywhere in the target,
/// also as a part of a longer word. If several rules match, cloudcore takes any; the emulator takes
/// the first by name.
pub fn route(path_rules: &BTreeMap<String, PathRule>, target: &str) -> Route {
    match path_rules.iter().find(|(key, _)| is_match(key, target)) {
        None => Route::NoRule,
        Some((_, path_rule)) => downward(path_rule, target).map_or(Route::TooShort, Route::Publish),
    }
}

/// The node and the topic. The query is part of the topic.
fn downward(path_rule: &PathRule, target: &str) -> Option<Downward> {
    let mut parts = target.splitn(4, '/').skip(1);
    let (node, _namespace, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let suffix = rest.strip_prefix(path_rule.path.as_str()).unwrap_or(rest);
    let topic = if suffix.is_empty() {
        path_rule.topic.clone()
    } else {
        let base = path_rule.topic.strip_suffix('/').unwrap_or(&path_rule.topic);
        format!("{base}/{}", suffix.strip_prefix('/').unwrap_or(suffix))
    };
    Some(Downward { node: node.to_owned(), topic })
}

fn pattern(key: &str) -> String {
    let parameter = Regex::new(&format!("\\{{{SEGMENT}\\}}")).expect("a constant pattern");
    format!("{}/?", parameter.replace_all(key, SEGMENT))
}

/// A key that is not a valid pattern matches nothing.
fn is_match(key: &str, target: &str) -> bool {
    Regex::new(&pattern(key)).is_ok_and(|regex| regex.is_match(target))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn path_rules(paths: &[&str]) -> BTreeMap<String, PathRule> {
        paths
            .iter()
            .map(|path| {
                let path = normalize(path).to_owned();
                (key("ns", &path), PathRule { topic: format!("to/{path}"), path })
            })
            .collect()
    }

    fn topic(paths: &[&str], target: &str) -> Option<String> {
        match route(&path_rules(paths), target) {
            Route::Publish(downward) => Some(downward.topic),
            Route::NoRule | Route::TooShort => None,
        }
    }

    #[test]
    fn suffix_is_appended_to_the_target_topic() {
        let cases = [
            ("/edge0/ns/neptune", "to/neptune"),
            ("/edge0/ns/neptune/", "to/neptune/"),
            ("/edge0/ns/neptune/a", "to/neptune/a"),
            ("/edge0/ns/neptune/a/b//c", "to/neptune/a/b//c"),
            ("/edge0/ns/neptune/a?b=c", "to/neptune/a?b=c"),
            ("/edge0/ns/neptune?b=c", "to/neptune/?b=c"),
        ];
        for (target, expected) in cases {
            assert_eq!(topic(&["/neptune"], target).as_deref(), Some(expected), "{target}");
        }
    }

    #[test]
    fn rule_paths_match_as_regular_expressions_without_anchors() {
        let cases = [
            ("/edge0/ns/neptunefoo", Some("to/neptune/foo")),
            ("/edge0/ns/neptunefoo/a", Some("to/neptune/foo/a")),
            ("/edge0/other/ns/neptune/a", Some("to/neptune/ns/neptune/a")),
            ("/edge0/ns/nept", None),
            ("/edge0/other/neptune", None),
        ];
        for (target, expected) in cases {
            assert_eq!(topic(&["/neptune"], target).as_deref(), expected, "{target}");
        }
        assert_eq!(topic(&["/a.c"], "/edge0/ns/abc/x").as_deref(), Some("to/a.c/abc/x"));
        assert_eq!(topic(&["/a{id}c"], "/edge0/ns/a-17-c"), Some("to/a{id}c/a-17-c".into()));
    }

    #[test]
    fn too_few_segments_match_a_rule_without_a_route() {
        let path_rules = path_rules(&["/neptune"]);
        assert_eq!(route(&path_rules, "/ns/neptune"), Route::TooShort);
    }
}
