//! Values of parameters and environment variables that differ per node.

use std::collections::BTreeMap;

use neptune_api::{EnvironmentVariable, KeyValue, WorkerParameter, WorkerVariable};
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    kubernetes::{labels::Labels, node_view::NodeSource},
    reason::Reason,
    worker::environment::environment,
};

/// Maximum number of parameters and variables of a worker that differ per node.
pub const MAX_NODE_VALUES: usize = 16;

/// Maximum length of a value in which the name of the node is replaced, in bytes.
pub const MAX_NODE_VALUE_BYTES: usize = 4096;

/// What is replaced by the name of the node.
const NODE_NAME: &str = "$(NODE_NAME)";

/// The parameters and variables of a worker of which some differ per node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeValues {
    parameters: Vec<WorkerParameter>,
    env: Vec<WorkerVariable>,
}

/// A value that a node lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLabel {
    /// The key of the label.
    pub key: String,
}

/// The parameters with their values as far as they are the same on all nodes.
pub fn common_parameters(parameters: &[WorkerParameter]) -> Vec<KeyValue> {
    let value =
        |it: &WorkerParameter| unescaped(it.value.as_deref().unwrap_or_default(), NODE_NAME);
    parameters.iter().map(|it| KeyValue::new(&it.key, value(it))).collect()
}

/// The variables with their values as far as they are the same on all nodes.
pub fn common_variables(env: &[WorkerVariable]) -> Vec<EnvironmentVariable> {
    let variable = |it: &WorkerVariable| EnvironmentVariable {
        name: it.name.clone(),
        value: unescaped(&it.value, NODE_NAME),
    };
    env.iter().map(variable).collect()
}

/// The finding of a program that runs once for all edge nodes.
pub fn refused(field: &str) -> Finding {
    let message = format!(
        "{field} has values that differ per node ({NODE_NAME} or valueFrom), which only edge workers may have; write the value, or ${NODE_NAME} for the text itself"
    );
    Finding::new(Reason::ValueNotPerNode, message)
}

impl NodeValues {
    /// `None` if all values are the same on all nodes. Checks them otherwise; `field` names the
    /// worker's program.
    pub fn new(
        field: &str,
        parameters: &[WorkerParameter],
        env: &[WorkerVariable],
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let parameter = |it: &WorkerParameter| {
            let name = format!("{field}.parameters: {:?}", it.key);
            (name, it.value.clone(), it.value_from.is_some(), it.value_from.is_some())
        };
        let variable = |it: &WorkerVariable| {
            let value = Some(it.value.clone()).filter(|value| !value.is_empty());
            let source = it.value_from.as_ref();
            let is_from_node = source.is_some_and(|source| source.node_label.is_some());
            (format!("{field}.env: {:?}", it.name), value, source.is_some(), is_from_node)
        };
        let all = parameters.iter().map(parameter).chain(env.iter().map(variable));
        let mut number = 0;
        for (name, value, has_source, is_from_node) in all {
            let has_node_name = value.as_deref().is_some_and(names_node);
            let mut wrong = |why: String| {
                findings.push(Finding::new(Reason::NodeValueInvalid, format!("{name} {why}")));
            };
            if has_source && value.is_some() {
                wrong("has both value and valueFrom; remove one".to_owned());
            }
            if has_node_name && value.is_some_and(|text| text.len() > MAX_NODE_VALUE_BYTES) {
                wrong(format!(
                    "is longer than {MAX_NODE_VALUE_BYTES} bytes; shorten it, or remove {NODE_NAME}"
                ));
            }
            number += usize::from(is_from_node || has_node_name);
        }
        if number > MAX_NODE_VALUES {
            let message = format!(
                "{field} has {number} values that differ per node, more than {MAX_NODE_VALUES}; remove some"
            );
            findings.push(Finding::new(Reason::NodeValueInvalid, message));
        }
        (number > 0).then(|| Self { parameters: parameters.to_vec(), env: env.to_vec() })
    }

    /// The environment of the worker on a node, which replaces that of its program. Variables from
    /// Secrets and `ConfigMap`s are not part of it.
    ///
    /// # Errors
    /// The node lacks a label.
    pub fn environment(
        &self,
        node: &NodeName,
        labels: &Labels,
    ) -> Result<BTreeMap<String, String>, MissingLabel> {
        let value = |text: &str, source: Option<(&String, bool)>| match source {
            None => Ok(Some(unescaped(text, node.as_str()))),
            Some((label, optional)) => match labels.get(label) {
                Some(value) => Ok(Some(value.clone())),
                None if optional => Ok(None),
                None => Err(MissingLabel { key: label.clone() }),
            },
        };
        let mut parameters = Vec::new();
        for WorkerParameter { key, value: text, value_from } in &self.parameters {
            let source = value_from.as_ref().map(|it| (&it.node_label, it.optional));
            let value = value(text.as_deref().unwrap_or_default(), source)?;
            parameters.extend(value.map(|value| KeyValue::new(key, value)));
        }
        let (mut variables, mut of_objects) = (BTreeMap::new(), Vec::new());
        for WorkerVariable { name, value: text, value_from } in &self.env {
            let label = value_from.as_ref().map(|it| (it.node_label.as_ref(), it.optional));
            let source = match label {
                None => None,
                Some((Some(label), optional)) => Some((label, optional)),
                Some((None, _)) => {
                    of_objects.push(name);
                    continue;
                }
            };
            let value = value(text, source)?;
            variables.extend(value.map(|value| (name.clone(), value)));
        }
        let mut environment = environment(&parameters, variables);
        environment.retain(|name, _| !of_objects.contains(&name));
        Ok(environment)
    }
}

