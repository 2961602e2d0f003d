//! The MQTT topics. This is the only file that formats or parses one.

use std::{fmt, str::FromStr};

use crate::{NameError, NodeName, ObjectKey, WorkerName, is_topic};

/// The prefix of every topic: one or more topic levels, `neptune` by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPrefix(String);

/// Why a text is not a topic of Neptune.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The text is not a valid topic prefix.
    #[error(
        "topic prefix {0:?} must be one or more levels separated by '/', without '+', '#', '$', white space or empty levels"
    )]
    Prefix(String),
    /// The topic has another prefix or is not of a known form.
    #[error("topic {0:?} is not a Neptune topic")]
    Unknown(String),
    /// The topic is of a known form, but a name in it is not valid.
    #[error("topic {topic:?}: {source}")]
    Name {
        /// The topic that was parsed.
        topic: String,
        /// The name and what is wrong with it.
        source: NameError,
    },
}

impl Default for TopicPrefix {
    fn default() -> Self {
        Self("neptune".to_owned())
    }
}

impl fmt::Display for TopicPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TopicPrefix {
    type Err = TopicError;
    fn from_str(text: &str) -> Result<Self, TopicError> {
        let level = |level: &str| {
            !level.is_empty()
                && !level.contains(|c: char| {
                    matches!(c, '+' | '#' | '$') || c.is_whitespace() || c.is_control()
                })
        };
        if text.split('/').all(level) {
            Ok(Self(text.to_owned()))
        } else {
            Err(TopicError::Prefix(text.to_owned()))
        }
    }
}

impl TopicPrefix {
    /// Returns the topic filter for all messages to one node.
    pub fn downstream_filter(&self, node: &NodeName) -> String {
        format!("{self}/{node}/downstream/#")
    }

    /// Returns the topic filter for all messages from nodes.
    pub fn upstream_filter(&self) -> String {
        format!("{self}/+/upstream/#")
    }

    /// Returns the topic filter for the info messages of all workers.
    pub fn worker_info_filter(&self) -> String {
        format!("{self}/workers/+/info")
    }

    /// Returns the level of a topic that names the sending node, also of an unknown topic and if it
    /// is no valid name. `None` if [`TopicPrefix::upstream_filter`] does not match the topic.
    pub fn sender_of<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let rest = topic.strip_prefix(self.0.as_str())?.strip_prefix('/')?;
        let (node, below) = rest.split_once('/')?;
        (below.split('/').next() == Some("upstream")).then_some(node)
    }

    /// Returns the worker below whose name a topic is: `workers/{worker}/...`.
    pub fn worker_of(&self, topic: &str) -> Option<WorkerName> {
        let rest = topic.strip_prefix(self.0.as_str())?.strip_prefix("/workers/")?;
        let (worker, below) = rest.split_once('/')?;
        if below.is_empty() || !is_topic(below) { None } else { worker.parse().ok() }
    }
}

/// A topic of Neptune, without its prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// `{node}/downstream/{namespace}/{resource}/{name}/insert`: an [`Insert`](crate::Insert),
    /// retained; empty when the object is gone.
    Insert(NodeName, ObjectKey),
    /// `{node}/downstream/{namespace}/{resource}/{name}/delete`: a [`Delete`](crate::Delete), not
    /// retained.
    Delete(NodeName, ObjectKey),
    /// `{node}/downstream/index`: an [`Index`](crate::Index), retained.
    Index(NodeName),
    /// `{node}/upstream/{namespace}/{resource}/{name}/status`: a
    /// [`StatusReport`](crate::StatusReport), retained; empty when the object is gone.
    Status(NodeName, ObjectKey),
    /// `{node}/upstream/node`: a [`NodeReport`](crate::NodeReport), retained, and the last will.
    Node(NodeName),
    /// `{node}/upstream/sync`: a [`Sync`](crate::Sync), not retained.
    Sync(NodeName),
    /// `{node}/downstream/request`: a [`NodeRequest`](crate::NodeRequest), not retained.
    Request(NodeName),
    /// `{node}/upstream/answer`: a [`NodeAnswer`](crate::NodeAnswer), not retained.
    Answer(NodeName),
    /// `workers/{worker}/reload`, on the node's local broker: a
    /// [`ModelReload`](crate::ModelReload), retained; empty when the worker is gone.
    WorkerReload(WorkerName),
    /// `workers/{worker}/info`, on the node's local broker: a [`WorkerInfo`](crate::WorkerInfo).
    WorkerInfo(WorkerName),
}

