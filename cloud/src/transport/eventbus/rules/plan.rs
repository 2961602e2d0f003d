//! Which Rules and `RuleEndpoints` there have to be, and what has to be made or removed so that they are. Pure.
//!
//! | what is there | what follows |
//! |---|---|
//! | nothing of that name | it is made, endpoints before rules: a Rule without its endpoints is soon given up |
//! | ours, and as it should be | nothing |
//! | ours, and different | it is removed and made anew: an edit has no effect in cloudcore |
//! | an endpoint of ours, and different | with it all Rules of ours: without its endpoint cloudcore cannot end a Rule |
//! | ours, and of no node | it is removed |
//! | somebody else's, and as it should be | it serves |
//! | somebody else's, and different | nothing: the name is taken, and that is said |

use std::collections::BTreeMap;

use neptune_wire::{ContentHash, NodeName};
use serde_json::{Map, Value, json};

use crate::transport::eventbus::{Settings, token::Token};

/// The topic on the nodes' brokers, below the namespace. Under `user/`: `EventBus` subscribes to that by itself,
/// also when the Rule came while the node was offline.
pub const UPSTREAM_TOPIC: &str = "user/neptune/upstream";

/// The names of what is there once.
const REST: &str = "neptune-rest";
const BUS: &str = "neptune-bus";
const DOWNSTREAM: &str = "neptune-downstream";

/// What the name of a node's Rule begins with.
const UPSTREAM: &str = "neptune-upstream-";

/// The longest name that an object may have.
const MAX_NAME: usize = 253;

/// Names shorter than this stand as they are, so no shortened one can be another node's.
const MAX_PLAIN_NAME: usize = 240;

/// Endpoints come first: they are made before Rules and removed after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `RuleEndpoint`.
    Endpoint,
    /// `Rule`.
    Rule,
}

/// A kind and a name.
pub type Key = (Kind, String);

/// What an object should be.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredRule {
    /// The spec, as far as it matters.
    pub spec: Map<String, Value>,
    /// The node whose Rule it is.
    pub node: Option<NodeName>,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq)]
pub struct ExistingRule {
    /// The whole spec.
    pub spec: Value,
    /// Whether it has our labels.
    pub is_ours: bool,
    /// Tells it from a later one of the same name.
    pub uid: String,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Remove what is not as it should be.
    Delete {
        /// What.
        key: Key,
        /// And no other one.
        uid: String,
    },
    /// Make what is not there.
    Create {
        /// What.
        key: Key,
        /// How.
        desired: DesiredRule,
    },
}

/// The requests in the order in which they are to be made. Empty when all is as it should be.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct Plan {
    /// The requests.
    pub steps: Vec<Step>,
    /// Names that somebody else has for something else.
    pub taken: Vec<Key>,
}

/// Everything that should be there for these nodes.
pub fn desired_rules(
    settings: &Settings,
    token: Option<&Token>,
    nodes: impl IntoIterator<Item = NodeName>,
) -> BTreeMap<Key, DesiredRule> {
    let endpoint = |kind: &str| desired(json!({ "ruleEndpointType": kind }), None);
    let downstream = json!({
        "source": REST, "sourceResource": {"path": format!("/{}", settings.prefix)},
        "target": BUS, "targetResource": {"topic": settings.prefix.to_string()},
    });
    let mut desired_rules: BTreeMap<_, _> = [
        ((Kind::Endpoint, REST.to_owned()), endpoint("rest")),
        ((Kind::Endpoint, BUS.to_owned()), endpoint("eventbus")),
        ((Kind::Rule, DOWNSTREAM.to_owned()), desired(downstream, None)),
    ]
    .into();
    for node in nodes {
        let end = token.map(|token| format!("/{}", token.as_str())).unwrap_or_default();
        let url = format!("{}/upstream/{node}{end}", settings.upstream);
        let upstream = json!({
            "source": BUS, "sourceResource": {"topic": UPSTREAM_TOPIC, "node_name": node},
            "target": REST, "targetResource": {"resource": url},
        });
        desired_rules.insert((Kind::Rule, name_for(&node)), desired(upstream, Some(node)));
    }
    desired_rules
}

