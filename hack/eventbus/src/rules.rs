//! The rules that are active in cloudcore. They may differ from the rules in the cluster: updates
//! have no effect, and a rule that could not be activated is retried only a few times. Pure:
//! `cloudcore.rs` sends the subscriptions.

use std::collections::BTreeMap;

use crate::object::{Effect, EndpointType, Key, Object, RuleSpec, Spec};
use crate::uri::{self, PathRule, Route};

/// A subscription change for an edge node. It is lost if the node is not connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionChange {
    pub node: String,
    pub topic: String,
    /// Whether the node subscribes; otherwise it unsubscribes.
    pub subscribe: bool,
}

/// The result of an applied object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Done. The changes are sent in this order.
    Done(Vec<SubscriptionChange>),
    /// The rule is not active: an endpoint is missing or has the wrong type. Call
    /// [`Rules::activate`] later.
    Waiting(Key, Vec<SubscriptionChange>),
}

#[derive(Debug)]
struct Stored {
    uid: String,
    spec: RuleSpec,
}

/// The state of cloudcore's router.
#[derive(Debug, Default)]
pub struct Rules {
    /// The endpoints in the cluster, which survive a restart of cloudcore.
    endpoints: BTreeMap<Key, EndpointType>,
    wanted: BTreeMap<Key, Stored>,
    /// The active rules, as they were when they were activated.
    active: BTreeMap<Key, RuleSpec>,
    paths: BTreeMap<String, PathRule>,
    /// URLs by node and topic.
    urls: BTreeMap<(String, String), String>,
}

impl Rules {
    /// An object was created or updated.
    pub fn apply(&mut self, object: Object) -> Outcome {
        let Object { key, uid, spec } = object;
        let spec = match spec {
            Spec::Endpoint(kind) => {
                // Updates of endpoints have no effect, either.
                self.endpoints.entry(key).or_insert(kind);
                return Outcome::Done(Vec::new());
            }
            Spec::Rule(spec) => spec,
        };
        let mut changes = Vec::new();
        match self.wanted.get_mut(&key) {
            Some(known) if known.uid == uid => {
                known.spec = spec;
                return Outcome::Done(changes);
            }
            // A deletion was missed: this is another rule of the same name.
            Some(_) => changes.extend(self.delete_rule(&key)),
            None => {}
        }
        self.wanted.insert(key.clone(), Stored { uid, spec });
        match self.activate(&key) {
            Outcome::Done(more) => {
                changes.extend(more);
                Outcome::Done(changes)
            }
            Outcome::Waiting(key, _) => Outcome::Waiting(key, changes),
        }
    }

    /// Activates the current version of a rule if its endpoints exist.
    pub fn activate(&mut self, key: &Key) -> Outcome {
        let Some(spec) = self.wanted.get(key).map(|stored| stored.spec.clone()) else {
            return Outcome::Done(Vec::new());
        };
        let Some(effect) = self.effect(key, &spec) else {
            return Outcome::Waiting(key.clone(), Vec::new());
        };
        self.active.insert(key.clone(), spec);
        let changes = match effect {
            Effect::Down { key, path_rule } => {
                self.paths.insert(key, path_rule);
                Vec::new()
            }
            Effect::Up { node, topic, url } => {
                self.urls.insert((node.clone(), topic.clone()), url);
                vec![SubscriptionChange { node, topic, subscribe: true }]
            }
        };
        Outcome::Done(changes)
    }

    /// Deletes an endpoint. Active rules stay active.
    pub fn delete_endpoint(&mut self, key: &Key) {
        self.endpoints.remove(key);
    }

    /// Deletes a rule and ends the effect that it had when it was activated. If its endpoint was
    /// deleted before, cloudcore cannot end it, and the effect stays.
    pub fn delete_rule(&mut self, key: &Key) -> Vec<SubscriptionChange> {
        self.wanted.remove(key);
        let Some(effect) = self.active.get(key).and_then(|spec| self.effect(key, spec)) else {
            return Vec::new();
        };
        self.active.remove(key);
        match effect {
            Effect::Down { key, .. } => {
                self.paths.remove(&key);
                Vec::new()
            }
            Effect::Up { node, topic, .. } => {
                self.urls.remove(&(node.clone(), topic.clone()));
                vec![SubscriptionChange { node, topic, subscribe: false }]
            }
        }
    }

    /// Restarts cloudcore, which activates the current version of each rule. Subscriptions are
    /// lost: no node is connected.
    pub fn restart(&mut self) {
        self.active.clear();
        self.paths.clear();
        self.urls.clear();
        let keys: Vec<_> = self.wanted.keys().cloned().collect();
        for key in keys {
            let _ = self.activate(&key);
        }
    }

    /// Whether a rule with a path is active: the router listens from the first one on.
    pub fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// The route of a request target.
    pub fn route(&self, target: &str) -> Route {
        uri::route(&self.paths, target)
    }

    /// The URL for a message from a node.
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

    fn change(subscribe: bool) -> SubscriptionChange {
        SubscriptionChange { node: "edge0".into(), topic: "ns/user/t".into(), subscribe }
    }

    fn with_endpoints() -> Rules {
        let mut rules = Rules::default();
        for name in ["rest", "bus"] {
            assert_eq!(rules.apply(endpoint(name)), Outcome::Done(vec![]));
        }
        rules
    }

    #[test]
    fn updated_rule_keeps_its_old_effect_until_recreated() {
        let mut rules = with_endpoints();
        assert_eq!(rules.apply(up("r", "1", "http://old")), Outcome::Done(vec![change(true)]));
        assert_eq!(rules.apply(up("r", "1", "http://new")), Outcome::Done(vec![]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://old"));
        assert_eq!(rules.delete_rule(&key("r")), [change(false)]);
        assert_eq!(rules.url("edge0", "ns/user/t"), None);
        assert_eq!(rules.apply(up("r", "2", "http://new")), Outcome::Done(vec![change(true)]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn another_uid_means_a_recreated_rule() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://old"));
        let outcome = rules.apply(up("r", "2", "http://new"));
        assert_eq!(outcome, Outcome::Done(vec![change(false), change(true)]));
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn restarted_cloudcore_uses_current_rules() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://old"));
        let _ = rules.apply(up("r", "1", "http://new"));
        rules.restart();
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://new"));
    }

    #[test]
    fn rule_waits_for_its_endpoints() {
        let mut rules = Rules::default();
        let _ = rules.apply(endpoint("bus"));
        assert_eq!(rules.apply(up("r", "1", "http://c")), Outcome::Waiting(key("r"), vec![]));
        let _ = rules.apply(endpoint("rest"));
        assert_eq!(rules.activate(&key("r")), Outcome::Done(vec![change(true)]));
    }

    #[test]
    fn rule_whose_endpoint_was_deleted_first_stays_active() {
        let mut rules = with_endpoints();
        let _ = rules.apply(up("r", "1", "http://c"));
        rules.delete_endpoint(&key("bus"));
        assert_eq!(rules.delete_rule(&key("r")), []);
        assert_eq!(rules.url("edge0", "ns/user/t"), Some("http://c"));
    }
}