impl Topic {
    /// Returns the topic as text, with the prefix.
    pub fn under(&self, prefix: &TopicPrefix) -> String {
        match self {
            Self::Insert(node, key) => format!("{prefix}/{node}/downstream/{key}/insert"),
            Self::Delete(node, key) => format!("{prefix}/{node}/downstream/{key}/delete"),
            Self::Index(node) => format!("{prefix}/{node}/downstream/index"),
            Self::Status(node, key) => format!("{prefix}/{node}/upstream/{key}/status"),
            Self::Node(node) => format!("{prefix}/{node}/upstream/node"),
            Self::Sync(node) => format!("{prefix}/{node}/upstream/sync"),
            Self::Request(node) => format!("{prefix}/{node}/downstream/request"),
            Self::Answer(node) => format!("{prefix}/{node}/upstream/answer"),
            Self::WorkerReload(worker) => format!("{prefix}/workers/{worker}/reload"),
            Self::WorkerInfo(worker) => format!("{prefix}/workers/{worker}/info"),
        }
    }

    /// Parses a topic.
    ///
    /// # Errors
    /// [`TopicError`] for a topic with another prefix, of an unknown form, or with an invalid name.
    pub fn parse(prefix: &TopicPrefix, topic: &str) -> Result<Self, TopicError> {
        let unknown = || TopicError::Unknown(topic.to_owned());
        let named = |source| TopicError::Name { topic: topic.to_owned(), source };
        let rest = topic
            .strip_prefix(prefix.0.as_str())
            .and_then(|rest| rest.strip_prefix('/'))
            .ok_or_else(unknown)?;
        let (node, rest) = rest.split_once('/').ok_or_else(unknown)?;
        if node == "workers" {
            let (worker, form): (_, fn(WorkerName) -> Self) = match rest.rsplit_once('/') {
                Some((worker, "info")) => (worker, Self::WorkerInfo),
                Some((worker, "reload")) => (worker, Self::WorkerReload),
                _ => return Err(unknown()),
            };
            return worker.parse().map(form).map_err(named);
        }
        let (direction, rest) = rest.split_once('/').ok_or_else(unknown)?;
        let node: NodeName = node.parse().map_err(named)?;
        let form: fn(NodeName, ObjectKey) -> Self = match (direction, rest) {
            ("downstream", "index") => return Ok(Self::Index(node)),
            ("upstream", "node") => return Ok(Self::Node(node)),
            ("upstream", "sync") => return Ok(Self::Sync(node)),
            ("downstream", "request") => return Ok(Self::Request(node)),
            ("upstream", "answer") => return Ok(Self::Answer(node)),
            ("downstream", _) if rest.ends_with("/insert") => Self::Insert,
            ("downstream", _) if rest.ends_with("/delete") => Self::Delete,
            ("upstream", _) if rest.ends_with("/status") => Self::Status,
            _ => return Err(unknown()),
        };
        let (key, _) = rest.rsplit_once('/').ok_or_else(unknown)?;
        Ok(form(node, key.parse().map_err(named)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn every_topic() -> Vec<Topic> {
        let node: NodeName = "edge0.example.com".parse().unwrap();
        let key: ObjectKey = "default/models/big.model".parse().unwrap();
        vec![
            Topic::Insert(node.clone(), key.clone()),
            Topic::Delete(node.clone(), key.clone()),
            Topic::Index(node.clone()),
            Topic::Status(node.clone(), key),
            Topic::Node(node.clone()),
            Topic::Sync(node.clone()),
            Topic::Request(node.clone()),
            Topic::Answer(node),
            Topic::WorkerReload("edgeworker-1".parse().unwrap()),
            Topic::WorkerInfo("edgeworker-1".parse().unwrap()),
        ]
    }

    #[test]
    fn every_topic_round_trips() {
        for prefix in ["neptune", "neptune-system/user/neptune"] {
            let prefix: TopicPrefix = prefix.parse().unwrap();
            for topic in every_topic() {
                assert_eq!(Topic::parse(&prefix, &topic.under(&prefix)), Ok(topic));
            }
        }
    }

    #[test]
    fn topics_are_as_documented() {
        let text: Vec<_> =
            every_topic().iter().map(|topic| topic.under(&TopicPrefix::default())).collect();
        assert_eq!(
            text,
            [
                "neptune/edge0.example.com/downstream/default/models/big.model/insert",
                "neptune/edge0.example.com/downstream/default/models/big.model/delete",
                "neptune/edge0.example.com/downstream/index",
                "neptune/edge0.example.com/upstream/default/models/big.model/status",
                "neptune/edge0.example.com/upstream/node",
                "neptune/edge0.example.com/upstream/sync",
                "neptune/edge0.example.com/downstream/request",
                "neptune/edge0.example.com/upstream/answer",
                "neptune/workers/edgeworker-1/reload",
                "neptune/workers/edgeworker-1/info",
            ]
        );
    }

    #[test]
    fn filters_are_below_the_prefix() {
        let prefix: TopicPrefix = "site/a".parse().unwrap();
        assert_eq!(prefix.upstream_filter(), "site/a/+/upstream/#");
        assert_eq!(prefix.worker_info_filter(), "site/a/workers/+/info");
        let node = "edge0".parse().unwrap();
        assert_eq!(prefix.downstream_filter(&node), "site/a/edge0/downstream/#");
    }

    #[test]
    fn unknown_topic_is_refused() {
        for topic in [
            "",
            "neptune",
            "neptune/",
            "neptune/edge0",
            "neptunes/edge0/upstream/node",
            "neptune/edge0/upstream/default/pods/x/status",
            "neptune/edge0/upstream/default/models/x/insert",
            "neptune/edge0/downstream/default/models/x",
            "neptune/edge0/downstream/default/models/x/status",
            "neptune/edge0/downstream/insert",
            "neptune/Edge0/upstream/node",
            "neptune/workers/a/b/info",
            "neptune/workers/a/reloads",
            "neptune/workers/upstream/node",
            "neptune//upstream/node",
        ] {
            assert!(
                Topic::parse(&TopicPrefix::default(), topic).is_err(),
                "{topic:?} was accepted"
            );
        }
    }

    #[test]
    fn topic_below_a_worker_names_it() {
        let prefix = TopicPrefix::default();
        for topic in ["neptune/workers/w-1/info", "neptune/workers/w-1/a/b"] {
            assert_eq!(prefix.worker_of(topic), Some("w-1".parse().unwrap()), "{topic}");
        }
        for topic in [
            "neptune/workers/w-1",
            "neptune/workers/w-1/",
            "neptune/workers//info",
            "neptune/workers/+/info",
            "neptune/workers/w-1/#",
            "neptune/workers/W/info",
            "neptunes/workers/w-1/info",
            "neptune/edge0/upstream/node",
        ] {
            assert_eq!(prefix.worker_of(topic), None, "{topic}");
        }
    }

    #[test]
    fn sender_is_the_level_after_the_prefix() {
        for prefix in ["neptune", "fleet/upstream-eu", "upstream", "a/upstream/b"] {
            let parsed: TopicPrefix = prefix.parse().unwrap();
            for node in ["edge0", "upstream", "upstream-1", "Upstream", ""] {
                for below in ["upstream", "upstream/sync", "upstream/a/upstream/b", "upstream/"] {
                    let topic = format!("{prefix}/{node}/{below}");
                    assert_eq!(parsed.sender_of(&topic), Some(node), "{topic}");
                }
                for below in ["downstream/index", "upstreams", "x/upstream/sync"] {
                    let topic = format!("{prefix}/{node}/{below}");
                    assert_eq!(parsed.sender_of(&topic), None, "{topic}");
                }
            }
            assert_eq!(parsed.sender_of("other/edge0/upstream/sync"), None);
            assert_eq!(parsed.sender_of(prefix), None);
        }
    }

    #[test]
    fn invalid_prefix_is_refused() {
        for bad in ["", "/", "a/", "/a", "a//b", "a/+", "#", "$share", "a b"] {
            assert!(bad.parse::<TopicPrefix>().is_err(), "{bad:?} was accepted");
        }
    }
}
