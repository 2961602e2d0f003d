//! Decides which Rules and `RuleEndpoints` are desired, and which to create and delete. Pure.
//! "Managed" objects have the labels of this controller.
//!
//! | existing object | action |
//! |---|---|
//! | none of that name | create, endpoints before Rules: cloudcore soon gives up a Rule without its endpoints |
//! | managed, as desired | none |
//! | managed, different | delete and recreate: an update has no effect in cloudcore |
//! | managed endpoint, different | also recreate all managed Rules: cloudcore cannot stop a Rule without its endpoint |
//! | managed, not desired | delete |
//! | not managed, as desired | none: it is used |
//! | not managed, different | none: the name conflict is reported |

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{ContentHash, NodeName};
use serde_json::{Map, Value, json};

use crate::{token_key::TokenKey, transport::eventbus::EventBusSettings};

/// The topic on the nodes' brokers, below the namespace. Under `user/`: `EventBus` subscribes to
/// that by itself, also when the Rule came while the node was offline.
pub const UPSTREAM_TOPIC: &str = "user/neptune/upstream";

/// The names of the objects that do not depend on a node.
const REST: &str = "neptune-rest";
const BUS: &str = "neptune-bus";
const DOWNSTREAM: &str = "neptune-downstream";

/// The prefix of the name of a node's Rule.
const UPSTREAM: &str = "neptune-upstream-";

/// Maximum length of an object's name.
const MAX_NAME: usize = 253;

/// Names shorter than this are not shortened, so a shortened one cannot be equal to another node's.
const MAX_PLAIN_NAME: usize = 240;

/// Endpoints are first in the order: they are created before Rules and deleted after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// A `RuleEndpoint` of cloudcore: a source or a target.
    Endpoint,
    /// A `Rule` of cloudcore, which connects two endpoints.
    Rule,
}

/// Kind and name of a Rule or `RuleEndpoint`.
pub type RuleKey = (RuleKind, String);

/// A Rule or `RuleEndpoint` as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredRule {
    /// The fields of the spec that must match.
    pub spec: Map<String, Value>,
    /// The node whose Rule it is.
    pub node: Option<NodeName>,
}

/// A Rule or `RuleEndpoint` as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ExistingRule {
    /// The whole spec of the object.
    pub spec: Value,
    /// Whether it has the labels of this controller.
    pub is_managed: bool,
    /// The uid, which distinguishes it from a later one of the same name.
    pub uid: String,
}

/// One request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum RulesStep {
    /// Delete an object that is not as desired.
    Delete {
        /// Kind and name of the object.
        key: RuleKey,
        /// The uid of the object, as a precondition.
        uid: String,
    },
    /// Create a missing object.
    Create {
        /// Kind and name of the object.
        key: RuleKey,
        /// The content to create it with.
        desired: DesiredRule,
    },
}

impl RulesStep {
    /// Returns kind and name of the object.
    pub fn key(&self) -> &RuleKey {
        let (Self::Delete { key, .. } | Self::Create { key, .. }) = self;
        key
    }
}

/// The steps of a plan that failed, or that those prevent. All others are independent of them.
#[derive(Debug, Default)]
pub struct FailedSteps {
    objects: BTreeSet<RuleKey>,
    has_rule_deletion: bool,
    has_endpoint: bool,
}

impl FailedSteps {
    /// Adds a step whose request failed.
    pub fn add(&mut self, step: &RulesStep) {
        let is_endpoint = step.key().0 == RuleKind::Endpoint;
        self.has_endpoint |= is_endpoint;
        self.has_rule_deletion |= !is_endpoint && matches!(step, RulesStep::Delete { .. });
        self.objects.insert(step.key().clone());
    }

    /// Whether a later step would be wrong: an endpoint stays while a Rule needs it, a Rule is
    /// created only if all endpoints exist, and nothing replaces an object that is still there.
    pub fn prevents(&self, step: &RulesStep) -> bool {
        match step {
            RulesStep::Delete { key: (RuleKind::Endpoint, _), .. } => self.has_rule_deletion,
            RulesStep::Delete { .. } => false,
            RulesStep::Create { key, .. } => {
                self.objects.contains(key) || key.0 == RuleKind::Rule && self.has_endpoint
            }
        }
    }
}

/// The requests in their order. Empty if all objects exist as desired.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct RulesPlan {
    /// The requests to send, in this order.
    pub steps: Vec<RulesStep>,
    /// Desired objects whose names are used by others for something else.
    pub conflicts: Vec<RuleKey>,
}

