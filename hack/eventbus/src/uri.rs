//! Which rule a request to the router meets, and which topic comes of it: KubeEdge's own way with strings, faults
//! included. No parsing of URIs: cloudcore works on the raw request target.

use std::collections::BTreeMap;

use regex::Regex;

/// What a `{name}` in a rule's path stands for.
const SEGMENT: &str = "[-A-Za-z0-9+&@#%?=~_|!:,.;]+";

/// Where messages for one rule's path go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Door {
    /// The rule's path without slashes at its ends.
    pub path: String,
    /// The rule's target topic.
    pub topic: String,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downward {
    /// The first segment of the target, whatever it is.
    pub node: String,
    /// Where the body goes on that node's broker.
    pub topic: String,
}

/// What a request target comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// No rule's path is in it.
    NoRule,
    /// A rule's path is in it, but not behind a node and a namespace: cloudcore answers an empty 200 (read).
    TooShort,
    Publish(Downward),
}

/// The key under which a rule's path is registered.
pub fn key(namespace: &str, path: &str) -> String {
    format!("/{namespace}/{path}")
}

/// The rule's path as cloudcore keeps it: one slash less at each end.
pub fn normalize(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

/// What a request target comes to. The match is not anchored: the key may be anywhere in the target, and a longer word
/// meets it too. Of several rules cloudcore takes any; here it is the first by name.
pub fn asked(doors: &BTreeMap<String, Door>, target: &str) -> Asked {
    match doors.iter().find(|(key, _)| is_match(key, target)) {
        None => Asked::NoRule,
        Some((_, door)) => downward(door, target).map_or(Asked::TooShort, Asked::Publish),
    }
}

/// The node and the topic; the query stays in the topic.
fn downward(door: &Door, target: &str) -> Option<Downward> {
    let mut parts = target.splitn(4, '/').skip(1);
    let (node, _namespace, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let suffix = rest.strip_prefix(door.path.as_str()).unwrap_or(rest);
    let topic = if suffix.is_empty() {
        door.topic.clone()
    } else {
        let base = door.topic.strip_suffix('/').unwrap_or(&door.topic);
        format!("{base}/{}", suffix.strip_prefix('/').unwrap_or(suffix))
    };
    Some(Downward { node: node.to_owned(), topic })
}

fn pattern(key: &str) -> String {
    let parameter = Regex::new(&format!("\\{{{SEGMENT}\\}}")).expect("a constant pattern");
    format!("{}/?", parameter.replace_all(key, SEGMENT))
}

/// A key that is no pattern meets nothing.
fn is_match(key: &str, target: &str) -> bool {
    Regex::new(&pattern(key)).is_ok_and(|regex| regex.is_match(target))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn doors(paths: &[&str]) -> BTreeMap<String, Door> {
        paths
            .iter()
            .map(|path| {
                let path = normalize(path).to_owned();
                (key("ns", &path), Door { topic: format!("to/{path}"), path })
            })
            .collect()
    }

    fn topic(paths: &[&str], target: &str) -> Option<String> {
        match asked(&doors(paths), target) {
            Asked::Publish(downward) => Some(downward.topic),
            Asked::NoRule | Asked::TooShort => None,
        }
    }

    #[test]
    fn the_suffix_follows_the_target_topic_slashes_included() {
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
    fn the_match_is_a_regular_expression_without_anchors() {
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
    fn too_few_segments_meet_a_rule_but_lead_nowhere() {
        let doors = doors(&["/neptune"]);
        assert_eq!(asked(&doors, "/ns/neptune"), Asked::TooShort);
    }
}