/// What is to be done so that `desired_rules` are there and nothing else of ours.
pub fn plan(
    desired_rules: &BTreeMap<Key, DesiredRule>,
    existing: &BTreeMap<Key, ExistingRule>,
) -> Plan {
    let mut plan = Plan::default();
    let is_wrong = |key: &Key, existing: &ExistingRule| {
        desired_rules.get(key).is_none_or(|desired| !desired.is_met(existing))
    };
    let endpoint_is_wrong = existing.iter().any(|(key, existing)| {
        key.0 == Kind::Endpoint && existing.is_ours && is_wrong(key, existing)
    });
    let goes = |key: &Key, existing: &ExistingRule| {
        existing.is_ours && (is_wrong(key, existing) || (endpoint_is_wrong && key.0 == Kind::Rule))
    };
    // Rules before endpoints.
    for (key, existing) in existing.iter().rev().filter(|(key, existing)| goes(key, existing)) {
        plan.steps.push(Step::Delete { key: key.clone(), uid: existing.uid.clone() });
    }
    // Endpoints before Rules.
    for (key, desired) in desired_rules {
        match existing.get(key) {
            Some(existing) if existing.is_ours && !goes(key, existing) => {}
            Some(existing) if !existing.is_ours => {
                if !desired.is_met(existing) {
                    plan.taken.push(key.clone());
                }
            }
            _ => plan.steps.push(Step::Create { key: key.clone(), desired: desired.clone() }),
        }
    }
    plan
}

impl DesiredRule {
    /// Whether an object does what is wished. Fields of which nothing is wished may be anything.
    fn is_met(&self, existing: &ExistingRule) -> bool {
        self.spec.iter().all(|(field, value)| existing.spec.get(field) == Some(value))
    }
}

fn desired(spec: Value, node: Option<NodeName>) -> DesiredRule {
    let Value::Object(spec) = spec else { unreachable!("a spec is an object") };
    DesiredRule { spec, node }
}