/// The desired objects for these nodes.
pub fn desired_rules(
    settings: &EventBusSettings,
    key: Option<&TokenKey>,
    nodes: impl IntoIterator<Item = NodeName>,
) -> BTreeMap<RuleKey, DesiredRule> {
    let endpoint = |kind: &str| desired(json!({ "ruleEndpointType": kind }), None);
    let downstream = json!({
        "source": REST, "sourceResource": {"path": format!("/{}", settings.prefix)},
        "target": BUS, "targetResource": {"topic": settings.prefix.to_string()},
    });
    let mut desired_rules: BTreeMap<_, _> = [
        ((RuleKind::Endpoint, REST.to_owned()), endpoint("rest")),
        ((RuleKind::Endpoint, BUS.to_owned()), endpoint("eventbus")),
        ((RuleKind::Rule, DOWNSTREAM.to_owned()), desired(downstream, None)),
    ]
    .into();
    for node in nodes {
        let end = key.map(|key| format!("/{}", key.node_token(&node))).unwrap_or_default();
        let url = format!("{}/upstream/{node}{end}", settings.upstream);
        let upstream = json!({
            "source": BUS, "sourceResource": {"topic": UPSTREAM_TOPIC, "node_name": node},
            "target": REST, "targetResource": {"resource": url},
        });
        desired_rules.insert((RuleKind::Rule, name_for(&node)), desired(upstream, Some(node)));
    }
    desired_rules
}

/// The requests after which exactly `desired_rules` exist among the managed objects.
pub fn plan(
    desired_rules: &BTreeMap<RuleKey, DesiredRule>,
    existing: &BTreeMap<RuleKey, ExistingRule>,
) -> RulesPlan {
    let mut plan = RulesPlan::default();
    let is_wrong = |key: &RuleKey, existing: &ExistingRule| {
        desired_rules.get(key).is_none_or(|desired| !desired.is_met(existing))
    };
    let endpoint_is_wrong = existing.iter().any(|(key, existing)| {
        key.0 == RuleKind::Endpoint && existing.is_managed && is_wrong(key, existing)
    });
    let is_deleted = |key: &RuleKey, existing: &ExistingRule| {
        existing.is_managed
            && (is_wrong(key, existing) || (endpoint_is_wrong && key.0 == RuleKind::Rule))
    };
    // Rules before endpoints.
    for (key, existing) in existing.iter().rev().filter(|(key, existing)| is_deleted(key, existing))
    {
        plan.steps.push(RulesStep::Delete { key: key.clone(), uid: existing.uid.clone() });
    }
    // Endpoints before Rules.
    for (key, desired) in desired_rules {
        match existing.get(key) {
            Some(existing) if existing.is_managed && !is_deleted(key, existing) => {}
            Some(existing) if !existing.is_managed => {
                if !desired.is_met(existing) {
                    plan.conflicts.push(key.clone());
                }
            }
            _ => plan.steps.push(RulesStep::Create { key: key.clone(), desired: desired.clone() }),
        }
    }
    plan
}

impl DesiredRule {
    /// Whether an object has the desired fields. Other fields are ignored.
    fn is_met(&self, existing: &ExistingRule) -> bool {
        self.spec.iter().all(|(field, value)| existing.spec.get(field) == Some(value))
    }
}

fn desired(spec: Value, node: Option<NodeName>) -> DesiredRule {
    let Value::Object(spec) = spec else { unreachable!("a spec is an object") };
    DesiredRule { spec, node }
}