impl MissingLabel {
    /// What is wrong on this node, and the remedy. `source` is what can have the label.
    pub fn finding(&self, node: &NodeName, source: Option<NodeSource>) -> Finding {
        let resource = if source == Some(NodeSource::Node) { "node" } else { "edgenode" };
        let key = &self.key;
        let message = format!(
            "label {key} is not set on node {node} (kubectl label {resource} {node} {key}=...)"
        );
        Finding::new(Reason::NodeValueMissing, message)
    }
}

/// Whether a text has the name of the node.
fn names_node(text: &str) -> bool {
    unescaped(text, "") != unescaped(text, "_")
}

/// The text with `node` in place of `$(NODE_NAME)`, and that in place of `$$(NODE_NAME)`.
fn unescaped(text: &str, node: &str) -> String {
    let parts: Vec<_> = text.split(&format!("${NODE_NAME}")).collect();
    parts.into_iter().map(|part| part.replace(NODE_NAME, node)).collect::<Vec<_>>().join(NODE_NAME)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn parsed(parameters: Value, env: Value) -> (Vec<WorkerParameter>, Vec<WorkerVariable>) {
        (serde_json::from_value(parameters).unwrap(), serde_json::from_value(env).unwrap())
    }

    fn values(parameters: Value, env: Value) -> Option<NodeValues> {
        let (parameters, env) = parsed(parameters, env);
        let mut findings = Vec::new();
        let values =
            NodeValues::new("spec.edgeWorker.workerSpec", &parameters, &env, &mut findings);
        assert_eq!(findings, []);
        values
    }

    #[test]
    fn only_the_name_of_the_node_is_replaced() {
        for (text, expected) in [
            ("$(NODE_NAME)", "shop-1"),
            ("rtsp://$(NODE_NAME)/1", "rtsp://shop-1/1"),
            ("$$(NODE_NAME)", "$(NODE_NAME)"),
            ("$$$(NODE_NAME)", "$$(NODE_NAME)"),
            ("$(NODE_NAME)$$(NODE_NAME)", "shop-1$(NODE_NAME)"),
            ("$(OTHER) $HOME $$ $(NODE_NAME", "$(OTHER) $HOME $$ $(NODE_NAME"),
        ] {
            assert_eq!(unescaped(text, "shop-1"), expected, "{text}");
        }
        let (parameters, env) = parsed(
            json!([{"key": "a", "value": "$$(NODE_NAME)"}, {"key": "b", "value": "$(X)"}]),
            json!([{"name": "C", "value": "$$(NODE_NAME)"}]),
        );
        assert_eq!(values(json!(parameters), json!(env)), None);
        let text = [KeyValue::new("a", NODE_NAME), KeyValue::new("b", "$(X)")];
        assert_eq!(common_parameters(&parameters), text);
        assert_eq!(common_variables(&env)[0].value, NODE_NAME);
    }

    #[test]
    fn each_node_gets_its_own_values() {
        let values = values(
            json!([{"key": "line", "valueFrom": {"nodeLabel": "line"}}, {"key": "mode", "value": "x"}]),
            json!([
                {"name": "CAMERA", "value": "rtsp://$(NODE_NAME)"},
                {"name": "ZONE", "valueFrom": {"nodeLabel": "zone", "optional": true}},
            ]),
        );
        let values = values.unwrap();
        let on = |node: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            values.environment(&node.parse().unwrap(), &labels.collect())
        };
        let a = on("shop-1", &[("line", "7"), ("zone", "west")]).unwrap();
        assert_eq!((&*a["CAMERA"], &*a["LINE"], &*a["ZONE"]), ("rtsp://shop-1", "7", "west"));
        assert_eq!(a["PARAMETERS"], r#"[{"key":"line","value":"7"},{"key":"mode","value":"x"}]"#);
        let b = on("shop-2", &[("line", "8")]).unwrap();
        assert_eq!((&*b["CAMERA"], &*b["LINE"], b.get("ZONE")), ("rtsp://shop-2", "8", None));
        let missing = on("shop-3", &[]).unwrap_err();
        for (source, resource) in [
            (Some(NodeSource::Node), "node"),
            (Some(NodeSource::Both), "edgenode"),
            (Some(NodeSource::EdgeNode), "edgenode"),
        ] {
            let finding = missing.finding(&"shop-3".parse().unwrap(), source);
            let command = format!("kubectl label {resource} shop-3 line=...");
            let expected = format!("label line is not set on node shop-3 ({command})");
            assert_eq!((finding.reason, finding.message), (Reason::NodeValueMissing, expected));
        }
    }

    #[test]
    fn contradictory_long_and_too_many_values_are_refused() {
        let findings = |parameters: Value, env: Value| {
            let (parameters, env) = parsed(parameters, env);
            let mut findings = Vec::new();
            NodeValues::new("spec.edgeWorker.workerSpec", &parameters, &env, &mut findings);
            findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>().join("; ")
        };
        let both = json!([{"name": "A", "value": "x", "valueFrom": {"nodeLabel": "a"}}]);
        assert!(findings(json!([]), both).contains("\"A\" has both value and valueFrom"));
        let long = format!("$(NODE_NAME){}", "x".repeat(MAX_NODE_VALUE_BYTES));
        let long = json!([{"key": "a", "value": long}]);
        assert!(findings(long, json!([])).contains("is longer than 4096 bytes"));
        let variable = |number| json!({"name": format!("A{number}"), "value": NODE_NAME});
        let most: Vec<_> = (0..MAX_NODE_VALUES).map(variable).collect();
        assert_eq!(findings(json!([]), json!(most)), "");
        let many: Vec<_> = (0..=MAX_NODE_VALUES).map(variable).collect();
        assert!(findings(json!([]), json!(many)).contains("17 values that differ per node"));
    }
}