/// A node's name may be as long as an object's.
fn name_for(node: &NodeName) -> String {
    let plain = format!("{UPSTREAM}{node}");
    if plain.len() < MAX_PLAIN_NAME {
        return plain;
    }
    let hash = ContentHash::of(&node).to_string();
    let digits: String = hash.chars().filter(char::is_ascii_hexdigit).rev().collect();
    let head = plain[..200].trim_end_matches(['.', '-']);
    let mut name = format!("{head}-{digits}");
    name.truncate(MAX_NAME);
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn settings() -> Settings {
        Settings {
            router: "http://cloudcore.kubeedge:9443".parse().unwrap(),
            namespace: "neptune-system".parse().unwrap(),
            upstream: "http://neptune-cloud.neptune-system:8081".parse().unwrap(),
            prefix: "neptune".parse().unwrap(),
            token_file: None,
        }
    }

    fn desired_for(nodes: &[&str]) -> BTreeMap<Key, DesiredRule> {
        desired_rules(&settings(), None, nodes.iter().map(|node| node.parse().unwrap()))
    }

    /// A cluster in which all of it was made.
    fn made(desired_rules: &BTreeMap<Key, DesiredRule>) -> BTreeMap<Key, ExistingRule> {
        let existing = |desired: &DesiredRule| ExistingRule {
            spec: Value::Object(desired.spec.clone()),
            is_ours: true,
            uid: "uid".to_owned(),
        };
        desired_rules.iter().map(|(key, desired)| (key.clone(), existing(desired))).collect()
    }

    fn steps(plan: &Plan) -> Vec<String> {
        let text = |step: &Step| match step {
            Step::Delete { key, .. } => format!("- {}", key.1),
            Step::Create { key, .. } => format!("+ {}", key.1),
        };
        plan.steps.iter().map(text).collect()
    }

    fn change(
        existing: &mut BTreeMap<Key, ExistingRule>,
        kind: Kind,
        name: &str,
        change: impl Fn(&mut ExistingRule),
    ) {
        change(existing.get_mut(&(kind, name.to_owned())).unwrap());
    }

    #[test]
    fn the_objects_are_those_that_were_tried_on_a_cluster() {
        let desired_rules = desired_for(&["edge0"]);
        let spec =
            |kind, name: &str| Value::Object(desired_rules[&(kind, name.to_owned())].spec.clone());
        assert_eq!(spec(Kind::Endpoint, "neptune-rest"), json!({"ruleEndpointType": "rest"}));
        assert_eq!(spec(Kind::Endpoint, "neptune-bus"), json!({"ruleEndpointType": "eventbus"}));
        assert_eq!(
            spec(Kind::Rule, "neptune-downstream"),
            json!({"source": "neptune-rest", "sourceResource": {"path": "/neptune"},
                   "target": "neptune-bus", "targetResource": {"topic": "neptune"}})
        );
        let upstream = json!({
            "source": "neptune-bus",
            "sourceResource": {"topic": "user/neptune/upstream", "node_name": "edge0"},
            "target": "neptune-rest",
            "targetResource": {"resource": "http://neptune-cloud.neptune-system:8081/upstream/edge0"},
        });
        assert_eq!(spec(Kind::Rule, "neptune-upstream-edge0"), upstream);
        let token = "0123456789abcdef".parse().unwrap();
        let desired_rules =
            super::desired_rules(&settings(), Some(&token), ["edge0".parse().unwrap()]);
        let rule = &desired_rules[&(Kind::Rule, "neptune-upstream-edge0".to_owned())];
        let url = rule.spec["targetResource"]["resource"].as_str().unwrap();
        assert!(url.ends_with(":8081/upstream/edge0/0123456789abcdef"), "{url}");
    }

    #[test]
    fn what_is_missing_is_made_endpoints_first() {
        let plan = plan(&desired_for(&["edge0", "edge1"]), &BTreeMap::new());
        assert_eq!(
            steps(&plan),
            [
                "+ neptune-bus",
                "+ neptune-rest",
                "+ neptune-downstream",
                "+ neptune-upstream-edge0",
                "+ neptune-upstream-edge1",
            ]
        );
    }

    #[test]
    fn rule_with_additional_fields_is_unchanged() {
        let desired_rules = desired_for(&["edge0"]);
        let mut existing = made(&desired_rules);
        change(&mut existing, Kind::Endpoint, "neptune-rest", |existing| {
            existing.spec["properties"] = json!({});
        });
        assert_eq!(plan(&desired_rules, &existing), Plan::default());
    }

    #[test]
    fn edited_rule_is_recreated_and_rule_of_a_deleted_node_is_removed() {
        let mut existing = made(&desired_for(&["edge0", "gone"]));
        change(&mut existing, Kind::Rule, "neptune-upstream-edge0", |existing| {
            existing.spec["targetResource"]["resource"] = json!("http://elsewhere");
        });
        let plan = plan(&desired_for(&["edge0"]), &existing);
        assert_eq!(
            steps(&plan),
            ["- neptune-upstream-gone", "- neptune-upstream-edge0", "+ neptune-upstream-edge0"]
        );
        assert!(plan.taken.is_empty());
    }

    #[test]
    fn endpoint_is_removed_after_all_rules() {
        let desired_rules = desired_for(&["edge0"]);
        let mut existing = made(&desired_rules);
        change(&mut existing, Kind::Endpoint, "neptune-rest", |existing| {
            existing.spec["ruleEndpointType"] = json!("servicebus");
        });
        assert_eq!(
            steps(&plan(&desired_rules, &existing)),
            [
                "- neptune-upstream-edge0",
                "- neptune-downstream",
                "- neptune-rest",
                "+ neptune-rest",
                "+ neptune-downstream",
                "+ neptune-upstream-edge0",
            ]
        );
    }

    #[test]
    fn what_is_somebody_elses_is_never_touched() {
        let desired_rules = desired_for(&["edge0"]);
        let mut existing = made(&desired_rules);
        for existing in existing.values_mut() {
            existing.is_ours = false;
        }
        let foreign = ExistingRule { spec: json!({}), is_ours: false, uid: "uid".to_owned() };
        existing.insert((Kind::Rule, "theirs".to_owned()), foreign);
        assert_eq!(plan(&desired_rules, &existing), Plan::default(), "made by hand, it serves");
        change(&mut existing, Kind::Rule, "neptune-downstream", |existing| {
            existing.spec["sourceResource"]["path"] = json!("/other");
        });
        let plan = plan(&desired_rules, &existing);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.taken, [(Kind::Rule, "neptune-downstream".to_owned())]);
    }

    #[test]
    fn rule_name_is_valid_and_unique_for_any_node_name() {
        let node = |text: String| text.parse::<NodeName>().unwrap();
        assert_eq!(
            name_for(&node("edge0.example.com".to_owned())),
            "neptune-upstream-edge0.example.com"
        );
        let label = "a".repeat(60);
        let long = format!("{label}.{label}.{label}.{label}");
        let names = ["", "b", "c.d"].map(|end| name_for(&node(format!("{long}{end}"))));
        for name in &names {
            assert!(name.len() <= MAX_NAME && name.parse::<NodeName>().is_ok(), "{name}");
        }
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        // A dot before the hash would begin a label with '-'.
        let dots = format!("{}.{}", "a".repeat(182), "b".repeat(60));
        let name = name_for(&node(dots));
        assert!(name.parse::<NodeName>().is_ok(), "{name}");
    }
}
