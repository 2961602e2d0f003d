//! Which rules are in force in cloudcore. A rule in force is not the rule in the cluster: updates do nothing, and a rule
//! that could not be put in force is tried again a few times only. Pure: who sends the subscriptions is left to `emulator.rs`.

use std::collections::BTreeMap;

use crate::object::{Effect, EndpointType, Key, Object, RuleSpec, Spec};
use crate::uri::{self, Asked, Door};

/// What an edge node has to be told. The message is lost when the node is not connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub node: String,
    pub topic: String,
    /// Else unsubscribe.
    pub subscribe: bool,
}

/// What came of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It is done; the notices go out, oldest first.
    Done(Vec<Notice>),
    /// The rule is not in force: an endpoint is missing, or it makes no sense. Try [`Rules::put_in_force`] later.
    Waiting(Key, Vec<Notice>),
}

#[derive(Debug)]
struct Stored {
    uid: String,
    spec: RuleSpec,
}

/// Everything that cloudcore's router knows.
#[derive(Debug, Default)]
pub struct Rules {
    /// As the cluster has them: they outlive a restart of cloudcore.
    endpoints: BTreeMap<Key, EndpointType>,
    wanted: BTreeMap<Key, Stored>,
    /// As they were when they came.
    in_force: BTreeMap<Key, RuleSpec>,
    doors: BTreeMap<String, Door>,
    /// By node and topic.
    urls: BTreeMap<(String, String), String>,
}

impl Rules {
    /// An object was created or updated.
    pub fn apply(&mut self, object: Object) -> Outcome {
        let Object { key, uid, spec } = object;
        let spec = match spec {
            Spec::Endpoint(kind) => {
                // Of endpoints, too, only the first version counts.
                self.endpoints.entry(key).or_insert(kind);
                return Outcome::Done(Vec::new());
            }
            Spec::Rule(spec) => spec,
        };
        let mut notices = Vec::new();
        match self.wanted.get_mut(&key) {
            Some(known) if known.uid == uid => {
                known.spec = spec;
                return Outcome::Done(notices);
            }
            // Its deletion was missed: it is another rule with the same name.
            Some(_) => notices.extend(self.delete_rule(&key)),
            None => {}
        }
        self.wanted.insert(key.clone(), Stored { uid, spec });
        match self.put_in_force(&key) {
            Outcome::Done(more) => {
                notices.extend(more);
                Outcome::Done(notices)
            }
            Outcome::Waiting(key, _) => Outcome::Waiting(key, notices),
        }
    }

    /// Puts a rule in force as it is now, if its endpoints are there.
    pub fn put_in_force(&mut self, key: &Key) -> Outcome {
        let Some(spec) = self.wanted.get(key).map(|stored| stored.spec.clone()) else {
            return Outcome::Done(Vec::new());
        };
        let Some(effect) = self.effect(key, &spec) else {
            return Outcome::Waiting(key.clone(), Vec::new());
        };
        self.in_force.insert(key.clone(), spec);
        let notices = match effect {
            Effect::Down { key, door } => {
                self.doors.insert(key, door);
                Vec::new()
            }
            Effect::Up { node, topic, url } => {
                self.urls.insert((node.clone(), topic.clone()), url);
                vec![Notice { node, topic, subscribe: true }]
            }
        };
        Outcome::Done(notices)
    }

    /// The endpoint was deleted. Rules in force stay so.
    pub fn delete_endpoint(&mut self, key: &Key) {
        self.endpoints.remove(key);
    }

    /// The rule was deleted: what it did when it was put in force ends. With its source's endpoint gone, cloudcore
    /// forgets how to end it, and it stays.
    pub fn delete_rule(&mut self, key: &Key) -> Vec<Notice> {
        self.wanted.remove(key);
        let Some(effect) = self.in_force.get(key).and_then(|spec| self.effect(key, spec)) else {
            return Vec::new();
        };
        self.in_force.remove(key);
        match effect {
            Effect::Down { key, .. } => {
                self.doors.remove(&key);
                Vec::new()
            }
            Effect::Up { node, topic, .. } => {
                self.urls.remove(&(node.clone(), topic.clone()));
                vec![Notice { node, topic, subscribe: false }]
            }
        }
    }