/// The name of a node's Rule, shortened with a hash if the node's name is too long.
fn name_for(node: &NodeName) -> String {
    let plain = format!("{UPSTREAM}{node}");
    if plain.len() < MAX_PLAIN_NAME {
        return plain;
    }
    let hash = ContentHash::compute(&node).to_string();
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

    fn settings() -> EventBusSettings {
        EventBusSettings {
            router: "http://cloudcore.kubeedge:9443".parse().unwrap(),
            namespace: "neptune-system".parse().unwrap(),
            upstream: "http://neptune-cloud.neptune-system:8081".parse().unwrap(),
            prefix: "neptune".parse().unwrap(),
            token_file: None,
            fleet_rate: 30,
        }
    }

    fn desired_for(nodes: &[&str]) -> BTreeMap<RuleKey, DesiredRule> {
        desired_rules(&settings(), None, nodes.iter().map(|node| node.parse().unwrap()))
    }

    /// A cluster in which all desired objects exist.
    fn existing_for(
        desired_rules: &BTreeMap<RuleKey, DesiredRule>,
    ) -> BTreeMap<RuleKey, ExistingRule> {
        let existing = |desired: &DesiredRule| ExistingRule {
            spec: Value::Object(desired.spec.clone()),
            is_managed: true,
            uid: "uid".to_owned(),
        };
        desired_rules.iter().map(|(key, desired)| (key.clone(), existing(desired))).collect()
    }

    fn steps(plan: &RulesPlan) -> Vec<String> {
        let text = |step: &RulesStep| match step {
            RulesStep::Delete { key, .. } => format!("- {}", key.1),
            RulesStep::Create { key, .. } => format!("+ {}", key.1),
        };
        plan.steps.iter().map(text).collect()
    }

    fn change(
        existing: &mut BTreeMap<RuleKey, ExistingRule>,
        kind: RuleKind,
        name: &str,
        change: impl Fn(&mut ExistingRule),
    ) {
        change(existing.get_mut(&(kind, name.to_owned())).unwrap());
    }

    #[test]
    fn failed_step_prevents_only_those_that_need_it() {
        let key = |kind, name: &str| (kind, name.to_owned());
        let delete = |kind, name| RulesStep::Delete { key: key(kind, name), uid: String::new() };
        let create = |kind, name| {
            let desired = DesiredRule { spec: Map::new(), node: None };
            RulesStep::Create { key: key(kind, name), desired }
        };
        let later = [
            delete(RuleKind::Rule, "other"),
            delete(RuleKind::Endpoint, "e"),
            create(RuleKind::Endpoint, "e"),
            create(RuleKind::Rule, "a"),
            create(RuleKind::Rule, "other"),
        ];
        for (step, expected) in [
            (create(RuleKind::Rule, "a"), [false, false, false, true, false]),
            (delete(RuleKind::Rule, "a"), [false, true, true, true, true]),
            (create(RuleKind::Endpoint, "e"), [false, false, true, true, true]),
        ] {
            let mut failed = FailedSteps::default();
            failed.add(&step);
            let prevented = later.each_ref().map(|later| {
                let prevented = failed.prevents(later);
                if prevented {
                    failed.add(later);
                }
                prevented
            });
            assert_eq!(prevented, expected, "{step:?}");
        }
    }

    #[test]
    fn desired_objects_have_the_format_of_kubeedge() {
        let desired_rules = desired_for(&["edge0"]);
        let spec =
            |kind, name: &str| Value::Object(desired_rules[&(kind, name.to_owned())].spec.clone());
        assert_eq!(spec(RuleKind::Endpoint, "neptune-rest"), json!({"ruleEndpointType": "rest"}));
        assert_eq!(
            spec(RuleKind::Endpoint, "neptune-bus"),
            json!({"ruleEndpointType": "eventbus"})
        );
        assert_eq!(
            spec(RuleKind::Rule, "neptune-downstream"),
            json!({"source": "neptune-rest", "sourceResource": {"path": "/neptune"},
                   "target": "neptune-bus", "targetResource": {"topic": "neptune"}})
        );
        let upstream = json!({
            "source": "neptune-bus",
            "sourceResource": {"topic": "user/neptune/upstream", "node_name": "edge0"},
            "target": "neptune-rest",
            "targetResource": {"resource": "http://neptune-cloud.neptune-system:8081/upstream/edge0"},
        });
        assert_eq!(spec(RuleKind::Rule, "neptune-upstream-edge0"), upstream);
    }

    #[test]
    fn url_of_a_rule_contains_the_token_of_its_node_and_not_the_key() {
        let (text, node) = ("0123456789abcdef", "edge0".parse().unwrap());
        let key: TokenKey = text.parse().unwrap();
        let token = key.node_token(&node);
        let desired_rules = super::desired_rules(&settings(), Some(&key), [node]);
        let rule = &desired_rules[&(RuleKind::Rule, "neptune-upstream-edge0".to_owned())];
        let url = rule.spec["targetResource"]["resource"].as_str().unwrap();
        assert!(url.ends_with(&format!(":8081/upstream/edge0/{token}")), "{url}");
        assert!(!url.contains(text), "{url}");
    }

    #[test]
    fn missing_objects_are_created_endpoints_first() {
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
        let mut existing = existing_for(&desired_rules);
        change(&mut existing, RuleKind::Endpoint, "neptune-rest", |existing| {
            existing.spec["properties"] = json!({});
        });
        assert_eq!(plan(&desired_rules, &existing), RulesPlan::default());
    }

    #[test]
    fn edited_rule_is_recreated_and_rule_of_a_deleted_node_is_removed() {
        let mut existing = existing_for(&desired_for(&["edge0", "gone"]));
        change(&mut existing, RuleKind::Rule, "neptune-upstream-edge0", |existing| {
            existing.spec["targetResource"]["resource"] = json!("http://elsewhere");
        });
        let plan = plan(&desired_for(&["edge0"]), &existing);
        assert_eq!(
            steps(&plan),
            ["- neptune-upstream-gone", "- neptune-upstream-edge0", "+ neptune-upstream-edge0"]
        );
        assert!(plan.conflicts.is_empty());
    }

    #[test]
    fn endpoint_is_removed_after_all_rules() {
        let desired_rules = desired_for(&["edge0"]);
        let mut existing = existing_for(&desired_rules);
        change(&mut existing, RuleKind::Endpoint, "neptune-rest", |existing| {
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
    fn unmanaged_object_is_never_changed() {
        let desired_rules = desired_for(&["edge0"]);
        let mut existing = existing_for(&desired_rules);
        for existing in existing.values_mut() {
            existing.is_managed = false;
        }
        let foreign = ExistingRule { spec: json!({}), is_managed: false, uid: "uid".to_owned() };
        existing.insert((RuleKind::Rule, "theirs".to_owned()), foreign);
        assert_eq!(
            plan(&desired_rules, &existing),
            RulesPlan::default(),
            "created by a user, it is used"
        );
        change(&mut existing, RuleKind::Rule, "neptune-downstream", |existing| {
            existing.spec["sourceResource"]["path"] = json!("/other");
        });
        let plan = plan(&desired_rules, &existing);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.conflicts, [(RuleKind::Rule, "neptune-downstream".to_owned())]);
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
