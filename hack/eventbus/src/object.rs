//! Parsed Rules and RuleEndpoints of the Kubernetes API. `rules.rs` decides their effect.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::{Error, uri};

const API_VERSION: &str = "rules.kubeedge.io/v1";

/// The namespace and the name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// The type of a `RuleEndpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointType {
    Rest,
    Eventbus,
    Servicebus,
}

/// The used fields of a `Rule`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleSpec {
    pub source: String,
    pub source_resource: BTreeMap<String, String>,
    pub target: String,
    pub target_resource: BTreeMap<String, String>,
}

/// The spec of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    Endpoint(EndpointType),
    Rule(RuleSpec),
}

/// An object that was created or updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub key: Key,
    /// Empty for an object that was not read from a cluster.
    pub uid: String,
    pub spec: Spec,
}

/// The effect of a rule with known endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Requests that match the key are published on the node that they name.
    Down { key: String, path_rule: uri::PathRule },
    /// Messages on one topic of one node are posted to a URL.
    Up { node: String, topic: String, url: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Value,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default = "default_namespace")]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSpec {
    rule_endpoint_type: EndpointType,
}

fn default_namespace() -> String {
    "default".to_owned()
}

impl Object {
    /// # Errors
    /// [`Error::Object`] for anything but a `Rule` or `RuleEndpoint` of `rules.kubeedge.io/v1`.
    pub fn parse(value: Value) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| Error::Object(error.to_string());
        let raw: Raw = serde_json::from_value(value).map_err(wrong)?;
        let spec = match (raw.api_version.as_str(), raw.kind.as_str()) {
            (API_VERSION, "Rule") => Spec::Rule(serde_json::from_value(raw.spec).map_err(wrong)?),
            (API_VERSION, "RuleEndpoint") => {
                let spec: EndpointSpec = serde_json::from_value(raw.spec).map_err(wrong)?;
                Spec::Endpoint(spec.rule_endpoint_type)
            }
            (version, kind) => {
                return Err(Error::Object(format!(
                    "{kind} of {version} is neither Rule nor RuleEndpoint of {API_VERSION}"
                )));
            }
        };
        let key = Key { namespace: raw.metadata.namespace, name: raw.metadata.name };
        Ok(Self { key, uid: raw.metadata.uid, spec })
    }
}

impl RuleSpec {
    /// The effect of the rule between endpoints of these types. `None` if cloudcore ignores the
    /// rule, or if the emulator does not support it (servicebus).
    pub fn effect(
        &self,
        namespace: &str,
        source: EndpointType,
        target: EndpointType,
    ) -> Option<Effect> {
        match (source, target) {
            (EndpointType::Rest, EndpointType::Eventbus) => {
                let path = uri::normalize(self.source_resource.get("path")?).to_owned();
                let topic = self.target_resource.get("topic")?.clone();
                Some(Effect::Down {
                    key: uri::key(namespace, &path),
                    path_rule: uri::PathRule { path, topic },
                })
            }
            (EndpointType::Eventbus, EndpointType::Rest) => {
                let topic = self.source_resource.get("topic")?;
                Some(Effect::Up {
                    node: self.source_resource.get("node_name")?.clone(),
                    topic: joined(namespace, topic),
                    url: self.target_resource.get("resource")?.clone(),
                })
            }
            _ => None,
        }
    }
}

/// The topic on the node's broker. Like Go's `path.Join`, it omits empty levels.
fn joined(namespace: &str, topic: &str) -> String {
    let levels = std::iter::once(namespace).chain(topic.split('/'));
    levels.filter(|level| !level.is_empty()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn rule(source: &Value, target: &Value) -> RuleSpec {
        let object = Object::parse(json!({
            "apiVersion": API_VERSION, "kind": "Rule", "metadata": {"namespace": "ns", "name": "r"},
            "spec": {"source": "a", "sourceResource": source, "target": "b", "targetResource": target},
        }));
        match object.unwrap().spec {
            Spec::Rule(spec) => spec,
            Spec::Endpoint(_) => unreachable!("the kind is Rule"),
        }
    }

    #[test]
    fn effect_of_a_rule_depends_on_its_endpoint_types() {
        use EndpointType::{Eventbus, Rest, Servicebus};
        let down = rule(&json!({"path": "/a/"}), &json!({"topic": "t"}));
        let path_rule = uri::PathRule { path: "a".into(), topic: "t".into() };
        assert_eq!(
            down.effect("ns", Rest, Eventbus),
            Some(Effect::Down { key: "/ns/a".into(), path_rule })
        );
        assert_eq!(down.effect("ns", Eventbus, Rest), None);
        assert_eq!(down.effect("ns", Rest, Servicebus), None);
        let up = rule(
            &json!({"topic": "/user/t/", "node_name": "edge0"}),
            &json!({"resource": "http://c"}),
        );
        let expected =
            Effect::Up { node: "edge0".into(), topic: "ns/user/t".into(), url: "http://c".into() };
        assert_eq!(up.effect("ns", Eventbus, Rest), Some(expected));
    }

    #[test]
    fn other_kinds_and_wrong_types_are_refused() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}});
        assert!(Object::parse(pod).unwrap_err().to_string().contains("Pod of v1"));
        let endpoint = json!({
            "apiVersion": API_VERSION, "kind": "RuleEndpoint", "metadata": {"name": "e"},
            "spec": {"ruleEndpointType": "mqtt"},
        });
        assert!(Object::parse(endpoint).unwrap_err().to_string().contains("mqtt"));
    }
}