    /// Cloudcore starts anew: each rule is in force as it is now. Its notices go nowhere: no node is connected yet.
    pub fn restart(&mut self) {
        self.in_force.clear();
        self.doors.clear();
        self.urls.clear();
        let keys: Vec<_> = self.wanted.keys().cloned().collect();
        for key in keys {
            let _ = self.put_in_force(&key);
        }
    }

    /// Whether the router listens: it begins with the first rule that has a path.
    pub fn has_doors(&self) -> bool {
        !self.doors.is_empty()
    }

    /// What a request target comes to.
    pub fn asked(&self, target: &str) -> Asked {
        uri::asked(&self.doors, target)
    }

    /// Where a message from a node goes.
    pub fn url(&self, node: &str, topic: &str) -> Option<&str> {
        self.urls.get(&(node.to_owned(), topic.to_owned())).map(String::as_str)
    }

    fn effect(&self, key: &Key, spec: &RuleSpec) -> Option<Effect> {
        let kind = |name: &String| {
            let key = Key { namespace: key.namespace.clone(), name: name.clone() };
            self.endpoints.get(&key).copied()
        };
        spec.effect(&key.namespace, kind(&spec.source)?, kind(&spec.target)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "ns".into(), name: name.into() }
    }

    fn endpoint(name: &str) -> Object {
        let kind = if name == "rest" { EndpointType::Rest } else { EndpointType::Eventbus };
        Object { key: key(name), uid: String::new(), spec: Spec::Endpoint(kind) }
    }

    fn up(name: &str, uid: &str, url: &str) -> Object {
        let spec = json!({
            "source": "bus", "sourceResource": {"topic": "user/t", "node_name": "edge0"},
            "target": "rest", "targetResource": {"resource": url},
        });
        Object {
            key: key(name),
            uid: uid.into(),
            spec: Spec::Rule(serde_json::from_value(spec).unwrap()),
        }
    }

    fn notice(subscribe: bool) -> Notice {
        Notice { node: "edge0".into(), topic: "ns/user/t".into(), subscribe }
    }

    fn with_endpoints() -> Rules {
        let mut rules = Rules::default();
        for name in ["rest", "bus"] {
            assert_eq!(rules.apply(endpoint(name)), Outcome::Done(vec![]));
        }
        rules
    }

    #[test]
    fn an_updated_rule_keeps_its_old_effect_until_it_is_deleted_and_created_again() {
        let mut rules = with_endpoints();
        assert_eq!(rules.apply(up("r", "1", "http://old")), Outcome::Done(vec![notice(true)]));
        assert_eq!(rules.apply(up("r", "1", "http://new")), Outcome::Done(vec![]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://old"));
        assert_eq!(rules.delete_rule(&key("r")), [notice(false)]);
        assert_eq!(rules.url("edge0", "ns/user/t"), None);
        assert_eq!(rules.apply(up("r", "2", "http://new")), Outcome::Done(vec![notice(true)]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn another_uid_means_deleted_and_created_again() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://old"));
        let outcome = rules.apply(up("r", "2", "http://new"));
        assert_eq!(outcome, Outcome::Done(vec![notice(false), notice(true)]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn a_restarted_cloudcore_takes_rules_as_they_are_now() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://old"));
        let _ = rules.apply(up("r", "1", "http://new"));
        rules.restart();
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn a_rule_waits_for_its_endpoints() {
        let mut rules = Rules::default();
        let _ = rules.apply(endpoint("bus"));
        assert_eq!(rules.apply(up("r", "1", "http://c")), Outcome::Waiting(key("r"), vec![]));
        let _ = rules.apply(endpoint("rest"));
        assert_eq!(rules.put_in_force(&key("r")), Outcome::Done(vec![notice(true)]));
    }

    #[test]
    fn a_rule_whose_endpoint_was_deleted_first_stays_in_force() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://c"));
        rules.delete_endpoint(&key("bus"));
        assert_eq!(rules.delete_rule(&key("r")), []);
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://c"));
    }
}
